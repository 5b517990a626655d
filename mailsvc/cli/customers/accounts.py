"""`mailsvc account create`, `notify`, `list`, `show`, `rename`, `suspend` and `resume`.

Closing and moving accounts: cli/account_data. Limits: cli/account.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from mailsvc.accounts.onboarding import Customers, Refused, address
from mailsvc.accounts.quota import Quotas
from mailsvc.cli.output import AS_JSON, moment, name_of, print_json, result
from mailsvc.cli.runner import run, run_with_database
from mailsvc.clock import utc
from mailsvc.runtime.database import Database
from mailsvc.settings import plans
from mailsvc.settings.schema import Settings
from mailsvc.store.account_data.closing import Closing
from mailsvc.store.events.webhooks import Webhooks
from mailsvc.store.people.accounts import Account
from mailsvc.store.people.audit import by_operator
from mailsvc.store.people.quota import Quota
from mailsvc.store.queue.operator import Operating

NAME_MAX = 100  # characters, as in the dashboard
_WEBHOOKS = 1000


@click.command("create")
@click.argument("name", callback=name_of(NAME_MAX))
@click.option("--notify", help="Where to send notifications, for example about failing webhooks.")
@click.option("--trusted", is_flag=True, help="No daily limit as a new account, and its mail is never held automatically.")
@AS_JSON
@click.pass_obj
def account_create(settings: Settings, name: str, notify: str | None, trusted: bool, as_json: bool) -> None:
    """Create an account. Prints its ID. Unless it is trusted, the setting abuse.ramp limits it at first.

    The first account of an installation is the operator's own, and trusted.
    """

    async def work(customers: Customers) -> None:
        to, ramp = None if notify is None else address(notify), next(iter(settings.abuse.ramp), None)
        first = not await customers.accounts.list()
        new = await customers.accounts.create(
            name, notify=to, ramp=ramp, trusted=trusted or first, line=lambda id_: by_operator(id_, "account created", name)
        )
        result(as_json, str(new.id), id=new.id, number=new.number, name=new.name, trusted=new.trusted_at is not None)

    run(settings, work)


@click.command("notify")
@click.argument("account")
@click.argument("email")
@click.pass_obj
def account_notify(settings: Settings, account: str, email: str) -> None:
    """Change where notifications are sent, for example about failing webhooks."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        await customers.accounts.notify(owner.id, address(email), [by_operator(owner.id, "address for notifications changed", email)])
        click.echo(f"Notifications for {owner.name} go to {email}.")

    run(settings, work)


@click.command("list")
@AS_JSON
@click.pass_obj
def account_list(settings: Settings, /, as_json: bool) -> None:
    """List accounts: number, ID, status, plan and name."""

    async def work(database: Database, reactor: Any) -> None:
        customers = Customers.of(database, reactor, settings)
        closing, held = await Closing(database.pool, reactor).closing(), await Operating(database.pool).pauses(utc(reactor))
        found = [
            _brief(each, closing.get(each.id), held.get(each.id, ("",))[0], settings.plans.default)
            for each in await customers.accounts.list()
        ]
        if as_json:
            print_json(found)
            return
        for one in found:
            click.echo(f"{one['number']:<4} {one['id']}  {one['status']:9}  {one['plan'] or '-':8}  {one['name']}")
        if not found:
            click.echo("There are no accounts.", err=True)

    run_with_database(settings, work)


@click.command("show")
@click.argument("account")
@AS_JSON
@click.pass_obj
def account_show(settings: Settings, /, account: str, as_json: bool) -> None:
    """Show an account: its status, plan and quota, and how many members, API keys, domains and webhooks it has."""

    async def work(database: Database, reactor: Any) -> None:
        customers = Customers.of(database, reactor, settings)
        owner = await customers.account(account)
        shown = await _shown(settings, database, customers, owner)
        if as_json:
            print_json(shown)
            return
        click.echo(owner.name)
        for name, value in _texts(shown).items():
            if value:
                click.echo(f"  {name:14} {value}")

    run_with_database(settings, work)


@click.command("rename")
@click.argument("account")
@click.argument("name", callback=name_of(NAME_MAX))
@AS_JSON
@click.pass_obj
def account_rename(settings: Settings, /, account: str, name: str, as_json: bool) -> None:
    """Change the name of an account. Its members see it."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        await customers.accounts.rename(owner.id, name, [by_operator(owner.id, "account renamed", f"{owner.name} to {name}")])
        result(as_json, f"{owner.name} is now called {name}.", id=owner.id, name=name)

    run(settings, work)


@click.command("suspend")
@click.argument("account")
@AS_JSON
@click.pass_obj
def account_suspend(settings: Settings, /, account: str, as_json: bool) -> None:
    """Suspend an account: its API keys and its SMTP logins are refused, within two seconds. Mail that is queued is still sent.

    To stop queued mail too, use `mailsvc queue pause --account`.
    """

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        done = await customers.accounts.suspend(owner.id, lines=[by_operator(owner.id, "account suspended")])
        sentence = f"{owner.name} is suspended." if done else f"{owner.name} was already suspended."
        result(as_json, sentence, id=owner.id, suspended=True, changed=done)

    run(settings, work)


@click.command("resume")
@click.argument("account")
@AS_JSON
@click.pass_obj
def account_resume(settings: Settings, /, account: str, as_json: bool) -> None:
    """Let a suspended account send again."""

    async def work(database: Database, reactor: Any) -> None:
        customers = Customers.of(database, reactor, settings)
        owner = await customers.account(account)
        done = await customers.accounts.suspend(owner.id, False, [by_operator(owner.id, "account resumed")])
        closes_at = None if done else await Closing(database.pool, reactor).closes_at(owner.id)
        if closes_at is not None:
            raise Refused(f"{owner.name} is closed: its data will be deleted on {closes_at:%Y-%m-%d}. `mailsvc account reopen` keeps it.")
        sentence = f"{owner.name} is no longer suspended." if done else f"{owner.name} was not suspended."
        result(as_json, sentence, id=owner.id, suspended=False, changed=done)

    run_with_database(settings, work)


def _brief(account: Account, closes_at: datetime | None, held: str, default: str | None) -> dict[str, Any]:
    status = "closed" if closes_at else "suspended" if account.suspended_at else "on hold" if held else "active"
    return {
        "id": account.id,
        "number": account.number,
        "name": account.name,
        "status": status,
        "plan": account.plan or default,
        "created_at": account.created_at,
    }


async def _shown(settings: Settings, database: Database, customers: Customers, owner: Account) -> dict[str, Any]:
    pool, clock, people = database.pool, customers.reactor, customers.people
    assert people is not None
    closes_at, held = await Closing(pool, clock).closes_at(owner.id), await Operating(pool).pause_of(owner.id, utc(clock))
    usage = await Quotas(Quota(pool), clock, plans.load(settings.plans), settings.plans.default).usage(owner.id, owner.plan, owner.ramp)
    members = await people.users.members(owner.id)
    webhooks, _ = await Webhooks(pool, clock, database.encryption).list(owner.id, _WEBHOOKS)
    domains, _ = await customers.domains.list(owner.id)
    home = await customers.domains.residences.of(owner.id)
    return {
        **_brief(owner, closes_at, held or "", settings.plans.default),
        "suspended_at": owner.suspended_at,
        "data_deleted_at": closes_at,
        "held_because": held,
        "trusted_at": owner.trusted_at,
        "daily_limit_as_new_account": owner.ramp,
        "requests_per_second": owner.rate_limit,
        "usage": {period: {"used": used.used or 0, "limit": used.limit} for period, used in usage.items()},
        "notify": await customers.accounts.notify_address(owner.id),
        "networks": await customers.accounts.networks(owner.id),
        "home_region": home.region,
        "pinned": home.pinned,
        "members": len(members),
        "admins": sum(member.role == "admin" for member in members),
        "api_keys": len((await customers.keys.list(owner.id))[0]),
        "domains": len(domains),
        "verified_domains": sum(each.trusted or each.status == "verified" for each in domains),
        "webhooks": len(webhooks),
    }


def _texts(shown: dict[str, Any]) -> dict[str, str]:
    """The same for people. Empty: nothing to say."""
    usage = [f"{used['used']:,} of {used['limit']:,} recipients this {period}" for period, used in shown["usage"].items()]
    status = {
        "closed": f"closed: its data will be deleted on {moment(shown['data_deleted_at'])} UTC",
        "suspended": f"suspended since {moment(shown['suspended_at'])} UTC",
        "on hold": f"on hold: {shown['held_because']}",
    }
    ramp, rate = shown["daily_limit_as_new_account"], shown["requests_per_second"]
    return {
        "number": str(shown["number"]),
        "ID": str(shown["id"]),
        "created": f"{moment(shown['created_at'])} UTC",
        "status": status.get(shown["status"], shown["status"]),
        "plan": ", ".join([shown["plan"] or "no plan", *usage]),
        "trusted": "" if shown["trusted_at"] is None else f"since {moment(shown['trusted_at'])} UTC",
        "new account": "" if ramp is None else f"at most {ramp:,} recipients a day",
        "rate limit": "" if rate is None else f"{rate} requests a second",
        "notifications": shown["notify"] or "",
        "networks": ", ".join(shown["networks"]),
        "home region": f"{shown['home_region'] or ''}{', pinned' if shown['pinned'] else ''}",
        "members": f"{shown['members']}, {shown['admins']} of them admins",
        "API keys": str(shown["api_keys"]),
        "domains": f"{shown['domains']}, {shown['verified_domains']} of them verified",
        "webhooks": str(shown["webhooks"]),
    }
