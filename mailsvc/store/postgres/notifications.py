"""The bell: tells other processes that there is something to look at. What it is they read from the tables.

A ring may be lost, so who listens also looks by itself from time to time, and is called once after every (re)connection.
NOTIFY takes a lock of the whole server at commit, so it is rung from a connection of its own, after the commit that it
tells of: at most 20 times a second for a channel that much happens on, a few times more for one on which things happen singly
and somebody waits for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred, TimeoutError
from twisted.logger import Logger

from mailsvc.store.postgres.backoff import Backoff
from mailsvc.store.postgres.connection import Connection, Limits
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.prepared import Prepared

APART = 0.05  # seconds between two rings of a channel
BRIEFLY = 0.01  # the same where no more than one thing happened between the last two
PATIENT = frozenset({"events"})  # channels of which nobody waits for the first ring: it waits for company
PREFIX = "mailsvc_"
LAST = 1.0  # seconds that a shutdown waits for an attempt to connect
RING = Prepared("ring", ("text[]",), f"SELECT pg_notify('{PREFIX}' || channel, '') FROM unnest($1) AS channel")

Callback = Callable[[], None]


@attrs.define(eq=False)
class Notifications:
    log = Logger()

    dsn: str = attrs.field(repr=False)  # may hold a password
    reactor: Any = attrs.field(repr=False)
    name: str = "mailsvc bell"
    rings: int = attrs.field(default=0, init=False)  # how many were sent
    _callbacks: dict[str, list[Callback]] = attrs.field(factory=dict, init=False)
    _rung: dict[str, float] = attrs.field(factory=dict, init=False)  # when a channel was last rung
    _wanted: dict[str, int] = attrs.field(factory=dict, init=False)  # how many rings were asked for since then
    _apart: dict[str, float] = attrs.field(factory=dict, init=False)  # how long after that the next one may come
    _soon: set[str] = attrs.field(factory=set, init=False)  # to be rung when their time has come
    _now: set[str] = attrs.field(factory=set, init=False)  # to be rung with the next statement
    _heard: set[str] = attrs.field(factory=set, init=False)  # notified, callbacks not called yet
    _listened: set[str] = attrs.field(factory=set, init=False)  # on this connection
    _link: Connection | None = attrs.field(default=None, init=False)
    _open: bool = attrs.field(default=False, init=False)
    _talking: bool = attrs.field(default=False, init=False)
    _connecting: bool = attrs.field(default=False, init=False)
    _stopped: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _backoff: Backoff = attrs.field(default=attrs.Factory(lambda self: Backoff(self.reactor), takes_self=True), init=False)

    @property
    def connected(self) -> bool:
        return self._link is not None

    def listen(self, channel: str, callback: Callback) -> None:
        """Call `callback` when the channel was rung, and after every (re)connection."""
        if not channel.isidentifier():
            raise ValueError(f"{channel!r} is no name for a channel.")
        self._callbacks.setdefault(channel, []).append(callback)
        self._talk()

    def ring(self, channel: str) -> None:
        """Soon. Many rings become one. Without a connection it is kept for the next one."""
        self._wanted[channel] = self._wanted.get(channel, 0) + 1
        if channel in self._soon or channel in self._now:
            return
        self._soon.add(channel)
        wait = APART if channel in PATIENT else self._rung.get(channel, -APART) + self._apart.get(channel, 0.0) - self.reactor.seconds()
        self.reactor.callLater(min(max(0.0, wait), APART), self._due, channel)

    async def start(self) -> None:
        """Connect; if the server is not there now, go on trying in the background."""
        self._open = True
        await self._connect()

    async def stop(self) -> None:
        self._open = False
        self._backoff.wake()
        if self._link is not None:
            self._link.abandon()
        if self._connecting:
            self._stopped.append(Deferred())
            try:
                await self._stopped[-1].addTimeout(LAST, self.reactor)
            except TimeoutError:
                self.log.info("an attempt to connect is still under way; it ends with the process")

    def _due(self, channel: str) -> None:
        self._soon.discard(channel)
        self._rung[channel] = self.reactor.seconds()
        self._apart[channel] = APART if self._wanted.pop(channel, 0) > 1 else BRIEFLY
        self._now.add(channel)
        self._talk()

    def _talk(self) -> None:
        """Say on the connection what is to be said, one statement after the other."""
        if self._link is not None and not self._talking and (self._now or self._callbacks.keys() - self._listened):
            Deferred.fromCoroutine(self._conversation(self._link)).addErrback(
                lambda failure: self.log.failure("the bell is broken", failure=failure)
            )

    async def _conversation(self, link: Connection, *first: str) -> None:
        self._talking = True
        try:
            for sql in first:
                await link.execute(sql)
            while not link.lost:
                if new := self._callbacks.keys() - self._listened:
                    await link.execute("; ".join(f"LISTEN {PREFIX}{channel}" for channel in sorted(new)))
                    self._listened |= new
                elif self._now:
                    channels, self._now = self._now, set()
                    await link.execute(RING.execute, (sorted(channels),))  # the driver's way, which hears who rings meanwhile
                    self.rings += len(channels)
                else:
                    return
        except StoreError as error:
            self.log.info("the bell's connection failed: {error}", error=str(error))
            link.abandon()
        except Exception:
            self.log.failure("the bell's connection failed unexpectedly")
            link.abandon()
        finally:
            self._talking = False

    async def _connect(self) -> None:
        self._connecting = True
        try:
            await self._try()
            if self._link is None and self._open:
                Deferred.fromCoroutine(self._keep_trying())
        finally:
            self._connecting = self._link is None and self._open
            self._tell_stopped()

    async def _keep_trying(self) -> None:
        while self._link is None and self._open:
            await self._backoff.pause()
            if self._open:
                await self._try()
        self._connecting = False
        self._tell_stopped()

    def _tell_stopped(self) -> None:
        if not self._connecting:
            stopped, self._stopped = self._stopped, []
            for waiting in stopped:
                waiting.callback(None)

    async def _try(self) -> None:
        try:
            link = await Connection.open(self.reactor, self.dsn, self.name, self._lost, Limits())
        except Exception as error:  # whatever it is: trying ends only when the process does
            self.log.warn("the bell has no connection, next try in {pause:g} s: {error}", pause=self._backoff.upcoming, error=str(error))
            return
        if not self._open:
            link.abandon()
            return
        link.addNotifyObserver(self._notified)
        self._link, self._listened = link, set()
        await self._conversation(link, RING.prepare)
        if not link.lost:
            self._backoff.reset()
            self._heard |= self._callbacks.keys()  # what was rung while nobody listened
            self._call_back()

    def _lost(self, link: Connection) -> None:
        if link is self._link:
            self._link = None
            if self._open and not self._connecting:
                Deferred.fromCoroutine(self._connect())

    def _notified(self, notification: Any) -> None:
        if not self._heard:
            self.reactor.callLater(0, self._call_back)
        self._heard.add(notification.channel.removeprefix(PREFIX))

    def _call_back(self) -> None:
        heard, self._heard = self._heard, set()
        for channel in sorted(heard):
            for callback in self._callbacks.get(channel, ()):
                try:
                    callback()
                except Exception:
                    self.log.failure("a listener of {channel} failed", channel=channel)
