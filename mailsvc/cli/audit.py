"""`mailsvc audit …`: verify the hash chain of the audit log, and export it. The chain: store/audit."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from mailsvc.accounts.onboarding import Refused, find_account
from mailsvc.audit.service import read_key, write_anchors
from mailsvc.audit.signing import Anchored, AnchorFile, BadKey, SigningKey, create_key
from mailsvc.cli.output import ExistingFile
from mailsvc.cli.runner import run_with_database
from mailsvc.clock import unix, utc
from mailsvc.runtime.database import Database, in_thread
from mailsvc.settings.schema import Settings
from mailsvc.store.audit import anchors, protection, reading, verification
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.audit import INSTALLATION, Audit, by_operator

PAGE = 500  # lines

_NO_KEY = (
    "The setting audit.signing_key is missing. Set it to a file that mailsvc can write, such as /var/lib/mailsvc/audit.pem, "
    "and run `mailsvc audit key`."
)
_FILE = ExistingFile()
_ACCOUNT = click.option("--account", help="ID, number or name of the account. Default: all accounts.")


@click.group()
def audit() -> None:
    """Verify and export the audit log."""


@audit.command("verify")
@_ACCOUNT
@click.option("--anchors", "files", multiple=True, type=_FILE, help="A file of anchors to compare with, besides audit.anchor_file.")
@click.option("--key", type=_FILE, help="The public keys that signed the anchors (PEM). Default: audit.signing_key.")
@click.pass_obj
def audit_verify(settings: Settings, account: str | None, files: Sequence[Path], key: Path | None) -> None:
    """Find lines that were changed, added, moved or removed. Exits with 1 if there are any."""

    async def work(database: Database, reactor: Any) -> None:
        anchored, hashes = await read_anchors(settings, database, files, key)
        problems = [problem for each in anchored for problem in each.problems]
        for problem in problems:
            click.echo(problem)
        known = [account_id async for account_id in _accounts(database, reactor, account)]
        gone = sorted(set(hashes) - set(known)) if account is None else []
        results = [await _verify(database, account_id, hashes[account_id]) for account_id in [*known, *gone]]
        bad = sum(map(bool, results))
        if bad or problems:
            raise Refused(f"The audit log is not intact: {len(problems)} problems with anchors, and of {bad} accounts.")

    run_with_database(settings, work, migrating=False)


async def _verify(database: Database, account_id: UUID, hashes: Mapping[int, set[bytes]]) -> bool:
    """Verify and report an account; whether something is wrong."""
    result = await verification.verify(database.pool, account_id, hashes)
    words = [f"{result.lines} lines"]
    words += [f"anchored up to line {result.anchored}"] if result.anchored else []
    words += [f"{result.erased} with erased texts"] if result.erased else []
    click.echo(f"{account_id}  {'WRONG' if result.problems else 'ok'}  {', '.join(words)}")
    for problem in result.problems:
        click.echo(f"  {problem}")
    return bool(result.problems)


Hashes = defaultdict[UUID, dict[int, set[bytes]]]


async def read_anchors(settings: Settings, database: Database, files: Sequence[Path], key: Path | None) -> tuple[list[Anchored], Hashes]:
    """The anchors of the database and of each file, and the hashes that all of them have. Raises Refused."""
    anchored, hashes = await _anchors(settings, database, files, key), Hashes(dict)
    for each in anchored:
        for account_id, by_line in each.hashes.items():
            for seq, found in by_line.items():
                hashes[account_id].setdefault(seq, set()).update(found)
    return anchored, hashes


async def _anchors(settings: Settings, database: Database, files: Sequence[Path], key: Path | None) -> list[Anchored]:
    """The anchors of the database and of each file."""
    path = key or settings.audit.signing_key
    if path is None and files:
        raise Refused("Anchors cannot be compared without a key: set audit.signing_key, or give --key.")
    if path is None:
        click.echo("mailsvc: There is no key (audit.signing_key, --key), so anchors are not checked.", err=True)
        return []
    try:
        keys = SigningKey.read(path)
        given = [settings.audit.anchor_file] if settings.audit.anchor_file is not None else []
        found = [Anchored(keys, str(name)) for name in (*given, *files)]
        for each in found:
            for anchor in AnchorFile(Path(each.source)).read():
                each.add(anchor)
    except BadKey as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"{error.filename} cannot be read: {error.strerror}.") from None
    stored = Anchored(keys, "the database")  # read last, so that it has all that the files have
    while new := await anchors.after(database.pool, stored.number):
        for anchor in new:
            stored.add(anchor)
    for each in found:
        if each.number == 0 and each.source in map(str, files):  # it would look as if all of it had been compared
            each.problems.append(f"{each.source} has no anchors.")
        if each.number > stored.number:
            each.problems.append(f"Anchor {each.number} of {each.source} is missing in the database.")
    return [*found, stored]


@audit.command("key")
@click.pass_obj
def audit_key(settings: Settings) -> None:
    """Create the key that signs anchors (audit.signing_key), and print its public half. Keep that elsewhere, for `verify --key`."""
    path = settings.audit.signing_key
    if path is None:
        raise click.ClickException(_NO_KEY)
    try:
        click.echo(create_key(path), nl=False)
    except FileExistsError:
        raise click.ClickException(f"{path} already exists and is not overwritten. To replace the key, see docs/audit.md.") from None
    except OSError as error:
        raise click.ClickException(f"{path} cannot be created: {error.strerror}.") from None


@audit.command("export")
@_ACCOUNT
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="The first day (UTC), as YYYY-MM-DD.")
@click.pass_obj
def audit_export(settings: Settings, account: str | None, since: datetime | None) -> None:
    """Print the audit log as JSON lines, with what is needed to verify it. The export is an entry of the log."""

    async def work(database: Database, reactor: Any) -> None:
        first = reading.EVER if since is None else since.replace(tzinfo=UTC)
        async for account_id in _accounts(database, reactor, account):
            await Audit(database.pool, reactor).write(by_operator(account_id, "audit log exported"))
            after = 0
            while found := await reading.lines(database.pool, account_id, after, PAGE, first):
                for line in found:
                    click.echo(json.dumps(line.document(), ensure_ascii=False))
                after = found[-1].seq

    run_with_database(settings, work)


@audit.command("anchor")
@click.pass_obj
def audit_anchor(settings: Settings) -> None:
    """Make a signed anchor now, for example before a backup, and append it to audit.anchor_file."""

    async def work(database: Database, reactor: Any) -> None:
        if settings.audit.signing_key is None:
            raise Refused(_NO_KEY)
        count = await anchors.make(database.pool, utc(reactor), timedelta(0), read_key(settings.audit).sign)
        if settings.audit.anchor_file is not None:
            await write_anchors(database.pool, AnchorFile(settings.audit.anchor_file), partial(in_thread, reactor))
        click.echo(f"{count} anchors were made." if count else "There is nothing new to anchor.")

    run_with_database(settings, work)


@audit.command("adopt")
@_ACCOUNT
@click.pass_obj
def audit_adopt(settings: Settings, account: str | None) -> None:
    """Put lines into the chain that processes of an older release wrote during an upgrade. Look at them first with `verify`."""

    async def work(database: Database, reactor: Any) -> None:
        async for account_id in _accounts(database, reactor, account):
            count = await reading.adopt(database.pool, account_id, unix(reactor))
            if count:
                click.echo(f"{account_id}  {count} lines")

    run_with_database(settings, work)


@audit.command("protect")
@click.argument("role")
@click.pass_obj
def audit_protect(settings: Settings, role: str) -> None:
    """Let the daemon's database ROLE add and read lines, and not change them. Run this as the role that migrates, after upgrades."""

    async def work(database: Database, reactor: Any) -> None:
        try:
            await protection.protect(database.pool, role)
        except protection.CannotProtect as error:
            raise Refused(str(error)) from None
        await Audit(database.pool, reactor).write(by_operator(INSTALLATION, "audit log protected", role))
        click.echo(f"The role {role} cannot change the audit log.")

    run_with_database(settings, work)


async def _accounts(database: Database, reactor: Any, account: str | None) -> AsyncIterator[UUID]:
    if account is not None:
        yield (await find_account(Accounts(database.pool, reactor), account)).id
        return
    async for account_id in verification.accounts(database.pool):
        yield account_id
