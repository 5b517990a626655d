"""The bell: rung for everybody, not too often, and heard again after the connection was lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.task import Clock, deferLater

from mailsvc.store.postgres.notifications import APART, BRIEFLY, Notifications
from mailsvc.store.postgres.pool import Pool


def reactor() -> Any:
    from twisted.internet import reactor

    return reactor


async def until(condition: Callable[[], Any]) -> None:
    """Let the reactor turn until it holds."""
    for _ in range(5000):
        if condition():
            return
        await deferLater(reactor(), 0.001)
    raise AssertionError("It never came to that.")


@pytest_twisted.async_yield_fixture
async def bells(database: str) -> AsyncIterator[tuple[Notifications, Notifications]]:
    pair = Notifications(database, reactor()), Notifications(database, reactor())
    for bell in pair:
        await bell.start()
    yield pair
    for bell in pair:
        await bell.stop()


class Listener:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


@pytest_twisted.ensureDeferred
async def test_a_ring_is_heard_by_all_who_listen_to_its_channel(bells: tuple[Notifications, Notifications]) -> None:
    one, other = bells
    heard, own, elsewhere = Listener(), Listener(), Listener()
    other.listen("queue", heard)
    one.listen("queue", own)
    other.listen("keys", elsewhere)
    await until(lambda: one._listened and len(other._listened) == 2)
    one.ring("queue")
    await until(lambda: heard.calls and own.calls)
    assert (heard.calls, own.calls, elsewhere.calls) == (1, 1, 0)


@pytest_twisted.ensureDeferred
async def test_many_rings_are_few_notifications(bells: tuple[Notifications, Notifications], pool: Pool) -> None:
    one, other = bells
    heard = Listener()
    other.listen("queue", heard)
    await until(lambda: other._listened)
    begun = reactor().seconds()
    while (passed := reactor().seconds() - begun) < 4 * APART:
        one.ring("queue")
        one.ring("queue")
        await deferLater(reactor(), 0.001)
    await until(lambda: heard.calls >= 1 and not one._soon and not one._talking)
    assert 2 <= one.rings <= passed / APART + 2
    assert heard.calls <= one.rings  # what arrives together is heard once


def test_what_happens_singly_is_rung_for_at_once() -> None:
    clock = Clock()
    bell = Notifications("", clock)

    def rung_after(seconds: float) -> bool:
        clock.advance(seconds)
        rung = "queue" in bell._now
        bell._now.clear()  # as if it had been said
        return rung

    for _ in range(5):
        bell.ring("queue")
        assert rung_after(0)
        clock.advance(BRIEFLY)
    for _ in range(5):
        bell.ring("queue")
    assert rung_after(0)
    bell.ring("queue")
    assert not rung_after(APART - 0.001)
    assert rung_after(0.002)


def test_what_nobody_waits_for_is_rung_for_together() -> None:
    clock = Clock()
    bell = Notifications("", clock)
    for _ in range(3):
        bell.ring("events")
        bell.ring("events")
        clock.advance(APART - 0.001)
        assert not bell._now
        clock.advance(0.002)
        assert bell._now == {"events"}
        bell._now.clear()


@pytest_twisted.ensureDeferred
async def test_after_a_lost_connection_it_listens_again_and_looks_once(
    bells: tuple[Notifications, Notifications], database: str, administer: Callable[..., None]
) -> None:
    one, other = bells
    heard = Listener()
    other.listen("queue", heard)
    await until(lambda: other._listened)
    administer(database, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'mailsvc bell'")
    one.ring("queue")  # may be lost with the connection
    await until(lambda: heard.calls and one.connected and other.connected)
    before = heard.calls
    one.ring("queue")
    await until(lambda: heard.calls > before)


@pytest_twisted.ensureDeferred
async def test_without_a_server_it_goes_on_trying_and_stops_when_told(database: str, administer: Callable[..., None]) -> None:
    bell = Notifications(f"{database} dbname=not_yet", reactor())
    heard = Listener()
    bell.listen("queue", heard)
    bell.ring("queue")
    await bell.start()
    assert not bell.connected
    administer(database, "CREATE DATABASE not_yet")
    await until(lambda: heard.calls)
    assert bell.connected
    await bell.stop()
    administer(database, "DROP DATABASE not_yet WITH (FORCE)")
    assert not bell.connected


@pytest_twisted.ensureDeferred
async def test_stopping_while_it_tries_ends_the_trying() -> None:
    bell = Notifications("host=/nowhere", reactor())
    await bell.start()
    await bell.stop()
    assert not bell.connected
    assert not bell._connecting


@pytest_twisted.ensureDeferred
async def test_a_listener_that_fails_keeps_no_other_from_being_called(bells: tuple[Notifications, Notifications]) -> None:
    heard = Listener()

    def broken() -> None:
        raise LookupError

    bells[0].listen("queue", broken)
    bells[0].listen("queue", heard)
    await until(lambda: bells[0]._listened)
    bells[1].ring("queue")
    await until(lambda: heard.calls)


def test_a_channel_is_a_name() -> None:
    with pytest.raises(ValueError, match="no name"):
        Notifications("", None).listen("x; DROP TABLE accounts", lambda: None)
