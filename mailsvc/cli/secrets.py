"""`mailsvc secrets …`: manage the encryption keys, and rotate them without downtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from twisted.internet.task import deferLater

from mailsvc.accounts.onboarding import Refused
from mailsvc.cli.runner import run_with_database
from mailsvc.runtime.database import Database
from mailsvc.settings.schema import Settings
from mailsvc.store.encryption import key_file, rotation
from mailsvc.store.encryption.secrets import fingerprint
from mailsvc.store.people.audit import INSTALLATION, Audit, by_operator
from mailsvc.store.queue import processes
from mailsvc.store.queue.processes import Running

_POLL = 0.5  # seconds between two checks of which keys the processes have


@click.group()
def secrets() -> None:
    """Manage the keys that encrypt DKIM keys, webhook secrets, authenticator secrets, and keys of unsubscribes and messages."""


@secrets.command("create")
@click.pass_obj
def create(settings: Settings) -> None:
    """Create the key file, for a new database. An existing database needs the file that it was used with."""
    path = settings.secrets.key_file
    try:
        created = key_file.make(path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be created: {error.strerror}.") from None
    if not created:
        raise click.ClickException(f"{path} already exists and is not overwritten. To add a key, run `mailsvc secrets rotate`.")
    click.echo(f"Created {path}. Keep a copy of it in a safe place, apart from the database backups.")


@secrets.command("list")
@click.pass_obj
def show(settings: Settings) -> None:
    """List the keys by number, and what needs each of them: secrets, hashes, and entries of the erasure journal."""

    async def work(database: Database, reactor: Any) -> None:
        encrypted, hashed = dict(await rotation.count(database.pool)), dict(await rotation.hashes(database.pool))
        journal = database.erasing.journal
        entries = {} if journal is None else journal.keys()
        for number in list(database.encryption.keys.by_number)[::-1]:
            does = "encrypts" if number == database.encryption.current else "decrypts"
            needed = f", {hashed.pop(number)} hashes of erased addresses" if number in hashed else ""
            needed += f", {entries[number]} entries of the erasure journal" if number in entries else ""
            click.echo(f"{number}  {does}, {encrypted.pop(number, 0)} secrets{needed}")
        for missing, many in hashed.items():
            click.echo(f"{missing}  MISSING, {many} hashes of erased addresses")
        for missing, many in encrypted.items():
            click.echo(f"{missing}  MISSING, {many} secrets")

    run_with_database(settings, work)


@secrets.command("rotate")
@click.option("--wait", "seconds", default=60.0, show_default=True, help="Seconds to wait for running processes to load the new key.")
@click.pass_obj
def rotate(settings: Settings, seconds: float) -> None:
    """Add a key, encrypt with it, and re-encrypt existing secrets. Needs no restart. If interrupted, run it again to continue."""

    async def work(database: Database, reactor: Any) -> None:
        path = database.encryption.path
        if path is None:
            raise Refused(
                "The keys are in the environment. Add a new key there, restart all processes, then run `mailsvc secrets reencrypt`."
            )
        await Audit(database.pool, reactor).write(by_operator(INSTALLATION, "encryption keys rotated"))
        number = database.encryption.current if await _unfinished(database) else key_file.prepare(path)
        database.encryption.refresh()
        new = fingerprint(number, database.encryption.keys.by_number[number])
        await _wait_for(database, reactor, seconds, lambda keys: new in keys, _missing_message(path, number))
        key_file.promote(path, number)  # does nothing if the key is already the current one
        database.encryption.refresh()
        await _wait_for(database, reactor, seconds, lambda keys: keys[:1] == [new], _missing_message(path, number))
        await _reencrypt(database)

    run_with_database(settings, work)


@secrets.command("reencrypt")
@click.pass_obj
def reencrypt(settings: Settings) -> None:
    """Re-encrypt, with the current key, all secrets encrypted with other keys."""
    run_with_database(settings, _reencrypt_recorded)


@secrets.command("reseal", hidden=True)
@click.pass_obj
def reseal(settings: Settings) -> None:
    """The name of `reencrypt` until 0.1; kept for one more release."""
    click.echo("`mailsvc secrets reseal` is deprecated; use `mailsvc secrets reencrypt`.", err=True)
    run_with_database(settings, _reencrypt_recorded)


async def _reencrypt_recorded(database: Database, reactor: Any) -> None:
    await Audit(database.pool, reactor).write(by_operator(INSTALLATION, "secrets encrypted again"))
    await _reencrypt(database)


async def _unfinished(database: Database) -> bool:
    """Whether the current key comes from a rotation that has not finished."""
    current = database.encryption.keys.fingerprints[0]
    others = [each for each in await processes.running(database.pool) if each.keys and each.keys[0] != current]
    return bool(others) or await rotation.unfinished(database.pool, database.encryption)


async def _reencrypt(database: Database) -> None:
    found = await rotation.reencrypt(database.pool, database.encryption)
    click.echo(f"Key {database.encryption.current} encrypts; {found.done} secrets were re-encrypted.")
    for kind, many in found.damaged.items():
        click.echo(f"Left as they are: {many} {kind}. They are damaged, or the key that encrypted them is missing.", err=True)


def _missing_message(path: Path, number: int) -> str:
    return (
        f"These processes do not use key {number} of {path} yet: {{}}. Copy the file to their machines (secrets.key_file), or restart "
        "them if they run an older release. Then run this command again. Until then, the previous key stays in use."
    )


async def _wait_for(database: Database, reactor: Any, seconds: float, known: Callable[[Sequence[str]], bool], otherwise: str) -> None:
    """Waits until every live process has the key. Otherwise raises Refused, naming those that do not."""
    deadline = reactor.seconds() + seconds
    while missing := [each for each in await processes.running(database.pool) if not known(list(each.keys))]:
        if reactor.seconds() >= deadline:
            raise Refused(otherwise.format(", ".join(map(_name, missing))))
        await deferLater(reactor, _POLL)


def _name(process: Running) -> str:
    return f"{process.pid} on {process.machine}"
