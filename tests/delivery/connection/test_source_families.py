"""Sources and servers with IPv4 and IPv6 addresses: what waits for a source of one family, and what the other one still sends."""

from __future__ import annotations

from typing import Any

import attrs

from tests.delivery.connection.source_fakes import TODAY, SourcesRig, Table
from tests.delivery.connection.test_sources import DAY, MIDNIGHT, add, rest, server, used
from tests.delivery.fakes import START, clock_at, number

NEW = f"192.0.2.1 new.example since={TODAY}"
SIX = "2001:db8::6 six.example"


def dual_server(rig: SourcesRig, domain: str = "a.example", host: str = "mx.big.example") -> tuple[Any, Any]:
    """Of a domain whose server has addresses of both families."""
    four, six = rig.server(domain, "1.1.1.1", host=host), rig.server(domain, "2606:4700::1", host=host)
    rig.names.hosts[host] = ["1.1.1.1", "2606:4700::1"]
    return four, six


def test_mail_that_waits_for_the_pools_sources_is_not_sent_from_an_address_that_the_system_chooses() -> None:
    rig = SourcesRig([NEW])
    four, six = dual_server(rig)
    add(rig, 20)
    rig.start().run(60)
    assert (len(four.mails), len(six.mails)) == (4, 0)
    hold = rig.store.hold_rows["big"]
    assert hold.until == MIDNIGHT and hold.reason.startswith("Source warm-up")


def test_a_server_with_addresses_of_one_family_only_is_reached_from_an_address_that_the_system_chooses() -> None:
    rig = SourcesRig([NEW])
    six = rig.server("a.example", "2606:4700::1")
    add(rig, 20)
    rig.start().run(60)
    assert len(six.mails) == 20 and not used(rig)


def test_the_reason_is_that_of_the_family_that_the_pool_has() -> None:
    rig = SourcesRig([NEW + " pool=shop"], assigned={number(1): "shop"})
    dual_server(rig)
    add(rig, 20)
    rig.start().run(60)
    hold = rig.store.hold_rows["shop@big"]
    assert hold.until == MIDNIGHT and hold.reason.startswith("Source warm-up: the source addresses of the pool shop have sent")


def test_another_process_with_a_source_is_not_held_up_because_there_is_none_of_the_other_family() -> None:
    table, clock = Table(), clock_at(START)
    other = SourcesRig(["192.0.2.2 other.example pool=shop"], table=table, clock=clock, assigned={number(1): "shop"})
    rig = SourcesRig(["192.0.2.1 listed.example pool=shop"], table=table, clock=clock, assigned={number(1): "shop"})
    other.refresh()
    rest(rig, "192.0.2.1", "list.example")
    dual_server(rig)
    add(rig, 5)
    rig.start().run(5)
    assert len(rig.store.rows) == 5 and not rig.store.hold_rows


def every_ten_seconds(rig: SourcesRig, seconds: float) -> None:
    for _ in range(int(seconds // 10)):
        rig.refresh()
        rig.run(10)


def test_ipv4_servers_wait_once_while_ipv6_sources_send_to_the_other_servers_of_the_provider() -> None:
    rig = SourcesRig([NEW, SIX], poll_seconds=1.0)
    only_four = server(rig)
    add(rig, 10)
    rig.start().run(5)
    _, six = dual_server(rig, "b.example", "mx2.big.example")
    for email in range(21, 31):
        rig.store.add(email, "x@b.example")
    every_ten_seconds(rig, 300)
    assert (len(only_four.mails), len(six.mails)) == (4, 10)
    [(name, hold)] = rig.store.hold_rows.items()
    assert (name, hold.until) == ("big/mx.big.example", MIDNIGHT)
    assert rig.store.calls["end_wait"] <= 1, "an IPv6 source does not end the wait again and again"


def test_the_wait_ends_when_a_source_of_its_family_may_send_again() -> None:
    rig = SourcesRig([NEW.partition(" since")[0], SIX])
    only_four = server(rig)
    rest(rig, "192.0.2.1", "list.example")
    add(rig, 10, expires=3 * DAY)
    rig.start().run(5)
    every_ten_seconds(rig, 300)
    assert not only_four.mails and rig.store.calls["end_wait"] <= 1
    rig.table.stored["192.0.2.1"] = attrs.evolve(rig.table.stored["192.0.2.1"], listed=())
    every_ten_seconds(rig, 20)
    assert len(only_four.mails) == 10
