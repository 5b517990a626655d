"""How a command of `mailsvc` does its work: the tables open, a reactor of its own, errors as sentences."""

from __future__ import annotations

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
from mailsvc.settings.schema import Settings

log = Logger()

Work = Callable[[Customers], Awaitable[None]]
Bare = Callable[[Database, Any], Awaitable[None]]


def run(settings: Settings, work: Work) -> None:
    """`work` with the tables of customers, in a reactor of its own."""
    run_with_database(settings, lambda database, reactor: work(Customers.of(database, reactor, settings)))


def run_with_database(settings: Settings, work: Bare, *, migrating: bool = True, checking: bool = True) -> None:
    """`work` with the memory open and the reactor. `checking` False: even if the encryption keys are wrong."""
    # What is logged goes to the log file, or else to standard error: standard output is for results.
    sink = logs.observer(settings.log) if settings.log.file else logs.Observer(sys.stderr, form="text", level="warn")
    globalLogBeginner.beginLoggingTo([sink], redirectStandardIO=False, discardBuffer=True)
    react(lambda reactor: Deferred.fromCoroutine(_with_tables(reactor, settings, work, migrating, checking)))


async def _with_tables(reactor: Any, settings: Settings, work: Bare, migrating: bool, checking: bool) -> None:
    opened = Opened()
    prepare(reactor, settings.database.clock_tolerance)
    try:
        database = await open_database(reactor, settings, opened, size=1, migrating=migrating, checking=checking)
        await work(database, reactor)
    except Exception as error:
        sentence = str(error) if isinstance(error, Refused) else explain(error)
        if sentence is None:
            log.failure("the command failed")
            sentence = f"{type(error).__name__}: {error}"
        click.echo(f"mailsvc: {' '.join(sentence.split())}", err=True)
        raise SystemExit(1) from None
    finally:
        await opened.close()
