"""Which host of a destination is tried first after some of them failed during a mail."""

from __future__ import annotations

from twisted.internet.task import Clock

from mailsvc.delivery.connection.failed_hosts import FailedHosts

MINUTE = 60.0


def test_a_failed_host_comes_last_for_twenty_minutes() -> None:
    clock = Clock()
    clock.advance(1)
    hosts = FailedHosts(clock)
    hosts.note("mx1", failed=True)
    assert sorted(["mx1", "mx2"], key=hosts.failed_at) == ["mx2", "mx1"]
    clock.advance(20 * MINUTE)
    assert sorted(["mx1", "mx2"], key=hosts.failed_at) == ["mx1", "mx2"]


def test_of_several_failed_hosts_the_one_that_failed_first_is_tried_first() -> None:
    clock = Clock()
    clock.advance(1)
    hosts = FailedHosts(clock)
    for host in ("mx1", "mx2"):
        hosts.note(host, failed=True)
        clock.advance(MINUTE)
    assert sorted(["mx1", "mx2"], key=hosts.failed_at) == ["mx1", "mx2"]
    hosts.note("mx1", failed=True)
    assert sorted(["mx1", "mx2"], key=hosts.failed_at) == ["mx2", "mx1"]


def test_many_connections_that_break_together_are_one_failure() -> None:
    clock = Clock()
    clock.advance(1)
    hosts = FailedHosts(clock)
    for _ in range(20):
        hosts.note("mx1", failed=True)
        clock.advance(1)
    clock.advance(20 * MINUTE)
    assert hosts.failed_at("mx1") == 0


def test_a_host_that_fails_again_comes_last_for_five_hours_unless_it_works_meanwhile() -> None:
    clock = Clock()
    clock.advance(1)
    hosts = FailedHosts(clock)
    hosts.note("mx1", failed=True)
    clock.advance(20 * MINUTE)
    hosts.note("mx1", failed=True)
    clock.advance(299 * MINUTE)
    assert hosts.failed_at("mx1") > 0
    hosts.note("mx1", failed=False)
    assert hosts.failed_at("mx1") == 0
    hosts.note("mx1", failed=True)
    clock.advance(20 * MINUTE)
    assert hosts.failed_at("mx1") == 0
