"""`mailsvc account access`: opens the operator's access to the content of an account, for a limited time and with a reason that its admins
see. `read_content` is for commands that need one.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from mailsvc.accounts.onboarding import Refused, find_account
from mailsvc.cli.runner import run_with_database
from mailsvc.clock import utc
from mailsvc.runtime.database import Database
from mailsvc.settings.schema import Settings
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.audit import Line
from mailsvc.store.people.operator_access import LONGEST, REASON_MAX, NoAccess, OperatorAccess, OperatorAccesses
from mailsvc.store.postgres.pool import Transaction

T = TypeVar("T")

LISTED = 100
NAME_MAX = 60  # characters of --as
LOGIN, NOBODY = Path("/proc/self/loginuid"), 2**32 - 1


@click.command("access")
@click.argument("account")
@click.option("--reason", help="Why you need access, at most 500 characters. The account's admins read it. Opens the access.")
@click.option("--hours", type=click.IntRange(1, LONGEST // timedelta(hours=1)), help="How long it lasts. Default: 1.")
@click.option("--end", is_flag=True, help="End the open access now.")
@click.option("--list", "listing", is_flag=True, help="Show the open access and past ones, with what was read.")
@click.option("--as", "name", help="Your name, if several people use the same system user. It is recorded beside that user.")
@click.pass_obj
def account_access(
    settings: Settings, /, account: str, reason: str | None, hours: int | None, end: bool, listing: bool, name: str | None
) -> None:
    """Open an access to the content of an account's emails, for a limited time.

    The account's admins are mailed. They see the reason and what is read.
    """
    if sum((reason is not None, end, listing)) != 1:
        raise click.UsageError("Give exactly one of --reason, --end and --list.")
    if hours is not None and reason is None:
        raise click.UsageError("--hours needs --reason.")
    why = None if reason is None else _reason(reason)
    who = operator(name)

    async def work(database: Database, reactor: Any) -> None:
        owner, accesses = await find_account(Accounts(database.pool, reactor), account), OperatorAccesses(database.pool, reactor)
        if why is not None:
            ends_at = await accesses.open(owner.id, who, why, timedelta(hours=hours or 1))
            if ends_at is None:
                raise Refused(f"There is an open access to {owner.name} already. To open another one, first use --end.")
            click.echo(f"You have access to the content of {owner.name} until {ends_at:%Y-%m-%d %H:%M} UTC.")
        elif end:
            if not await accesses.end(owner.id, who):
                raise Refused(f"There is no open access to {owner.name}.")
            click.echo(f"The access to {owner.name} has ended.")
        else:
            for each in await accesses.list(owner.id, LISTED):
                click.echo(_shown(each, utc(reactor)))

    run_with_database(settings, work)


def operator(name: str | None) -> str:
    """Who runs the command: the system's user, whoever became that user with sudo, and the `name` that they gave."""
    uid = os.getuid()
    user, person = _called(uid), os.environ.get("SUDO_USER", "") if uid == 0 else ""
    person = person or _signed_in()
    if person and person != user:
        user = f"{person} as {user}"
    given = _plain(name or "")
    if len(given) > NAME_MAX:
        raise click.BadParameter(f"--as can have at most {NAME_MAX} characters.")
    return f"{given} ({user})" if given else user


def _called(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # in a container, for example
        return f"user {uid}"


def _signed_in() -> str:
    """The user who signed in to the system, which stays the same with sudo and runuser, and only root can change. Empty if not known."""
    try:
        uid = int(LOGIN.read_text())
    except (OSError, ValueError):
        return ""
    return "" if uid == NOBODY else _called(uid)


async def read_content(database: Database, reactor: Any, line: Line, work: Callable[[Transaction], Awaitable[T]]) -> T:
    """Read content of the line's account in the transaction that writes the line. Raises Refused if there is no open access."""
    try:
        return await OperatorAccesses(database.pool, reactor).read(line, work)
    except NoAccess:
        raise Refused(
            "This shows content of an account, for which you need an open access. Open one: "
            f"mailsvc account access {line.account_id} --reason TEXT"
        ) from None


async def record_read(database: Database, reactor: Any, line: Line) -> None:
    """Before content is read that needs more than one transaction. Raises Refused if there is no open access."""

    async def nothing(tx: Transaction) -> None:
        pass

    await read_content(database, reactor, line, nothing)


def _reason(text: str) -> str:
    found = _plain(text)
    if not found or len(found) > REASON_MAX:
        raise click.BadParameter(f"--reason needs 1 to {REASON_MAX} characters, not {len(found)}.")
    return found


def _plain(text: str) -> str:
    """On one line, and without control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _shown(access: OperatorAccess, now: datetime) -> str:
    state = "open until" if access.open(now) else "ended"
    lines = [f"{access.opened_at:%Y-%m-%d %H:%M}  {state} {access.end:%Y-%m-%d %H:%M} UTC  {access.operator}: {access.reason}"]
    return "\n".join([*lines, *(f"  {each.at:%Y-%m-%d %H:%M}  {each.action} {each.subject}".rstrip() for each in access.reads)])
