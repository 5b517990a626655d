"""Sends what the outbox has due: when, how much at once, and to whom first.

Attempts share a number of connections. An endpoint gets a few of them, one that fails a single one, one that answers well and has more
waiting gets more (width.py); all that fail get at most half together, what endpoints have beyond the few is at most half too, and an
account gets a part. A third is for those alone that took a message lately: however many new ones hang, these go on. So
endpoints that hang fill their own places and never those of the others. An endpoint that
answers has some more messages claimed than it has connections, so that it is not looked for again after each.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from urllib.parse import urlsplit
from uuid import UUID

import attrs
import orjson
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.logger import Logger

from mailsvc.clock import held, unix, utc
from mailsvc.events import payload
from mailsvc.net.fetch import Asking, NoAnswer
from mailsvc.runtime.polling import PollingLoop
from mailsvc.store.events.outbox import Due, Posted, Ready, claim_until
from mailsvc.store.postgres.errors import DataRejected, StoreError
from mailsvc.store.postgres.notifications import Notifier
from mailsvc.webhooks import signature
from mailsvc.webhooks.concurrency import Widths
from mailsvc.webhooks.response import Verdict, judge

POLL = 1.0
LIGHT = 0.02  # seconds that a poll may take without a rest after it
DEPTH = 20  # messages that are claimed for each connection to an endpoint that answers
UNWRITTEN = 1000  # messages that were taken and are not written down yet
TURN = 1.0  # seconds after which a connection is free for others
RESPONSE = 1024  # octets of an answer that are kept
AGENT = "mailsvc-webhooks/1"


@attrs.frozen
class Terms:
    """How webhooks are sent. Times in seconds; `schedule`: the waits after each failure."""

    connections: int = 200
    per_endpoint: int = 5
    per_endpoint_most: int = 50
    per_host: int = 50
    per_account: int = 50
    timeout: float = 15.0
    schedule: tuple[float, ...] = (5, 300, 1800, 7200, 18000, 36000, 36000)
    disable_after: float = 432000.0


class Outbox(Protocol):
    """store/events/outbox"""

    async def ready(self, now: datetime, skip: Collection[UUID] = (), *, failing: bool = True, limit: int = 1000) -> list[Ready]: ...
    async def claim(self, numbers: Mapping[UUID, int], now: datetime, until: datetime) -> list[Due]: ...
    async def release(self, dues: Sequence[Due], now: datetime, until: datetime) -> None: ...
    async def settle(self, posted: Posted) -> bool: ...
    async def clear(self, webhook_id: UUID) -> None: ...


class Line(Asking, Protocol):
    """fetch.Line"""

    def close(self) -> None: ...


class Fetcher(Protocol):
    """fetch.Fetcher"""

    def line(self) -> Line: ...


@attrs.frozen
class _Place:
    """A connection that is taken, and whose it is."""

    webhook_id: UUID
    account_id: UUID | None
    host: str
    failing: bool
    well: bool = False


class Posts(Service):
    """Runs while the service runs."""

    name = "webhooks"
    log = Logger()

    def __init__(self, outbox: Outbox, fetcher: Fetcher, notifications: Notifier, clock: Any, terms: Terms) -> None:
        self._outbox, self._fetcher, self._clock, self._terms = outbox, fetcher, clock, terms
        self.outcomes: Counter[str] = Counter()  # of attempts since the start
        self._widths = Widths(terms.per_endpoint, terms.per_endpoint_most)
        self._taken: list[_Place] = []
        self._under_way: set[Deferred[None]] = set()
        self._loop = PollingLoop(clock, "sending webhooks", self._look, POLL, rest=_rest)
        notifications.listen("webhooks", self._loop.wake)

    @property
    def open(self) -> int:
        """How many connections are taken now."""
        return len(self._taken)

    def startService(self) -> None:
        super().startService()
        self._loop.start()

    def stopService(self) -> Deferred[Any]:
        """What was begun ends, which takes no longer than an attempt may."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self._loop.stop()
        while self._under_way:
            await DeferredList([_ended(each) for each in self._under_way])

    async def _look(self) -> None:
        if held(self._clock):
            return
        now, failing = self._now(), sum(place.failing for place in self._taken)
        ready = await self._outbox.ready(now, self._full(), failing=failing < most_failing(self._terms))
        for gone in (each.webhook_id for each in ready if not each.live):
            await self._outbox.clear(gone)
        chosen = choose(ready, self._taken, self._terms, self._widths.of)
        if chosen and self.running:
            await self._begin({each.webhook_id: each for each in ready}, chosen, now)

    async def _begin(self, ready: Mapping[UUID, Ready], chosen: Mapping[UUID, int], now: datetime) -> None:
        until = claim_until(now, self._terms.timeout)
        depth = {webhook_id: self._widths.depth(webhook_id, TURN, DEPTH) for webhook_id in chosen}
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
                serving.addErrback(lambda failure: self.log.failure("a webhook could not be sent", failure=failure))
                serving.addBoth(self._served, serving, place)

    async def _serve(self, waiting: deque[Due], until: datetime, open_now: int) -> None:
        """One connection's turn at an endpoint: it ends with the first failure, which the other messages would have too.

        `open_now`: how many connections the endpoint has when the turn begins.
        """
        ends, line = self._clock.seconds() + TURN, self._fetcher.line()
        try:
            while waiting:
                well = await self._attempt(waiting.popleft(), line, open_now)
                if not well or self._clock.seconds() >= ends or not self.running:
                    rest = [*waiting]
                    waiting.clear()
                    await self._outbox.release(rest, self._now(), until)
        except StoreError as error:
            self.log.info("webhooks that were not sent wait for the end of their claim: {reason}", reason=str(error))
        finally:
            line.close()

    def _served(self, _: object, serving: Deferred[None], place: _Place) -> None:
        self._under_way.discard(serving)
        self._taken.remove(place)
        self._loop.wake()

    def _full(self) -> list[UUID]:
        counts = Counter(place.webhook_id for place in self._taken)
        slow = {place.webhook_id for place in self._taken if place.failing}
        return [webhook_id for webhook_id, count in counts.items() if count >= self._widths.of(webhook_id) or webhook_id in slow]

    async def _attempt(self, due: Due, line: Line, open_now: int) -> bool:
        """One POST; whether the next may follow. Success is written down beside what follows, everything else before it.

        When it cannot be written down, the claim runs out and it is sent again.
        """
        started = unix(self._clock)
        status, said, retry_after = await self._post(due, started, line)
        ended = unix(self._clock)
        now = _time(ended)
        kept = due.fact is not None or due.payload is not None
        verdict = judge(status, retry_after, due.tries, now, self._terms.schedule) if kept else Verdict("failed")
        self.outcomes[verdict.outcome] += 1
        if kept:
            self._learn(due.webhook_id, verdict, ended - started, open_now)
        posted = Posted(
            due, status, said, _time(started), ended - started, now, verdict.outcome, now - timedelta(seconds=self._terms.disable_after),
            verdict.next_at, verdict.hold_until, verdict.why, kept,
        )  # fmt: skip
        well = verdict.outcome == "success" or not kept
        writing = Deferred.fromCoroutine(self._write(posted))
        if well and len(self._under_way) < self._terms.connections + UNWRITTEN:
            self._under_way.add(writing)  # behind the next message
            writing.addBoth(lambda _: self._under_way.discard(writing))
        else:
            await writing
        return well

    def _learn(self, webhook_id: UUID, verdict: Verdict, seconds: float, open_now: int) -> None:
        """What this attempt means for the endpoint's number of connections."""
        if verdict.outcome == "success":
            self._widths.answered(webhook_id, seconds, open_now)
        else:
            self._widths.failed(webhook_id)

    async def _write(self, posted: Posted) -> None:
        try:
            try:
                disabled = await self._outbox.settle(posted)
            except DataRejected:  # the attempt counts, without what was said
                disabled = await self._outbox.settle(attrs.evolve(posted, status=0, response="The answer could not be stored."))
            if disabled:
                await self._outbox.clear(posted.due.webhook_id)
        except StoreError as error:
            self.log.warn("a webhook's attempt could not be written down, it is sent again: {reason}", reason=str(error))
        except Exception:
            self.log.failure("a webhook's attempt could not be written down")

    async def _post(self, due: Due, started: float, line: Line) -> tuple[int, str, str | None]:
        """Status, what was said, and the Retry-After."""
        told = due.payload if due.fact is None else payload.told(due.fact)
        if told is None:
            return 0, "What happened is no longer kept, so it cannot be told.", None
        body = orjson.dumps(told)
        secrets = [due.secret] if due.former is None else [due.secret, due.former]
        signed = signature.headers(f"msg_{due.event_id.hex}", int(started), body, secrets)
        headers = {"content-type": "application/json", "user-agent": AGENT, **signed}
        try:
            reply = await line.ask("POST", due.url, seconds=self._terms.timeout, keep=RESPONSE, headers=headers, body=body)
        except NoAnswer as error:
            return 0, str(error), None
        except CancelledError:
            raise
        except Exception:  # an attempt that leaves no trace would be repeated at the end of each claim, forever
            self.log.failure("a webhook's answer could not be read")
            return 0, "The answer could not be read.", None
        return reply.status, reply.body.decode("utf-8", "replace"), reply.header("retry-after")

    def _now(self) -> datetime:
        return utc(self._clock)


def choose(ready: Iterable[Ready], taken: Collection[_Place], terms: Terms, width: Callable[[UUID], int] | None = None) -> dict[UUID, int]:
    """How many connections each endpoint gets now, going round so that everybody gets one before anybody gets two.

    `width` tells how many an endpoint may have; `per_endpoint` when it is None.
    """
    of_endpoint = Counter(place.webhook_id for place in taken)
    of_host = Counter(place.host for place in taken)
    of_account = Counter(place.account_id for place in taken)
    failing, unproven = sum(place.failing for place in taken), sum(not place.well for place in taken)
    total, wide = len(taken), sum(max(0, count - terms.per_endpoint) for count in of_endpoint.values())
    chosen: Counter[UUID] = Counter()
    waiting = [(each, _host(each.url or "")) for each in ready if each.live]
    while waiting and total < terms.connections:
        following = []
        for each, host in waiting:
            most = 1 if each.failing else terms.per_endpoint if width is None else width(each.webhook_id)
            extra = of_endpoint[each.webhook_id] >= terms.per_endpoint
            if total >= terms.connections or of_endpoint[each.webhook_id] >= most or of_host[host] >= terms.per_host:
                continue
            if of_account[each.account_id] >= terms.per_account or (each.failing and failing >= most_failing(terms)):
                continue
            if (not each.well and unproven >= most_unproven(terms)) or (extra and wide >= most_extra(terms)):
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


def most_failing(terms: Terms) -> int:
    """Connections that endpoints that fail get together."""
    return max(1, terms.connections // 2)


def most_extra(terms: Terms) -> int:
    """Connections that endpoints get together beyond `per_endpoint` each."""
    return terms.connections // 2


def most_unproven(terms: Terms) -> int:
    """Connections that endpoints get together which are not known to be well."""
    return max(1, terms.connections - terms.connections // 3)


def _rest(seconds: float) -> float:
    """After a poll that took long, Postgres gets twice as long before a wake-up may poll again."""
    return 2 * seconds if seconds > LIGHT else 0.0


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _ended(work: Deferred[None]) -> Deferred[None]:
    ended: Deferred[None] = Deferred()
    work.addBoth(lambda _: ended.callback(None))
    return ended
