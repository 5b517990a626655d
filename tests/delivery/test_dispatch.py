"""Delivery as a whole, with a queue in memory and scripted servers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mailsvc.mail import seven_bit
from mailsvc.mail.reply import Reply
from mailsvc.outcome import Bounced, Delivered, Uncertain
from mailsvc.outcome import Deferred as Later
from mailsvc.runtime.lifecycle import Opened
from mailsvc.smtp.client.capabilities import Capabilities
from mailsvc.smtp.client.envelope import Envelope
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.postgres.errors import Unavailable
from tests.delivery import fakes
from tests.delivery.fakes import MESSAGE, DeliveryRig, answered, each, lost, number, taken


def settled_now(rig: DeliveryRig) -> float:
    """The time of the last settlement."""
    return rig.store.settled[-1].at.timestamp()


# The way of one mail


def test_queued_mail_is_claimed_signed_sent_and_settled() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)
    [mail] = server.mails
    assert (mail.sender, mail.recipients) == ("b-1@send.sender.example", ("bob@example.com",))
    assert mail.data == b"DKIM-Signature: 1\r\n" + MESSAGE
    assert rig.store.last(1) == Delivered("250 2.0.0 queued")
    attempt = rig.store.settled[0].attempt
    assert attempt is not None
    assert (attempt.host, attempt.address) == ("mx.example.com", "1.1.1.1:25")
    assert rig.store.settled[0].signature is None
    assert rig.store.rows == {}


def test_handed_off_mail_is_neither_claimed_nor_loaded() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)  # the route is known now
    before = rig.store.calls.copy()
    email, reservations = rig.email(2, "ann@example.com", "bob@example.com")
    assert [new.leased for new in email.recipients] == [True, True]
    rig.commit(email, reservations)
    rig.run(0.01)
    assert server.mails[-1].recipients == ("ann@example.com", "bob@example.com")
    assert rig.store.last(2, 1) == Delivered("250 2.0.0 queued")
    assert rig.store.calls["claim"] == before["claim"]
    assert rig.store.calls["load"] == before["load"]
    assert rig.delivery.memory.used == 0


def test_single_queued_mails_are_claimed_without_delay() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com", destination="mx.example.com")
    rig.start().run(1)
    for identity in range(2, 7):
        rig.store.add(identity, "bob@example.com", destination="mx.example.com")
        rig.delivery.wake()
        rig.run(0.02)
        assert len(server.mails) == identity
    before = rig.store.calls["ready"]
    for identity in range(100, 200):  # while there is much, a look serves many
        rig.store.add(identity, "bob@example.com", destination="mx.example.com")
        rig.delivery.wake()
        rig.run(0.002)
    assert rig.store.calls["ready"] - before <= 14


def test_mail_queued_a_moment_ago_is_claimed_but_not_loaded() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.start().run(1)
    email, reservations = rig.email(1, "ann@example.com")
    assert not reservations
    rig.commit(email, reservations)
    rig.run(2)
    assert [mail.data for mail in server.mails] == [b"DKIM-Signature: 1\r\n" + MESSAGE]
    assert rig.store.calls["claim"] == 2  # under the bare domain, and under the destination that it turned out to have
    assert rig.store.calls["load"] == 0
    assert rig.delivery.memory.used == 0


def test_messages_that_come_with_a_claim_are_not_loaded() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.brings = True
    rig.store.add(1, "ann@example.com", destination="mx.example.com")
    rig.store.add(1, "bob@example.com", destination="mx.example.com", recipient=1)
    rig.store.add(2, "ann@example.com", destination="mx.example.com", attempts=1)
    rig.store.envelopes[number(1)] = StoredEnvelope(ret="HDRS")
    rig.start().run(2)
    assert sorted(mail.recipients for mail in server.mails) == [("ann@example.com",), ("ann@example.com", "bob@example.com")]
    assert all(mail.data.endswith(b"\r\n" + MESSAGE) for mail in server.mails)
    assert rig.store.calls["load"] == 1  # of the one that was tried before: it may have its signature
    assert rig.delivery.memory.used == 0


def test_claims_bring_no_messages_while_they_are_in_memory() -> None:
    rig = DeliveryRig()
    rig.server("example.com", "1.1.1.1")
    rig.store.brings = True
    rig.start().run(1)
    for identity in (1, 2, 3):
        email, reservations = rig.email(identity, "ann@elsewhere.example")  # where nobody answers: it goes to the queue
        rig.commit(email, reservations)
    rig.server("elsewhere.example", "1.1.1.2")

    def message_bytes(email: int) -> int:
        rig.store.add(email, "bob@example.com", destination="mx.example.com")
        rig.delivery.wake()
        rig.run(1)
        return rig.store.claims_made[-1][1]

    rig.run(2)
    assert rig.store.claims_made[-1][1] == 0
    assert message_bytes(11) == 0  # it was not here
    assert message_bytes(12) > 0
    assert rig.store.calls["load"] == 1


def test_destinations_share_claims() -> None:
    rig = DeliveryRig()
    names = [f"{n:03}.example" for n in range(90)]
    for n, name in enumerate(names):
        rig.store.add(n, f"ann@{name}", destination=f"mx.{name}", due=-100 + n)
    rig.start().run(0.01)
    claims = [wanted for wanted, _ in rig.store.claims_made]
    assert [name for wanted in claims for name in wanted] == [f"mx.{name}" for name in names]  # the one that waits longest first
    assert [len(wanted) for wanted in claims] == [40, 40, 10]
    assert {limit for wanted in claims for limit in wanted.values()} == {10}


def test_a_destination_that_delivers_its_rows_claims_more() -> None:
    rig = DeliveryRig(window=60)
    server = rig.server("busy.example", "1.1.1.1")
    rig.store.add(0, "ann@busy.example", destination="mx.busy.example")
    rig.start().run(1)  # it has a lane now, with room for many
    for n in range(1, 61):
        rig.store.add(n, f"ann@{n}.example", destination=f"mx.{n}.example")
    for n in range(100, 200):
        rig.store.add(n, "bob@busy.example", destination="mx.busy.example")
    rig.store.claims_made.clear()
    rig.delivery.wake()
    rig.run(1)
    assert len(server.mails) == 101
    first, *others = [wanted["mx.busy.example"] for wanted, _ in rig.store.claims_made if "mx.busy.example" in wanted]
    assert first == 10 and max(others) > 10


def test_a_failed_claim_delays_no_other_destination() -> None:
    rig = DeliveryRig()
    servers = [rig.server(name, f"1.1.1.{n}") for n, name in enumerate(("one.example", "two.example"))]
    for n, name in enumerate(("one.example", "two.example")):
        rig.store.add(n, f"ann@{name}", destination=f"mx.{name}")
    rig.store.failing["claim"] = Unavailable("away", unknown=True)
    rig.start().run(1)
    rig.store.failing.clear()
    rig.run(5)
    assert [len(server.mails) for server in servers] == [1, 1]


def test_no_reservation_before_the_route_is_known_and_acceptance_does_not_query_dns() -> None:
    rig = DeliveryRig()
    rig.server("example.com", "1.1.1.1")
    rig.start().run(1)
    email, reservations = rig.email(1, "bob@example.com")
    assert (reservations, email.recipients[0].leased, email.recipients[0].destination) == ({}, False, "example.com")
    assert rig.names.lookups["example.com"] == 0
    rig.commit(email, reservations)
    rig.run(1)
    assert rig.store.last(1) == Delivered("250 2.0.0 queued")


def test_new_mail_does_not_overtake_queued_mail() -> None:
    rig = DeliveryRig(connections_max=1, window=10)
    server = rig.server("example.com", "1.1.1.1")
    stuck: list[Deferred[Any]] = []
    for email in range(1, 41):
        rig.store.add(email, "bob@example.com", destination="mx.example.com")
    server.answer = lambda envelope: stuck.append(Deferred()) or stuck[-1]
    rig.start().run(2)
    email, reservations = rig.email(99, "bob@example.com")
    assert not reservations
    rig.commit(email, reservations)
    server.answer = taken
    stuck[0].callback(taken(fakes.Envelope("", ("bob@example.com",))))
    rig.run(20)
    assert [mail.sender for mail in server.mails][-1] == "b-99@send.sender.example"
    assert len(server.mails) == 41
    email, reservations = rig.email(100, "bob@example.com")
    assert reservations  # nothing waits any more


def test_no_reservation_while_queued_mail_is_being_claimed() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)
    claim, slow = rig.store.claim, list[Deferred[None]]()

    async def slowly(*args: Any) -> Any:
        slow.append(Deferred())
        await slow[-1]
        return await claim(*args)

    rig.store.claim = slowly  # type: ignore[method-assign]
    rig.store.add(2, "bob@example.com", destination="mx.example.com")
    rig.run(2)
    assert not rig.delivery.handoff.reserve("example.com", 10, bulk=False).leased
    slow[0].callback(None)
    assert rig.delivery.handoff.reserve("example.com", 10, bulk=False).leased
    assert len(server.mails) == 2


def test_released_reservations_free_their_place_and_memory() -> None:
    rig = DeliveryRig()
    rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.start().run(10)
    _, reservations = rig.email(2, "bob@example.com")
    assert rig.delivery.memory.used == len(MESSAGE)
    rig.delivery.handoff.release(number(2), reservations)
    assert rig.delivery.memory.used == 0
    assert list(rig.delivery.lanes) == []


def test_each_recipient_has_its_own_outcome() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    for recipient in range(4):
        rig.store.add(1, f"r{recipient}@example.com", recipient=recipient)
    replies = [
        (fakes.OK, "dot"),
        (Reply(550, "no such user", "5.1.1"), "rcpt"),
        (Reply(450, "later"), "rcpt"),
        (Reply(452, "full", "4.2.2"), "rcpt"),
    ]
    server.answer = lambda envelope: each(envelope, replies)
    rig.start().run(2)
    assert isinstance(rig.store.last(1, 0), Delivered)
    assert rig.store.last(1, 1) == Bounced("550 5.1.1 no such user", suppress=True)
    assert isinstance(rig.store.last(1, 2), Later)
    assert isinstance(rig.store.last(1, 3), Later)


@pytest.mark.parametrize(
    ("too_many", "alone"),
    [
        (Reply(552, "too many recipients"), Later),
        (Reply(451, "too many recipients", "4.5.3"), Later),
        (Reply(550, "too many recipients", "5.5.3"), Bounced),
    ],
)
def test_recipients_over_the_servers_limit_go_in_further_transactions(too_many: Reply, alone: type[Later | Bounced]) -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    for recipient in range(25):
        rig.store.add(1, f"r{recipient}@example.com", recipient=recipient, destination="mx.example.com")
    server.answer = lambda envelope: each(
        envelope, [(fakes.OK, "dot") if n < 10 else (too_many, "rcpt") for n in range(len(envelope.recipients))]
    )
    rig.start().run(5)
    assert sum(min(10, len(mail.recipients)) for mail in server.mails) == 25
    assert all(isinstance(outcomes[-1], Delivered) for outcomes in rig.store.outcomes.values())
    assert len({mail.data for mail in server.mails}) == 1
    server.answer = lambda envelope: answered(envelope, too_many)
    rig.store.add(2, "bob@example.com", destination="mx.example.com")
    rig.run(5)
    assert isinstance(rig.store.last(2), alone)  # it cannot be sent with fewer others
    assert len(server.mails) < 10


def test_a_retry_sends_the_same_bytes() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    server.answer = lambda envelope: answered(envelope, Reply(451, "Greylisted", "4.7.1"))
    rig.start().run(2)
    waiting = rig.store.last(1)
    assert isinstance(waiting, Later)
    assert waiting.reason.startswith("mx.example.com answered 451 4.7.1 Greylisted. The server temporarily defers ")
    assert rig.store.rows[number(1), 0].leased.destination == "mx.example.com"  # filed where it shares order and holds
    server.answer = taken
    rig.run(290)
    assert len(server.mails) == 1
    rig.run(120)
    assert isinstance(rig.store.last(1), Delivered)
    assert server.mails[0].data == server.mails[1].data
    assert len(rig.sending.signed) == 1


# Uncertain


def test_no_reply_to_the_message_is_uncertain_and_the_same_bytes_are_sent_after_five_minutes() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    server.answer = lambda envelope: lost(envelope, "connection reset", sent_dot=True)
    rig.start().run(2)
    outcome = rig.store.last(1)
    assert isinstance(outcome, Uncertain)
    assert (outcome.next_at.timestamp() - settled_now(rig)) >= 300
    rig.delivery.attempts._loader._signatures.clear()  # as after a restart
    server.answer = taken
    rig.run(299)
    assert len(server.mails) == 1
    rig.run(200)
    assert isinstance(rig.store.last(1), Delivered)
    assert server.mails[0].data == server.mails[1].data


# Time


def test_expired_mail_bounces_as_transient() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    server.answer = lambda envelope: answered(envelope, Reply(451, "later"))
    rig.store.add(1, "bob@example.com", expires=600)
    rig.start().run(2)
    assert isinstance(rig.store.last(1), Later)
    rig.run(900)
    final = rig.store.last(1)
    assert isinstance(final, Bounced)
    assert final.type == "Transient"
    assert "mx.example.com answered 451 later" in final.reply
    assert rig.store.now - rig.store.settled[-1].at > timedelta(seconds=200)


def test_recipients_that_expire_in_the_queue_are_counted() -> None:
    rig = DeliveryRig()
    for email in range(3):
        rig.store.add(email, "bob@example.com", expires=60 * (email + 1), due=3600)
    rig.start().run(150)
    assert (rig.delivery.expired, len(rig.store.rows)) == (2, 1)


def test_connections_are_reused_then_closed_when_idle_and_the_lane_is_removed() -> None:
    rig = DeliveryRig(messages_per_connection=3, connections_max=1)
    server = rig.server("example.com", "1.1.1.1")
    for email in range(1, 8):
        rig.store.add(email, "bob@example.com", destination="mx.example.com")
    rig.start().run(3)
    assert [mail.connection for mail in server.mails] == [1, 1, 1, 2, 2, 2, 3]
    assert len(server.open) == 1
    rig.run(10)
    assert server.open == set()
    assert list(rig.delivery.lanes) == []
    assert rig.delivery.slots.taken == 0


def test_settlements_do_not_wait_for_more_than_there_are_while_mail_waits_for_connections() -> None:
    rig = DeliveryRig(connections_max=2, connections_initial=2)
    rig.server("example.com", "1.1.1.1")
    rig.store.settle_waits = []
    for email in range(1, 5):
        rig.store.add(email, "bob@example.com", destination="mx.example.com")
    rig.start().run(3)
    assert rig.store.expected[-1] == 2
    for waiting in rig.store.settle_waits:
        waiting.callback(None)
    rig.run(3)
    assert rig.store.expected[2:] == [2, None], "after the third one, none waits for a connection"


# Shutdown


def test_shutdown_waits_for_replies_then_settles_uncertain_and_gives_back_the_rest() -> None:
    rig = DeliveryRig(connections_max=1, connections_initial=1)
    server = rig.server("example.com", "1.1.1.1")
    server.answer = lambda envelope: Deferred()
    for email in range(1, 6):
        rig.store.add(email, "bob@example.com", destination="mx.example.com")
    rig.start().run(2)
    stopped = rig.stop()
    rig.run(20)
    assert not stopped.called
    assert len([row for row in rig.store.rows.values() if row.lease]) == 1
    rig.run(15)
    assert stopped.called
    assert isinstance(rig.store.last(1), Uncertain)
    assert [row.lease for row in rig.store.rows.values()] == [None] * 5
    assert [row.leased.attempts for row in rig.store.rows.values()] == [1, 0, 0, 0, 0]


def test_shutdown_without_attempts_in_progress_is_quick() -> None:
    rig = DeliveryRig()
    rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)
    stopped = rig.stop()
    rig.run(0.5)
    assert stopped.called
    assert not rig.delivery.handoff.reserve("example.com", 10, bulk=False).leased


def test_in_flight_mail_finishes_at_shutdown() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    waiting: Deferred[Any] = Deferred()
    server.answer = lambda envelope: waiting
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)
    stopped = rig.stop()
    rig.run(5)
    waiting.callback(taken(fakes.Envelope("", ("bob@example.com",))))
    rig.run(1)
    assert stopped.called
    assert isinstance(rig.store.last(1), Delivered)


def test_clients_that_are_slow_at_a_shutdown_take_no_time_from_deliveries() -> None:
    """The listeners wait for them, and only then delivery is stopped. It has begun to drain by then."""
    rig = DeliveryRig(connections_max=1, connections_initial=1)
    server = rig.server("example.com", "1.1.1.1")
    waiting: Deferred[Any] = Deferred()
    server.answer = lambda envelope: waiting
    for email in (1, 2):
        rig.store.add(email, "bob@example.com", destination="mx.example.com")
    opened = Opened()
    rig.delivery.start(opened)

    async def slow() -> None:
        await Deferred()

    opened.add("requests in progress", slow)
    rig.run(2)
    closed = Deferred.fromCoroutine(opened.close(rig.clock, 45.0))
    rig.run(29)
    assert [row.lease is None for row in rig.store.rows.values()] == [False, True]  # the second one went back to the queue
    waiting.callback(taken(fakes.Envelope("", ("bob@example.com",))))
    rig.run(17)
    assert closed.called
    assert isinstance(rig.store.last(1), Delivered)
    assert len(server.mails) == 1


# The DSN options of the submitter (RFC 3461)


WITH_DSN = StoredEnvelope("me@x.example", ret="FULL", envid="e1", notify=("NEVER", "FAILURE"), orcpt=(None, "rfc822;first@x.example"))


def test_dsn_options_are_passed_on_to_the_next_server() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    seen: list[Any] = []

    def remember(envelope: Any) -> Any:
        seen.append(envelope)
        return taken(envelope)

    server.answer = remember
    rig.store.add(1, "ann@example.com")
    rig.store.add(1, "bob@example.com", recipient=1)
    rig.store.envelopes[number(1)] = WITH_DSN
    rig.start().run(2)
    [envelope] = seen
    assert (envelope.ret, envelope.envid) == ("FULL", "e1")
    options = dict(zip(envelope.recipients, zip(envelope.notify, envelope.originals, strict=True), strict=True))
    assert options == {"ann@example.com": ("NEVER", None), "bob@example.com": ("FAILURE", "rfc822;first@x.example")}
    assert envelope.sender == "b-1@send.sender.example"


@pytest.mark.parametrize(
    ("offered", "envelope", "passed"), [(True, WITH_DSN, True), (False, WITH_DSN, False), (True, StoredEnvelope("a@b.c"), False)]
)
def test_the_settlement_says_whether_dsn_options_were_passed_on(offered: bool, envelope: StoredEnvelope, passed: bool) -> None:
    rig = DeliveryRig()
    rig.server("example.com", "1.1.1.1").capabilities = Capabilities(eight_bit=True, dsn=offered)
    rig.store.add(1, "ann@example.com")
    rig.store.envelopes[number(1)] = envelope
    rig.start().run(2)
    assert [settlement.passed_on for settlement in rig.store.settled] == [passed]


def test_a_report_has_the_null_sender() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "ann@example.com")
    rig.store.envelopes[number(1)] = StoredEnvelope(report=True)
    rig.start().run(2)
    assert [mail.sender for mail in server.mails] == [""]


EIGHT_BIT = "From: a@x.example\r\n\r\nGrüße\r\n".encode()


def test_only_a_server_without_8bitmime_gets_a_7bit_copy() -> None:
    rig = DeliveryRig()
    modern, old = rig.server("modern.example", "1.1.1.1"), rig.server("old.example", "1.1.1.2")
    old.capabilities = Capabilities()
    rig.store.add(1, "ann@modern.example")
    rig.store.add(1, "bob@old.example", recipient=1)
    rig.store.bodies[number(1)] = EIGHT_BIT
    rig.start().run(2)
    assert [mail.data for mail in modern.mails] == [b"DKIM-Signature: 1\r\n" + EIGHT_BIT]
    [copy] = old.mails
    assert copy.data.isascii() and copy.data.startswith(b"DKIM-Signature: 2\r\nMIME-Version: 1.0\r\n")
    assert rig.delivery.memory.used == 0


def test_only_a_server_without_smtputf8_gets_a_copy_of_a_non_ascii_header() -> None:
    rig = DeliveryRig()
    modern, old = rig.server("modern.example", "1.1.1.1"), rig.server("old.example", "1.1.1.2")
    modern.capabilities = Capabilities(eight_bit=True, smtputf8=True)
    envelopes: list[Envelope] = []
    for server in (modern, old):
        server.answer = lambda envelope: envelopes.append(envelope) or taken(envelope)
    rig.store.add(1, "ann@modern.example")
    rig.store.add(1, "bob@old.example", recipient=1)
    rig.store.bodies[number(1)] = body = "Reply-To: jö@example.org\r\n\r\nx\r\n".encode()
    rig.store.envelopes[number(1)] = StoredEnvelope(utf8_header=True)
    rig.start().run(2)
    assert [mail.data for mail in modern.mails] == [b"DKIM-Signature: 1\r\n" + body]
    [copy] = old.mails
    assert copy.data.isascii() and copy.data.startswith(b"DKIM-Signature: 2\r\n")
    assert {each.recipients: each.smtputf8 for each in envelopes} == {("ann@modern.example",): True, ("bob@old.example",): False}


def test_the_7bit_copy_is_made_once_for_all_destinations(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, conversions = DeliveryRig(), []
    convert = seven_bit.convert
    monkeypatch.setattr(seven_bit, "convert", lambda body: conversions.append(body) or convert(body))
    servers = [rig.server(f"{name}.example", f"1.1.1.{index}") for index, name in enumerate(("one", "two", "three"), 1)]
    for index, server in enumerate(servers):
        server.capabilities = Capabilities()
        rig.store.add(1, f"ann@{('one', 'two', 'three')[index]}.example", recipient=index)
    rig.store.bodies[number(1)] = EIGHT_BIT
    rig.start().run(5)
    assert len({mail.data for server in servers for mail in server.mails}) == 1
    assert [len(server.mails) for server in servers] == [1, 1, 1] and len(conversions) == 1
    assert rig.delivery.memory.used == 0
