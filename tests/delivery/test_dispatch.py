"""Delivery as a whole, with a queue in memory and scripted servers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mailsvc.mail import seven_bit
from mailsvc.mail.envelope import StoredEnvelope
from mailsvc.mail.reply import Reply
from mailsvc.outcome import Bounced, Delivered, Uncertain
from mailsvc.outcome import Deferred as Later
from mailsvc.smtp.client.capabilities import Capabilities
from mailsvc.store.postgres.errors import Unavailable
from tests.delivery import fakes
from tests.delivery.fakes import MESSAGE, World, answered, each, lost, number, taken


def settled_now(world: World) -> float:
    """The time of the last settlement."""
    return world.store.settled[-1].at.timestamp()


# The way of one mail


def test_queued_mail_is_claimed_signed_sent_and_settled() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    world.start().run(2)
    [mail] = server.mails
    assert (mail.sender, mail.recipients) == ("b-1@send.sender.example", ("bob@example.com",))
    assert mail.octets == b"DKIM-Signature: 1\r\n" + MESSAGE
    assert world.store.last(1) == Delivered("250 2.0.0 queued")
    attempt = world.store.settled[0].attempt
    assert attempt is not None
    assert (attempt.host, attempt.address) == ("mx.example.com", "1.1.1.1:25")
    assert world.store.settled[0].signature is None
    assert world.store.rows == {}


def test_handed_off_mail_is_neither_claimed_nor_loaded() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    world.start().run(2)  # the route is known now
    before = world.store.calls.copy()
    email, reservations = world.email(2, "ann@example.com", "bob@example.com")
    assert [new.leased for new in email.recipients] == [True, True]
    world.commit(email, reservations)
    world.run(0.01)
    assert server.mails[-1].recipients == ("ann@example.com", "bob@example.com")
    assert world.store.last(2, 1) == Delivered("250 2.0.0 queued")
    assert world.store.calls["claim"] == before["claim"]
    assert world.store.calls["load"] == before["load"]
    assert world.delivery.memory.used == 0


def test_single_queued_mails_are_claimed_without_delay() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com", destination="mx.example.com")
    world.start().run(1)
    for identity in range(2, 7):
        world.store.add(identity, "bob@example.com", destination="mx.example.com")
        world.delivery.wake()
        world.run(0.02)
        assert len(server.mails) == identity
    before = world.store.calls["ready"]
    for identity in range(100, 200):  # while there is much, a look serves many
        world.store.add(identity, "bob@example.com", destination="mx.example.com")
        world.delivery.wake()
        world.run(0.002)
    assert world.store.calls["ready"] - before <= 8


def test_mail_queued_a_moment_ago_is_claimed_but_not_loaded() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.start().run(1)
    email, reservations = world.email(1, "ann@example.com")
    assert not reservations
    world.commit(email, reservations)
    world.run(2)
    assert [mail.octets for mail in server.mails] == [b"DKIM-Signature: 1\r\n" + MESSAGE]
    assert world.store.calls["claim"] == 2  # under the bare domain, and under the destination that it turned out to have
    assert world.store.calls["load"] == 0
    assert world.delivery.memory.used == 0


def test_messages_that_come_with_a_claim_are_not_loaded() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.brings = True
    world.store.add(1, "ann@example.com", destination="mx.example.com")
    world.store.add(1, "bob@example.com", destination="mx.example.com", recipient=1)
    world.store.add(2, "ann@example.com", destination="mx.example.com", attempts=1)
    world.store.envelopes[number(1)] = StoredEnvelope(ret="HDRS")
    world.start().run(2)
    assert sorted(mail.recipients for mail in server.mails) == [("ann@example.com",), ("ann@example.com", "bob@example.com")]
    assert all(mail.octets.endswith(b"\r\n" + MESSAGE) for mail in server.mails)
    assert world.store.calls["load"] == 1  # of the one that was tried before: it may have its signature
    assert world.delivery.memory.used == 0


def test_claims_bring_no_messages_while_they_are_in_memory() -> None:
    world = World()
    world.server("example.com", "1.1.1.1")
    world.store.brings = True
    world.start().run(1)
    for identity in (1, 2, 3):
        email, reservations = world.email(identity, "ann@elsewhere.example")  # where nobody answers: it goes to the queue
        world.commit(email, reservations)
    world.server("elsewhere.example", "1.1.1.2")

    def octets(email: int) -> int:
        world.store.add(email, "bob@example.com", destination="mx.example.com")
        world.delivery.wake()
        world.run(1)
        return world.store.asked[-1][1]

    world.run(2)
    assert world.store.asked[-1][1] == 0
    assert octets(11) == 0  # it was not here
    assert octets(12) > 0
    assert world.store.calls["load"] == 1


def test_destinations_share_claims() -> None:
    world = World()
    names = [f"{n:03}.example" for n in range(90)]
    for n, name in enumerate(names):
        world.store.add(n, f"ann@{name}", destination=f"mx.{name}", due=-100 + n)
    world.start().run(0.01)
    asked = [wanted for wanted, _ in world.store.asked]
    assert [name for wanted in asked for name in wanted] == [f"mx.{name}" for name in names]  # the one that waits longest first
    assert [len(wanted) for wanted in asked] == [40, 40, 10]
    assert {limit for wanted in asked for limit in wanted.values()} == {10}


def test_a_destination_that_delivers_its_rows_claims_more() -> None:
    world = World(window=60)
    server = world.server("busy.example", "1.1.1.1")
    world.store.add(0, "ann@busy.example", destination="mx.busy.example")
    world.start().run(1)  # it has a lane now, with room for many
    for n in range(1, 61):
        world.store.add(n, f"ann@{n}.example", destination=f"mx.{n}.example")
    for n in range(100, 200):
        world.store.add(n, "bob@busy.example", destination="mx.busy.example")
    world.store.asked.clear()
    world.delivery.wake()
    world.run(1)
    assert len(server.mails) == 101
    first, *others = [wanted["mx.busy.example"] for wanted, _ in world.store.asked if "mx.busy.example" in wanted]
    assert first == 10 and max(others) > 10


def test_a_failed_claim_delays_no_other_destination() -> None:
    world = World()
    servers = [world.server(name, f"1.1.1.{n}") for n, name in enumerate(("one.example", "two.example"))]
    for n, name in enumerate(("one.example", "two.example")):
        world.store.add(n, f"ann@{name}", destination=f"mx.{name}")
    world.store.failing["claim"] = Unavailable("away", unknown=True)
    world.start().run(1)
    world.store.failing.clear()
    world.run(5)
    assert [len(server.mails) for server in servers] == [1, 1]


def test_no_reservation_before_the_route_is_known_and_acceptance_does_not_query_dns() -> None:
    world = World()
    world.server("example.com", "1.1.1.1")
    world.start().run(1)
    email, reservations = world.email(1, "bob@example.com")
    assert (reservations, email.recipients[0].leased, email.recipients[0].destination) == ({}, False, "example.com")
    assert world.names.asked["example.com"] == 0
    world.commit(email, reservations)
    world.run(1)
    assert world.store.last(1) == Delivered("250 2.0.0 queued")


def test_new_mail_does_not_overtake_queued_mail() -> None:
    world = World(connections_max=1, window=10)
    server = world.server("example.com", "1.1.1.1")
    stuck: list[Deferred[Any]] = []
    for email in range(1, 41):
        world.store.add(email, "bob@example.com", destination="mx.example.com")
    server.answer = lambda envelope: stuck.append(Deferred()) or stuck[-1]
    world.start().run(2)
    email, reservations = world.email(99, "bob@example.com")
    assert not reservations
    world.commit(email, reservations)
    server.answer = taken
    stuck[0].callback(taken(fakes.Envelope("", ("bob@example.com",))))
    world.run(20)
    assert [mail.sender for mail in server.mails][-1] == "b-99@send.sender.example"
    assert len(server.mails) == 41
    email, reservations = world.email(100, "bob@example.com")
    assert reservations  # nothing waits any more


def test_no_reservation_while_queued_mail_is_being_claimed() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    world.start().run(2)
    claim, slow = world.store.claim, list[Deferred[None]]()

    async def slowly(*args: Any) -> Any:
        slow.append(Deferred())
        await slow[-1]
        return await claim(*args)

    world.store.claim = slowly  # type: ignore[method-assign]
    world.store.add(2, "bob@example.com", destination="mx.example.com")
    world.run(2)
    assert not world.delivery.handoff.reserve("example.com", 10, bulk=False).leased
    slow[0].callback(None)
    assert world.delivery.handoff.reserve("example.com", 10, bulk=False).leased
    assert len(server.mails) == 2


def test_released_reservations_free_their_place_and_memory() -> None:
    world = World()
    world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    world.start().run(10)
    _, reservations = world.email(2, "bob@example.com")
    assert world.delivery.memory.used == len(MESSAGE)
    world.delivery.handoff.release(reservations)
    assert world.delivery.memory.used == 0
    assert list(world.delivery.lanes) == []


def test_each_recipient_has_its_own_outcome() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    for recipient in range(4):
        world.store.add(1, f"r{recipient}@example.com", recipient=recipient)
    replies = [
        (fakes.OK, "dot"),
        (Reply(550, "no such user", "5.1.1"), "rcpt"),
        (Reply(450, "later"), "rcpt"),
        (Reply(452, "full", "4.2.2"), "rcpt"),
    ]
    server.answer = lambda envelope: each(envelope, replies)
    world.start().run(2)
    assert isinstance(world.store.last(1, 0), Delivered)
    assert world.store.last(1, 1) == Bounced("550 5.1.1 no such user", suppress=True)
    assert isinstance(world.store.last(1, 2), Later)
    assert isinstance(world.store.last(1, 3), Later)


def test_recipients_over_the_servers_limit_go_in_further_transactions() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    for recipient in range(25):
        world.store.add(1, f"r{recipient}@example.com", recipient=recipient, destination="mx.example.com")
    too_many = Reply(552, "too many recipients")
    server.answer = lambda envelope: each(
        envelope, [(fakes.OK, "dot") if n < 10 else (too_many, "rcpt") for n in range(len(envelope.recipients))]
    )
    world.start().run(5)
    assert sum(min(10, len(mail.recipients)) for mail in server.mails) == 25
    assert all(isinstance(outcomes[-1], Delivered) for outcomes in world.store.outcomes.values())
    assert len({mail.octets for mail in server.mails}) == 1
    server.answer = lambda envelope: answered(envelope, too_many)
    world.store.add(2, "bob@example.com", destination="mx.example.com")
    world.run(5)
    assert isinstance(world.store.last(2), Later)  # alone, it has to wait
    assert len(server.mails) < 10


def test_a_retry_sends_the_same_bytes() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    server.answer = lambda envelope: answered(envelope, Reply(451, "Greylisted", "4.7.1"))
    world.start().run(2)
    waiting = world.store.last(1)
    assert isinstance(waiting, Later)
    assert waiting.reason.startswith("mx.example.com answered 451 4.7.1 Greylisted. The server temporarily defers ")
    assert world.store.rows[number(1), 0].leased.destination == "mx.example.com"  # filed where it shares order and holds
    server.answer = taken
    world.run(290)
    assert len(server.mails) == 1
    world.run(120)
    assert isinstance(world.store.last(1), Delivered)
    assert server.mails[0].octets == server.mails[1].octets
    assert len(world.sending.signed) == 1


# Uncertain


def test_no_reply_to_the_message_is_uncertain_and_the_same_bytes_are_sent_after_five_minutes() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    server.answer = lambda envelope: lost(envelope, "connection reset", sent_dot=True)
    world.start().run(2)
    outcome = world.store.last(1)
    assert isinstance(outcome, Uncertain)
    assert (outcome.next_at.timestamp() - settled_now(world)) >= 300
    world.delivery.attempts._loader._signatures.clear()  # as after a restart
    server.answer = taken
    world.run(299)
    assert len(server.mails) == 1
    world.run(200)
    assert isinstance(world.store.last(1), Delivered)
    assert server.mails[0].octets == server.mails[1].octets


# Time


def test_expired_mail_bounces_as_transient() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    server.answer = lambda envelope: answered(envelope, Reply(451, "later"))
    world.store.add(1, "bob@example.com", expires=600)
    world.start().run(2)
    assert isinstance(world.store.last(1), Later)
    world.run(900)
    final = world.store.last(1)
    assert isinstance(final, Bounced)
    assert final.type == "Transient"
    assert "mx.example.com answered 451 later" in final.reply
    assert world.store.now - world.store.settled[-1].at > timedelta(seconds=200)


def test_recipients_that_expire_in_the_queue_are_counted() -> None:
    world = World()
    for email in range(3):
        world.store.add(email, "bob@example.com", expires=60 * (email + 1), due=3600)
    world.start().run(150)
    assert (world.delivery.expired, len(world.store.rows)) == (2, 1)


def test_connections_are_reused_then_closed_when_idle_and_the_lane_is_removed() -> None:
    world = World(messages_per_connection=3, connections_max=1)
    server = world.server("example.com", "1.1.1.1")
    for email in range(1, 8):
        world.store.add(email, "bob@example.com", destination="mx.example.com")
    world.start().run(3)
    assert [mail.connection for mail in server.mails] == [1, 1, 1, 2, 2, 2, 3]
    assert len(server.open) == 1
    world.run(10)
    assert server.open == set()
    assert list(world.delivery.lanes) == []
    assert world.delivery.slots.taken == 0


# Shutdown


def test_shutdown_waits_for_replies_then_settles_uncertain_and_gives_back_the_rest() -> None:
    world = World(connections_max=1, connections_initial=1)
    server = world.server("example.com", "1.1.1.1")
    server.answer = lambda envelope: Deferred()
    for email in range(1, 6):
        world.store.add(email, "bob@example.com", destination="mx.example.com")
    world.start().run(2)
    stopped = world.stop()
    world.run(20)
    assert not stopped.called
    assert len([row for row in world.store.rows.values() if row.lease]) == 1
    world.run(15)
    assert stopped.called
    assert isinstance(world.store.last(1), Uncertain)
    assert [row.lease for row in world.store.rows.values()] == [None] * 5
    assert [row.leased.attempts for row in world.store.rows.values()] == [1, 0, 0, 0, 0]


def test_shutdown_without_attempts_in_progress_is_quick() -> None:
    world = World()
    world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    world.start().run(2)
    stopped = world.stop()
    world.run(0.5)
    assert stopped.called
    assert not world.delivery.handoff.reserve("example.com", 10, bulk=False).leased


def test_in_flight_mail_finishes_at_shutdown() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    waiting: Deferred[Any] = Deferred()
    server.answer = lambda envelope: waiting
    world.store.add(1, "bob@example.com")
    world.start().run(2)
    stopped = world.stop()
    world.run(5)
    waiting.callback(taken(fakes.Envelope("", ("bob@example.com",))))
    world.run(1)
    assert stopped.called
    assert isinstance(world.store.last(1), Delivered)


# What the submitter asked for


ASKED = StoredEnvelope("me@x.example", ret="FULL", envid="e1", notify=("NEVER", "FAILURE"), orcpt=(None, "rfc822;first@x.example"))


def test_dsn_options_are_passed_on_to_the_next_server() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    seen: list[Any] = []

    def remember(envelope: Any) -> Any:
        seen.append(envelope)
        return taken(envelope)

    server.answer = remember
    world.store.add(1, "ann@example.com")
    world.store.add(1, "bob@example.com", recipient=1)
    world.store.envelopes[number(1)] = ASKED
    world.start().run(2)
    [envelope] = seen
    assert (envelope.ret, envelope.envid) == ("FULL", "e1")
    asked = dict(zip(envelope.recipients, zip(envelope.notify, envelope.originals, strict=True), strict=True))
    assert asked == {"ann@example.com": ("NEVER", None), "bob@example.com": ("FAILURE", "rfc822;first@x.example")}
    assert envelope.sender == "b-1@send.sender.example"


@pytest.mark.parametrize(
    ("offered", "asked", "passed"), [(True, ASKED, True), (False, ASKED, False), (True, StoredEnvelope("a@b.c"), False)]
)
def test_the_settlement_says_whether_dsn_options_were_passed_on(offered: bool, asked: StoredEnvelope, passed: bool) -> None:
    world = World()
    world.server("example.com", "1.1.1.1").capabilities = Capabilities(eight_bit=True, dsn=offered)
    world.store.add(1, "ann@example.com")
    world.store.envelopes[number(1)] = asked
    world.start().run(2)
    assert [settlement.passed_on for settlement in world.store.settled] == [passed]


def test_a_report_has_the_null_sender() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "ann@example.com")
    world.store.envelopes[number(1)] = StoredEnvelope(report=True)
    world.start().run(2)
    assert [mail.sender for mail in server.mails] == [""]


EIGHT_BIT = "From: a@x.example\r\n\r\nGrüße\r\n".encode()


def test_only_a_server_without_8bitmime_gets_a_7bit_copy() -> None:
    world = World()
    modern, old = world.server("modern.example", "1.1.1.1"), world.server("old.example", "1.1.1.2")
    old.capabilities = Capabilities()
    world.store.add(1, "ann@modern.example")
    world.store.add(1, "bob@old.example", recipient=1)
    world.store.bodies[number(1)] = EIGHT_BIT
    world.start().run(2)
    assert [mail.octets for mail in modern.mails] == [b"DKIM-Signature: 1\r\n" + EIGHT_BIT]
    [copy] = old.mails
    assert copy.octets.isascii() and copy.octets.startswith(b"DKIM-Signature: 2\r\nMIME-Version: 1.0\r\n")
    assert world.delivery.memory.used == 0


def test_the_7bit_copy_is_made_once_for_all_destinations(monkeypatch: pytest.MonkeyPatch) -> None:
    world, made = World(), []
    convert = seven_bit.convert
    monkeypatch.setattr(seven_bit, "convert", lambda body: made.append(body) or convert(body))
    servers = [world.server(f"{name}.example", f"1.1.1.{index}") for index, name in enumerate(("one", "two", "three"), 1)]
    for index, server in enumerate(servers):
        server.capabilities = Capabilities()
        world.store.add(1, f"ann@{('one', 'two', 'three')[index]}.example", recipient=index)
    world.store.bodies[number(1)] = EIGHT_BIT
    world.start().run(5)
    assert len({mail.octets for server in servers for mail in server.mails}) == 1
    assert [len(server.mails) for server in servers] == [1, 1, 1] and len(made) == 1
    assert world.delivery.memory.used == 0
