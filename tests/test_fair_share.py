"""Many keys share places: they take turns, and none gets more than its share."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from mailsvc.fair_share import FairShare, TooManyWaiting


def test_keys_take_turns_and_get_at_most_a_share() -> None:
    fair, begun = FairShare(4, 2, waiting=3), []
    ends: list[Deferred[None]] = []

    async def work(key: str) -> None:
        async with fair.place(key):
            begun.append(key)
            end: Deferred[None] = Deferred()
            ends.append(end)
            await end

    started = [Deferred.fromCoroutine(work("a")) for _ in range(5)]
    assert begun == ["a", "a"]
    refused: list[Any] = []
    Deferred.fromCoroutine(work("a")).addErrback(refused.append)
    assert refused[0].check(TooManyWaiting)
    started += [Deferred.fromCoroutine(work(key)) for key in "bcbc"]
    assert begun == ["a", "a", "b", "c"]
    started[-1].addErrback(lambda failure: None)
    started[-1].cancel()
    for end in ends[:2]:
        end.callback(None)
    assert begun == ["a", "a", "b", "c", "a", "b"]
    while ends:
        end = ends.pop(0)
        if not end.called:
            end.callback(None)
    assert begun == ["a", "a", "b", "c", "a", "b", "a", "a"]
    assert not fair._taken and not fair._queues


def test_any_amount_of_immediate_work_can_wait() -> None:
    fair, done = FairShare(1, 1, waiting=5000), []

    async def work(number: int, first: Deferred[None] | None = None) -> None:
        async with fair.place(number % 3):
            if first is not None:
                await first
            done.append(number)

    gate: Deferred[None] = Deferred()
    Deferred.fromCoroutine(work(0, gate))
    for number in range(1, 5000):
        Deferred.fromCoroutine(work(number))
    gate.callback(None)
    assert len(done) == 5000
