"""Waiting coroutines are called in order and in a loop, however many there are."""

from __future__ import annotations

import sys

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mailsvc.semaphore import Semaphore


def test_more_can_wait_than_the_stack_is_deep() -> None:
    semaphore, called = Semaphore(1), list[int]()

    async def work(number: int, until: Deferred[None] | None = None) -> None:
        async with semaphore:
            if until is not None:
                await until
            called.append(number)

    until, count = Deferred[None](), 2 * sys.getrecursionlimit()
    works = [Deferred.fromCoroutine(work(number, None if number else until)) for number in range(count)]
    until.callback(None)
    assert called == list(range(count)) and all(each.called for each in works)
    assert semaphore.tokens == 1 and not semaphore.waiting


def test_nobody_overtakes_those_that_wait() -> None:
    semaphore, called = Semaphore(2), list[str]()

    async def work(name: str, times: int) -> None:
        for _ in range(times):
            async with semaphore:
                called.append(name)

    held = [semaphore.acquire(), semaphore.acquire()]
    works = [Deferred.fromCoroutine(work(name, 2)) for name in "ab"]
    assert all(each.called for each in held) and not called
    semaphore.release()
    assert called == ["a", "b", "a", "b"] and all(each.called for each in works)
    semaphore.release()
    assert semaphore.tokens == 2


def test_one_that_gives_up_or_fails_leaves_its_place() -> None:
    semaphore = Semaphore(1)
    semaphore.acquire()
    first, second = semaphore.acquire(), semaphore.acquire()
    first.addErrback(lambda failure: failure.trap(CancelledError))
    first.cancel()

    async def failing() -> None:
        async with semaphore:
            raise ValueError

    failed = Deferred.fromCoroutine(failing())
    semaphore.release()
    assert second.called and not failed.called
    semaphore.release()
    with pytest.raises(ValueError):
        failed.result.raiseException()  # type: ignore[union-attr]
    failed.addErrback(lambda _: None)
    assert semaphore.tokens == 1
