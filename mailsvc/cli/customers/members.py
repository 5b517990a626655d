"""`mailsvc member …`: who can open an account in the dashboard, and links that sign them in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import click

from mailsvc.accounts.onboarding import LAST_ADMIN, Customers, People, Refused, address
from mailsvc.cli.output import ACCOUNT, AS_JSON, moment, note, print_json, result
from mailsvc.cli.runner import run
from mailsvc.settings.schema import Settings
from mailsvc.store.people import roles
from mailsvc.store.people.accounts import Account
from mailsvc.store.people.api_keys import KeyView
from mailsvc.store.people.audit import OPERATOR, Line, by_operator
from mailsvc.store.people.users import Member

ROLE = click.Choice(roles.ROLES)


@click.group()
def member() -> None:
    """Manage an account's members."""


@member.command("add")
@click.argument("email")
@ACCOUNT
@click.option("--role", type=ROLE, help="Default: admin. Somebody who is a member already keeps their role.")
@AS_JSON
@click.pass_obj
def member_add(settings: Settings, email: str, account: str, role: Any, as_json: bool) -> None:
    """Add a member, or create a new link for one. Prints a link that signs them in once, within a day."""

    async def work(customers: Customers) -> None:
        owner, wanted = await customers.account(account), address(email).lower()
        given, secret = await people_of(customers).admit(owner.id, wanted, role, timedelta(days=1))
        link = sign_in_link(settings, secret)
        result(as_json, link, email=wanted, role=given, link=link)

    run(settings, work)


@member.command("list")
@ACCOUNT
@AS_JSON
@click.pass_obj
def member_list(settings: Settings, account: str, as_json: bool) -> None:
    """List an account's members: role, second factor, last sign-in and email address. Then open invitations."""

    async def work(customers: Customers) -> None:
        owner, people = await customers.account(account), people_of(customers)
        members, invitations = await people.users.members(owner.id), await people.sessions.invitations(owner.id)
        if as_json:
            invited = [{"email": each.email, "role": each.role, "expires_at": each.expires_at} for each in invitations]
            print_json({"members": [_json(each) for each in members], "invitations": invited})
            return
        for each in members:
            factor = "second factor" if each.second_factor else "password only"
            click.echo(f"{each.role:9}  {factor:13}  {moment(each.signed_in_at, 'never'):16}  {each.email}")
        for invitation in invitations:
            click.echo(f"{invitation.role:9}  invited        until {moment(invitation.expires_at)}  {invitation.email}")

    run(settings, work)


@member.command("remove")
@click.argument("email")
@ACCOUNT
@click.option("--revoke-keys", is_flag=True, help="Also revoke the API keys that they created.")
@AS_JSON
@click.pass_obj
def member_remove(settings: Settings, email: str, account: str, revoke_keys: bool, as_json: bool) -> None:
    """Remove a member, but never the last admin. Their sessions end. API keys that they created keep working without --revoke-keys."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        found = await _member(customers, owner, email)
        created = await _keys_of(customers, owner, found)
        revoked = created if revoke_keys else []
        lines = [
            by_operator(owner.id, "member removed", found.email),
            *(by_operator(owner.id, "key revoked", f"{key.name} ({key.hint}…)") for key in revoked),
        ]
        if not await people_of(customers).users.remove(owner.id, found.user_id, lines, [key.id for key in revoked]):
            raise Refused(LAST_ADMIN)
        if len(revoked) < len(created):
            _note_keys(created, "These API keys, which they created, keep working. `mailsvc key revoke` revokes them:")
        result(
            as_json,
            f"{found.email} is no longer a member of {owner.name}.",
            email=found.email,
            removed=True,
            revoked_keys=[key.id for key in revoked],
        )

    run(settings, work)


@member.command("role")
@click.argument("email")
@click.argument("role", type=ROLE)
@ACCOUNT
@AS_JSON
@click.pass_obj
def member_role(settings: Settings, email: str, role: str, account: str, as_json: bool) -> None:
    """Change the role of a member. The last admin stays one."""

    async def work(customers: Customers) -> None:
        owner = await customers.account(account)
        found, new = await _member(customers, owner, email), cast(roles.Role, role)
        if new != found.role:
            line = by_operator(owner.id, "role changed", f"{found.email} is {new}")
            if not await people_of(customers).users.set_role(owner.id, found.user_id, new, [line]):
                raise Refused(LAST_ADMIN)
            full = [key for key in await _keys_of(customers, owner, found) if key.permission == "full_access"]
            if not roles.permits(new, "administer") and full:
                _note_keys(full, "These API keys, which they created, keep their full access. `mailsvc key revoke` revokes them:")
        result(as_json, f"{found.email} is {new} of {owner.name}.", email=found.email, role=new)

    run(settings, work)


@member.command("link")
@click.argument("email")
@click.option("--hours", type=click.IntRange(1, 24), default=24, show_default=True, help="How long the link can be used.")
@AS_JSON
@click.pass_obj
def member_link(settings: Settings, email: str, hours: int, as_json: bool) -> None:
    """Print a link that signs a member in once, for example if they forgot their password. Earlier links end."""

    async def work(customers: Customers) -> None:
        people, wanted = people_of(customers), address(email).lower()
        user = await people.users.named(wanted)
        if user is None:
            raise Refused(f"There is no user with the address {wanted}. `mailsvc member add` adds one.")
        line = Line(None, user.id, None, OPERATOR, "", "sign-in link created", user.email)
        link = sign_in_link(settings, await people.sessions.make_link("sign-in", user.email, timedelta(hours=hours), lines=[line]))
        result(as_json, link, email=user.email, link=link)

    run(settings, work)


@member.command("reset")
@click.argument("email")
@AS_JSON
@click.pass_obj
def member_reset(settings: Settings, email: str, as_json: bool) -> None:
    """Remove all second factors of a user who lost them. Confirm their identity first. Prints a link that signs them in once."""

    async def work(customers: Customers) -> None:
        wanted = address(email).lower()
        link = sign_in_link(settings, await people_of(customers).reset(wanted, timedelta(hours=1)))
        result(as_json, link, email=wanted, link=link)

    run(settings, work)


def people_of(customers: Customers) -> People:
    """The members; commands always have them."""
    assert customers.people is not None
    return customers.people


def sign_in_link(settings: Settings, secret: str) -> str:
    """The link that a secret belongs to."""
    return f"{settings.base_url}/dashboard/sign-in/link?link={secret}"


async def _member(customers: Customers, owner: Account, email: str) -> Member:
    wanted = address(email).lower()
    found = next((each for each in await people_of(customers).users.members(owner.id) if each.email == wanted), None)
    if found is None:
        raise Refused(f"{wanted} is not a member of {owner.name}. `mailsvc member list` shows its members.")
    return found


async def _keys_of(customers: Customers, owner: Account, who: Member) -> Sequence[KeyView]:
    """The active API keys that a member created."""
    return [key for key in (await customers.keys.list(owner.id))[0] if key.created_by == who.user_id]


def _note_keys(keys: Sequence[KeyView], sentence: str) -> None:
    note("\n  ".join([sentence, *(f"{key.id}  {key.name} ({key.hint}…)" for key in keys)]))


def _json(member: Member) -> dict[str, object]:
    return {
        "id": member.user_id,
        "email": member.email,
        "name": member.name,
        "role": member.role,
        "second_factor": member.second_factor,
        "signed_in_at": member.signed_in_at,
        "member_since": member.since,
    }
