"""The whole daemon on one page: every service in the order in which mail meets it.

`twistd mailsvc --config FILE` comes in at `makeService`. Starting, stopping and failing: lifespan.py. This is the only module that
names the reactor; whoever needs it, or a clock, is given it here.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from twisted.application.service import IService
from twisted.internet.defer import maybeDeferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.usage import Options as UsageOptions

from mailsvc import settings as settings_
from mailsvc.configfile import SettingsError
from mailsvc.lifespan import Lifespan, Opened, every
from mailsvc.settings import Settings
from mailsvc.store import partitions
from mailsvc.store.bell import Bell
from mailsvc.store.embedded import EmbeddedPostgres
from mailsvc.store.errors import StoreError, Unavailable
from mailsvc.store.keeper import Keeper
from mailsvc.store.migrate import MigrationFailed, migrate
from mailsvc.store.owner import EmbeddedError
from mailsvc.store.pool import Pool
from mailsvc.store.processes import Incarnation
from mailsvc.store.seal import Seal, SealError
from mailsvc.watch import logs

DAY = 86400.0

log = Logger()


class Options(UsageOptions):
    """What stands behind `twistd mailsvc`."""

    longdesc = "Transactional email delivery: in by HTTP, out by SMTP, kept in Postgres."
    optParameters: ClassVar[list[list[Any]]] = [
        ["config", "c", os.environ.get("MAILSVC_CONFIG"), "The settings (TOML); etc/mailsvc.toml explains them."]
    ]

    def postOptions(self) -> None:
        if self["config"] is None:
            sys.exit("mailsvc cannot start. It needs its settings: twistd mailsvc --config FILE")
        try:
            self["settings"] = settings_.load(Path(self["config"]))
        except SettingsError as error:
            sys.exit(f"mailsvc cannot start. {error}")


def makeService(options: Options) -> IService:
    """The service that twistd starts and stops."""
    from twisted.internet import reactor

    settings: Settings = options["settings"]
    return Lifespan(reactor, lambda opened: Daemon(reactor, settings, opened).start(), explain, logs.observer(settings.log))


def explain(error: BaseException) -> str | None:
    """Why it cannot start, as a sentence; None when nobody expected that."""
    match error:
        case SettingsError() | EmbeddedError() | SealError():
            sentence = str(error)
        case Unavailable():
            sentence = f"The database cannot be reached: {error.reason}"
        case MigrationFailed() | StoreError():
            sentence = f"The database cannot be used: {error}"
        case CannotListenError():
            sentence = f"It cannot listen on {error.interface or 'any address'}, port {error.port}: {error.socketError.strerror}."
        case _:
            return None
    return logs.without_secrets(sentence)


class Daemon:
    """What runs, in the order of its starting."""

    def __init__(self, reactor: Any, settings: Settings, opened: Opened) -> None:
        self.reactor, self.settings, self.opened = reactor, settings, opened

    async def start(self) -> None:
        """First the memory, then the ways out, then the doors: nothing is let in that cannot be kept."""
        await self.memory()

    # The memory

    async def memory(self) -> None:
        reactor, database = self.reactor, self.settings.database
        self.seal = await self.in_thread(self._seal)
        if database.embedded is not None:
            keeper = Keeper(EmbeddedPostgres.at(database.embedded), reactor)
            dsn = await keeper.start()
            self.opened.add("Postgres", keeper.stop)
        else:
            dsn = database.url or ""
        self.pool = Pool(dsn, reactor, size=database.pool)
        await self.pool.start()
        self.opened.add("the pool", self.pool.stop)
        applied = await self.in_thread(lambda: migrate(dsn))
        log.info("the database has this release's schema, {count} migrations were applied", count=len(applied))
        await self.make_partitions()
        self.opened.add("the daily round", every(reactor, DAY, "making partitions", self.make_partitions))
        self.bell = Bell(dsn, reactor)
        await self.bell.start()
        self.opened.add("the bell", self.bell.stop)
        self.process = Incarnation(self.pool, reactor)
        await self.process.start(self.settings.region, self.settings.roles)
        self.opened.add("the leases", self.process.end)

    def _seal(self) -> Seal:
        secrets = self.settings.secrets
        if secrets.key is not None:
            return Seal.read(secrets.key.replace(",", "\n"), "The setting secrets.key")
        try:
            return Seal.load(secrets.key_file)
        except OSError as error:
            raise SettingsError(f"The setting secrets.key_file is {secrets.key_file}, which cannot be used: {error.strerror}.") from None

    async def make_partitions(self) -> None:
        await partitions.ensure(self.pool, datetime.fromtimestamp(self.reactor.seconds(), UTC))

    # Small things that the stations share

    async def in_thread(self, call: Any) -> Any:
        """`call()` off the reactor's thread."""
        return await deferToThreadPool(self.reactor, self.reactor.getThreadPool(), call)

    async def listen(self, where: str, endpoints: tuple[str, ...], factory: Any) -> list[Any]:
        """Open `factory` on the endpoints of the setting `where`."""
        ports = []
        for text in endpoints:
            try:
                endpoint = serverFromString(self.reactor, text)
            except (ValueError, KeyError, TypeError) as error:
                raise SettingsError(f"The setting {where} is {text!r}, which is no endpoint: {error}.") from None
            port = await endpoint.listen(factory)
            ports.append(port)
            self.opened.add(where, partial(closed, port))
            log.info("{where} listens on {host}", where=where, host=str(port.getHost()))
        return ports


async def closed(port: Any) -> None:
    """A port that takes no more connections; those that it has go on."""
    await maybeDeferred(port.stopListening)
