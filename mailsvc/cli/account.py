"""`mailsvc account retention`, `plan`, `plans`, `release`, `trust`, `networks`, `sso` and `review`: how long data is kept, how much an
account may send, and who can open it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import click

from mailsvc.accounts.onboarding import Refused, find_account
from mailsvc.accounts.quota import Quotas
from mailsvc.cli.output import note
from mailsvc.cli.queue import still_on_hold
from mailsvc.cli.runner import run_with_database
from mailsvc.clock import unix, utc
from mailsvc.mail import csv_file
from mailsvc.net import allow_list
from mailsvc.runtime.database import Database
from mailsvc.settings import plans, retention
from mailsvc.settings.plans import Plan
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings
from mailsvc.store.logs.retention import Retention
from mailsvc.store.people import access_review
from mailsvc.store.people.abuse import AbuseStore
from mailsvc.store.people.accounts import Account, Accounts
from mailsvc.store.people.audit import Audit, by_operator
from mailsvc.store.people.quota import Quota
from mailsvc.store.people.single_sign_on import SingleSignOns
from mailsvc.store.queue.operator import Operating

KINDS = tuple(retention.days(retention.Retention()))  # what an account can keep for a shorter time


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
        if reset or any(number is not None for number in given.values()):
            line = by_operator(owner.id, "retention changed", ", ".join(f"{kind} {number} days" for kind, number in wanted.items()))
            await stored.want(owner.id, wanted, unix(reactor), [line])
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
        quotas = Quotas(store, reactor, known, settings.plans.default)
        if name != owner.plan:
            uncounted = quotas.uncounted(owner.plan, name, owner.ramp)
            await store.plan(owner.id, name, unix(reactor), [by_operator(owner.id, "plan changed", name or "the default")], uncounted)
        usage = await quotas.usage(owner.id, name, owner.ramp)
        click.echo(f"{owner.name}: {name or settings.plans.default or 'no plan, no quota'}")
        for period, used in usage.items():
            new = ", as a new account" if period == "day" and used.limit == owner.ramp else ""
            click.echo(f"{period:6} {used.used or 0:,} of {used.limit:,} recipients{new}")

    run_with_database(settings, work)


@click.command("release")
@click.argument("account")
@click.pass_obj
def account_release(settings: Settings, /, account: str) -> None:
    """Release an account's mail that is on hold or paused. Earlier bounces and complaints no longer count."""

    async def work(database: Database, reactor: Any) -> None:
        owner = await find_account(Accounts(database.pool, reactor), account)
        click.echo(await _release(database, owner, settings.region, utc(reactor)) or f"{owner.name} was not on hold.")

    run_with_database(settings, work)


@click.command("trust")
@click.argument("account")
@click.option("--off", is_flag=True, help="Stop trusting it. A daily limit does not come back.")
@click.pass_obj
def account_trust(settings: Settings, /, account: str, off: bool) -> None:
    """Trust an account: it has no daily limit as a new account, and its mail is never held automatically. Releases it if it is on hold."""

    async def work(database: Database, reactor: Any) -> None:
        owner, now = await find_account(Accounts(database.pool, reactor), account), utc(reactor)
        action = "account no longer trusted" if off else "account trusted"
        await AbuseStore(database.pool).trust(owner.id, not off, now, [by_operator(owner.id, action)])
        released = None if off else await _release(database, owner, settings.region, now)
        click.echo(" ".join(filter(None, (f"{owner.name} is {'no longer ' if off else ''}trusted.", released))))

    run_with_database(settings, work)


async def _release(database: Database, owner: Account, region: str, now: datetime) -> str | None:
    """What was done, as a sentence; None if the account was not on hold. A note says what still holds the mail."""
    operating = Operating(database.pool)
    if await operating.pause_of(owner.id, now) is None:
        return None
    count = await operating.resume_account(owner.id, now, [by_operator(owner.id, "mail released")])
    held = await operating.held_by("account", owner.id, region, now)
    if not held:
        return f"The mail of {owner.name} is no longer on hold; {count} queued recipients are due now."
    note(still_on_hold(held))
    return f"The account {owner.name} is no longer on hold."


@click.command("networks")
@click.argument("account")
@click.argument("networks", nargs=-1)
@click.option("--any", "everywhere", is_flag=True, help="From any network again, for example if the admins cannot sign in.")
@click.pass_obj
def account_networks(settings: Settings, /, account: str, networks: Sequence[str], everywhere: bool) -> None:
    """Set the networks from which members can open an account in the dashboard, or show them."""
    try:
        wanted = [allow_list.read(text) for text in networks]
    except ValueError as wrong:
        raise click.BadParameter(f"Networks {wrong}.") from None

    async def work(database: Database, reactor: Any) -> None:
        accounts = Accounts(database.pool, reactor)
        owner = await find_account(accounts, account)
        if wanted or everywhere:
            line = by_operator(owner.id, "networks changed", ", ".join(wanted) or "any network")
            await accounts.restrict(owner.id, wanted, [line])
        click.echo("\n".join(await accounts.networks(owner.id)) or "any network")

    run_with_database(settings, work)


@click.command("sso")
@click.argument("account")
@click.option("--off", is_flag=True, help="Let members sign in in other ways again, for example if the provider is gone.")
@click.pass_obj
def account_sso(settings: Settings, /, account: str, off: bool) -> None:
    """Show an account's single sign-on, or end its enforcement."""

    async def work(database: Database, reactor: Any) -> None:
        owner = await find_account(Accounts(database.pool, reactor), account)
        stored = SingleSignOns(database.pool, reactor, database.encryption)
        if off:
            await stored.require(owner.id, False, [by_operator(owner.id, "single sign-on made optional")])
        found = await stored.of_account(owner.id)
        if found is None:
            click.echo(f"{owner.name} has no single sign-on.")
        else:
            state = "required" if found.required else "optional"
            click.echo(f"{owner.name}: {found.issuer}, {state} for {', '.join(found.claimed) or 'no domain'}")

    run_with_database(settings, work)


@click.command("review")
@click.argument("account")
@click.pass_obj
def account_review(settings: Settings, /, account: str) -> None:
    """Print who has access to an account as CSV: members and API keys, when they were last used, and what admins decided about them."""

    async def work(database: Database, reactor: Any) -> None:
        owner, now = await find_account(Accounts(database.pool, reactor), account), utc(reactor)
        await Audit(database.pool, reactor).write(by_operator(owner.id, "access review exported"))
        rows = access_review.table(await access_review.review(database.pool, owner.id, now), now)
        click.echo(csv_file.lines(rows).decode(), nl=False)

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
        contacts = "" if plan.contacts is None else f", {plan.contacts:,} contacts"
        click.echo(f"{plan.name:8} {plan.emails:>9,} recipients per month{daily}{contacts}; {_price(plan)}")


def _price(plan: Plan) -> str:
    if plan.price is not None:
        return f"${plan.price:,g}"
    stated = " and ".join(f"${price:,g}" for price in plan.stated)
    return f"no price (published prices: {stated})" if stated else "no price"
