"""`mailsvc account retention`, `plan` and `plans`: how long an account's data is kept, and how much it may send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import click

from mailsvc.accounts.onboarding import Refused, find_account
from mailsvc.accounts.quota import Quotas
from mailsvc.cli.runner import run_with_database
from mailsvc.runtime.database import Database
from mailsvc.settings import plans, retention
from mailsvc.settings.plans import Plan
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings
from mailsvc.store.logs.retention import Retention
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.quota import Quota

KINDS = tuple(field.name for field in attrs.fields(retention.Retention) if field.name != "tls")


def _retention_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for kind in reversed(KINDS):
        command = click.option(f"--{kind}", type=click.IntRange(1, 3650), metavar="DAYS")(command)
    return command


@click.command("retention")
@click.argument("account")
@_retention_options
@click.option("--reset", is_flag=True, help="Use the settings again.")
@click.pass_obj
def account_retention(settings: Settings, /, account: str, reset: bool, **given: int | None) -> None:
    """Keep an account's data for fewer days than the settings say, and show the days for each kind of data."""

    async def work(database: Database, reactor: Any) -> None:
        owner, stored = await find_account(Accounts(database.pool, reactor), account), Retention(database.pool)
        defaults = retention.days(settings.retention)
        wanted = {} if reset else await stored.wanted(owner.id)
        for kind, number in given.items():
            if number is not None and number > defaults[kind]:
                raise Refused(f"Data can only be kept for a shorter time than the settings say: retention.{kind} is {defaults[kind]} days.")
            wanted |= {} if number is None else {kind: number}
        await stored.want(owner.id, wanted)
        for kind, number in retention.days(settings.retention, wanted).items():
            click.echo(f"{kind:9} {number:4} days{'' if number == defaults[kind] else f' (default: {defaults[kind]})'}")

    run_with_database(settings, work)


@click.command("plan")
@click.argument("account")
@click.argument("plan", required=False)
@click.option("--reset", is_flag=True, help="Remove the account's own plan, so that plans.default applies.")
@click.pass_obj
def account_plan(settings: Settings, /, account: str, plan: str | None, reset: bool) -> None:
    """Set an account's plan, or show it. Prints how much of it is used."""

    async def work(database: Database, reactor: Any) -> None:
        owner, known = await find_account(Accounts(database.pool, reactor), account), plans.load(settings.plans)
        name = owner.plan if plan is None and not reset else plan
        if name is not None and name not in known:
            raise Refused(f"There is no plan {name!r}. The plans are: {', '.join(known)}.")
        store = Quota(database.pool)
        if name != owner.plan:
            await store.plan(owner.id, name)
        usage = await Quotas(store, reactor, known, settings.plans.default).usage(owner.id, name)
        click.echo(f"{owner.name}: {name or settings.plans.default or 'no plan, no quota'}")
        for period, used in usage.items():
            click.echo(f"{period:6} {used.used or 0:,} of {used.limit:,} recipients")

    run_with_database(settings, work)


@click.command("plans")
@click.pass_obj
def account_plans(settings: Settings, /) -> None:
    """List the plans."""
    try:
        known = plans.load(settings.plans)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    for plan in known.values():
        daily = "" if plan.daily is None else f", {plan.daily:,} per day"
        click.echo(f"{plan.name:8} {plan.emails:>9,} recipients per month{daily}; {_price(plan)}")


def _price(plan: Plan) -> str:
    if plan.price is not None:
        return f"${plan.price:,g}"
    stated = " and ".join(f"${price:,g}" for price in plan.stated)
    return f"no price (published prices: {stated})" if stated else "no price"
