"""While the clocks disagree, no mail is attempted and none expires. Timers go on."""

from __future__ import annotations

from typing import Any

from mailsvc.clock import TimeOfDay
from mailsvc.outcome import Delivered
from tests.delivery.fakes import START, World

DAY = 86400.0


class Clocks:
    """A world whose database clock is right and whose machine clock is off by `off` seconds."""

    def __init__(self, world: World, off: float) -> None:
        clock: Any = world.clock
        self.clock, self.off = clock, off
        clock.time_of_day = TimeOfDay(10.0, clock.seconds, lambda: clock.seconds() + self.off)
        self.measure()

    def measure(self) -> None:
        now = self.clock.seconds()
        self.clock.time_of_day.measured(now, now, now)


def test_nothing_is_attempted_or_expires_until_the_clocks_agree() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    clocks = Clocks(world, off=6 * DAY)
    world.store.add(1, "bob@example.com")
    world.store.add(2, "ann@example.com", status="scheduled", due=60)
    world.store.add(3, "old@example.com", expires=30)
    world.start().run(35)
    assert not server.dials and not world.store.settled
    assert not world.store.calls["claim"] and not world.store.calls["expire"] and not world.store.calls["release_scheduled"]
    clocks.off = 0
    clocks.measure()
    world.run(20)
    assert world.store.last(1) == Delivered("250 2.0.0 queued")


def test_mail_in_memory_goes_back_to_the_queue() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    clocks = Clocks(world, off=0)
    world.store.add(1, "bob@example.com")
    world.start().run(2)
    email, reservations = world.email(2, "ann@example.com")
    clocks.off = -120
    world.commit(email, reservations)
    world.run(60)
    assert len(server.mails) == 1
    assert {row.lease for row in world.store.rows.values()} == {None}, "another process may send it"
    clocks.off = 0
    world.run(20)
    assert len(server.mails) == 2 and world.store.rows == {}


def test_attempts_are_dated_by_the_databases_clock() -> None:
    world = World()
    world.server("example.com", "1.1.1.1")
    clock: Any = world.clock
    clock.time_of_day = TimeOfDay(10.0, clock.seconds, lambda: clock.seconds() + 7 * DAY)
    clock.time_of_day.measured(START, START + 7 * DAY, START)
    world.store.add(1, "bob@example.com", due=-1, expires=9 * DAY)
    world.start().run(2)
    [settlement] = world.store.settled
    assert abs(settlement.at.timestamp() - (START + 7 * DAY)) < 5
