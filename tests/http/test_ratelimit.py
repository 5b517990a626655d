"""Rate limits: windows of one second, of one process and shared."""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mailsvc.accounts import ratelimit
from mailsvc.accounts.ratelimit import Block, Quota, RateLimit
from mailsvc.store.people.api_keys import Moved
from tests.http.rig import Rig

ACCOUNT = UUID(int=1)


def result(work: Any) -> Any:
    found: list[Any] = []
    Deferred.fromCoroutine(work).addBoth(found.append)
    return found[0]


def test_window_is_one_second() -> None:
    clock = Clock()
    rate = RateLimit(clock, 2)
    quotas = [rate.take("a") for _ in range(4)]
    assert [(q.remaining, q.allowed) for q in quotas] == [(1, True), (0, True), (0, False), (0, False)]
    clock.advance(1)
    assert rate.take("a") == Quota(2, 1, 1)


def test_callers_are_counted_separately() -> None:
    rate = RateLimit(Clock(), 1)
    assert [rate.take("a").allowed, rate.take("b").allowed, rate.take("a").allowed] == [True, True, False]
    assert rate.take(ACCOUNT, 5) == Quota(5, 4, 1)


def test_peek_does_not_count() -> None:
    rate = RateLimit(Clock(), 2)
    assert [rate.peek("a").remaining for _ in range(3)] == [2, 2, 2]


def test_rate_limit_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratelimit, "CALLERS_MAX", 10)
    rate = RateLimit(Clock(), 1)
    allowed = [rate.take(f"caller {i}").allowed for i in range(1000)]
    assert len(rate._counts) == 11
    assert allowed == [True] * 11 + [False] * 989


@pytest.mark.parametrize("path", ["/emails", "/cell"])
def test_requests_from_a_foreign_network_do_not_count_towards_the_account(path: str) -> None:
    """Whoever has found the key could lock the account out of the API otherwise."""
    rig = Rig(rate=3, recorded=True)
    assert [rig.request("GET", path, key="ms_near").status for _ in range(5)] == [401, 401, 401, 429, 429]
    assert rig.request("GET", "/emails").headers["ratelimit-remaining"] == "2"
    rig.clock.advance(1)
    assert [entry.status for entry in rig.logged] == [401, 401, 401, 200], "the account sees where its key is used"


def test_rate_limit_headers_agree() -> None:
    assert Quota(10, 9, 1).lines().decode().split("\r\n") == [
        "ratelimit-limit: 10",
        "ratelimit-remaining: 9",
        "ratelimit-reset: 1",
        'ratelimit-policy: "default";q=10;w=1',
        'ratelimit: "default";r=9;t=1',
        "",
    ]


class Shared:
    """The count that all processes share, kept here in memory."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.left: dict[tuple[UUID, int], int] = {}
        self.calls = 0

    async def lease(self, account_id: UUID, limit: int, wanted: int) -> Block:
        self.calls += 1
        window = int(self.clock.seconds())
        left = self.left.get((account_id, window), limit)
        granted = min(wanted, left)
        self.left[account_id, window] = left - granted
        return Block(granted, left - granted, window)


def test_processes_share_one_limit() -> None:
    clock = Clock()
    shared = Shared(clock)
    processes = [RateLimit(clock, 10, shared.lease, lambda: False) for _ in range(3)]
    quotas = [result(processes[i % 3].take_shared(ACCOUNT)) for i in range(40)]
    assert sum(quota.allowed for quota in quotas) == 10
    assert all(0 <= quota.remaining < 10 for quota in quotas)
    assert shared.calls == 12, "after one refusal a process asks no more in this second"
    clock.advance(1)
    assert result(processes[0].take_shared(ACCOUNT)).allowed


def test_single_process_leases_nothing() -> None:
    shared = Shared(Clock())
    rate = RateLimit(Clock(), 2, shared.lease, lambda: True)
    assert [result(rate.take_shared(ACCOUNT)).allowed for _ in range(3)] == [True, True, False]
    assert shared.calls == 0


def test_concurrent_requests_share_a_block() -> None:
    clock, waiting = Clock(), []

    async def lease(*_: Any) -> Block:
        one: Deferred[Block] = Deferred()
        waiting.append(one)
        return await one

    rate = RateLimit(clock, 10, lease, lambda: False)
    found: list[Any] = []
    for _ in range(4):
        Deferred.fromCoroutine(rate.take_shared(ACCOUNT)).addBoth(found.append)
    assert (len(waiting), found) == (1, [])
    waiting.pop().callback(Block(1, 9, 0))
    assert len(waiting) == 1, "those that arrived meanwhile are counted together"
    waiting.pop().callback(Block(2, 0, 0))
    assert [(quota.remaining, quota.allowed) for quota in found] == [(9, True), (1, True), (0, True), (0, False)]


def test_idle_process_leaves_the_limit_to_others() -> None:
    clock = Clock()
    shared = Shared(clock)
    quiet, busy = (RateLimit(clock, 10, shared.lease, lambda: False) for _ in range(2))
    assert result(quiet.take_shared(ACCOUNT)).allowed
    assert [result(busy.take_shared(ACCOUNT)).allowed for _ in range(10)] == [True] * 9 + [False]


def test_requests_pass_without_the_shared_count() -> None:
    async def lease(*_: Any) -> Block:
        raise OSError("away")

    rate = RateLimit(Clock(), 2, lease, lambda: False)
    with capturedLogs() as logs:
        assert [result(rate.take_shared(ACCOUNT)).allowed for _ in range(3)] == [True, True, False]
    assert len(logs) == 1


# Over HTTP


def test_responses_have_rate_limit_headers() -> None:
    rig = Rig(rate=3)
    requests = [("POST", "/emails"), ("GET", "/nope"), ("PUT", "/emails")]
    responses = [rig.request(*one) for one in requests]
    assert [response.status for response in responses] == [400, 404, 405]
    assert [response.headers["ratelimit-remaining"] for response in responses] == ["2", "1", "0"]
    limited = rig.request("GET", "/emails")
    assert limited.problem == (429, "rate_limit_exceeded")
    assert (limited.headers["retry-after"], limited.headers["ratelimit-remaining"]) == ("1", "0")
    for response in (*responses, limited, rig.request("GET", "/healthz"), rig.request("GET", "/emails", key=None)):
        assert response.headers["ratelimit-reset"] == "1"
        assert response.headers["ratelimit"] == f'"default";r={response.headers["ratelimit-remaining"]};t=1'
    rig.clock.advance(1)
    assert rig.request("GET", "/emails").status == 200


def test_account_can_have_its_own_limit() -> None:
    rig = Rig(rate=100)
    responses = [rig.request("GET", "/emails", key="ms_three") for _ in range(4)]
    assert [response.status for response in responses] == [200, 200, 200, 429]
    assert rig.request("GET", "/emails").headers["ratelimit-limit"] == "100"


def test_request_without_a_valid_key_counts_for_its_address() -> None:
    rig = Rig(rate=2)
    responses = [rig.request("GET", "/emails", key=key) for key in (None, "ms_wrong", None)]
    assert [response.status for response in responses] == [401, 403, 429]
    assert rig.request("GET", "/emails").status == 200


def test_health_is_not_limited() -> None:
    rig = Rig(rate=1)
    assert {rig.request("GET", "/healthz", key=None).status for _ in range(5)} == {200}


def test_asking_for_the_cell_of_a_key_is_limited_if_the_key_is_wrong() -> None:
    rig = Rig(rate=2)
    rig.keys.elsewhere[hashlib.sha256(b"ms_moved").digest()] = Moved("eu_1")
    assert {rig.request("GET", "/cell", key=key).status for key in ["ms_full", "ms_send"] * 5} == {200}
    assert {rig.request("GET", "/cell", key="ms_moved").status for _ in range(5)} == {421}
    assert [rig.request("GET", "/cell", key=key).status for key in ("ms_wrong", None, "ms_wrong")] == [403, 401, 429]
    assert rig.request("GET", "/cell", key="ms_moved").status == 421
    assert rig.request("GET", "/emails").status == 200
