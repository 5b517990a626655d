"""Sends due messages of the outbox, and decides which endpoints come first.

All attempts share a limited number of connections, so that endpoints that hang never delay the others:

- An endpoint gets a few connections, a failing one only one, and a fast one with more waiting gets more (concurrency).
- All failing endpoints together get at most half, and so do all connections beyond the first few of each endpoint.
- Each account has a limit, and a third is reserved for endpoints that accepted a message recently.

More messages are claimed for an endpoint than it has connections, so that the outbox is not queried after each message.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import attrs
import orjson
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.logger import Logger

from mailsvc.clock import held, unix, utc
from mailsvc.events import payload
from mailsvc.net.fetch import Fetcher, FetchError, HttpConnection
from mailsvc.runtime.polling import PollingLoop
from mailsvc.runtime.tracing import Span, Tracing
from mailsvc.store.events.outbox import Due, Outbox, Posted, Ready, claim_until
from mailsvc.store.postgres.errors import DataRejected, StoreError
from mailsvc.store.postgres.notifications import Notifier
from mailsvc.webhooks import signature
from mailsvc.webhooks.concurrency import Concurrency
from mailsvc.webhooks.response import Verdict, judge

POLL = 1.0
POLL_CHEAP = 0.02  # seconds; a longer poll is followed by a pause
DEPTH = 20  # messages claimed for each connection to a working endpoint
UNRECORDED = 1000  # accepted messages that are not recorded yet
TURN = 1.0  # seconds after which a connection is released for others
RESPONSE = 1024  # bytes of a response that are stored
AGENT = "mailsvc-webhooks/1"


@attrs.frozen
class Limits:
    """Limits and times in seconds. `schedule`: the pause after each failure."""

    connections: int = 200
    per_endpoint: int = 5
    per_endpoint_most: int = 50
    per_host: int = 50
    per_account: int = 50
    timeout: float = 15.0
    schedule: tuple[float, ...] = (5, 300, 1800, 7200, 18000, 36000, 36000)
    disable_after: float = 432000.0


@attrs.frozen
class _Place:
    """A connection in use."""

    webhook_id: UUID
    account_id: UUID | None
    host: str
    failing: bool
    well: bool = False


@attrs.frozen
class _Message:
    """A request to send. `body`: None if the event is no longer stored or cannot be read. `started`: Unix time in seconds."""

    due: Due
    started: float
    body: bytes | None = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(repr=False)


class WebhookSender(Service):
    """The service that sends webhooks."""

    name = "webhooks"
    log = Logger()

    def __init__(
        self, outbox: Outbox, fetcher: Fetcher, notifications: Notifier, clock: Any, limits: Limits, tracing: Tracing | None = None
    ) -> None:
        self._tracing = tracing
        self._outbox, self._fetcher, self._clock, self._limits = outbox, fetcher, clock, limits
        self.outcomes: Counter[str] = Counter()  # of attempts since the start
        self._concurrency = Concurrency(limits.per_endpoint, limits.per_endpoint_most)
        self._taken: list[_Place] = []
        self._under_way: set[Deferred[None]] = set()
        self._clearing: set[UUID] = set()  # disabled and deleted endpoints whose messages are being discarded
        self._loop = PollingLoop(clock, "sending webhooks", self._look, POLL, rest=_rest)
        notifications.listen("webhooks", self._loop.wake)

    @property
    def open(self) -> int:
        """The number of connections in use."""
        return len(self._taken)

    def startService(self) -> None:
        super().startService()
        self._loop.start()

    def stopService(self) -> Deferred[Any]:
        """Let running attempts finish, which takes at most the timeout of an attempt."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self._loop.stop()
        while self._under_way:
            await DeferredList([_ended(each) for each in self._under_way], consumeErrors=True)  # if it is canceled

    async def _look(self) -> None:
        if held(self._clock):
            return
        now, failing = self._now(), sum(place.failing for place in self._taken)
        ready = await self._outbox.ready(now, [*self._full(), *self._clearing], failing=failing < most_failing(self._limits))
        for gone in (each.webhook_id for each in ready if not each.live):
            self._clear(gone)
        chosen = choose(ready, self._taken, self._limits, self._concurrency.limit)
        if chosen and self.running:
            await self._begin({each.webhook_id: each for each in ready}, chosen, now)

    async def _begin(self, ready: Mapping[UUID, Ready], chosen: Mapping[UUID, int], now: datetime) -> None:
        until = claim_until(now, self._limits.timeout)
        depth = {webhook_id: self._concurrency.depth(webhook_id, TURN, DEPTH) for webhook_id in chosen}
        wanted = {webhook_id: 1 if ready[webhook_id].failing else count * depth[webhook_id] for webhook_id, count in chosen.items()}
        claimed: dict[UUID, deque[Due]] = {}
        for due in await self._outbox.claim(wanted, now, until):
            claimed.setdefault(due.webhook_id, deque()).append(due)
        for webhook_id, waiting in claimed.items():
            found = ready[webhook_id]
            place = _Place(webhook_id, waiting[0].account_id, _host(waiting[0].url), bool(found.failing), found.well)
            count = min(chosen[webhook_id], len(waiting))
            open_now = count + sum(each.webhook_id == webhook_id for each in self._taken)
            for _ in range(count):
                self._taken.append(place)
                serving = Deferred.fromCoroutine(self._serve(waiting, until, open_now))
                self._under_way.add(serving)
                serving.addErrback(lambda failure: self.log.failure("sending a webhook failed", failure=failure))
                serving.addBoth(self._served, serving, place)

    async def _serve(self, waiting: deque[Due], until: datetime, open_now: int) -> None:
        """Send messages over one connection for one turn. The first failure ends it, because the other messages would fail too.

        `open_now`: connections of the endpoint when the turn begins.
        """
        ends, connection = self._clock.seconds() + TURN, None
        try:
            while waiting:
                message = self._message(waiting.popleft())
                connection = connection or self._fetcher.connection()
                well = await self._attempt(message, connection, open_now)
                if not well or self._clock.seconds() >= ends or not self.running:
                    rest = [*waiting]
                    waiting.clear()
                    await self._outbox.release(rest, self._now(), until)
        except StoreError as error:
            self.log.info("unsent webhooks could not be released, they are retried when their claim expires: {reason}", reason=str(error))
        finally:
            if connection is not None:
                connection.close()

    def _message(self, due: Due) -> _Message:
        started = unix(self._clock)
        try:
            return _message(due, started)
        except (AttributeError, LookupError, TypeError, ValueError):  # it would be claimed for ever, together with those behind it
            self.log.failure("the event {event_id} cannot be sent to a webhook", event_id=str(due.event_id))
            return _Message(due, started, None, {})

    def _served(self, _: object, serving: Deferred[None], place: _Place) -> None:
        self._under_way.discard(serving)
        self._taken.remove(place)
        self._loop.wake()

    def _full(self) -> list[UUID]:
        failing = {place.webhook_id for place in self._taken if place.failing}  # one connection is all that they get
        return [*failing.union(self._concurrency.full(Counter(place.webhook_id for place in self._taken)))]

    async def _attempt(self, message: _Message, connection: HttpConnection, open_now: int) -> bool:
        """Send one message; whether the next may follow. A success is recorded concurrently, anything else before continuing.

        If it cannot be recorded, the claim expires and the message is sent again.
        """
        message, span = self._traced(message)
        due, started, kept = message.due, message.started, message.body is not None
        status, response, retry_after = await self._post(message, connection)
        ended = unix(self._clock)
        now = _time(ended)
        verdict = judge(status, retry_after, due.tries, now, self._limits.schedule) if kept else Verdict("failed")
        self.outcomes[verdict.outcome] += 1
        if span is not None:
            _end(span, due, status, verdict, ended)
        if kept:
            self._learn(due.webhook_id, verdict, ended - started, open_now)
        posted = Posted(
            due, status, response, _time(started), ended - started, now, verdict.outcome,
            now - timedelta(seconds=self._limits.disable_after),
            verdict.next_at, verdict.hold_until, verdict.why, kept,
        )  # fmt: skip
        well = verdict.outcome == "success" or not kept
        writing = Deferred.fromCoroutine(self._write(posted))
        if well and len(self._under_way) < self._limits.connections + UNRECORDED:
            self._under_way.add(writing)  # concurrently with the next message
            writing.addBoth(lambda _: self._under_way.discard(writing))
        else:
            await writing
        return well

    def _traced(self, message: _Message) -> tuple[_Message, Span | None]:
        """The message with the header that continues the trace of its email, if that is traced."""
        if self._tracing is None or message.due.trace is None or message.body is None:
            return message, None
        span = self._tracing.begin("webhook", message.started, message.due.trace, "client")
        return attrs.evolve(message, headers={**message.headers, "traceparent": span.traceparent}), span

    def _learn(self, webhook_id: UUID, verdict: Verdict, seconds: float, open_now: int) -> None:
        """Adjust the endpoint's number of connections."""
        if verdict.outcome == "success":
            self._concurrency.answered(webhook_id, seconds, open_now)
        else:
            self._concurrency.failed(webhook_id)

    async def _write(self, posted: Posted) -> None:
        try:
            try:
                disabled = await self._outbox.settle(posted)
            except DataRejected:  # the attempt counts, but without the response
                disabled = await self._outbox.settle(attrs.evolve(posted, status=0, response="The response could not be stored."))
            if disabled:
                self._clear(posted.due.webhook_id)
        except StoreError as error:
            self.log.warn("a webhook attempt could not be recorded, the message is sent again: {reason}", reason=str(error))
        except Exception:
            self.log.failure("recording a webhook attempt failed")

    def _clear(self, webhook_id: UUID) -> None:
        """Discard the messages of an endpoint in the background: there can be millions, and the other endpoints do not wait for that."""
        if webhook_id in self._clearing:
            return
        self._clearing.add(webhook_id)
        clearing = Deferred.fromCoroutine(self._discard(webhook_id))
        self._under_way.add(clearing)
        clearing.addBoth(self._cleared, clearing, webhook_id)

    async def _discard(self, webhook_id: UUID) -> None:
        """What is left when the service stops or after an error, the next look finds."""
        try:
            while self.running and await self._outbox.clear(webhook_id):
                pass
        except StoreError as error:
            self.log.warn("the messages of a disabled webhook could not all be discarded yet: {reason}", reason=str(error))
        except Exception:
            self.log.failure("discarding the messages of a disabled webhook failed")

    def _cleared(self, _: object, clearing: Deferred[None], webhook_id: UUID) -> None:
        self._under_way.discard(clearing)
        self._clearing.discard(webhook_id)

    async def _post(self, message: _Message, connection: HttpConnection) -> tuple[int, str, str | None]:
        """The status, the response, and Retry-After."""
        url, body = message.due.url, message.body
        if body is None:
            return 0, "The event is no longer stored or cannot be read, so it cannot be sent.", None
        try:
            reply = await connection.fetch("POST", url, seconds=self._limits.timeout, keep=RESPONSE, headers=message.headers, body=body)
        except FetchError as error:
            return 0, str(error), None
        except CancelledError:
            raise
        except Exception:  # an unrecorded attempt would be repeated forever, whenever its claim expires
            self.log.failure("reading a webhook response failed")
            return 0, "The response could not be read.", None
        return reply.status, reply.body.decode("utf-8", "replace"), reply.header("retry-after")

    def _now(self) -> datetime:
        return utc(self._clock)


def _message(due: Due, started: float) -> _Message:
    document = due.payload if due.fact is None else payload.render(due.fact)
    if document is None:
        return _Message(due, started, None, {})
    body = orjson.dumps(document)
    secrets = [due.secret] if due.former is None else [due.secret, due.former]
    signed = signature.headers(f"msg_{due.event_id.hex}", int(started), body, secrets)
    return _Message(due, started, body, {"content-type": "application/json", "user-agent": AGENT, **signed})


def _end(span: Span, due: Due, status: int, verdict: Verdict, at: float) -> None:
    """Without the URL, which can contain a secret."""
    facts: dict[str, str | int] = {"mailsvc.attempt": due.tries + 1, "http.response.status_code": status}
    facts |= {"mailsvc.account.id": str(due.account_id), "mailsvc.webhook.id": str(due.webhook_id), "mailsvc.event.id": str(due.event_id)}
    if due.fact is not None:
        facts["mailsvc.event.type"] = due.fact.type
    error = None if verdict.outcome == "success" else f"HTTP {status}" if status else "no response"
    span.end(at, facts, error)


def choose(
    ready: Iterable[Ready], taken: Collection[_Place], limits: Limits, limit: Callable[[UUID], int] | None = None
) -> dict[UUID, int]:
    """The number of new connections for each endpoint, assigned in turns: each gets one before any gets two.

    `limit`: the maximum for an endpoint; by default `per_endpoint`.
    """
    of_endpoint = Counter(place.webhook_id for place in taken)
    of_host = Counter(place.host for place in taken)
    of_account = Counter(place.account_id for place in taken)
    failing, unproven = sum(place.failing for place in taken), sum(not place.well for place in taken)
    total, wide = len(taken), sum(max(0, count - limits.per_endpoint) for count in of_endpoint.values())
    chosen: Counter[UUID] = Counter()
    waiting = [(each, _host(each.url or "")) for each in ready if each.live]
    while waiting and total < limits.connections:
        following = []
        for each, host in waiting:
            most = 1 if each.failing else limits.per_endpoint if limit is None else limit(each.webhook_id)
            extra = of_endpoint[each.webhook_id] >= limits.per_endpoint
            if total >= limits.connections or of_endpoint[each.webhook_id] >= most or of_host[host] >= limits.per_host:
                continue
            if of_account[each.account_id] >= limits.per_account or (each.failing and failing >= most_failing(limits)):
                continue
            if (not each.well and unproven >= most_unproven(limits)) or (extra and wide >= most_extra(limits)):
                continue
            of_endpoint[each.webhook_id] += 1
            of_host[host] += 1
            of_account[each.account_id] += 1
            failing += bool(each.failing)
            unproven += not each.well
            total += 1
            wide += extra
            chosen[each.webhook_id] += 1
            following.append((each, host))
        waiting = following
    return dict(chosen)


def most_failing(limits: Limits) -> int:
    """Connections for all failing endpoints together."""
    return max(1, limits.connections // 2)


def most_extra(limits: Limits) -> int:
    """Connections beyond `per_endpoint`, for all endpoints together."""
    return limits.connections // 2


def most_unproven(limits: Limits) -> int:
    """Connections for all endpoints that have not accepted a message recently."""
    return max(1, limits.connections - limits.connections // 3)


def _rest(seconds: float) -> float:
    """After an expensive poll, wait twice as long before a notification triggers the next one."""
    return 2 * seconds if seconds > POLL_CHEAP else 0.0


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _ended(work: Deferred[None]) -> Deferred[None]:
    ended: Deferred[None] = Deferred()
    work.addBoth(lambda _: ended.callback(None))
    return ended
