"""`mailsvc account export`, `import`, `close`, `reopen`, `minimize` and `encrypt`: all data of an account."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import click
import orjson
from twisted.internet.task import deferLater

from mailsvc import __version__
from mailsvc.accounts import archive as archives
from mailsvc.accounts.archive import FORMAT, Manifest
from mailsvc.accounts.onboarding import Refused, find_account
from mailsvc.cli.access import record_read
from mailsvc.cli.output import AS_JSON, ExistingFile, new_file, result
from mailsvc.cli.privacy import certificate
from mailsvc.cli.runner import run_with_database
from mailsvc.clock import utc
from mailsvc.runtime.database import Database
from mailsvc.settings import plans, regions
from mailsvc.settings.schema import Settings
from mailsvc.store.account_data.closing import NOTICED, Closing
from mailsvc.store.account_data.copying import MOST_QUEUED, Copying
from mailsvc.store.account_data.inserting import Inserting, Unsuitable
from mailsvc.store.domains.domains import Domains
from mailsvc.store.encryption import key_file
from mailsvc.store.encryption.body_key_files import BodyKeyError
from mailsvc.store.encryption.secrets import Encryption, EncryptionError, fingerprint
from mailsvc.store.people import minimization
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.audit import by_operator
from mailsvc.store.people.minimization import Minimization
from mailsvc.store.privacy.erasures import the_account
from mailsvc.store.queue import processes

_PATH = click.Path(path_type=Path, dir_okay=False)
_EXISTING = ExistingFile()


@click.command("export")
@click.argument("account")
@click.option("--output", type=_PATH, required=True, help="The ZIP file to write. It must not exist.")
@click.option("--key", type=_PATH, required=True, help="The file with the key for the archive's secrets. Created if it does not exist.")
@click.option("--without-queued", is_flag=True, help="Leave out emails that are queued, and go on while a broadcast is sent.")
@click.pass_obj
def account_export(settings: Settings, /, account: str, output: Path, key: Path, without_queued: bool) -> None:
    """Write all data of an account into an archive that another installation can import. Needs an open access: `mailsvc account access`.

    Keep the key elsewhere: only with it can the DKIM keys and other secrets in the archive be read. The rest is not encrypted.
    """
    transfer = _transfer(key, creating=True)

    async def work(database: Database, reactor: Any) -> None:
        owner = await find_account(Accounts(database.pool, reactor), account)
        copying = Copying(database.pool, owner.id, database.encryption, transfer, database.bodies)
        queued, broadcasts = await copying.begin(utc(reactor))
        if queued > MOST_QUEUED or ((queued or broadcasts) and not without_queued):
            raise Refused(
                f"{queued:,} emails are queued and {broadcasts} broadcasts are being sent, which is not continued elsewhere. "
                f"Wait until they are sent, or use --without-queued (with at most {MOST_QUEUED:,} emails)."
            )
        hash_keys = {number: fingerprint(number, value) for number, value in database.encryption.keys.by_number.items()}
        with new_file(output) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            await record_read(database, reactor, by_operator(owner.id, "account exported"))
            rows = await archives.write(copying, archive)
            Manifest(FORMAT, uuid4(), owner.id, owner.name, utc(reactor), __version__, hash_keys, rows).write(archive)
        click.echo(f"{output}: {sum(rows.values()):,} rows. Its key is in {key}.")

    run_with_database(settings, work)


@click.command("import")
@click.argument("archive", type=_EXISTING)
@click.option("--key", type=_EXISTING, required=True, help="The file with the archive's key.")
@click.pass_obj
def account_import(settings: Settings, /, archive: Path, key: Path) -> None:
    """Import an account from an archive. It keeps its ID, API keys, DKIM keys and history. If interrupted, run it again.

    Members sign in with a link that is sent to them; their passwords and passkeys belong to the other installation.
    """
    transfer = _transfer(key)

    async def work(database: Database, reactor: Any) -> None:
        try:
            with zipfile.ZipFile(archive) as opened:
                manifest = Manifest.read(opened)
                inserting = Inserting(
                    database.pool, reactor, manifest.account_id, manifest.id, database.encryption, transfer, manifest.hash_keys,
                    plans.load(settings.plans), max(settings.retention.emails, settings.retention.requests), database.bodies,
                )  # fmt: skip
                await archives.read(opened, manifest, inserting)
        except (Unsuitable, zipfile.BadZipFile) as error:
            raise Refused(str(error)) from None
        click.echo(f"{manifest.account_id}: {sum(manifest.rows.values()) - sum(inserting.left_out.values()):,} rows were imported.")
        for table, count in inserting.left_out.items():
            why = "other encryption keys hashed them" if table == "erased_suppressions" else "older than this installation keeps them"
            click.echo(f"{table}: {count:,} were left out: {why}.")
        for domain in (await Domains(database.pool, reactor, database.encryption).list(manifest.account_id))[0]:
            if domain.region not in regions.all_regions(settings):
                move = f"mailsvc domain region {domain.name} REGION --account {manifest.account_id}"
                click.echo(f"{domain.name} is in the region {domain.region}, which does not exist here: its mail waits. Move it: {move}")

    run_with_database(settings, work)


def _transfer(path: Path, *, creating: bool = False) -> Encryption:
    """The key of an archive. `creating`: a new one, if the file does not exist."""
    try:
        if creating and not path.exists():
            key_file.make(path)
        return Encryption.read(path.read_text(), str(path))
    except OSError as error:
        raise click.ClickException(f"The key file {path} cannot be {'used' if creating else 'read'}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise click.ClickException(f"{path} is not the key file of an archive.") from None
    except EncryptionError as error:
        raise click.ClickException(str(error)) from None


@click.command("close")
@click.argument("account")
@click.option("--days", type=click.IntRange(0, 365), help="Days until its data is deleted. Default: privacy.grace_days.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@AS_JSON
@click.pass_obj
def account_close(settings: Settings, /, account: str, days: int | None, yes: bool, as_json: bool) -> None:
    """Close an account: it is suspended now, and all its data is deleted after a period of grace. With --days 0 it is deleted at once."""
    if not yes:
        click.confirm(f"The account {account} and all its data will be deleted. Continue?", abort=True, err=True)

    async def work(database: Database, reactor: Any) -> None:
        deleted = await _deleted(database, account)
        if deleted is not None:
            await _delete(database, deleted)
            return
        owner, closing = await find_account(Accounts(database.pool, reactor), account), Closing(database.pool, reactor)
        grace = settings.privacy.grace_days if days is None else days
        at = utc(reactor) + timedelta(days=grace)
        line = by_operator(owner.id, "account closed", f"its data is deleted after {grace} days")
        if not grace and await closing.moving(owner.id):
            raise Refused(f"{owner.name} is moving to another cell. Finish or undo that first: `mailsvc cell account-move`.")
        closed = await closing.close(owner.id, at, [line])
        if grace and not closed:
            raise Refused(f"{owner.name} is closed: its data will be deleted on {await closing.closes_at(owner.id):%Y-%m-%d}.")
        if grace:
            until = f"Its data will be deleted on {at:%Y-%m-%d}; until then, `mailsvc account reopen` keeps it."
            sentence = f"{owner.name} is suspended. {until}"
            result(as_json, sentence, id=owner.id, data_deleted_at=at)
            return
        if closed and await processes.running(database.pool):
            await deferLater(reactor, NOTICED.total_seconds())
        await closing.end(owner.id, [line])
        await _delete(database, owner.id)

    run_with_database(settings, work)


async def _deleted(database: Database, text: str) -> UUID | None:
    """An account that is gone, whose deletion was interrupted before it was finished."""
    try:
        account_id = UUID(text)
    except ValueError:
        return None
    if await Accounts(database.pool, None).get(account_id) is not None:
        return None
    begun = await database.erasing.eraser.erasures.open(account_id, the_account(account_id), False)
    return None if begun is None else account_id


async def _delete(database: Database, account_id: UUID) -> None:
    """Delete an account, or continue, and print the certificate."""
    erasing = database.erasing
    if erasing.journal is None:
        click.echo("mailsvc: privacy.journal is not set, so the account would come back with a restored backup.", err=True)
    begun = await erasing.begin(account_id, the_account(account_id), False, "command")
    done = await erasing.eraser.run(begun, the_account(account_id))
    click.echo(orjson.dumps(certificate(done, journal=erasing.journal is not None), option=orjson.OPT_INDENT_2).decode())


@click.command("reopen")
@click.argument("account")
@AS_JSON
@click.pass_obj
def account_reopen(settings: Settings, /, account: str, as_json: bool) -> None:
    """Keep an account that was closed, as long as its data is not being deleted. It is as it was before."""

    async def work(database: Database, reactor: Any) -> None:
        owner = await find_account(Accounts(database.pool, reactor), account)
        closing = Closing(database.pool, reactor)
        if not await closing.reopen(owner.id, [by_operator(owner.id, "account reopened")]):
            late = await closing.closes_at(owner.id) is not None
            raise Refused(f"{owner.name} cannot be kept: its data is being deleted." if late else f"{owner.name} is not being closed.")
        suspended = (await find_account(Accounts(database.pool, reactor), str(owner.id))).suspended_at is not None
        sentence = f"{owner.name} is no longer closed{', but suspended as before' if suspended else ''}."
        result(as_json, sentence, id=owner.id, suspended=suspended)

    run_with_database(settings, work)


@click.command("minimize")
@click.argument("account")
@click.option("--on", "more", multiple=True, type=click.Choice(list(minimization.KINDS)), help="Stop storing this. Repeatable.")
@click.option("--off", "fewer", multiple=True, type=click.Choice(list(minimization.KINDS)), help="Store this again. Repeatable.")
@click.pass_obj
def account_minimize(settings: Settings, /, account: str, more: Sequence[str], fewer: Sequence[str]) -> None:
    """Choose what is not stored for an account, and show it. What is `on` is not stored."""

    async def work(database: Database, reactor: Any) -> None:
        owner, store = await find_account(Accounts(database.pool, reactor), account), Minimization(database.pool, reactor)
        chosen = await store.of(owner.id)
        if more or fewer:
            if "requests" in fewer and await store.encrypted(owner.id):
                raise Refused(f"Messages of {owner.name} are encrypted, so the API request log has no contents of requests.")
            chosen = [kind for kind in minimization.KINDS if (kind in chosen or kind in more) and kind not in fewer]
            await store.set(owner.id, chosen, [by_operator(owner.id, "data minimization changed", ", ".join(chosen) or "nothing")])
        implied = ["requests"] if await store.encrypted(owner.id) else []
        for kind, text in minimization.KINDS.items():
            click.echo(f"{kind:9} {'on  ' if kind in (*chosen, *implied) else 'off  If on:'} {text}")

    run_with_database(settings, work)


@click.command("encrypt")
@click.argument("account")
@click.option("--off", is_flag=True, help="Store new messages as they are. Earlier ones stay encrypted, and can still be read.")
@click.pass_obj
def account_encrypt(settings: Settings, /, account: str, off: bool) -> None:
    """Encrypt new messages of an account with a key of its own. Messages that are stored already stay as they are."""

    async def work(database: Database, reactor: Any) -> None:
        owner = await find_account(Accounts(database.pool, reactor), account)
        if off:
            await database.bodies.turn_off(owner.id, [by_operator(owner.id, "message encryption turned off")])
            click.echo(f"New messages of {owner.name} are not encrypted.")
            return
        others = sorted({each.version or "before 0.1" for each in await processes.running(database.pool)} - {__version__})
        if others:
            raise Refused(
                f"Processes of release {', '.join(others)} are running, which cannot read encrypted messages. Upgrade them first."
            )
        try:
            await database.bodies.turn_on(owner.id, [by_operator(owner.id, "message encryption turned on")])
        except BodyKeyError as error:
            raise Refused(str(error)) from None
        click.echo(
            f"New messages of {owner.name} are encrypted. They cannot be read without the file {owner.id} in {settings.secrets.body_keys}: "
            "copy it to a safe place, apart from the backups of the database."
        )
        click.echo("The API request log has no contents of new requests. What it has already stays until its retention ends.")

    run_with_database(settings, work)
