"""`mailsvc sources …`: source addresses, their warm-up and block lists, and the pools of accounts and domains."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs
import click

from mailsvc.accounts.onboarding import Customers
from mailsvc.cli.runner import run_with_database
from mailsvc.clock import unix, utc
from mailsvc.delivery.shaping import DEFAULT_POOL, Shaping, pool_name
from mailsvc.runtime.database import Database
from mailsvc.settings.schema import Settings
from mailsvc.store.people.audit import by_operator
from mailsvc.store.queue.sources import ABSENT, PoolTable, SourceTable, StoredSource


@click.group()
def sources() -> None:
    """Show source addresses, and choose the pools of accounts and domains."""


@sources.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def sources_list(settings: Settings, as_json: bool) -> None:
    """List the region's source addresses, what new ones sent today, the block lists that have them, and who has a pool of their own."""

    from mailsvc import wiring  # imported late: it takes as long as all the rest of any other command

    async def work(database: Database, reactor: Any) -> None:
        table, now = SourceTable(database.pool, settings.region), utc(reactor)
        stored, taken = await table.read(), await table.taken(now.astimezone(UTC).date())
        owners = await PoolTable(database.pool).owners()
        shaping = wiring.provider_rules(settings.delivery.shaping)
        views = [_view(each, taken, shaping, now) for each in stored]
        if as_json:
            pools = [{"pool": pool, "kind": kind, "name": name, "account": account} for pool, kind, name, account in owners]
            click.echo(json.dumps({"region": settings.region, "sources": [attrs.asdict(each) for each in views], "pools": pools}, indent=2))
            return
        for view in views:
            click.echo("  ".join(_words(view)))
        for pool, kind, name, account in owners:
            click.echo(f"pool {pool or DEFAULT_POOL}: {kind} {name}{'' if kind == 'account' else f' of {account}'}")
        if not views:
            click.echo(f"No process of the region {settings.region} has source addresses.", err=True)

    run_with_database(settings, work)


@sources.command("assign")
@click.argument("pool")
@click.option("--account", help="ID, number or name of the account; with --domain, of the domain's account.")
@click.option("--domain", help="A sending domain.")
@click.pass_obj
def sources_assign(settings: Settings, pool: str, account: str | None, domain: str | None) -> None:
    """Send all mail of an account or a domain from a pool. Running processes follow within ten seconds."""
    try:
        name = pool_name(pool)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    _assign(settings, account, domain, name, f"is sent from the pool {pool}.")


@sources.command("unassign")
@click.option("--account", help="ID, number or name of the account; with --domain, of the domain's account.")
@click.option("--domain", help="A sending domain.")
@click.pass_obj
def sources_unassign(settings: Settings, account: str | None, domain: str | None) -> None:
    """Send mail of an account or a domain from the pool that the settings name for it."""
    _assign(settings, account, domain, None, "is sent from the pool that the settings name.")


def _assign(settings: Settings, account: str | None, domain: str | None, pool: str | None, done: str) -> None:
    if account is None and domain is None:
        raise click.UsageError("Give --account or --domain.")

    async def work(database: Database, reactor: Any) -> None:
        customers, table = Customers.of(database, reactor, settings), PoolTable(database.pool)
        action = "pool assigned" if pool is not None else "pool removed"
        if domain is not None:
            found = await customers.any_domain(domain, account)
            line = by_operator(found.account_id, action, f"{pool or DEFAULT_POOL} for {found.name}")
            await table.assign_domain(found.id, pool, [line], unix(reactor))
            click.echo(f"Mail from {found.name} {done}")
        else:
            owner = await customers.account(account or "")
            line = by_operator(owner.id, action, pool or DEFAULT_POOL)
            await table.assign_account(owner.id, pool, [line], unix(reactor))
            click.echo(f"Mail of {owner.name} {done}")
        if pool and pool not in await _pools_with_sources(database, settings.region, utc(reactor)):
            text = f"No process of the region {settings.region} has a source address of the pool {pool}, so this mail waits until one has."
            click.echo(text, err=True)

    run_with_database(settings, work)


async def _pools_with_sources(database: Database, region: str, now: datetime) -> set[str]:
    return {each.pool for each in await SourceTable(database.pool, region).read() if now - each.seen_at <= ABSENT}


@attrs.frozen
class _Sent:
    provider: str
    emails: int
    limit: int | None


@attrs.frozen
class _SourceView:
    """`day` of the warm-up; None if the source is warm. `running`: a process has it."""

    address: str
    pool: str
    day: int | None
    today: list[_Sent]
    listed: list[str]
    listed_at: str | None
    running: bool


def _view(source: StoredSource, taken: Mapping[tuple[str, str], int], shaping: Shaping, now: datetime) -> _SourceView:
    today = now.astimezone(UTC).date()
    day = None if source.since is None else (today - source.since).days + 1
    if day is not None and day > shaping.warm_up_days:
        day = None
    sent = [] if day is None else _sent(source.address, taken, shaping, day)
    since = None if source.listed_at is None else source.listed_at.isoformat(timespec="minutes")
    running = now - source.seen_at <= ABSENT
    return _SourceView(source.address, source.pool or DEFAULT_POOL, day, sent, list(source.listed), since, running)


def _sent(address: str, taken: Mapping[tuple[str, str], int], shaping: Shaping, day: int) -> list[_Sent]:
    return [
        _Sent(provider, emails, shaping.warm_up_limit(provider, day))
        for (other, provider), emails in sorted(taken.items())
        if other == address
    ]


def _words(view: _SourceView) -> Iterator[str]:
    yield view.address
    yield f"pool {view.pool}"
    if view.day is not None:
        yield f"day {view.day} of its warm-up" if view.day > 0 else f"its warm-up begins in {1 - view.day} days"
        for sent in view.today:
            yield f"{sent.provider} {sent.emails}{'' if sent.limit is None else f' of {sent.limit}'}"
    if view.listed:
        yield f"sends no mail since {view.listed_at}: on {', '.join(view.listed)}"
    if not view.running:
        yield "no process has it"
