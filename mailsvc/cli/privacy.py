"""`mailsvc privacy find|export|erase|erasures`: what is stored about an address, and how to erase it."""

from __future__ import annotations

import contextlib
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import click
import orjson

from mailsvc.accounts.onboarding import Refused, address, find_account
from mailsvc.cli.access import record_read
from mailsvc.cli.output import new_file
from mailsvc.cli.runner import run_with_database
from mailsvc.clock import utc
from mailsvc.runtime.database import Database
from mailsvc.settings.schema import Settings
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.audit import INSTALLATION, Audit, by_operator
from mailsvc.store.privacy import eraser, inventory
from mailsvc.store.privacy.erasures import EVERYWHERE, Erasure
from mailsvc.store.privacy.finding import Finder, Row

_ACCOUNT = click.option("--account", help="ID, number or name of the only account to look at.")


@click.group()
def privacy() -> None:
    """Find, export and erase what is stored about an email address."""


@privacy.command("find")
@click.argument("email")
@_ACCOUNT
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the IDs of some of the rows.")
@click.pass_obj
def find(settings: Settings, /, email: str, account: str | None, as_json: bool) -> None:
    """Show where an address is stored, and how often. Reads all data, which takes time."""

    async def work(database: Database, reactor: Any) -> None:
        finder, owner = await _finder(database, reactor, email, account)
        await Audit(database.pool, reactor).write(by_operator(owner or INSTALLATION, "address looked up"))
        found = await finder.find()
        if as_json:
            click.echo(orjson.dumps(attrs.asdict(found)).decode())
            return
        for place, count in sorted(found.counts.items()):
            click.echo(f"{count:8,}  {place:32} {inventory.purpose(place)}")
        if not found.counts:
            click.echo("The address is not stored anywhere.")

    run_with_database(settings, work)


@privacy.command("export")
@click.argument("email")
@_ACCOUNT
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The ZIP file to write. It must not exist.")
@click.pass_obj
def export(settings: Settings, /, email: str, account: str | None, output: Path) -> None:
    """Write everything that is stored about an address into a ZIP file: rows as JSON lines, and messages.

    Messages and rows can contain other people's data. Check them before you hand the file out. With --account, this needs an open access to
    the account's content: `mailsvc account access`.
    """

    async def work(database: Database, reactor: Any) -> None:
        finder, owner = await _finder(database, reactor, email, account)
        with new_file(output) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            if owner is None:
                await Audit(database.pool, reactor).write(by_operator(INSTALLATION, "address exported"))
            else:
                await record_read(database, reactor, by_operator(owner, "address exported"))
            rows, messages = await _write(finder, archive, utc(reactor))
        click.echo(f"{output}: {rows:,} rows, {messages:,} messages.")

    run_with_database(settings, work)


@privacy.command("erase")
@click.argument("email")
@_ACCOUNT
@click.option("--suppress", is_flag=True, help="Also refuse mail to the address from now on. Only a hash of it is kept for that.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def erase(settings: Settings, /, email: str, account: str | None, suppress: bool, yes: bool) -> None:
    """Erase an address everywhere, and print a certificate as JSON. If interrupted, run it again to continue.

    Mail to it that is queued is not sent. The exit status is 1 if something had to wait: mail that is being sent at this moment, or
    messages that other recipients have not received yet. A running daemon finishes it.
    """
    if not yes:
        click.confirm("This cannot be undone. Continue?", abort=True, err=True)

    async def work(database: Database, reactor: Any) -> None:
        finder, owner = await _finder(database, reactor, email, account)
        erasing = database.erasing
        why = await eraser.refused(database.pool, finder.email, owner)
        if why is not None:
            raise Refused(why)
        if erasing.journal is None:
            click.echo("mailsvc: privacy.journal is not set, so the address would come back with a restored backup.", err=True)
        line = by_operator(owner or INSTALLATION, "address erased")
        begun = await erasing.begin(owner, finder.email, suppress, "command", [line])
        done = await erasing.eraser.run(begun, finder.email)
        click.echo(orjson.dumps(certificate(done, journal=erasing.journal is not None), option=orjson.OPT_INDENT_2).decode())
        if done.finished_at is None:
            raise Refused("Not everything could be erased yet; see `waiting`. A running daemon continues, or run this command again.")

    run_with_database(settings, work)


@privacy.command("erasures")
@_ACCOUNT
@click.pass_obj
def erasures(settings: Settings, /, account: str | None) -> None:
    """List the certificates of erasures, newest first, one JSON object per line. Without an account: those for all accounts.

    The certificate of an account that was deleted is listed by the account's ID.
    """

    async def work(database: Database, reactor: Any) -> None:
        owner = EVERYWHERE if account is None else await _owner(database, reactor, account)
        erasing, after, more = database.erasing, None, True
        while more:
            page, more = await erasing.eraser.erasures.list(owner, 100, after)
            for each in page:
                click.echo(orjson.dumps(certificate(each, journal=erasing.journal is not None)).decode())
            after = page[-1].id if page else None

    run_with_database(settings, work)


async def _owner(database: Database, reactor: Any, text: str) -> UUID:
    """The account, which may have been deleted: then it is known by its certificates. Raises Refused."""
    try:
        return (await find_account(Accounts(database.pool, reactor), text)).id
    except Refused:
        try:
            gone = UUID(text)
        except ValueError:
            gone = None
        if gone is None or not (await database.erasing.eraser.erasures.list(gone, 1))[0]:
            raise
        return gone


def certificate(erasure: Erasure, *, journal: bool) -> dict[str, object]:
    """What was erased, where and how many. Without the address: whoever asked for it knows it."""
    return {
        "id": erasure.id,
        "account_id": erasure.account,
        "state": "finished" if erasure.finished_at is not None else "waiting",
        "requested_at": erasure.requested_at,
        "finished_at": erasure.finished_at,
        "erased": erasure.counts.get("erased", {}),
        "suppressed": erasure.counts.get("suppressed", {}),
        "kept": erasure.counts.get("kept", {}),
        "waiting": erasure.counts.get("waiting", {}),
        "backups": "in the erasure journal" if journal else "not covered: privacy.journal is not set",
    }


async def _finder(database: Database, reactor: Any, email: str, account: str | None) -> tuple[Finder, UUID | None]:
    owner = None if account is None else (await find_account(Accounts(database.pool, reactor), account)).id
    return Finder(database.pool, address(email), owner, database.erasing.eraser.in_thread, database.bodies), owner


async def _write(finder: Finder, archive: zipfile.ZipFile, now: datetime) -> tuple[int, int]:
    """The numbers of rows and messages."""
    rows: dict[str, int] = {}
    messages = 0
    with contextlib.ExitStack() as opened:
        async for each in finder.archive():
            if not isinstance(each, Row):
                opened.close()
                messages += 1
                archive.writestr(f"messages/{each.name}", each.content)
                continue
            if each.table not in rows:  # rows come table by table
                opened.close()
                member = opened.enter_context(archive.open(f"{each.table}.jsonl", "w", force_zip64=True))
            rows[each.table] = rows.get(each.table, 0) + 1
            member.write(orjson.dumps(each.content) + b"\n")
    about = {"address": finder.email, "account_id": finder.account, "exported_at": now, "rows": rows, "messages": messages}
    archive.writestr("manifest.json", orjson.dumps(about, option=orjson.OPT_INDENT_2))
    return sum(rows.values()), messages
