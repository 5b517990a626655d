"""A lane: one destination in the memory of this process, with its connections and the mail that waits for them.

A connection is opened before mail is assigned to it, so mail never waits for a host that does not answer while another connection is
free. A lane without waiting mail and connections is removed. Which lanes there are: lanes. Mail in the queue: claiming.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.logger import Logger

from mailsvc.delivery import pace
from mailsvc.delivery.admission.budget import Budget
from mailsvc.delivery.admission.decision import Decision, LaneFacts
from mailsvc.delivery.admission.health import Health
from mailsvc.delivery.attempt import AttemptResult
from mailsvc.delivery.connection.connect import NoSource, OpenConnection, Unreachable
from mailsvc.delivery.connection.route import Route
from mailsvc.delivery.connection.tls_policy import ANY, ConnectionPreference
from mailsvc.delivery.lane_context import ConnectionWorker, LaneContext
from mailsvc.delivery.transaction import AccountTurns, Transaction


class Lane:
    """Takes mail while it has `room`. `on_room`: it can take more. `on_close`: it closed itself. `on_empty`: it can be removed."""

    log = Logger()

    def __init__(
        self,
        route: Route,
        context: LaneContext,
        health: Health,
        budget: Budget,
        *,
        on_room: Callable[[Lane], None],
        on_close: Callable[[Lane], None],
        on_empty: Callable[[Lane], None],
    ) -> None:
        self.route = route
        self.destination = route.destination
        self.health = health
        self.budget = budget
        self.reserved = 0
        self.busy = 0  # attempts in progress
        self.connections: set[OpenConnection] = set()
        self.closing = False
        self._context, self._limits, self._clock = context, context.limits, context.clock
        self._admission = context.admission
        self._on_room, self._on_close, self._on_empty = on_room, on_close, on_empty
        self._turns = AccountTurns()
        self._idle: list[Deferred[Transaction | None]] = []
        self._workers = 0
        self._dials: set[Deferred[OpenConnection]] = set()
        self._pauses: set[Deferred[None]] = set()  # of connections that wait because of the provider's rate
        self._preference = ANY  # what the last mail needed
        self._open_timer: Any = None
        self._failing = False  # a dial failed, and none has succeeded since: wait for those in progress
        self._ended: list[Deferred[None]] = []

    # What may come in

    @property
    def window(self) -> int:
        """How many emails may be in memory."""
        return self._admission.window(self.health.allowed, self.health.proven)

    @property
    def room(self) -> int:
        return 0 if self.closing else max(0, self.window - len(self._turns) - self.reserved)

    @property
    def waiting(self) -> int:
        return len(self._turns)

    @property
    def empty(self) -> bool:
        return not self._workers and not self._turns and not self.reserved

    def view(self) -> dict[str, object]:
        """As it is now, for the operator."""
        return {
            "delivered_per_minute": self.health.per_minute,
            "connections": len(self.connections),
            "connecting": len(self._dials),
            "allowed": self.health.allowed,
            "in_memory": self.waiting + self.busy,
            "slowed_until": self.budget.slow_until,
            "slowed_to_per_minute": self.budget.slow_rate,
        }

    def reserve(self) -> None:
        self.reserved += 1

    def unreserve(self) -> None:
        self.reserved -= 1
        self.forget_when_empty()

    def forget_when_empty(self) -> None:
        if self.empty:
            self._stop_opening()
            self._on_empty(self)

    def put(self, transaction: Transaction) -> None:
        """To an idle connection, or into the waiting mail. The caller has checked `closing` and `room`."""
        if self._idle:
            self._idle.pop().callback(transaction)
        else:
            self._turns.put(transaction)
            self._open_connections()

    # Closing

    def close(self) -> list[Transaction]:
        """Begin nothing more: idle connections quit. Returns the mail that waited; attempts in progress go on."""
        self.closing = True
        self._stop_opening()
        while self._idle:  # the end of one may end another, whose slot is wanted
            self._idle.pop(0).callback(None)
        for waiting in list(self._pauses):
            waiting.cancel()
        for dial in list(self._dials):
            dial.cancel()
        return self._turns.drain()

    def ended(self) -> Deferred[None]:
        """Fires when the last connection is gone."""
        if not self._workers:
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        self._ended.append(waiting)
        return waiting

    def abort(self) -> None:
        """Cut attempts in progress. They settle what is known: a message that was sent completely is uncertain."""
        for connection in list(self.connections):
            connection.client.abort("the service stops")

    # Opening connections

    def _open_connections(self) -> None:
        """Open connections as long as admission says so."""
        while self._needs_connection():
            decision = self._admission.connect(self._facts())
            if not decision.admitted:
                self._wait_for_connection(decision)
                return
            self._context.slots.stop_waiting(self._open_connections)
            self._context.slots.take()
            self.budget.stop_waiting(self._open_connections)
            self.budget.take()
            self.budget.count_opening()
            self._workers += 1
            Deferred.fromCoroutine(self._work()).addErrback(self._worker_failed)

    def _needs_connection(self) -> bool:
        dialing, allowed = len(self._dials), self.health.allowed
        return self._admission.need(self.closing, self._failing, len(self._turns), dialing, self._workers, allowed).admitted

    def _wait_for_connection(self, decision: Decision) -> None:
        """Ask again when what was missing may be there."""
        match decision.reason:
            case "provider limit":
                self.budget.wait(self._open_connections)
            case "no slot":
                self._context.slots.wait(self._open_connections, self._turns.transactional)
            case "provider rate" if self._open_timer is None:
                self._open_timer = self._clock.callLater(decision.wait, self._open_now)

    def _facts(self) -> LaneFacts:
        health, budget, slots, turns = self.health, self.budget, self._context.slots, self._turns
        return LaneFacts(
            self.closing, self._failing, len(turns), turns.transactional, self._workers, len(self._dials), health.allowed,
            health.refused > 0, health.retry_in if health.refused else 0.0, budget.open, budget.connections, budget.open_wait,
            slots.left(health.proven), slots.wanted,
        )  # fmt: skip

    def _may_keep(self, connection: OpenConnection, usable: bool) -> bool:
        """Asked after every mail, with no more facts than are needed."""
        facts = LaneFacts(
            transactional=self._turns.transactional, workers=self._workers, allowed=self.health.allowed, provider_open=self.budget.open,
            provider_limit=self.budget.connections, slot_wanted=self._context.slots.wanted,
        )  # fmt: skip
        return self._admission.keep(facts, usable, connection.sent, self.budget.per_connection, connection.chosen.most).admitted

    def _open_now(self) -> None:
        self._open_timer = None
        self._open_connections()

    def _stop_opening(self) -> None:
        self._context.slots.stop_waiting(self._open_connections)
        self.budget.stop_waiting(self._open_connections)
        if self._open_timer is not None:
            self._open_timer.cancel()
            self._open_timer = None

    # A connection worker

    async def _work(self) -> None:
        worker = ConnectionWorker()
        if not self.health.proven:
            self._context.slots.start_trial(worker.give_up)
        try:
            await self._open(worker)
            while worker.connection is not None and not self.closing:
                transaction = await self._next(worker.connection)
                if transaction is None:
                    break
                self.busy += 1
                try:
                    reusable = await self._attempt(worker, worker.connection, transaction)
                finally:
                    self.busy -= 1
                if not reusable:
                    await self._replace(worker)
                if self.health.proven:
                    self._context.slots.end_trial(worker.give_up)
        finally:
            self._context.slots.end_trial(worker.give_up)
            self._drop(worker)
            self._workers -= 1
            self._context.slots.give_back()
            self.budget.give_back()
            self._open_connections()
            if not self._workers:
                for waiting in self._ended:
                    waiting.callback(None)
                self._ended = []
            self.forget_when_empty()

    async def _next(self, connection: OpenConnection) -> Transaction | None:
        """What this connection sends next, once the provider's rate allows it. None: nothing."""
        while not self.closing:
            transaction = self._turns.next() or await self._wait_for_mail(connection)
            if transaction is None:
                break
            rate = self.budget.rate
            decision = self._admission.send(rate, self.budget.next_send_at, self._clock.seconds())
            if decision.admitted:
                self.budget.count_sending(rate)
                return transaction
            self._put_back(transaction)
            await self._pause(decision.wait or 0.0)
            if not connection.client.usable:  # the server closed it meanwhile; another is opened for what is left
                break
        return None

    async def _pause(self, seconds: float) -> None:
        waiting = pace.sleep(self._clock, seconds)
        self._pauses.add(waiting)
        try:
            await waiting
        except CancelledError:
            pass
        finally:
            self._pauses.discard(waiting)

    async def _wait_for_mail(self, connection: OpenConnection) -> Transaction | None:
        """The next mail. None: none came in time, or another lane needs the connection's slot."""
        waiting: Deferred[Transaction | None] = Deferred()

        def give_up() -> None:
            if not waiting.called:
                waiting.callback(None)

        self._idle.append(waiting)
        connection.was_idle = True
        timer = self._clock.callLater(self._limits.idle_seconds, give_up)
        self._context.slots.start_idle(give_up)
        try:
            return await waiting
        finally:
            if waiting in self._idle:
                self._idle.remove(waiting)
            self._context.slots.end_idle(give_up)
            if timer.active():
                timer.cancel()

    async def _attempt(self, worker: ConnectionWorker, connection: OpenConnection, transaction: Transaction) -> bool:
        """One attempt, over this connection or the one that the mail needs. Returns whether the worker's connection can be used again."""
        if connection.reused and not connection.client.usable:  # a new one counts as an attempt, otherwise this would never end
            self._turns.put(transaction, first=True)
            return False
        preference = ConnectionPreference.of(transaction)
        if preference is not ANY and self._prefers_another(connection, preference):
            other = await self._switch(worker, preference, transaction)
            if other is None:
                return True
            connection = other
        connection.proven = self.health.proven
        self._put_back(self._context.attempts.sizes.rest(connection.host, transaction), first=False)
        connection.awaited = len(self._turns) > 0
        result = await self._context.attempts.run(connection, transaction)
        if result.required is not None:
            other = await self._switch(worker, attrs.evolve(preference, tls_policy=result.required), transaction)
            if other is None:
                return True
            connection, self._preference = other, ConnectionPreference(result.required)
            result = await self._context.attempts.run(connection, transaction)
            if result.required is not None:  # the policy became stricter meanwhile
                self._put_back(transaction)
        self._follow_up(transaction, result)
        if len(self._turns) + self.reserved <= self.window // 2:
            self._on_room(self)
        return self._may_keep(connection, result.reusable and connection.client.usable)

    def _follow_up(self, transaction: Transaction, result: AttemptResult) -> None:
        """What an attempt says about the destination, and what is left to send."""
        if result.unsent:
            self._context.leases.return_unsent(transaction)
        elif result.repeat:
            self._put_back(transaction)
        elif result.trouble is not None:
            self._troubled(result.trouble)
        elif result.tried:
            self._worked()
        self._put_back(result.remaining)
        if result.refusals:
            self._context.reactions.refused(self.destination, result.refusals)

    def _put_back(self, transaction: Transaction | None, *, first: bool = True) -> None:
        """Mail that was begun comes before all other mail. None: nothing is left."""
        if transaction is not None and self.closing:
            self._context.leases.return_unsent(transaction)
        elif transaction is not None:
            self._turns.put(transaction, first=first)

    # A worker's connection

    def _prefers_another(self, connection: OpenConnection, preference: ConnectionPreference) -> bool:
        """Whether a mail should use another connection, to the host or from the source that had it last."""
        if preference.host not in (None, connection.host) and any(host.name == preference.host for host in self.route.hosts):
            return True
        if preference.source is None or connection.source in (None, preference.source):
            return False
        return self._context.connector.may_use(self.route, preference.source)

    async def _switch(self, worker: ConnectionWorker, preference: ConnectionPreference, transaction: Transaction) -> OpenConnection | None:
        """Another connection for one mail. None: there is none, and the mail has been settled or put back."""
        policy, attempts = preference.tls_policy, self._context.attempts
        known = self._context.connector.known_failure(self.route, policy) if policy.strict else None
        if known is not None:
            await attempts.tls_unavailable(transaction, policy, known)
            return None
        self._drop(worker)
        if self.closing:
            self._put_back(transaction)
            return None
        self.budget.count_opening()
        try:
            await self._dial(worker, preference)
        except Unreachable as why:
            if policy.strict and not self.closing and not isinstance(why, NoSource):
                await attempts.tls_unavailable(transaction, policy, why)
            else:
                self._put_back(transaction)
                self._unreachable(why)
        return worker.connection

    async def _replace(self, worker: ConnectionWorker) -> None:
        """Replace a connection that cannot be used again, if mail waits for it."""
        self._drop(worker)
        if self._admission.replace(self._facts()).admitted:
            self.budget.count_opening()
            await self._open(worker)

    async def _open(self, worker: ConnectionWorker) -> None:
        """Give the worker a connection. If there is none, the lane has dealt with that when this returns."""
        preference, self._preference = self._preference, ANY
        try:
            try:
                await self._dial(worker, preference)
                self._preference = preference
            except Unreachable:
                if preference is ANY or self.closing or worker.given_up:
                    raise
                await self._dial(worker, ANY)
        except Unreachable as why:
            self._unreachable(why)

    async def _dial(self, worker: ConnectionWorker, preference: ConnectionPreference) -> None:
        """Raises Unreachable, whatever the cause."""
        dial: Deferred[OpenConnection] = Deferred.fromCoroutine(self._context.connector.connect(self.route, preference))
        self._dials.add(dial)
        worker.dial = dial
        try:
            connection = await dial
        except CancelledError:
            why = "It was not ready for mail for long, and other mail waited." if worker.given_up else "The service stops."
            raise Unreachable(why) from None
        except Unreachable:
            raise
        except Exception:
            self.log.failure("connecting to {destination} failed with an internal error", destination=self.destination)
            raise Unreachable("Connecting failed because of an internal error. It will be retried.") from None
        finally:
            worker.dial = None
            self._dials.discard(dial)
        self._failing = False
        if self.connections:
            self.health.grew()
        self.connections.add(connection)
        worker.connection = connection

    def _drop(self, worker: ConnectionWorker) -> None:
        connection, worker.connection = worker.connection, None
        if connection is not None:
            self.connections.discard(connection)
            connection.client.quit()
            self._context.connector.closed(self.route, connection)

    # How the destination does

    def _worked(self) -> None:
        self.health.succeeded()
        self._context.reactions.worked(self.destination)
        if self._turns:
            self._open_connections()

    def _troubled(self, trouble: str) -> None:
        if self.health.failed():
            self._fail(Unreachable(trouble))

    def _unreachable(self, why: Unreachable) -> None:
        if why.replies and not self.closing:
            self._context.reactions.refused(self.destination, why.replies)
        if self.connections:
            self.health.refuse(len(self.connections))
        elif self._dials:
            self._failing = True
        else:
            self._fail(why)

    def _fail(self, why: Unreachable) -> None:
        """Close: the destination cannot be used now."""
        if not self.closing:
            waiting = self.close()
            self._on_close(self)
            self._context.reactions.unreachable(self.destination, why, waiting)

    def _worker_failed(self, failure: Any) -> None:
        """An internal error ended a worker. No mail may wait for it."""
        self.log.failure("a connection of the lane {destination} failed", failure=failure, destination=self.destination)
        if not self.connections and not self._dials:
            self._fail(Unreachable("Connecting failed because of an internal error. It will be retried."))
