"""One destination in memory: its connections, what waits for them, and how many there may be at once.

Connections are made before mail is taken for them, so that mail never waits behind a host that does not answer while another
connection is free. A lane that nothing waits for and that holds no connection is over. What waits in Postgres: dispatch.
"""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from mailsvc.delivery import pace
from mailsvc.delivery.admission.budget import Budget
from mailsvc.delivery.admission.health import Health
from mailsvc.delivery.attempt import Report
from mailsvc.delivery.connection.connect import OpenConnection, Unreachable
from mailsvc.delivery.connection.route import Route
from mailsvc.delivery.connection.tls_policy import ANY, ConnectionPreference
from mailsvc.delivery.lane_context import ConnectionWorker, LaneContext
from mailsvc.delivery.transaction import AccountTurns, Transaction

_PER_CONNECTION = 50  # emails in memory for each connection that there may be
_UNPROVEN_WINDOW = 10  # emails in memory for a destination that has not taken any yet


class Lane:
    """Takes parcels while it has `room`; how many connections it may open is `health`'s to say."""

    log = Logger()

    def __init__(self, route: Route, yard: LaneContext, health: Health, budget: Budget) -> None:
        self.route = route
        self.destination = route.destination
        self.health = health
        self.budget = budget
        self.reserved = 0
        self.busy = 0  # emails that connections are at
        self.lines: set[OpenConnection] = set()
        self._yard, self._terms, self._clock = yard, yard.terms, yard.clock
        self._turns = AccountTurns()
        self._idlers: list[Deferred[Transaction | None]] = []
        self._workers = 0
        self._dials: set[Deferred[OpenConnection]] = set()
        self._naps: set[Deferred[None]] = set()  # of connections that wait for their turn to send
        self._usual = ANY  # what mail here needed last of a connection
        self._opening: Any = None  # the timer of the next connection
        self._failing = False  # a dial failed and none has come through since: those under way decide
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

    def view(self) -> dict[str, object]:
        """As it is now, for the operator."""
        return {
            "delivered_per_minute": self.health.per_minute,
            "connections": len(self.lines),
            "connecting": len(self._dials),
            "allowed": self.health.allowed,
            "in_memory": self.waiting + self.busy,
            "slowed_until": self.budget.slow_until,
        }

    def reserve(self) -> None:
        self.reserved += 1

    def unreserve(self) -> None:
        self.reserved -= 1
        self._over_when_empty()

    def settle_down(self) -> None:
        """Nobody took a seat after all."""
        self._over_when_empty()

    def put(self, parcel: Transaction) -> None:
        """To a connection that lies idle, else in turn. The caller looked at `closing` and `room`."""
        if self._idlers:
            self._idlers.pop().callback(parcel)
        else:
            self._turns.put(parcel)
            self._staff()

    # Its end

    def close(self) -> list[Transaction]:
        """Begin nothing more: idle connections quit, what waits comes back. Attempts under way go on."""
        self.closing = True
        self._forget_staff()
        for idler in self._idlers[:]:
            idler.callback(None)
        for nap in list(self._naps):
            nap.cancel()
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
        """Cut what is under way; attempts then end with what is known: nothing after a whole message is uncertain."""
        for line in list(self.lines):
            line.courier.abort("the service stops")

    # Connections

    def _staff(self) -> None:
        """Open connections while there is more to do than hands."""
        while self._wants_another():
            if self.budget.full(self._staff) or self._must_wait() or not self._take_slot():
                return
            self.budget.forget(self._staff)
            self.budget.taken()
            self.budget.opening()
            self._workers += 1
            Deferred.fromCoroutine(self._work()).addErrback(self._failed)

    def _take_slot(self) -> bool:
        return self._yard.slots.take(self.health.proven, self._staff, self._turns.urgent)

    def _must_wait(self) -> bool:
        """Whether the next connection may not be opened yet; it is then, by itself."""
        wait = self.budget.wait_to_open()
        if wait > 0 and self._opening is None:
            self._opening = self._clock.callLater(wait, self._open_now)
        return wait > 0

    def _open_now(self) -> None:
        self._opening = None
        self._staff()

    def _forget_staff(self) -> None:
        self._yard.slots.forget(self._staff)
        self.budget.forget(self._staff)
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    def _wants_another(self) -> bool:
        if self.closing or self._failing or len(self._turns) <= len(self._dials) or self._workers >= self.health.allowed:
            return False
        return not self._workers or self.health.may_grow(len(self._dials))

    async def _work(self) -> None:
        hand = ConnectionWorker()
        if not self.health.proven:
            self._yard.slots.trial(hand.give_up)
        try:
            await self._open(hand)
            while hand.line is not None and not self.closing:
                parcel = await self._next(hand.line)
                if parcel is None:
                    break
                self.busy += 1
                try:
                    good = await self._carry(hand, hand.line, parcel)
                finally:
                    self.busy -= 1
                if not good:
                    await self._replace(hand)
                if self.health.proven:
                    self._yard.slots.tried(hand.give_up)
        finally:
            self._yard.slots.tried(hand.give_up)
            self._drop(hand)
            self._workers -= 1
            self._yard.slots.give()
            self.budget.give()
            self._staff()
            if not self._workers:
                for waiting in self._ended:
                    waiting.callback(None)
                self._ended = []
            self._over_when_empty()

    async def _next(self, line: OpenConnection) -> Transaction | None:
        """What this connection sends next, when it may; None when there is nothing for it."""
        while not self.closing:
            parcel = self._turns.next() or await self._idle(line)
            if parcel is None:
                break
            wait = self.budget.send()
            if not wait:
                return parcel
            self._first(parcel)
            await self._nap(wait)
            if not line.courier.usable:  # the server did not wait; another connection is opened for what is left
                break
        return None

    async def _nap(self, seconds: float) -> None:
        nap = pace.sleep(self._clock, seconds)
        self._naps.add(nap)
        try:
            await nap
        except CancelledError:
            pass
        finally:
            self._naps.discard(nap)

    async def _carry(self, hand: ConnectionWorker, line: OpenConnection, parcel: Transaction) -> bool:
        """One attempt, over this connection or the one that the mail needs. Whether what is in the hand then may be used on."""
        if line.reused and not line.courier.usable:  # a fresh one that is not usable counts as an attempt, or this would have no end
            self._turns.put(parcel, first=True)
            return False
        wish = ConnectionPreference.of(parcel)
        if wish is not ANY and self._elsewhere(line, wish):
            other = await self._exchange(hand, wish, parcel)
            if other is None:
                return True
            line = other
        line.proven = self.health.proven
        report = await self._yard.attempts.run(line, parcel)
        if report.demand is not None:
            other = await self._exchange(hand, attrs.evolve(wish, demand=report.demand), parcel)
            if other is None:
                return True
            line, self._usual = other, ConnectionPreference(report.demand)
            report = await self._yard.attempts.run(line, parcel)
            if report.demand is not None:  # it grew meanwhile
                self._first(parcel)
        self._account(parcel, report)
        if len(self._turns) + self.reserved <= self.window // 2:
            self._yard.owner.drained(self)
        good = report.usable and line.courier.usable and line.sent < self._per_connection
        return good and not self._too_many and not self._yields

    def _account(self, parcel: Transaction, report: Report) -> None:
        """What an attempt says about the destination, and what is left to do."""
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
        if report.replies:
            self._yard.owner.answered(self, report.replies)

    @property
    def _yields(self) -> bool:
        """Bulk mail lets transactional mail of other lanes have its connection."""
        return self._yard.slots.wanted and not self._turns.urgent

    def _elsewhere(self, line: OpenConnection, wish: ConnectionPreference) -> bool:
        """Whether a mail had better go over another connection, to the host or from the address that had it last."""
        if wish.host is not None and line.host != wish.host and any(host.name == wish.host for host in self.route.hosts):
            return True
        return wish.source is not None and line.source is not None and line.source != wish.source

    async def _exchange(self, hand: ConnectionWorker, wish: ConnectionPreference, parcel: Transaction) -> OpenConnection | None:
        """Another connection for what one mail wishes; None when there is none, and the mail has been seen to."""
        known = self._yard.connector.unmet(self.route, wish.demand) if wish.demand.verified else None
        if known is not None:
            await self._yard.attempts.unmet(parcel, wish.demand, known)
            return None
        self._drop(hand)
        if self.closing:
            self._first(parcel)
            return None
        self.budget.opening()
        try:
            await self._dial(hand, wish)
        except Unreachable as why:
            if wish.demand.verified and not self.closing:
                await self._yard.attempts.unmet(parcel, wish.demand, why)
            else:
                self._first(parcel)
                self._unreachable(why)
        return hand.line

    def _first(self, parcel: Transaction) -> None:
        """What was begun goes on before anything else."""
        if self.closing:
            self._yard.owner.returned(parcel)
        else:
            self._turns.put(parcel, first=True)

    async def _replace(self, hand: ConnectionWorker) -> None:
        """A new connection in place of one that is used up, when something waits for it."""
        self._drop(hand)
        if self.closing or not self._turns or self._too_many or self._yields:
            return
        if self.budget.wait_to_open():
            return  # somebody opens another when it is time
        self.budget.opening()
        await self._open(hand)

    @property
    def _too_many(self) -> bool:
        """Whether there are more connections than there may be by now: others share the limit, or it went badly."""
        return self.budget.over or self._workers > self.health.allowed

    @property
    def _per_connection(self) -> int:
        return min(self._terms.messages_per_connection, self.budget.per_connection or self._terms.messages_per_connection)

    async def _open(self, hand: ConnectionWorker) -> None:
        """A connection; when there is none to be had, that has been seen to when this returns."""
        wish, self._usual = self._usual, ANY
        try:
            try:
                await self._dial(hand, wish)
                self._usual = wish
            except Unreachable:
                if wish is ANY or self.closing or hand.weary:
                    raise
                await self._dial(hand, ANY)
        except Unreachable as why:
            self._unreachable(why)

    async def _dial(self, hand: ConnectionWorker, wish: ConnectionPreference) -> None:
        """Raises Unreachable, whatever kept it from being connected."""
        dial: Deferred[OpenConnection] = Deferred.fromCoroutine(self._yard.connector.connect(self.route, wish))
        self._dials.add(dial)
        hand.dial = dial
        try:
            line = await dial
        except CancelledError:
            why = "It was not ready for mail for long, and others waited." if hand.weary else "The service stops."
            raise Unreachable(why) from None
        except Unreachable:
            raise
        except Exception:
            self.log.failure("connecting to {destination} failed on our side", destination=self.destination)
            raise Unreachable("Connecting failed on our side; it will be tried again.") from None
        finally:
            hand.dial = None
            self._dials.discard(dial)
        self._failing = False
        if self.lines:
            self.health.grew()
        self.lines.add(line)
        hand.line = line

    def _drop(self, hand: ConnectionWorker) -> None:
        line, hand.line = hand.line, None
        if line is not None:
            self.lines.discard(line)
            line.courier.quit()

    async def _idle(self, line: OpenConnection) -> Transaction | None:
        """The next parcel, or None when none came in time or somebody else needs the connection."""
        waiting: Deferred[Transaction | None] = Deferred()

        def give_up() -> None:
            if not waiting.called:
                waiting.callback(None)

        self._idlers.append(waiting)
        line.idled = True
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
        if self._turns:
            self._staff()

    def _suffered(self, trouble: str) -> None:
        if self.health.suffered():
            self._rest(Unreachable(trouble))

    def _unreachable(self, why: Unreachable) -> None:
        if why.replies and not self.closing:
            self._yard.owner.answered(self, why.replies)
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
            self._forget_staff()
            self._yard.owner.over(self)
