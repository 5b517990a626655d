"""The `mailsvc` command: what an operator does by hand. Sentences go to standard error, results to standard output.

Exit status: 0 done, 1 not done (and a sentence why), 2 wrongly called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.logger import Logger, globalLogBeginner

from mailsvc import settings as settings_
from mailsvc.configfile import SettingsError
from mailsvc.domains.records import in_zone_file, to_publish
from mailsvc.lifespan import Opened
from mailsvc.memory import open_memory
from mailsvc.onboarding import Customers, Refused
from mailsvc.settings import Settings
from mailsvc.watch import logs
from mailsvc.watch.failures import explain

log = Logger()

Work = Callable[[Customers], Awaitable[None]]


@click.group()
@click.option("--config", type=click.Path(path_type=Path), envvar="MAILSVC_CONFIG", default=Path("etc/mailsvc.toml"), show_default=True)
@click.version_option(package_name="mailsvc")
@click.pass_context
def main(context: click.Context, config: Path) -> None:
    """Accounts, API keys and sending domains of a mailsvc. The daemon itself is started by: twistd mailsvc --config FILE"""
    try:
        context.obj = settings_.load(config)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None


@main.group()
def account() -> None:
    """Customers."""


@account.command("create")
@click.argument("name")
@click.pass_obj
def account_create(settings: Settings, name: str) -> None:
    """Make an account; prints its id."""

    async def work(customers: Customers) -> None:
        made = await customers.accounts.create(name)
        click.echo(made.id)

    _run(settings, work)


@main.group()
def key() -> None:
    """API keys."""


@key.command("create")
@click.option("--account", required=True, help="Its id, number or name.")
@click.option("--permission", type=click.Choice(["full_access", "sending_access"]), default="full_access", show_default=True)
@click.option("--domain", help="The only domain that it may send from.")
@click.option("--name", default="by the operator", show_default=True)
@click.pass_obj
def key_create(settings: Settings, account: str, permission: Any, domain: str | None, name: str) -> None:
    """Make an API key; prints it, this once."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        only = await customers.domain(owner, domain) if domain is not None else None
        _, token = await customers.keys.create(owner.id, name, permission, only.id if only is not None else None)
        click.echo(token)

    _run(settings, work)


@main.group()
def domain() -> None:
    """Sending domains."""


@domain.command("add")
@click.argument("name")
@click.option("--account", required=True, help="Its id, number or name.")
@click.pass_obj
def domain_add(settings: Settings, name: str, account: str) -> None:
    """Make a sending domain and its DKIM keys; prints the DNS records to publish."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        added, pairs = await customers.add_domain(owner.id, name, settings.region)
        for record in to_publish(added.name, added.return_path, settings.delivery.ehlo_name or "localhost", pairs):
            click.echo(in_zone_file(record))

    _run(settings, work)


@domain.command("trust")
@click.argument("name")
@click.option("--account", required=True, help="Its id, number or name.")
@click.pass_obj
def domain_trust(settings: Settings, name: str, account: str) -> None:
    """Let a domain send without its DNS records, on your word. Needs domains.allow_trust."""
    if not settings.domains.allow_trust:
        raise click.ClickException("The setting domains.allow_trust is false; domains are verified by their DNS records.")

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        trusted = await customers.domain(owner, name)
        await customers.domains.trust(owner.id, trusted.name)
        log.warn("{domain} is trusted without DNS records, by the word of {who}", domain=trusted.name, who=f"user {os.getuid()}")
        click.echo(f"{trusted.name} may send.")

    _run(settings, work)


def _run(settings: Settings, work: Work) -> None:
    """`work` with the tables open, in a reactor of its own."""
    # What is logged goes to the log file, or else to standard error: standard output is for results.
    sink = logs.observer(settings.log) if settings.log.file else logs.Observer(sys.stderr, form="text", level="warn")
    globalLogBeginner.beginLoggingTo([sink], redirectStandardIO=False, discardBuffer=True)
    react(lambda reactor: Deferred.fromCoroutine(_with_tables(reactor, settings, work)))


async def _with_tables(reactor: Any, settings: Settings, work: Work) -> None:
    opened = Opened()
    try:
        memory = await open_memory(reactor, settings, opened, size=1)
        await work(Customers.of(memory, reactor))
    except Exception as error:
        sentence = str(error) if isinstance(error, Refused) else explain(error)
        if sentence is None:
            log.failure("the command failed")
            sentence = f"{type(error).__name__}: {error}"
        click.echo(f"mailsvc: {' '.join(sentence.split())}", err=True)
        raise SystemExit(1) from None
    finally:
        await opened.close()
