"""Runs a command of `mailsvc`: starts a reactor, opens the database, prints errors as messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click
from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.logger import Logger, globalLogBeginner

from mailsvc.accounts.onboarding import Customers, Refused
from mailsvc.clock import prepare
from mailsvc.monitoring import logs
from mailsvc.monitoring.failures import explain
from mailsvc.runtime.database import Database, open_database
from mailsvc.runtime.lifecycle import Opened
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings

log = Logger()

Work = Callable[[Customers], Awaitable[None]]
DatabaseWork = Callable[[Database, Any], Awaitable[None]]

OUTPUT_CLOSED = 141  # what a shell reports of a program that SIGPIPE ended


def run(settings: Settings, work: Work) -> None:
    """Runs `work` with the customers' tables."""
    run_with_database(settings, lambda database, reactor: work(Customers.of(database, reactor, settings)))


def run_with_database(settings: Settings, work: DatabaseWork, *, migrating: bool = True) -> None:
    """Runs `work` with the open database and the reactor."""
    start(settings, lambda reactor: with_database(reactor, settings, work, migrating=migrating))


def start(settings: Settings, work: Callable[[Any], Awaitable[None]]) -> None:
    """Runs `work` with the reactor, without a database. Errors that are expected become messages."""
    # Standard output is for results: logs go to the log file or to standard error.
    try:
        sink = logs.observer(settings.log) if settings.log.file else logs.Observer(sys.stderr, form="text", level="warn")
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    globalLogBeginner.beginLoggingTo([sink], redirectStandardIO=False, discardBuffer=True)
    react(lambda reactor: Deferred.fromCoroutine(_reported(work, reactor)))


async def with_database(reactor: Any, settings: Settings, work: DatabaseWork, *, migrating: bool = True, checking: bool = True) -> None:
    """Opens the database for `work`, and closes it. With `checking` False, also if the encryption keys are wrong."""
    opened = Opened()
    prepare(reactor, settings.database.clock_tolerance)
    try:
        await work(await open_database(reactor, settings, opened, size=1, migrating=migrating, checking=checking), reactor)
    finally:
        await opened.close()


async def _reported(work: Callable[[Any], Awaitable[None]], reactor: Any) -> None:
    try:
        await work(reactor)
    except BrokenPipeError:
        # Whoever read standard output has enough (`| head`). What is still in the buffer has to go somewhere when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(OUTPUT_CLOSED) from None
    except Exception as error:
        message = str(error) if isinstance(error, Refused | click.ClickException) else explain(error)
        if message is None:
            log.failure("The command failed.")
            message = f"{type(error).__name__}: {error}"
        lines = message.splitlines() if isinstance(error, Refused) else [message]
        click.echo("mailsvc: " + "\n  ".join(" ".join(line.split()) for line in lines), err=True)
        raise SystemExit(1) from None
