"""Sending webhooks against an outbox in memory and a clock that is turned by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from uuid import UUID

import attrs
import orjson
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.web.http_headers import Headers

from mailsvc.net.fetch import FetchError, Reply
from mailsvc.store.events.outbox import Due, Posted, Ready
from mailsvc.store.postgres.errors import DataRejected, Unavailable
from mailsvc.webhooks import sender
from mailsvc.webhooks.sender import Limits, WebhookSender, choose

ACCOUNT = UUID(int=1)
START = 1_800_000_000.0


@attrs.define
class Row:
    webhook_id: UUID
    url: str
    tries: int
    next_at: datetime


class Rig:
    """`answers` maps a URL to a status, a Deferred of one, or a FetchError."""

    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        self.clock.advance(START)
        self.rows: dict[UUID, Row] = {}
        self.failing: set[UUID] = set()
        self.well: set[UUID] = set()
        self.answers: dict[str, Any] = {}
        self.requests: list[tuple[float, str, bytes, Mapping[str, str]]] = []
        self.posted: list[Posted] = []
        self.open: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.away = False
        self.writing: list[Deferred[None]] | None = None  # what is being written down, when that takes its time
        self.unwritable: set[str] = set()  # responses that the database does not take
        self.forgotten: set[UUID] = set()  # messages whose event is no longer kept, or cannot be read
        self.no_message: dict[str, Any] | None = None
        self.cleared: list[UUID] = []
        self.disabled: set[UUID] = set()
        self.discarding: list[Deferred[None]] | None = None  # batches of messages, when discarding takes its time
        self.looks, self.looking = 0, 0.0  # and how long each takes
        self.connections = 0  # that are not closed
        self.ring: Any = None
        self.posts = WebhookSender(self, self, self, self.clock, Limits(**limits))

    def add(self, count: int, url: str, webhook: int) -> None:
        for _ in range(count):
            self.rows[UUID(int=(webhook << 64) + len(self.rows) + 1)] = Row(UUID(int=webhook), url, 0, self.now)

    def run(self, seconds: float) -> None:
        end = self.clock.seconds() + seconds
        while self.clock.seconds() < end:
            calls = [call.getTime() for call in self.clock.getDelayedCalls()]
            self.clock.advance(max(0.0, min([*calls, end]) - self.clock.seconds()))

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.seconds(), UTC)

    # Notifications

    def listen(self, channel: str, callback: Any) -> None:
        self.ring = callback

    # The outbox

    async def ready(self, now: datetime, skip: Collection[UUID] = (), *, failing: bool = True, limit: int = 1000) -> list[Ready]:
        self.looks += 1
        if self.away:
            raise Unavailable("away")
        if self.looking:
            looked: Deferred[None] = Deferred()
            self.clock.callLater(self.looking, looked.callback, None)
            await looked
        due = {row.webhook_id: row.url for row in self.rows.values() if row.next_at <= now and row.webhook_id not in skip}
        found = [Ready(id_, id_, url, id_ in self.failing, id_ not in self.disabled, id_ in self.well) for id_, url in due.items()]
        return sorted((each for each in found if failing or not each.failing), key=lambda each: (not each.well, each.failing))[:limit]

    async def claim(self, numbers: Mapping[UUID, int], now: datetime, until: datetime) -> list[Due]:
        found = []
        for webhook_id, most in numbers.items():
            mine = [(key, row) for key, row in self.rows.items() if row.webhook_id == webhook_id and row.next_at <= now][:most]
            for key, row in mine:
                row.next_at = until
                message = self.no_message if key in self.forgotten else {"type": "t"}
                found.append(Due(webhook_id, key, webhook_id, row.tries, row.url, b"s" * 32, None, message, None))
        return found

    async def release(self, dues: Sequence[Due], now: datetime, until: datetime) -> None:
        for due in dues:
            if due.event_id in self.rows and self.rows[due.event_id].next_at == until:
                self.rows[due.event_id].next_at = now

    async def settle(self, posted: Posted) -> bool:
        if self.away:
            raise Unavailable("away")
        if self.writing is not None:
            written: Deferred[None] = Deferred()
            self.writing.append(written)
            await written
        if posted.response in self.unwritable:
            raise DataRejected("22003")
        self.posted.append(posted)
        row = self.rows[posted.due.event_id]
        if posted.outcome == "retry":
            assert posted.next_at is not None
            row.tries, row.next_at = row.tries + 1, posted.next_at
        else:
            del self.rows[posted.due.event_id]
        if posted.request_sent:
            (self.failing.discard if posted.outcome == "success" else self.failing.add)(posted.due.webhook_id)
        return posted.why is not None

    async def clear(self, webhook_id: UUID) -> bool:
        self.cleared.append(webhook_id)
        if self.discarding is not None:
            batch: Deferred[None] = Deferred()
            self.discarding.append(batch)
            await batch
            return True
        self.rows = {key: row for key, row in self.rows.items() if row.webhook_id != webhook_id}
        return False

    # The fetcher, and each of its connections

    def connection(self) -> Rig:
        self.connections += 1
        return self

    def close(self) -> None:
        self.connections -= 1

    async def fetch(
        self, method: str, url: str, *, seconds: float, keep: int, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Reply:
        self.requests.append((self.clock.seconds() - START, url, body or b"", headers or {}))
        self.open[url] += 1
        self.most[url] = max(self.most[url], self.open[url])
        try:
            answer = self.answers.get(url, 204)
            if answer == "hang":
                hanging: Deferred[None] = Deferred()
                self.clock.callLater(seconds, hanging.callback, None)
                await hanging
                raise FetchError("There was no complete response within 15 s.")
            if isinstance(answer, Exception):
                raise answer
            return Reply(answer, Headers(), b"said", True)
        finally:
            self.open[url] -= 1

    def at(self, url: str) -> list[float]:
        return [when for when, each, *_ in self.requests if each == url]


def test_a_failing_endpoint_does_not_affect_two_others_over_days() -> None:
    """The good one has everything at once; the others get what the schedule says, and then it ends."""
    rig = Rig()
    for number, (url, answer) in enumerate([("good", 204), ("hangs", "hang"), ("fails", 500)], 1):
        rig.answers[url] = answer
        rig.add(1, url, number)
    rig.posts.startService()
    rig.run(2)
    rig.add(10, "good", 1)
    rig.ring()
    rig.run(1.2 * 86400)
    assert max(rig.at("good")) <= 3
    assert len(rig.at("good")) == 11
    gaps = [later - sooner for sooner, later in zip(rig.at("fails"), rig.at("fails")[1:], strict=False)]
    assert len(rig.at("fails")) == 8
    assert all(0 <= gap - wait <= 1 for gap, wait in zip(gaps, Limits().schedule, strict=True))
    gaps = [later - sooner for sooner, later in zip(rig.at("hangs"), rig.at("hangs")[1:], strict=False)]
    assert all(15 <= gap - wait <= 16 for gap, wait in zip(gaps, Limits().schedule, strict=True))
    assert rig.rows == {}
    ids = {headers["webhook-id"] for _, url, _, headers in rig.requests if url == "fails"}
    stamps = {headers["webhook-timestamp"] for _, url, _, headers in rig.requests if url == "fails"}
    assert (len(ids), len(stamps)) == (1, 8)
    assert orjson.loads(rig.requests[0][2]) == {"type": "t"}


def test_ten_thousand_hanging_endpoints_do_not_affect_a_healthy_one() -> None:
    rig = Rig(connections=50)
    for number in range(10_000):
        rig.add(1, f"hangs{number}", number + 2)
        rig.answers[f"hangs{number}"] = "hang"
        rig.failing.add(UUID(int=number + 2))
    rig.posts.startService()
    rig.run(2)
    assert rig.posts.open == 25
    rig.add(100, "good", 1)
    rig.ring()
    rig.run(1)
    assert len(rig.at("good")) == 100
    assert sum(rig.most[url] for url in rig.most if url != "good") <= 25


def test_ten_thousand_new_hanging_endpoints_leave_a_third_of_the_connections_to_healthy_ones() -> None:
    rig = Rig(connections=60)
    rig.well = {UUID(int=1)}
    for number in range(10_000):
        rig.add(1, f"hangs{number}", number + 2)
        rig.answers[f"hangs{number}"] = "hang"
    rig.posts.startService()
    rig.run(2)
    assert rig.posts.open == 40
    rig.add(100, "good", 1)
    rig.ring()
    rig.run(1)
    assert len(rig.at("good")) == 100
    assert sum(rig.most[url] for url in rig.most if url != "good") == 40


def test_an_endpoint_gets_a_few_connections_and_a_failing_one_a_single_one() -> None:
    rig = Rig(per_endpoint=4)
    rig.answers["slow"] = "hang"
    rig.add(50, "slow", 1)
    rig.posts.startService()
    rig.run(10)
    assert rig.most["slow"] == 4
    rig.run(30)
    assert rig.open["slow"] == 1


def test_a_backlog_does_not_wait_for_the_next_poll() -> None:
    rig = Rig(per_endpoint=3)
    rig.add(500, "good", 1)
    rig.posts.startService()
    for _ in range(500):
        rig.clock.advance(0)
    assert len(rig.at("good")) == 500
    assert rig.rows == {}


def test_slow_queries_leave_postgres_two_thirds_of_the_time() -> None:
    rig = Rig()
    rig.looking = 0.1
    rig.posts.startService()
    for _ in range(300):  # something new at any time
        rig.add(1, "good", 1)
        rig.ring()
        rig.run(0.01)
    assert 9 <= rig.looks <= 11
    rig.looking = 0.0
    rig.run(1)
    assert rig.rows == {}
    before = rig.looks
    for _ in range(100):
        rig.ring()
        rig.run(0.01)
    assert rig.looks - before >= 100


def test_a_message_whose_result_cannot_be_stored_is_sent_again_with_the_same_id() -> None:
    rig = Rig()
    rig.add(1, "good", 1)
    rig.answers["good"] = "hang"
    rig.posts.startService()
    rig.run(1)
    rig.away = True
    rig.run(20)
    assert rig.posted == []
    rig.away, rig.answers["good"] = False, 204
    rig.run(60)
    assert [posted.status for posted in rig.posted] == [204]
    assert len({headers["svix-id"] for *_, headers in rig.requests}) == 1
    assert len(rig.requests) == 2


def test_an_answer_that_cannot_be_read_is_a_failed_attempt_on_the_usual_schedule() -> None:
    """It used to leave no trace, so the message was sent again at the end of each claim, forever."""
    rig = Rig()
    rig.add(1, "odd", 1)
    rig.answers["odd"] = UnicodeDecodeError("ascii", b"\xff", 0, 1, "odd")
    rig.posts.startService()
    rig.run(sum(Limits().schedule) + 5000)
    waits = [round(b - a) for a, b in pairwise(rig.at("odd"))]
    assert len(waits) == 7 and all(abs(got - due) <= 2 for got, due in zip(waits, Limits().schedule, strict=True))
    assert {posted.status for posted in rig.posted} == {0}


def test_an_answer_that_cannot_be_stored_still_counts_as_an_attempt() -> None:
    rig = Rig()
    rig.add(1, "odd", 1)
    rig.answers["odd"], rig.unwritable = 500, {"said"}
    rig.posts.startService()
    rig.run(2)
    [posted] = rig.posted
    assert (posted.status, posted.outcome, posted.response) == (0, "retry", "The response could not be stored.")


def test_a_success_is_stored_while_the_next_message_is_sent() -> None:
    rig = Rig(per_endpoint=1)
    rig.add(3, "good", 1)
    rig.add(3, "fails", 2)
    rig.answers["fails"] = 500
    rig.writing = []
    rig.posts.startService()
    rig.run(0.1)
    assert (len(rig.at("good")), len(rig.at("fails"))) == (3, 1)  # a failure is written down before anything else
    stopped = rig.posts.stopService()
    assert not stopped.called
    while rig.writing:
        rig.writing.pop(0).callback(None)
    assert stopped.called
    assert len(rig.posted) == 4


def test_the_number_of_unstored_results_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "UNRECORDED", 5)
    rig = Rig(connections=1)
    rig.add(20, "good", 1)
    rig.writing = []
    rig.posts.startService()
    rig.run(0.1)
    assert 5 <= len(rig.at("good")) <= 7
    while rig.writing:
        rig.writing.pop(0).callback(None)
    assert len(rig.at("good")) == 20


def test_messages_of_an_endpoint_that_responds_with_gone_are_cleared() -> None:
    rig = Rig()
    rig.add(3, "gone", 1)
    rig.answers["gone"] = 410
    rig.posts.startService()
    rig.run(0.1)
    assert rig.cleared
    assert rig.rows == {}
    rig.add(3, "off", 2)
    rig.disabled.add(UUID(int=2))
    rig.run(2)
    assert rig.at("off") == []
    assert rig.rows == {}


def test_discarding_the_messages_of_a_disabled_endpoint_delays_nobody() -> None:
    rig = Rig()
    rig.add(9, "off", 1)
    rig.disabled.add(UUID(int=1))
    rig.discarding = []
    rig.posts.startService()
    rig.run(0.1)
    rig.add(3, "good", 2)
    rig.run(2)
    assert len(rig.at("good")) == 3
    assert len(rig.discarding) == 1, "once at a time"
    rig.discarding[0].callback(None)
    assert len(rig.discarding) == 2, "until nothing is left"
    stopped = rig.posts.stopService()
    assert not stopped.called
    rig.discarding[1].callback(None)
    assert stopped.called and len(rig.discarding) == 2, "another process discards the rest"


@pytest.mark.parametrize("what", ["forgotten", "unreadable"])
def test_an_event_that_is_no_longer_stored_or_cannot_be_read_fails_alone(what: str) -> None:
    rig = Rig(per_endpoint=1)
    rig.add(9, "good", 1)
    rig.forgotten = {*list(rig.rows)[::2]}
    if what == "unreadable":
        rig.no_message = {"type": object()}
    rig.posts.startService()
    rig.run(0.1)
    assert (rig.rows, rig.failing, len(rig.at("good"))) == ({}, set(), 4)
    ended = [posted for posted in rig.posted if not posted.request_sent]
    assert {posted.due.event_id for posted in ended} == rig.forgotten
    why = "The event is no longer stored or cannot be read, so it cannot be sent."
    assert {(posted.outcome, posted.response) for posted in ended} == {("failed", why)}


def test_stopping_waits_for_attempts_in_progress() -> None:
    rig = Rig()
    rig.answers["slow"] = "hang"
    rig.add(10, "slow", 1)
    rig.posts.startService()
    rig.run(0.1)
    stopped = rig.posts.stopService()
    assert not stopped.called
    rig.run(15)
    assert stopped.called
    assert (len(rig.posted), rig.connections) == (5, 0)
    assert {row.next_at <= rig.now for row in rig.rows.values() if not row.tries} == {True}  # given back
    assert rig.clock.getDelayedCalls() == []


def test_choosing_is_fair() -> None:
    limits = Limits(connections=10, per_endpoint=5, per_host=6)
    many = [Ready(UUID(int=n), ACCOUNT, f"https://h{n}/", False, True, True) for n in range(4)]
    assert sorted(choose(many, [], limits).values()) == [2, 2, 3, 3]
    same = [Ready(UUID(int=n), ACCOUNT, "https://one/", False, True, True) for n in range(4)]
    assert sum(choose(same, [], limits).values()) == 6
    mine = [Ready(UUID(int=n), ACCOUNT, f"https://h{n}/", False, True, True) for n in range(9)]
    other = Ready(UUID(int=9), UUID(int=2), "https://h9/", False, True, True)
    shared = choose([*mine, other], [], Limits(connections=10, per_account=6))
    assert (sum(shared.values()), shared[other.webhook_id]) == (10, 4)
    failing = [Ready(UUID(int=n), ACCOUNT, f"https://h{n}/", True, True) for n in range(40)]
    assert sum(choose(failing, [], limits).values()) == 5
    well = [Ready(UUID(int=100 + n), ACCOUNT, f"https://w{n}/", False, True, True) for n in range(3)]
    shared = choose([*failing, *well], [], limits)
    assert sum(shared[each.webhook_id] for each in well) == 5
