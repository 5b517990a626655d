"""While the clocks disagree, no mail is attempted and none expires. Timers go on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from mailsvc.clock import TimeOfDay
from mailsvc.outcome import Delivered
from mailsvc.store.queue.holds import Hold
from tests.delivery.fakes import START, DeliveryRig

DAY = 86400.0


class Clocks:
    """Delivery whose database clock is right and whose machine clock is off by `off` seconds."""

    def __init__(self, rig: DeliveryRig, off: float) -> None:
        clock: Any = rig.clock
        self.clock, self.off = clock, off
        clock.time_of_day = TimeOfDay(10.0, clock.seconds, lambda: clock.seconds() + self.off)
        self.measure()

    def measure(self) -> None:
        now = self.clock.seconds()
        self.clock.time_of_day.measured(now, now, now)


def test_nothing_is_attempted_or_expires_until_the_clocks_agree() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    clocks = Clocks(rig, off=6 * DAY)
    rig.store.add(1, "bob@example.com")
    rig.store.add(2, "ann@example.com", status="scheduled", due=60)
    rig.store.add(3, "old@example.com", expires=30)
    rig.start().run(35)
    assert not server.dials and not rig.store.settled
    assert not rig.store.calls["claim"] and not rig.store.calls["expire"] and not rig.store.calls["release_scheduled"]
    clocks.off = 0
    clocks.measure()
    rig.run(20)
    assert rig.store.last(1) == Delivered("250 2.0.0 queued")


def test_mail_in_memory_goes_back_to_the_queue() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    clocks = Clocks(rig, off=0)
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)
    email, reservations = rig.email(2, "ann@example.com")
    clocks.off = -120
    rig.commit(email, reservations)
    rig.run(60)
    assert len(server.mails) == 1
    assert {row.lease for row in rig.store.rows.values()} == {None}, "another process may send it"
    clocks.off = 0
    rig.run(20)
    assert len(server.mails) == 2 and rig.store.rows == {}


def test_attempts_are_dated_by_the_databases_clock() -> None:
    rig = DeliveryRig()
    rig.server("example.com", "1.1.1.1")
    clock: Any = rig.clock
    clock.time_of_day = TimeOfDay(10.0, clock.seconds, lambda: clock.seconds() + 7 * DAY)
    clock.time_of_day.measured(START, START + 7 * DAY, START)
    rig.store.add(1, "bob@example.com", due=-1, expires=9 * DAY)
    rig.start().run(2)
    [settlement] = rig.store.settled
    assert abs(settlement.at.timestamp() - (START + 7 * DAY)) < 5


def test_a_destination_is_not_held_until_a_time_that_a_wrong_clock_set() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    late = datetime.fromtimestamp(START + DAY, UTC)
    rig.store.hold_rows["example.com"] = Hold("backoff", "No answer.", late, 3)
    rig.store.hold_rows["elsewhere.com"] = Hold("paused", "The operator paused it.", late, 0)
    rig.store.add(1, "bob@example.com")
    rig.start().run(5)
    assert len(server.mails) == 1
    assert set(rig.store.hold_rows) == {"elsewhere.com"}
