"""Destinations that are dead, slow, refusing, paused or without DNS, while mail to others goes on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.task import deferLater

from mailsvc.delivery.connection.connect import CannotConnect
from mailsvc.delivery.connection.sources import Sources, parse
from mailsvc.mail.reply import Reply
from mailsvc.outcome import Bounced, Delivered
from mailsvc.outcome import Deferred as Later
from mailsvc.store.queue.claims import Hold
from mailsvc.store.queue.holds import FOREVER
from tests.delivery import fakes
from tests.delivery.fakes import DeliveryRig, answered, lost, number, taken

# Destinations in trouble


def test_a_dead_destination_is_held_and_not_tried_for_each_mail() -> None:
    rig = DeliveryRig()

    def refuse() -> Any:
        return deferLater(rig.clock, 0.5, fail, CannotConnect("refused the connection"))

    rig.server("dead.example", "1.1.1.1").greeting = refuse
    for email in range(1, 51):
        rig.store.add(email, f"r{email}@dead.example", destination="mx.dead.example", expires=30 * 86400.0)
    rig.start().run(5)
    hold = rig.store.hold_rows["mx.dead.example"]
    assert hold.reason == "mx.dead.example (1.1.1.1) refused the connection."
    assert (hold.state, hold.failures) == ("backoff", 1)
    assert len(rig.store.outcomes) == 1  # one tells what happened; the others wait for the destination
    assert all(row.lease is None for row in rig.store.rows.values())
    rig.store.calls.clear()
    rig.run(4 * 3600)
    dials = rig.servers["1.1.1.1"].dials
    assert 10 <= len(dials) <= 20
    gaps = [later - sooner for sooner, later in pairwise(dials)]
    assert gaps[0] == 0  # a new destination gets two connections, from then on it is probed with one
    assert 60 <= gaps[1] < 80
    assert 1400 < gaps[-1] <= 1800
    assert rig.store.calls["claim"] <= len(dials) + 1
    assert rig.store.calls["settle"] <= len(dials) + 1
    assert rig.store.calls["release"] <= 2 * len(dials)
    assert rig.store.calls["ready"] <= 4 * 3600 * 1.1  # once a second, when nothing rings


def test_the_hold_of_a_destination_that_works_again_is_lifted() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    server.greeting = lambda: CannotConnect("did not answer the connection in time")
    for email in range(1, 101):
        rig.store.add(email, "bob@example.com", destination="mx.example.com")
    rig.start().run(30)
    server.greeting = lambda: None
    rig.run(400)
    assert rig.store.rows == {}
    assert rig.store.hold_rows == {}
    assert server.most_open <= 20


def test_other_mail_is_delivered_while_hundreds_of_destinations_hang() -> None:
    rig = DeliveryRig(connections=60)
    server = rig.server("good.example", "1.1.1.1")
    rig.store.add(1, "bob@good.example", destination="mx.good.example")
    rig.start().run(60)
    for index in range(300):
        rig.server(f"d{index}.example", f"8.8.{index // 200}.{index % 200}").greeting = Deferred
        for email in range(5):
            rig.store.add(1000 + index * 10 + email, f"bob@d{index}.example", destination=f"mx.d{index}.example")
    rig.run(10)
    assert rig.delivery.slots.taken == 40
    rig.store.add(2, "bob@good.example", destination="mx.good.example")
    started = rig.clock.seconds()
    rig.run(3)
    assert server.mails[-1].at - started <= 1.2


def test_the_next_host_is_tried_and_refused_greetings_defer() -> None:
    rig = DeliveryRig()
    first = rig.server("example.com", "1.1.1.1", host="mx1.example.com", preference=10)
    second = rig.server("example.com", "1.1.1.2", host="mx2.example.com", preference=20)
    first.greeting = lambda: CannotConnect("answered 554 no service")
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)
    assert len(second.mails) == 1
    second.greeting = lambda: CannotConnect("answered 421 4.3.2 too busy")
    rig.run(60)
    rig.store.add(2, "bob@example.com")
    rig.run(3)
    outcome = rig.store.last(2)
    assert isinstance(outcome, Later)
    reason = "mx1.example.com (1.1.1.1) answered 554 no service; mx2.example.com (1.1.1.2) answered 421 4.3.2 too busy."
    assert outcome.meaning is not None and outcome.meaning.kind == "network"
    assert outcome.reason == outcome.meaning.sentence(reason)


def test_private_addresses_are_refused_unless_the_operator_allows_them() -> None:
    rig = DeliveryRig()
    inner = rig.server("rebind.example", "10.0.0.5")
    rig.store.add(1, "bob@rebind.example")
    rig.start().run(2)
    assert inner.dials == []
    outcome = rig.store.last(1)
    assert isinstance(outcome, Bounced)
    assert outcome.reply.startswith("550 5.4.4")
    assert "10.0.0.5 is private" in outcome.reply
    allowed = DeliveryRig(allow_addresses=("10.0.0.0/8",))
    inner = allowed.server("rebind.example", "10.0.0.5")
    allowed.store.add(1, "bob@rebind.example")
    allowed.start().run(2)
    assert len(inner.mails) == 1
    routed = DeliveryRig(routes={"rebind.example": "smtp://127.0.0.1:2526"})
    routed.servers["127.0.0.1"] = inner = fakes.Server(routed)
    routed.names.hosts["127.0.0.1"] = ["127.0.0.1"]
    routed.store.add(1, "bob@rebind.example")
    routed.start().run(2)
    assert len(inner.mails) == 1


def test_connections_that_fail_during_mail_hold_the_destination() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    server.answer = lambda envelope: answered(envelope, Reply(421, "too many messages", "4.7.0"))
    for email in range(1, 51):
        rig.store.add(email, "bob@example.com", destination="mx.example.com")
    rig.start().run(5)
    assert 3 <= len(server.mails) <= 5
    assert rig.store.hold_rows["mx.example.com"].reason == "mx.example.com answered 421 4.7.0 too many messages"
    assert all(row.lease is None for row in rig.store.rows.values())


def test_a_refused_further_connection_does_not_hold_a_working_destination() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    server.greeting = lambda: CannotConnect("answered 421 too many connections") if len(server.open) >= 2 else None

    def slowly(envelope: Any) -> Any:
        answer: Deferred[Any] = Deferred()
        rig.clock.callLater(0.5, lambda: answer.callback(taken(envelope)))
        return answer

    server.answer = slowly
    for email in range(1, 101):
        rig.store.add(email, "bob@example.com", destination="mx.example.com")
    rig.start().run(60)
    assert rig.store.rows == {}
    assert rig.store.hold_rows == {}
    assert len(server.dials) < 12


def test_a_reused_connection_that_was_closed_costs_no_attempt() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)
    server.answer = lambda envelope: lost(envelope, "it ended", stale=True) if server.mails[-1].connection == 1 else taken(envelope)
    rig.store.add(2, "bob@example.com", destination="mx.example.com")
    rig.run(2)
    assert rig.store.outcomes[number(2), 0] == [Delivered("250 2.0.0 queued")]
    assert [mail.connection for mail in server.mails] == [1, 1, 2]


def test_a_paused_destination_keeps_its_mail_and_gets_it_when_resumed() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.hold_rows["mx.example.com"] = Hold("paused", "Paused by the operator.", FOREVER, 0)
    rig.store.add(1, "bob@example.com")
    rig.start().run(30)
    assert server.mails == []
    assert not rig.delivery.handoff.reserve("example.com", 10, bulk=False).leased
    del rig.store.hold_rows["mx.example.com"]
    rig.run(3)
    assert len(server.mails) == 1


# Domains


def test_recipients_at_domains_without_mail_bounce() -> None:
    rig = DeliveryRig()
    rig.names.mxs["null.example"] = [(0, "")]
    rig.store.add(1, "bob@null.example")
    rig.store.add(2, "bob@missing.example")
    rig.store.add(3, "bob@[192.0.2.1]")
    rig.start().run(2)
    assert [rig.store.last(email).reply for email in (1, 2, 3)] == [  # type: ignore[union-attr]
        "556 5.1.10 null.example accepts no mail (null MX)",
        "550 5.1.2 The domain missing.example does not exist",
        "550 5.1.2 [192.0.2.1] is not a mail domain",
    ]
    assert all(settlement.attempt is None for settlement in rig.store.settled)


def test_a_domain_without_dns_is_held_and_recovers() -> None:
    rig = DeliveryRig()
    rig.names.mxs["flaky.example"] = "nameserver 192.0.2.53 answered SERVFAIL"
    for email in range(1, 31):
        rig.store.add(email, "bob@flaky.example")
    rig.start().run(20)
    assert "SERVFAIL" in rig.store.hold_rows["flaky.example"].reason
    assert len(rig.store.outcomes) == 1
    outcome = rig.store.last(1)
    assert isinstance(outcome, Later) and outcome.meaning is not None and outcome.meaning.kind == "network"
    assert rig.names.lookups["flaky.example"] == 1
    del rig.names.mxs["flaky.example"]
    server = rig.server("flaky.example", "1.1.1.1")
    rig.run(120)
    assert len(server.mails) == 30
    assert rig.store.rows == {}
    assert rig.store.hold_rows == {}


def test_domains_at_one_provider_share_a_lane() -> None:
    rig = DeliveryRig()
    for name in ("a.example", "b.example"):
        server = rig.server(name, "1.1.1.1", host="mx.provider.example")
        rig.store.add(1 if name == "a.example" else 2, f"bob@{name}")
    rig.start().run(2)
    assert len(server.mails) == 2
    assert [lane.destination for lane in rig.delivery.lanes] == ["mx.provider.example"]


# Fairness


def test_accounts_take_turns_and_bulk_comes_last() -> None:
    rig = DeliveryRig(connections_max=1, connections_initial=1, window=200)
    server = rig.server("example.com", "1.1.1.1")
    first: Deferred[Any] = Deferred()
    server.answer = lambda envelope: first if len(server.mails) == 1 else taken(envelope)
    rig.store.add(1, "x@example.com", destination="mx.example.com")
    rig.start().run(2)
    lane = rig.delivery.lanes.get("mx.example.com")
    lane.health.good_at, lane.health.most, lane.health.wanted = rig.clock.seconds(), 20, 20  # a wide window, still one connection
    lane._workers = 20
    for index in range(10):
        rig.store.add(100 + index, f"a{index}@example.com", destination="mx.example.com", account=1)
        rig.store.add(300 + index, f"b{index}@example.com", destination="mx.example.com", account=3, bulk=True)
    for index in range(3):
        rig.store.add(200 + index, f"c{index}@example.com", destination="mx.example.com", account=2)
    rig.run(3)
    first.callback(taken(fakes.Envelope("", ("x@example.com",))))
    rig.run(1)
    order = [mail.recipients[0][0] for mail in server.mails[1:]]
    assert "".join(order[:6]) in ("acacac", "cacaca")
    assert set(order[13:]) == {"b"}
    assert len(order) == 23


def test_our_own_source_addresses_are_not_connected_to() -> None:
    rig = DeliveryRig(sources=Sources(parse(["8.8.8.8 out1.sender.example", "10.0.0.7 out2.sender.example"])))
    ours = rig.server("example.com", "8.8.8.8")
    rig.store.add(1, "x@example.com")
    rig.start().run(2)
    assert ours.dials == [] and ours.mails == []
    last = rig.store.last(1)
    assert isinstance(last, Bounced) and "8.8.8.8 is our own" in last.reply


def test_domains_with_the_same_hosts_in_another_order_begin_with_their_own() -> None:
    """They share a lane (5321 §5.1)."""
    rig = DeliveryRig()
    for domain, first in (("example.com", 10), ("example.net", 30)):
        rig.server(domain, "1.1.1.1", host="mx1.example.com", preference=first)
        rig.server(domain, "1.1.1.2", host="mx2.example.com", preference=20)
    for server in rig.servers.values():
        server.answer = lambda envelope: deferLater(rig.clock, 60.0, taken, envelope)
    rig.start()
    for identity, domain in enumerate(("example.com", "example.net")):
        rig.store.add(identity, f"x@{domain}")
        rig.run(5.0)
    assert [[mail.recipients for mail in server.mails] for server in rig.servers.values()] == [[("x@example.com",)], [("x@example.net",)]]
