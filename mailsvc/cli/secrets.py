"""`mailsvc secrets …`: the keys that encrypt secrets in the database, and their rotation while everything runs."""

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
from mailsvc.store.queue import processes
from mailsvc.store.queue.processes import Running

_LOOK = 0.5  # seconds between two looks at what the processes know


@click.group()
def secrets() -> None:
    """Manage the keys that encrypt DKIM keys, webhook secrets and authenticator secrets in the database."""


@secrets.command("create")
@click.pass_obj
def create(settings: Settings) -> None:
    """Make the file with a first key, for a new database. One that has been in use needs the file that it was used with."""
    path = settings.secrets.key_file
    try:
        made = key_file.make(path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be made: {error.strerror}.") from None
    if not made:
        raise click.ClickException(f"{path} is there already.")
    click.echo(f"Made {path}. Keep a copy of it, not beside the backups of the database.")


@secrets.command("list")
@click.pass_obj
def show(settings: Settings) -> None:
    """Print the keys by number, and how many secrets each has encrypted."""

    async def work(database: Database, reactor: Any) -> None:
        encrypted = dict(await rotation.count(database.pool))
        for number in list(database.encryption.keys.by_number)[::-1]:
            does = "encrypts" if number == database.encryption.current else "decrypts"
            click.echo(f"{number}  {does}, {encrypted.pop(number, 0)} secrets")
        for missing, many in encrypted.items():
            click.echo(f"{missing}  MISSING, {many} secrets")

    run_with_database(settings, work)


@secrets.command("rotate")
@click.option("--wait", "seconds", default=60.0, show_default=True, help="Seconds for the running processes to take a key over.")
@click.pass_obj
def rotate(settings: Settings, seconds: float) -> None:
    """Encrypt with a new key from now on, and encrypt again what others encrypted. Nothing is stopped; calling it again goes on."""

    async def work(database: Database, reactor: Any) -> None:
        path = database.encryption.path
        if path is None:
            raise Refused(
                "The keys are in the environment. Add a new key there, restart all processes, then run `mailsvc secrets reencrypt`."
            )
        number = database.encryption.current if await _unfinished(database) else key_file.prepare(path)
        database.encryption.refresh()
        ours = fingerprint(number, database.encryption.keys.by_number[number])
        await _until(database, reactor, seconds, lambda keys: ours in keys, _without(path, number))
        key_file.promote(path, number)  # changes nothing when it encrypts already
        database.encryption.refresh()
        await _until(database, reactor, seconds, lambda keys: keys[:1] == [ours], _without(path, number))
        await _reencrypt(database)

    run_with_database(settings, work)


@secrets.command("reencrypt")
@click.pass_obj
def reencrypt(settings: Settings) -> None:
    """Encrypt again, with the current key, all secrets that other keys encrypted."""
    run_with_database(settings, lambda database, reactor: _reencrypt(database))


@secrets.command("reseal", hidden=True)
@click.pass_obj
def reseal(settings: Settings) -> None:
    """The name of `reencrypt` until 0.1; kept for one more release."""
    click.echo("`mailsvc secrets reseal` is deprecated; use `mailsvc secrets reencrypt`.", err=True)
    run_with_database(settings, lambda database, reactor: _reencrypt(database))


async def _unfinished(database: Database) -> bool:
    """Whether the key that encrypts by the file was made by a rotation that has not come to its end."""
    ours = database.encryption.keys.fingerprints[0]
    others = [each for each in await processes.running(database.pool) if each.keys and each.keys[0] != ours]
    return bool(others) or bool(set(await rotation.count(database.pool)) - {database.encryption.current})


async def _reencrypt(database: Database) -> None:
    done = await rotation.reencrypt(database.pool, database.encryption)
    click.echo(f"Key {database.encryption.current} encrypts; {done} secrets were encrypted again.")


def _without(path: Path, number: int) -> str:
    return (
        f"These processes do not use key {number} of {path} yet: {{}}. Copy the file to their machines, as their secrets.key_file, "
        "or restart them when they run an older release; then call this again. Until then the former key goes on encrypting."
    )


async def _until(database: Database, reactor: Any, seconds: float, known: Callable[[Sequence[str]], bool], otherwise: str) -> None:
    """Until every process that lives knows it. Raises Refused with those that do not."""
    deadline = reactor.seconds() + seconds
    while missing := [each for each in await processes.running(database.pool) if not known(list(each.keys))]:
        if reactor.seconds() >= deadline:
            raise Refused(otherwise.format(", ".join(map(_named, missing))))
        await deferLater(reactor, _LOOK)


def _named(process: Running) -> str:
    return f"{process.pid} on {process.machine}"
