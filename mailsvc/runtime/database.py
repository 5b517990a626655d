"""Opens the memory: the embedded Postgres if that is wanted, the pool, the schema. For the daemon and for the command alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from mailsvc.clock import measure, utc
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import every
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings
from mailsvc.store.encryption import key_file, rotation
from mailsvc.store.encryption.secrets import Encryption, Keys, environment
from mailsvc.store.logs.figures import database_seconds
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.embedded import EmbeddedPostgres
from mailsvc.store.postgres.migrate import migrate
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.supervisor import Supervisor
from mailsvc.store.postgres.system_user import EmbeddedError
from mailsvc.store.queue.processes import Incarnation
from mailsvc.store.queue.restore_guard import RestoreGuard

log = Logger()

CHECK_EVERY = 0.25  # seconds between two checks whether the embedded Postgres still runs


@attrs.frozen
class Database:
    """Postgres, ready to be used, what encrypts the secrets in it, and what notices that it was restored."""

    dsn: str
    pool: Pool
    encryption: Encryption
    whereabouts: RestoreGuard | None = None

    async def keys_rejected(self) -> str | None:
        """For /readyz, which everybody can read: the log has the details."""
        if self.encryption.rejected is None:
            return None
        return "the key file was changed to keys that do not fit this database; the previous ones stay in use"


async def open_memory(
    reactor: Any, settings: Settings, opened: Opened, *, size: int, migrating: bool = True, checking: bool = True
) -> Database:
    """With `size` connections; raises what is wrong as one of the store's errors or a SettingsError.

    `migrating` False: it is only looked at, whatever schema it has. `checking` False: even if the encryption keys are wrong.
    """
    encryption = _load_encryption(settings)
    if settings.database.embedded is not None:
        supervisor = Supervisor(EmbeddedPostgres.at(settings.database.embedded), reactor)
        dsn = await supervisor.start()
        opened.add("Postgres", supervisor.stop, patient=True)
        loop = every(reactor, CHECK_EVERY, "restarting Postgres", supervisor.check, expected=(EmbeddedError, OSError))
        opened.add("the checks of Postgres", loop, patient=True)
    else:
        dsn = settings.database.url or ""
    pool = Pool(dsn, reactor, size=size)
    await pool.start()
    opened.at_stop(pool.hurry)
    opened.add("the pool", pool.stop)
    await measure(reactor, lambda: database_seconds(pool))  # before anything is written that has a date
    if not migrating:
        return Database(dsn, pool, encryption)
    applied = await in_thread(reactor, lambda: migrate(dsn))
    log.info("the database has this release's schema, {count} migrations were applied", count=len(applied))
    await partitions.ensure(pool, utc(reactor))  # an operator's order may be the first to write
    if checking and (wrong := await wrong_keys(pool, settings, encryption.keys)) is not None:
        raise SettingsError(wrong)
    whereabouts = RestoreGuard(pool, settings.database.restore_marker, settings.region)
    await whereabouts.look(remember=False)
    return Database(dsn, pool, encryption, whereabouts)


async def in_thread(reactor: Any, call: Any) -> Any:
    """`call()` off the reactor's thread."""
    return await deferToThreadPool(reactor, reactor.getThreadPool(), call)


async def wrong_keys(pool: Pool, settings: Settings, keys: Keys) -> str | None:
    """Why these keys must not be used with this database, in a sentence that names the setting; None if they can."""
    found = await rotation.unreadable(pool, keys)
    if not found:
        return None
    where = f"The setting secrets.key_file is {settings.secrets.key_file}"
    if settings.secrets.key is not None:
        where = "The setting secrets.key does not fit this database"
    elif (name := environment()) is not None:
        where = f"The environment variable {name} does not fit this database"
    what = ", ".join(map(str, found))
    return f"{where}: {what} in this database. Use the encryption keys that this database was used with."


async def follow_keys(encryption: Encryption, process: Incarnation, wrong: Callable[[Keys], Awaitable[str | None]]) -> None:
    """Use the encryption keys that the file has now, and tell who rotates them.

    A file that cannot be read changes nothing, and neither do keys that are `wrong`: the present ones stay in use.
    """
    found = encryption.changed()
    if found is not None:
        why = await wrong(found.keys)
        if why is None:
            encryption.adopt(found)
            log.info("Encryption keys reloaded; key {number} encrypts.", number=encryption.current)
        else:
            encryption.reject(found, why)
            log.error("The changed encryption keys are not used, the previous ones stay in use. {why}", why=why)
    await process.knows(encryption.keys.fingerprints)


def _load_encryption(settings: Settings) -> Encryption:
    """The keys. Only to try mailsvc are they made here: of a database in use they must not be new ones."""
    secrets, trying = settings.secrets, settings.development.dev_file is not None or settings.database.embedded is not None
    if secrets.key is not None:
        return Encryption.read(secrets.key.replace(",", "\n"), "The setting secrets.key")
    try:
        if trying and environment() is None:
            key_file.make(secrets.key_file)
        return Encryption.load(secrets.key_file)
    except FileNotFoundError:
        raise SettingsError(
            f"The setting secrets.key_file is {secrets.key_file}, which is not there. A new mailsvc gets one by `mailsvc secrets create`; "
            "a database that has been in use needs the file that it was used with."
        ) from None
    except OSError as error:
        raise SettingsError(f"The setting secrets.key_file is {secrets.key_file}, which cannot be used: {error.strerror}.") from None
