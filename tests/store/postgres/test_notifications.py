"""Notifications reach every listener, are grouped on busy channels, and continue after a lost connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_twisted
from twisted.internet.task import Clock, deferLater

from mailsvc.store.postgres.notifications import BUSY_INTERVAL, QUIET_INTERVAL, Notifications
from mailsvc.store.postgres.pool import Pool
from tests.store.postgres.waiting import reactor, until


@pytest_twisted.async_yield_fixture
async def pair(database: str) -> AsyncIterator[tuple[Notifications, Notifications]]:
    pair = Notifications(database, reactor()), Notifications(database, reactor())
    for notifications in pair:
        await notifications.start()
    yield pair
    for notifications in pair:
        await notifications.stop()


class Listener:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


@pytest_twisted.ensureDeferred
async def test_a_notification_reaches_all_listeners_of_its_channel(pair: tuple[Notifications, Notifications]) -> None:
    one, other = pair
    listener, own, elsewhere = Listener(), Listener(), Listener()
    other.listen("queue", listener)
    one.listen("queue", own)
    other.listen("keys", elsewhere)
    await until(lambda: one._listening and len(other._listening) == 2)
    one.notify("queue")
    await until(lambda: listener.calls and own.calls)
    assert (listener.calls, own.calls, elsewhere.calls) == (1, 1, 0)


@pytest_twisted.ensureDeferred
async def test_many_calls_send_few_notifications(pair: tuple[Notifications, Notifications], pool: Pool) -> None:
    one, other = pair
    listener = Listener()
    other.listen("queue", listener)
    await until(lambda: other._listening)
    begun = reactor().seconds()
    while (passed := reactor().seconds() - begun) < 4 * BUSY_INTERVAL:
        one.notify("queue")
        one.notify("queue")
        await deferLater(reactor(), 0.001)
    await until(lambda: listener.calls >= 1 and not one._scheduled and not one._sending)
    assert 2 <= one.sent <= passed / BUSY_INTERVAL + 2
    assert listener.calls <= one.sent  # notifications that arrive together call back once


def test_single_notifications_are_sent_at_once() -> None:
    clock = Clock()
    notifications = Notifications("", clock)

    def due_after(seconds: float) -> bool:
        clock.advance(seconds)
        due = "queue" in notifications._due
        notifications._due.clear()  # as if it had been sent
        return due

    for _ in range(5):
        notifications.notify("queue")
        assert due_after(0)
        clock.advance(QUIET_INTERVAL)
    for _ in range(5):
        notifications.notify("queue")
    assert due_after(0)
    notifications.notify("queue")
    assert not due_after(BUSY_INTERVAL - 0.001)
    assert due_after(0.002)


def test_notifications_on_delayed_channels_are_grouped() -> None:
    clock = Clock()
    notifications = Notifications("", clock)
    for _ in range(3):
        notifications.notify("events")
        notifications.notify("events")
        clock.advance(BUSY_INTERVAL - 0.001)
        assert not notifications._due
        clock.advance(0.002)
        assert notifications._due == {"events"}
        notifications._due.clear()


@pytest_twisted.ensureDeferred
async def test_listeners_are_called_after_a_lost_connection(
    pair: tuple[Notifications, Notifications], database: str, administer: Callable[..., None]
) -> None:
    one, other = pair
    listener = Listener()
    other.listen("queue", listener)
    await until(lambda: other._listening)
    administer(database, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'mailsvc notifications'")
    one.notify("queue")  # may be lost with the connection
    await until(lambda: listener.calls and one.connected and other.connected)
    before = listener.calls
    one.notify("queue")
    await until(lambda: listener.calls > before)


@pytest_twisted.ensureDeferred
async def test_connecting_is_retried_until_the_server_is_there(database: str, administer: Callable[..., None]) -> None:
    notifications = Notifications(f"{database} dbname=not_yet", reactor())
    listener = Listener()
    notifications.listen("queue", listener)
    notifications.notify("queue")
    await notifications.start()
    assert not notifications.connected
    administer(database, "CREATE DATABASE not_yet")
    await until(lambda: listener.calls)
    assert notifications.connected
    await notifications.stop()
    administer(database, "DROP DATABASE not_yet WITH (FORCE)")
    assert not notifications.connected


@pytest_twisted.ensureDeferred
async def test_stopping_ends_the_retries() -> None:
    notifications = Notifications("host=/nowhere", reactor())
    await notifications.start()
    await notifications.stop()
    assert not notifications.connected
    assert not notifications._connecting


@pytest_twisted.ensureDeferred
async def test_a_failing_listener_does_not_stop_the_others(pair: tuple[Notifications, Notifications]) -> None:
    listener = Listener()

    def broken() -> None:
        raise LookupError

    pair[0].listen("queue", broken)
    pair[0].listen("queue", listener)
    await until(lambda: pair[0]._listening)
    pair[1].notify("queue")
    await until(lambda: listener.calls)


def test_a_channel_name_must_be_an_identifier() -> None:
    with pytest.raises(ValueError, match="not a valid channel name"):
        Notifications("", None).listen("x; DROP TABLE accounts", lambda: None)
