"""Opens the database for the daemon and the commands: the embedded Postgres if configured, the pool, the schema, the keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from mailsvc.clock import measure, utc
from mailsvc.runtime import privacy
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.offload import Offload
from mailsvc.runtime.polling import every
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings
from mailsvc.store.cells.hold import CellHold
from mailsvc.store.encryption import key_file, rotation
from mailsvc.store.encryption.body_key_files import BodyKeyFiles
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.encryption.secrets import Encryption, Keys, environment
from mailsvc.store.logs.figures import database_seconds
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.cells import at, cell_of, directly
from mailsvc.store.postgres.embedded import EmbeddedPostgres
from mailsvc.store.postgres.migrate import migrate
from mailsvc.store.postgres.notifications import Notifications
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.supervisor import Supervisor
from mailsvc.store.postgres.system_user import EmbeddedError
from mailsvc.store.privacy.journal import Recorded
from mailsvc.store.privacy.keyed_hash import keyed_hashes
from mailsvc.store.queue.processes import ProcessRegistration
from mailsvc.store.queue.restore_guard import RestoreGuard

log = Logger()

CHECK_EVERY = 0.25  # seconds between two checks whether the embedded Postgres still runs


@attrs.frozen
class Database:
    """An open database, the encryption of its secrets and messages, and the guard that notices a restore."""

    dsn: str
    pool: Pool
    encryption: Encryption
    restore_guard: RestoreGuard
    erasing: Recorded
    bodies: BodyKeys
    hold: CellHold | None = None

    def notifications(self, reactor: Any) -> Notifications:
        """Notifications between the processes that use it."""
        made = Notifications(self.dsn, reactor)
        if self.hold is not None:
            self.hold.on_move.append(made.reconnect)
            self.hold.on_resume.append(made.missed)
        return made

    def moved_to(self, account_id: UUID, since: float) -> str | None:
        """The cell that the account may have moved to after `since`, a time of the reactor."""
        return None if self.hold is None else self.hold.moved_to(account_id, since)

    async def check_restored(self) -> None:
        """Whether it was restored while this process was running: then all mail is held, and erasures are applied again."""
        if await self.restore_guard.check() is not None:
            await privacy.erase_again(self.erasing, restored=True)

    def hashes(self, email: str) -> Mapping[int, bytes]:
        """The keyed hashes of an address, by which erased addresses are recognized."""
        return keyed_hashes(self.encryption, email)

    async def keys_rejected(self) -> str | None:
        """For /readyz, which is public; the details are in the log."""
        if self.encryption.rejected is None:
            return None
        return "the key file now contains keys that do not fit this database; the previous keys stay in use"


async def open_database(
    reactor: Any, settings: Settings, opened: Opened, *, size: int, migrating: bool = True, checking: bool = True
) -> Database:
    """Open it with `size` connections. Raises one of the store's errors or a SettingsError.

    Without `migrating` its schema stays as it is. Without `checking` the encryption keys may be wrong.
    """
    encryption = _load_encryption(settings)
    if settings.database.embedded is not None:
        supervisor = Supervisor(EmbeddedPostgres.at(settings.database.embedded), reactor)
        dsn = await supervisor.start()
        opened.add("Postgres", supervisor.stop, no_timeout=True)
        loop = every(reactor, CHECK_EVERY, "restarting Postgres", supervisor.check, expected=(EmbeddedError, OSError))
        opened.add("the checks of Postgres", loop, no_timeout=True)
    else:
        dsn = server_of(settings)
    pool = Pool(dsn, reactor, size=size)
    hold = await hold_cell(pool, reactor, opened)
    await pool.start()
    opened.at_stop(pool.shutting_down)
    opened.add("the pool", pool.stop)
    await measure(reactor, lambda: database_seconds(pool))  # before any date is written
    restore_guard = RestoreGuard(pool, settings.database.restore_marker, settings.region)
    folder = settings.secrets.body_keys
    bodies = BodyKeys(pool, reactor, encryption, None if folder is None else BodyKeyFiles(folder), Offload(reactor, max_threads=1))
    erasing = privacy.open_eraser(pool, reactor, encryption, settings.privacy, bodies)
    if not migrating:
        return Database(dsn, pool, encryption, restore_guard, erasing, bodies, hold)
    node = dsn if hold is None or hold.node is None else at(dsn, hold.node)  # the other servers of the DSN may be away
    applied = await in_thread(reactor, lambda: migrate(node))
    log.info("the database schema is up to date; {count} migrations were applied", count=len(applied))
    await partitions.ensure(pool, utc(reactor))  # an operator's command may be the first to write
    if checking and (wrong := await wrong_keys(pool, settings, encryption.keys)) is not None:
        raise SettingsError(wrong)
    restored = await restore_guard.check(remember=False)
    pool.admit = restore_guard.admit
    await privacy.erase_again(erasing, restored=restored is not None)  # before anything is served or sent
    return Database(dsn, pool, encryption, restore_guard, erasing, bodies, hold)


def server_of(settings: Settings) -> str:
    """The DSN of the configured server."""
    url, cell = settings.database.url or "", settings.database.cell
    return url if cell is None else directly(url, cell)


async def hold_cell(pool: Pool, reactor: Any, opened: Opened) -> CellHold | None:
    """Hold the pool's cell in place, if it works in one."""
    if cell_of(pool.dsn) is None:
        return None
    hold = CellHold(pool, reactor)
    await hold.start()
    opened.add("the lock of the cell", hold.stop)
    return hold


async def in_thread(reactor: Any, call: Any) -> Any:
    """Call it in a thread of the reactor's pool."""
    return await deferToThreadPool(reactor, reactor.getThreadPool(), call)


async def wrong_keys(pool: Pool, settings: Settings, keys: Keys) -> str | None:
    """Why these keys cannot be used with this database, in a sentence that names the setting; None if they can."""
    found = await rotation.unreadable(pool, keys)
    if not found:
        return None
    where = f"The setting secrets.key_file is {settings.secrets.key_file}"
    if settings.secrets.key is not None:
        where = "The setting secrets.key does not fit this database"
    elif (name := environment()) is not None:
        where = f"The environment variable {name} does not fit this database"
    problems = ", ".join(map(str, found))
    return f"{where}: {problems} in this database. Use the encryption keys that this database was used with."


async def follow_keys(encryption: Encryption, process: ProcessRegistration, wrong: Callable[[Keys], Awaitable[str | None]]) -> None:
    """Reload the encryption keys if their file has changed, and announce which keys this process has.

    If the file is unreadable or its keys are `wrong`, the present keys stay in use.
    """
    changed = encryption.changed()
    if changed is not None:
        why = await wrong(changed.keys)
        if why is None:
            encryption.adopt(changed)
            log.info("Encryption keys reloaded; key {number} encrypts.", number=encryption.current)
        else:
            encryption.reject(changed, why)
            log.error("Changed encryption keys rejected; the previous keys stay in use. {why}", why=why)
    await process.announce_keys(encryption.keys.fingerprints)


def _load_encryption(settings: Settings) -> Encryption:
    """Load the keys. A missing file is created only for a trial installation: a database in use cannot be read with new keys."""
    secrets, trial = settings.secrets, settings.development.dev_file is not None or settings.database.embedded is not None
    if secrets.key is not None:
        return Encryption.read(secrets.key.replace(",", "\n"), "The setting secrets.key")
    try:
        if trial and environment() is None:
            key_file.make(secrets.key_file)
        return Encryption.load(secrets.key_file)
    except FileNotFoundError:
        raise SettingsError(
            f"The setting secrets.key_file is {secrets.key_file}, which does not exist. "
            "For a new installation, run `mailsvc secrets create`; a database that has been in use needs the file that it was used with."
        ) from None
    except OSError as error:
        raise SettingsError(f"The setting secrets.key_file is {secrets.key_file}, which cannot be used: {error.strerror}.") from None
