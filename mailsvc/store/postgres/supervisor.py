"""Keeps the embedded Postgres running while the daemon runs: starts it, starts it again when it dies, stops it."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from mailsvc.store.postgres.backoff import Backoff
from mailsvc.store.postgres.embedded import EmbeddedPostgres
from mailsvc.store.postgres.system_user import EmbeddedError

LOOK = 0.25  # seconds between two looks whether it runs


@attrs.define(eq=False)
class Supervisor:
    log = Logger()

    server: EmbeddedPostgres
    reactor: Any
    restarts: int = attrs.field(default=0, init=False)
    _running: bool = attrs.field(default=False, init=False)
    _timer: Any = attrs.field(default=None, init=False)
    _round: Deferred[None] | None = attrs.field(default=None, init=False)
    _backoff: Backoff = attrs.field(default=attrs.Factory(lambda self: Backoff(self.reactor, 0.2), takes_self=True), init=False)

    async def start(self) -> str:
        """How to connect."""
        dsn: str = await self._in_thread(self.server.start_blocking)
        self._running = True
        self._timer = self.reactor.callLater(LOOK, self._look)
        return dsn

    async def stop(self) -> None:
        """After all who use it."""
        self._running = False
        self._backoff.wake()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._round is not None:
            await self._round
        await self._in_thread(self.server.stop_blocking)

    def _look(self) -> None:
        if self.server.alive:
            self._timer = self.reactor.callLater(LOOK, self._look)
        else:
            self._round = Deferred.fromCoroutine(self._restart())

    async def _restart(self) -> None:
        while self._running:
            self.log.error("Postgres is not running, starting it again")
            try:
                await self._in_thread(self.server.start_blocking)
            except (EmbeddedError, OSError) as error:
                self.log.error("Postgres does not start, next try in {pause:g} s: {error}", pause=self._backoff.upcoming, error=str(error))
                await self._backoff.pause()
            else:
                self.restarts += 1
                self._backoff.reset()
                self._timer = self.reactor.callLater(LOOK, self._look)
                break
        self._round = None

    def _in_thread(self, call: Any) -> Deferred[Any]:
        return deferToThreadPool(self.reactor, self.reactor.getThreadPool(), call)
