"""`mailsvc key …`: API keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from mailsvc.accounts.onboarding import Customers, Refused
from mailsvc.cli.output import ACCOUNT, AS_JSON, name_of, print_json, result, the_only
from mailsvc.cli.runner import run
from mailsvc.clock import utc
from mailsvc.settings.schema import Settings
from mailsvc.store.people.api_keys import NAME_MAX, KeyView, described, hint, restrictable
from mailsvc.store.people.audit import by_operator


@click.group()
def key() -> None:
    """Manage API keys."""


@key.command("create")
@ACCOUNT
@click.option("--permission", type=click.Choice(["full_access", "sending_access"]), default="full_access", show_default=True)
@click.option("--domain", help="The only domain that the key can send from. Requires --permission sending_access.")
@click.option("--name", default="by the operator", show_default=True, callback=name_of(NAME_MAX))
@click.option("--days", type=click.IntRange(1, 3650), help="Days after which the key stops working. Default: never.")
@AS_JSON
@click.pass_obj
def key_create(settings: Settings, account: str, permission: Any, domain: str | None, name: str, days: int | None, as_json: bool) -> None:
    """Create an API key and print it. It cannot be shown again."""
    if domain is not None and not restrictable(permission):
        raise click.UsageError("--domain requires --permission sending_access: a key with full access cannot be restricted to one domain.")

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        only = await customers.domain(owner, domain) if domain is not None else None
        until = None if days is None else utc(customers.reactor) + timedelta(days=days)
        line = by_operator(owner.id, "key created", described(name, permission, only, until))
        key_id, token = await customers.keys.create(
            owner.id, name, permission, only.id if only is not None else None, [line], expires_at=until, limited=False
        )
        result(as_json, token, id=key_id, token=token)

    run(settings, work)


@key.command("list")
@ACCOUNT
@AS_JSON
@click.pass_obj
def key_list(settings: Settings, account: str, as_json: bool) -> None:
    """List an account's API keys: ID, first characters, permission, name, and when they expire."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        found = (await customers.keys.list(owner.id))[0]
        if as_json:
            print_json([_json(each) for each in found])
            return
        for each in found:
            click.echo(_line(each))

    run(settings, work)


@key.command("revoke")
@click.argument("key")
@ACCOUNT
@AS_JSON
@click.pass_obj
def key_revoke(settings: Settings, key: str, account: str, as_json: bool) -> None:
    """Revoke an API key: it stops working within two seconds. KEY is its ID, its first characters, or its name."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        found = _named((await customers.keys.list(owner.id))[0], key, owner.name)
        line = by_operator(owner.id, "key revoked", f"{found.name} ({found.hint}…)")
        if not await customers.keys.revoke(owner.id, found.id, [line]):
            raise Refused(f"The key {found.name} ({found.hint}…) was already revoked.")
        result(as_json, f"The key {found.name} ({found.hint}…) is revoked.", id=found.id, name=found.name, revoked=True)

    run(settings, work)


def _named(keys: Sequence[KeyView], text: str, account: str) -> KeyView:
    """By ID or first characters, otherwise by name. A whole key is recognized too."""
    exact = [each for each in keys if str(each.id) == text.lower() or each.hint == hint(text)]
    found = exact or [each for each in keys if each.name == text]
    none = f"The account {account} has no API key {hint(text)!r}. `mailsvc key list` shows its keys."
    several = f"{len(found)} API keys of the account {account} are called {hint(text)!r}. Use the ID:"
    return the_only(found, none, several, [_line(each) for each in found])


def _line(key: KeyView) -> str:
    until = "" if key.expires_at is None else f"  until {key.expires_at:%Y-%m-%d %H:%M}"
    return f"{key.id}  {key.hint}…  {key.permission:14}  {key.name}{until}"


def _json(key: KeyView) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "hint": key.hint,
        "permission": key.permission,
        "domain_id": key.domain_id,
        "created_at": key.created_at,
        "created_by": key.creator,
        "last_used_at": key.last_used_at,
        "expires_at": key.expires_at,
        "networks": key.networks,
    }
