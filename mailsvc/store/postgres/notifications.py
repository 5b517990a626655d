"""LISTEN and NOTIFY: tell other processes that a table has changed. What has changed, they read from the table.

A notification may be lost, so listeners also poll, and each is called once after every (re)connection.

NOTIFY takes a lock on the whole database server at commit. It therefore has a connection of its own and is sent after the
commit it announces: at most 20 times a second on a busy channel, and up to 100 times a second on one with single events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, TimeoutError
from twisted.logger import Logger

from mailsvc.store.postgres.backoff import Backoff
from mailsvc.store.postgres.connection import Connection, Limits
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.prepared import Prepared

BUSY_INTERVAL = 0.05  # seconds between two notifications on a channel that was notified several times since the last one
QUIET_INTERVAL = 0.01  # the same on a channel that was notified once
DELAYED_CHANNELS = frozenset({"events"})  # nobody waits for the first notification on these: it is delayed by BUSY_INTERVAL too
PREFIX = "mailsvc_"
STOP_TIMEOUT = 1.0  # seconds that a shutdown waits for a connection that is being opened
NOTIFY = Prepared("notify", ("text[]",), f"SELECT pg_notify('{PREFIX}' || channel, '') FROM unnest($1) AS channel")

Callback = Callable[[], object]


class Notifier(Protocol):
    """What other packages use of `Notifications`."""

    def listen(self, channel: str, callback: Callback) -> None: ...
    def notify(self, channel: str) -> None: ...


@attrs.define(eq=False)
class Notifications:
    log = Logger()

    dsn: str = attrs.field(repr=False)  # may contain a password
    reactor: Any = attrs.field(repr=False)
    name: str = "mailsvc notifications"
    sent: int = attrs.field(default=0, init=False)
    _callbacks: dict[str, list[Callback]] = attrs.field(factory=dict, init=False)
    _notified_at: dict[str, float] = attrs.field(factory=dict, init=False)  # when each channel was last notified
    _requests: dict[str, int] = attrs.field(factory=dict, init=False)  # calls of notify() for each channel since then
    _intervals: dict[str, float] = attrs.field(factory=dict, init=False)  # seconds from then to the next notification
    _scheduled: set[str] = attrs.field(factory=set, init=False)  # channels with a timer
    _due: set[str] = attrs.field(factory=set, init=False)  # channels to notify with the next statement
    _received: set[str] = attrs.field(factory=set, init=False)  # channels with callbacks to call
    _listening: set[str] = attrs.field(factory=set, init=False)  # channels of LISTEN on this connection
    _connection: Connection | None = attrs.field(default=None, init=False)
    _running: bool = attrs.field(default=False, init=False)
    _sending: bool = attrs.field(default=False, init=False)
    _connecting: bool = attrs.field(default=False, init=False)
    _stopping: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _backoff: Backoff = attrs.field(default=attrs.Factory(lambda self: Backoff(self.reactor), takes_self=True), init=False)

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def listen(self, channel: str, callback: Callback) -> None:
        """Call `callback` after each notification on the channel and after every (re)connection."""
        if not channel.isidentifier():
            raise ValueError(f"{channel!r} is not a valid channel name.")
        self._callbacks.setdefault(channel, []).append(callback)
        self._send()

    def notify(self, channel: str) -> None:
        """Notify the channel soon, once for many calls. Without a connection, once there is one."""
        self._requests[channel] = self._requests.get(channel, 0) + 1
        if channel in self._scheduled or channel in self._due:
            return
        self._scheduled.add(channel)
        wait = BUSY_INTERVAL
        if channel not in DELAYED_CHANNELS:
            wait = self._notified_at.get(channel, -BUSY_INTERVAL) + self._intervals.get(channel, 0.0) - self.reactor.seconds()
        self.reactor.callLater(min(max(0.0, wait), BUSY_INTERVAL), self._timer_fired, channel)

    async def start(self) -> None:
        """Connect. If the server cannot be reached, keep trying in the background."""
        self._running = True
        await self._connect()

    def reconnect(self) -> None:
        """Connect again: the cell is on another server."""
        if self._connection is not None:
            self._connection.abandon()

    def missed(self) -> None:
        """Call all listeners, because any channel may have been notified without this process having received it yet."""
        self._received |= self._callbacks.keys()
        self._call_back()

    async def stop(self) -> None:
        self._running = False
        self._backoff.wake()
        if self._connection is not None:
            self._connection.abandon()
        if self._connecting:
            self._stopping.append(Deferred())
            try:
                await self._stopping[-1].addTimeout(STOP_TIMEOUT, self.reactor)
            except TimeoutError:
                self.log.info("still opening the connection for notifications; it is dropped when the process exits")

    def _timer_fired(self, channel: str) -> None:
        self._scheduled.discard(channel)
        self._notified_at[channel] = self.reactor.seconds()
        self._intervals[channel] = BUSY_INTERVAL if self._requests.pop(channel, 0) > 1 else QUIET_INTERVAL
        self._due.add(channel)
        self._send()

    def _send(self) -> None:
        """Send what is due, one statement after the other."""
        if self._connection is not None and not self._sending and (self._due or self._callbacks.keys() - self._listening):
            Deferred.fromCoroutine(self._send_statements(self._connection)).addErrback(
                lambda failure: self.log.failure("sending notifications failed", failure=failure)
            )

    async def _send_statements(self, connection: Connection, *first: str) -> None:
        self._sending = True
        try:
            for sql in first:
                await connection.execute(sql)
            while not connection.lost:
                if new := self._callbacks.keys() - self._listening:
                    await connection.execute("; ".join(f"LISTEN {PREFIX}{channel}" for channel in sorted(new)))
                    self._listening |= new
                elif self._due:
                    channels, self._due = self._due, set()
                    # Through the driver, which also reads the notifications that arrive meanwhile.
                    await connection.execute(NOTIFY.execute, (sorted(channels),))
                    self.sent += len(channels)
                else:
                    return
        except StoreError as error:
            self.log.info("the connection for notifications failed: {error}", error=str(error))
            connection.abandon()
        except Exception:
            self.log.failure("the connection for notifications failed unexpectedly")
            connection.abandon()
        finally:
            self._sending = False

    async def _connect(self) -> None:
        self._connecting = True
        try:
            await self._try()
            if self._connection is None and self._running:
                Deferred.fromCoroutine(self._keep_trying())
        finally:
            self._connecting = self._connection is None and self._running
            self._finish_stopping()

    async def _keep_trying(self) -> None:
        while self._connection is None and self._running:
            await self._backoff.pause()
            if self._running:
                await self._try()
        self._connecting = False
        self._finish_stopping()

    def _finish_stopping(self) -> None:
        if not self._connecting:
            stopping, self._stopping = self._stopping, []
            for waiting in stopping:
                waiting.callback(None)

    async def _try(self) -> None:
        try:
            connection = await Connection.open(self.reactor, self.dsn, self.name, self._connection_lost, Limits())
        except Exception as error:  # of any kind: only stop() ends the retries
            self.log.warn(
                "cannot connect for notifications, retrying in {pause:g} s: {error}", pause=self._backoff.upcoming, error=str(error)
            )
            return
        if not self._running:
            connection.abandon()
            return
        connection.addNotifyObserver(self._notification_received)
        self._connection, self._listening = connection, set()
        await self._send_statements(connection, NOTIFY.prepare)
        if not connection.lost:
            self._backoff.reset()
            self.missed()

    def _connection_lost(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None
            if self._running and not self._connecting:
                Deferred.fromCoroutine(self._connect())

    def _notification_received(self, notification: Any) -> None:
        if not self._received:
            self.reactor.callLater(0, self._call_back)
        self._received.add(notification.channel.removeprefix(PREFIX))

    def _call_back(self) -> None:
        received, self._received = self._received, set()
        for channel in sorted(received):
            for callback in self._callbacks.get(channel, ()):
                try:
                    callback()
                except Exception:
                    self.log.failure("a listener of channel {channel} failed", channel=channel)
