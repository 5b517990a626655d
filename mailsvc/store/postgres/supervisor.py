"""Keeps the embedded Postgres running: starts it, restarts it when it has died, stops it. When it is checked: runtime/database."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from mailsvc.store.postgres.embedded import EmbeddedPostgres


@attrs.define(eq=False)
class Supervisor:
    log = Logger()

    server: EmbeddedPostgres
    reactor: Any
    restarts: int = attrs.field(default=0, init=False)

    async def start(self) -> str:
        """Start the server. Returns the DSN to connect with."""
        dsn: str = await self._in_thread(self.server.start_blocking)
        return dsn

    async def check(self) -> None:
        """Restart the server if it has died. Raises EmbeddedError or OSError if it does not start."""
        if not self.server.alive:
            self.log.error("Postgres is not running, restarting it")
            await self._in_thread(self.server.start_blocking)
            self.restarts += 1

    async def stop(self) -> None:
        """Stop the server, once nobody uses it."""
        await self._in_thread(self.server.stop_blocking)

    def _in_thread(self, call: Any) -> Deferred[Any]:
        return deferToThreadPool(self.reactor, self.reactor.getThreadPool(), call)
