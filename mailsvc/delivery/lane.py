"""One destination in memory: its connections, what waits for them, and how many there may be at once.

Connections are made before mail is taken for them, so that mail never waits behind a host that does not answer while another
connection is free. A lane that nothing waits for and that holds no connection is over. What waits in Postgres: dispatch.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from mailsvc.delivery.attempt import Report
from mailsvc.delivery.connect import Line, Unreachable
from mailsvc.delivery.health import Health
from mailsvc.delivery.parcel import Parcel, Turns
from mailsvc.delivery.route import Route
from mailsvc.delivery.slots import Slots
from mailsvc.delivery.terms import DeliverySettings

_PER_CONNECTION = 50  # emails in memory for each connection that there may be
_UNPROVEN_WINDOW = 10  # emails in memory for a destination that has not taken any yet
_UNWRITTEN = 300.0  # seconds before an email whose outcome could not be written is touched again


class Connecting(Protocol):
    async def connect(self, route: Route) -> Line: ...


class Attempting(Protocol):
    async def run(self, line: Line, parcel: Parcel) -> Report: ...


class Owner(Protocol):
    """Whoever keeps the lanes: dispatch."""

    def drained(self, lane: Lane) -> None:
        """There is room for more."""

    def over(self, lane: Lane) -> None:
        """The lane holds nothing any more."""

    def succeeded(self, lane: Lane) -> None:
        """The destination did its work."""

    def down(self, lane: Lane, why: Unreachable, parcels: list[Parcel]) -> None:
        """The destination cannot be used now; here is what waited for it. The lane takes nothing any more."""

    def returned(self, parcel: Parcel, pause: float = 0.0) -> None:
        """A parcel that was not sent; its lease goes back, for no use within `pause` seconds."""


@attrs.frozen
class Yard:
    """What all lanes share."""

    clock: Any
    terms: DeliverySettings
    connector: Connecting
    attempts: Attempting
    slots: Slots
    owner: Owner


class Lane:
    """Takes parcels while it has `room`; how many connections it may open is `health`'s to say."""

    log = Logger()

    def __init__(self, route: Route, yard: Yard, health: Health) -> None:
        self.route = route
        self.destination = route.destination
        self.health = health
        self.reserved = 0
        self.lines: set[Line] = set()
        self._yard, self._terms, self._clock = yard, yard.terms, yard.clock
        self._turns = Turns()
        self._idlers: list[Deferred[Parcel | None]] = []
        self._workers = 0
        self._dials: set[Deferred[Line]] = set()
        self._failing = False  # a dial failed and none has come through since: those under way decide
        self._busy: dict[Line, Parcel] = {}
        self.closing = False
        self._ended: list[Deferred[None]] = []

    # What may come in

    @property
    def window(self) -> int:
        """Emails in memory: as many as connections can use, few until something went through."""
        return (
            min(self._terms.window, _PER_CONNECTION * self.health.allowed)
            if self.health.proven
            else min(self._terms.window, _UNPROVEN_WINDOW)
        )

    @property
    def room(self) -> int:
        return 0 if self.closing else max(0, self.window - len(self._turns) - self.reserved)

    @property
    def waiting(self) -> int:
        return len(self._turns)

    @property
    def busy(self) -> int:
        return len(self._busy)

    def reserve(self) -> None:
        self.reserved += 1

    def unreserve(self) -> None:
        self.reserved -= 1
        self._over_when_empty()

    def settle_down(self) -> None:
        """Nobody took a seat after all."""
        self._over_when_empty()

    def put(self, parcel: Parcel) -> None:
        """To a connection that lies idle, else in turn. The caller looked at `closing` and `room`."""
        if self._idlers:
            self._idlers.pop().callback(parcel)
        else:
            self._turns.put(parcel)
            self._staff()

    # Its end

    def close(self) -> list[Parcel]:
        """Begin nothing more: idle connections quit, what waits comes back. Attempts under way go on."""
        self.closing = True
        self._yard.slots.forget(self._staff)
        for idler in self._idlers[:]:
            idler.callback(None)
        for dial in list(self._dials):
            dial.cancel()
        return self._turns.drain()

    def ended(self) -> Deferred[None]:
        """Fires when the last connection is gone."""
        waiting: Deferred[None] = Deferred()
        if self._workers:
            self._ended.append(waiting)
        else:
            waiting.callback(None)
        return waiting

    def abort(self) -> None:
        """Cut what is under way; attempts then end with what is known: nothing after a final dot is uncertain."""
        for line in list(self.lines):
            line.courier.abort("the service stops")

    # Connections

    def _staff(self) -> None:
        """Open connections while there is more to do than hands."""
        while self._wants_another():
            if not self._yard.slots.take(self.health.proven, self._staff):
                return
            self._workers += 1
            Deferred.fromCoroutine(self._work()).addErrback(self._failed)

    def _wants_another(self) -> bool:
        if self.closing or self._failing or self._workers >= self.health.allowed or len(self._turns) <= len(self._dials):
            return False
        return not self._workers or self.health.may_grow(len(self._dials))

    async def _work(self) -> None:
        line: Line | None = None
        try:
            line = await self._open()
            while line is not None and not self.closing:
                parcel = self._turns.next() or await self._idle(line)
                if parcel is None:
                    break
                line = await self._carry(line, parcel)
        finally:
            if line is not None:
                self._drop(line)
            self._workers -= 1
            self._yard.slots.give()
            self._staff()
            if not self._workers:
                for waiting in self._ended:
                    waiting.callback(None)
                self._ended = []
            self._over_when_empty()

    async def _carry(self, line: Line, parcel: Parcel) -> Line | None:
        """One attempt, and the line for the next one; None when there is no use for a further connection."""
        if not line.courier.usable:
            self._turns.put(parcel, first=True)
            return await self._replace(line)
        self._busy[line] = parcel
        try:
            report = await self._yard.attempts.run(line, parcel)
        except Exception:
            self.log.failure("an attempt at {email_id} was not written down", email_id=parcel.email_id)
            self._yard.owner.returned(parcel, _UNWRITTEN)
            report = Report(usable=False, tried=False)
        finally:
            del self._busy[line]
        if report.unsent:
            self._yard.owner.returned(parcel)
        elif report.again:
            self._first(parcel)
        elif report.trouble is not None:
            self._suffered(report.trouble)
        elif report.tried:
            self._succeeded()
        if report.rest is not None:
            self._first(report.rest)
        if len(self._turns) + self.reserved <= self.window // 2:
            self._yard.owner.drained(self)
        if report.usable and line.courier.usable and line.sent < self._terms.messages_per_connection:
            return line
        return await self._replace(line)

    def _first(self, parcel: Parcel) -> None:
        """What was begun goes on before anything else."""
        if self.closing:
            self._yard.owner.returned(parcel)
        else:
            self._turns.put(parcel, first=True)

    async def _replace(self, line: Line) -> Line | None:
        """A new connection in place of one that is used up, when something waits for it."""
        self._drop(line)
        if self.closing or not self._turns or self._workers > self.health.allowed:
            return None
        return await self._open()

    async def _open(self) -> Line | None:
        """A connection; None when there is none to be had, which has been seen to then."""
        dial: Deferred[Line] = Deferred.fromCoroutine(self._yard.connector.connect(self.route))
        self._dials.add(dial)
        why: Unreachable
        try:
            line = await dial
        except Unreachable as found:
            why = found
        except CancelledError:
            why = Unreachable("The service stops.")
        except Exception:
            self.log.failure("connecting to {destination} failed on our side", destination=self.destination)
            why = Unreachable("Connecting failed on our side; it will be tried again.")
        else:
            self._dials.discard(dial)
            self._failing = False
            if self.lines:
                self.health.grew()
            self.lines.add(line)
            return line
        self._dials.discard(dial)
        self._unreachable(why)
        return None

    def _drop(self, line: Line) -> None:
        self.lines.discard(line)
        line.courier.quit()

    async def _idle(self, line: Line) -> Parcel | None:
        """The next parcel, or None when none came in time or somebody else needs the connection."""
        waiting: Deferred[Parcel | None] = Deferred()

        def give_up() -> None:
            if not waiting.called:
                waiting.callback(None)

        self._idlers.append(waiting)
        timer = self._clock.callLater(self._terms.idle_seconds, give_up)
        self._yard.slots.idle(give_up)
        try:
            return await waiting
        finally:
            if waiting in self._idlers:
                self._idlers.remove(waiting)
            self._yard.slots.busy(give_up)
            if timer.active():
                timer.cancel()

    # How it goes

    def _succeeded(self) -> None:
        self.health.succeeded()
        self._yard.owner.succeeded(self)
        self._staff()

    def _suffered(self, trouble: str) -> None:
        if self.health.suffered():
            self._rest(Unreachable(trouble))

    def _unreachable(self, why: Unreachable) -> None:
        if self.lines:
            self.health.crowded(len(self.lines))
        elif self._dials:
            self._failing = True
        else:
            self._rest(why)

    def _rest(self, why: Unreachable) -> None:
        if not self.closing:
            self._yard.owner.down(self, why, self.close())

    def _failed(self, failure: Any) -> None:
        """A fault of ours ended a worker; nothing that waits may hang on it."""
        self.log.failure("a connection of the lane {destination} failed", failure=failure, destination=self.destination)
        if not self.lines and not self._dials:
            self._rest(Unreachable("Connecting failed on our side; it will be tried again."))

    def _over_when_empty(self) -> None:
        if not self._workers and not self._turns and not self.reserved:
            self._yard.slots.forget(self._staff)
            self._yard.owner.over(self)
