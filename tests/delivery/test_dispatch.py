"""The way out as a whole, over a queue in memory and servers that do what they are told."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

from twisted.internet.defer import Deferred

from mailsvc.delivery.connect import CannotConnect
from mailsvc.mail.reply import Reply
from mailsvc.outcome import Bounced, Delivered, Failed, Uncertain
from mailsvc.outcome import Deferred as Later
from mailsvc.store.errors import DataRejected, Unavailable
from mailsvc.store.holds import FOREVER
from mailsvc.store.queue import Hold
from tests.delivery import fakes
from tests.delivery.fakes import MESSAGE, World, answered, each, lost, number, taken


def seconds_until(world: World, outcome: Any) -> float:
    return (outcome.next_at - world.store.now).total_seconds()


def settled_now(world: World) -> float:
    """The clock when the last settle was made."""
    return world.store.settled[-1].at.timestamp()


# The way of one mail


def test_a_waiting_mail_is_claimed_signed_sent_and_settled() -> None:
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


def test_born_leased_mail_is_neither_claimed_nor_loaded() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    world.start().run(2)  # the route is known now
    before = world.store.calls.copy()
    email, seats = world.email(2, "ann@example.com", "bob@example.com")
    assert [new.leased for new in email.recipients] == [True, True]
    world.commit(email, seats)
    assert server.mails[-1].recipients == ("ann@example.com", "bob@example.com")
    assert world.store.last(2, 1) == Delivered("250 2.0.0 queued")
    assert world.store.calls["claim"] == before["claim"]
    assert world.store.calls["load"] == before["load"]
    assert world.dispatch.freight.octets == 0


def test_no_seat_before_the_route_is_known_and_accepting_does_not_ask_dns() -> None:
    world = World()
    world.server("example.com", "1.1.1.1")
    world.start().run(1)
    email, seats = world.email(1, "bob@example.com")
    assert (seats, email.recipients[0].leased, email.recipients[0].destination) == ([], False, "example.com")
    assert world.names.asked["example.com"] == 0
    world.commit(email, seats)
    world.run(1)
    assert world.store.last(1) == Delivered("250 2.0.0 queued")


def test_new_mail_does_not_overtake_what_waits() -> None:
    world = World(connections_max=1, window=10)
    server = world.server("example.com", "1.1.1.1")
    stuck: list[Deferred[Any]] = []
    for email in range(1, 41):
        world.store.add(email, "bob@example.com", destination="mx.example.com")
    server.answer = lambda envelope: stuck.append(Deferred()) or stuck[-1]
    world.start().run(2)
    email, seats = world.email(99, "bob@example.com")
    assert seats == []
    world.commit(email, seats)
    server.answer = taken
    stuck[0].callback(taken(fakes.Envelope("", ("bob@example.com",))))
    world.run(20)
    assert [mail.sender for mail in server.mails][-1] == "b-99@send.sender.example"
    assert len(server.mails) == 41
    email, seats = world.email(100, "bob@example.com")
    assert seats  # nothing waits any more


def test_seats_that_were_not_used_are_free_again() -> None:
    world = World()
    world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    world.start().run(10)
    _, seats = world.email(2, "bob@example.com")
    assert world.dispatch.freight.octets == len(MESSAGE)
    world.dispatch.free(seats)
    assert world.dispatch.freight.octets == 0
    assert world.dispatch.lanes == {}


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


def test_recipients_beyond_what_a_server_takes_at_once_go_in_further_transactions() -> None:
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
    assert waiting.reason.startswith("mx.example.com answered 451 4.7.1 Greylisted. The server puts off ")
    server.answer = taken
    world.run(290)
    assert len(server.mails) == 1
    world.run(120)
    assert isinstance(world.store.last(1), Delivered)
    assert server.mails[0].octets == server.mails[1].octets
    assert len(world.sending.signed) == 1


# Uncertain


def test_silence_after_the_final_dot_is_uncertain_and_waits_five_minutes_for_the_same_bytes() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    server.answer = lambda envelope: lost(envelope, "connection reset", sent_dot=True)
    world.start().run(2)
    outcome = world.store.last(1)
    assert isinstance(outcome, Uncertain)
    assert (outcome.next_at.timestamp() - settled_now(world)) >= 300
    server.answer = taken
    world.run(299)
    assert len(server.mails) == 1
    world.run(200)
    assert isinstance(world.store.last(1), Delivered)
    assert server.mails[0].octets == server.mails[1].octets


# Destinations in trouble


def test_a_dead_destination_is_held_as_a_whole_and_not_hammered() -> None:
    world = World()
    world.server("dead.example", "1.1.1.1").greeting = lambda: CannotConnect("refused the connection")
    for email in range(1, 201):
        world.store.add(email, f"r{email}@dead.example", destination="mx.dead.example", expires=30 * 86400.0)
    world.start().run(5)
    hold = world.store.hold_rows["mx.dead.example"]
    assert hold.reason == "mx.dead.example (1.1.1.1) refused the connection."
    assert (hold.state, hold.failures) == ("backoff", 1)
    assert len(world.store.outcomes) == 1  # one tells what happened; the others wait for the destination
    assert all(row.lease is None for row in world.store.rows.values())
    world.store.calls.clear()
    world.run(4 * 3600)
    dials = world.servers["1.1.1.1"].dials
    assert 10 <= len(dials) <= 20
    gaps = [later - sooner for sooner, later in pairwise(dials)]
    assert 60 <= gaps[0] < 80
    assert gaps[-1] > 1700
    assert world.store.calls["claim"] <= len(dials) + 1
    assert world.store.calls["settle"] <= len(dials) + 1
    assert world.store.calls["release"] <= 2 * len(dials)
    assert world.store.calls["ready"] <= 4 * 3600 * 1.1  # once a second, when nothing rings


def test_a_destination_that_is_back_is_lifted_and_drained() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    server.greeting = lambda: CannotConnect("did not answer the connection in time")
    for email in range(1, 101):
        world.store.add(email, "bob@example.com", destination="mx.example.com")
    world.start().run(30)
    server.greeting = lambda: None
    world.run(400)
    assert world.store.rows == {}
    assert world.store.hold_rows == {}
    assert server.most_open <= 20


def test_healthy_mail_passes_while_hundreds_of_destinations_hang() -> None:
    world = World(connections=60)
    server = world.server("good.example", "1.1.1.1")
    world.store.add(1, "bob@good.example", destination="mx.good.example")
    world.start().run(60)
    for index in range(300):
        world.server(f"d{index}.example", f"8.8.{index // 200}.{index % 200}").greeting = Deferred
        for email in range(5):
            world.store.add(1000 + index * 10 + email, f"bob@d{index}.example", destination=f"mx.d{index}.example")
    world.run(10)
    assert world.dispatch.slots.taken == 40
    world.store.add(2, "bob@good.example", destination="mx.good.example")
    started = world.clock.seconds()
    world.run(3)
    assert server.mails[-1].at - started <= 1.2


def test_the_next_exchanger_is_tried_and_greeting_refusals_wait() -> None:
    world = World()
    first = world.server("example.com", "1.1.1.1", host="mx1.example.com", preference=10)
    second = world.server("example.com", "1.1.1.2", host="mx2.example.com", preference=20)
    first.greeting = lambda: CannotConnect("answered 554 no service")
    world.store.add(1, "bob@example.com")
    world.start().run(2)
    assert len(second.mails) == 1
    second.greeting = lambda: CannotConnect("answered 421 4.3.2 too busy")
    world.run(60)
    world.store.add(2, "bob@example.com")
    world.run(3)
    outcome = world.store.last(2)
    assert isinstance(outcome, Later)
    assert outcome.reason == "mx1.example.com (1.1.1.1) answered 554 no service; mx2.example.com (1.1.1.2) answered 421 4.3.2 too busy."


def test_private_addresses_are_refused_unless_the_operator_says_so() -> None:
    world = World()
    inner = world.server("rebind.example", "10.0.0.5")
    world.store.add(1, "bob@rebind.example")
    world.start().run(2)
    assert inner.dials == []
    outcome = world.store.last(1)
    assert isinstance(outcome, Bounced)
    assert outcome.reply.startswith("550 5.4.4")
    assert "10.0.0.5 is private" in outcome.reply
    allowed = World(allow_addresses=("10.0.0.0/8",))
    inner = allowed.server("rebind.example", "10.0.0.5")
    allowed.store.add(1, "bob@rebind.example")
    allowed.start().run(2)
    assert len(inner.mails) == 1
    routed = World(routes={"rebind.example": "smtp://127.0.0.1:2526"})
    routed.servers["127.0.0.1"] = inner = fakes.Server(routed)
    routed.names.hosts["127.0.0.1"] = ["127.0.0.1"]
    routed.store.add(1, "bob@rebind.example")
    routed.start().run(2)
    assert len(inner.mails) == 1


def test_connections_that_break_under_mail_rest_the_destination() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    server.answer = lambda envelope: answered(envelope, Reply(421, "too many messages", "4.7.0"))
    for email in range(1, 51):
        world.store.add(email, "bob@example.com", destination="mx.example.com")
    world.start().run(5)
    assert 3 <= len(server.mails) <= 5
    assert world.store.hold_rows["mx.example.com"].reason == "mx.example.com answered 421 4.7.0 too many messages"
    assert all(row.lease is None for row in world.store.rows.values())


def test_a_refused_further_connection_does_not_rest_a_destination_that_works() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    server.greeting = lambda: CannotConnect("answered 421 too many connections") if len(server.open) >= 2 else None

    def slowly(envelope: Any) -> Any:
        answer: Deferred[Any] = Deferred()
        world.clock.callLater(0.5, lambda: answer.callback(taken(envelope)))
        return answer

    server.answer = slowly
    for email in range(1, 101):
        world.store.add(email, "bob@example.com", destination="mx.example.com")
    world.start().run(60)
    assert world.store.rows == {}
    assert world.store.hold_rows == {}
    assert len(server.dials) < 12


def test_a_reused_connection_that_is_dead_costs_no_attempt() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    world.start().run(2)
    server.answer = lambda envelope: lost(envelope, "it ended", stale=True) if server.mails[-1].connection == 1 else taken(envelope)
    world.store.add(2, "bob@example.com", destination="mx.example.com")
    world.run(2)
    assert world.store.outcomes[number(2), 0] == [Delivered("250 2.0.0 queued")]
    assert [mail.connection for mail in server.mails] == [1, 1, 2]


def test_a_paused_destination_keeps_its_mail_and_gets_it_when_resumed() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.hold_rows["mx.example.com"] = Hold("paused", "Paused by the operator.", FOREVER, 0)
    world.store.add(1, "bob@example.com")
    world.start().run(30)
    assert server.mails == []
    assert world.dispatch.offer("example.com", 10, bulk=False) is None
    del world.store.hold_rows["mx.example.com"]
    world.run(3)
    assert len(server.mails) == 1


# Domains


def test_domains_that_take_no_mail_end_their_recipients() -> None:
    world = World()
    world.names.mxs["null.example"] = [(0, "")]
    world.store.add(1, "bob@null.example")
    world.store.add(2, "bob@missing.example")
    world.store.add(3, "bob@[192.0.2.1]")
    world.start().run(2)
    assert [world.store.last(email).reply for email in (1, 2, 3)] == [  # type: ignore[union-attr]
        "556 5.1.10 null.example accepts no mail (null MX)",
        "550 5.1.2 The domain missing.example does not exist",
        "550 5.1.2 [192.0.2.1] is not a mail domain",
    ]
    assert all(settlement.attempt is None for settlement in world.store.settled)


def test_a_domain_without_dns_rests_and_comes_back() -> None:
    world = World()
    world.names.mxs["flaky.example"] = "nameserver 192.0.2.53 answered SERVFAIL"
    for email in range(1, 31):
        world.store.add(email, "bob@flaky.example")
    world.start().run(20)
    assert "SERVFAIL" in world.store.hold_rows["flaky.example"].reason
    assert len(world.store.outcomes) == 1
    assert isinstance(world.store.last(1), Later)
    assert world.names.asked["flaky.example"] == 1
    del world.names.mxs["flaky.example"]
    server = world.server("flaky.example", "1.1.1.1")
    world.run(120)
    assert len(server.mails) == 30
    assert world.store.rows == {}
    assert world.store.hold_rows == {}


def test_domains_at_one_provider_share_a_lane() -> None:
    world = World()
    for name in ("a.example", "b.example"):
        server = world.server(name, "1.1.1.1", host="mx.provider.example")
        world.store.add(1 if name == "a.example" else 2, f"bob@{name}")
    world.start().run(2)
    assert len(server.mails) == 2
    assert list(world.dispatch.lanes) == ["mx.provider.example"]


# Fairness


def test_accounts_take_turns_and_bulk_comes_last() -> None:
    world = World(connections_max=1, connections_initial=1, window=200)
    server = world.server("example.com", "1.1.1.1")
    first: Deferred[Any] = Deferred()
    server.answer = lambda envelope: first if len(server.mails) == 1 else taken(envelope)
    world.store.add(1, "x@example.com", destination="mx.example.com")
    world.start().run(2)
    lane = world.dispatch.lanes["mx.example.com"]
    lane.health.good_at, lane.health.allowed = world.clock.seconds(), 20  # a wide window, still one connection
    lane._workers = 20
    for index in range(10):
        world.store.add(100 + index, f"a{index}@example.com", destination="mx.example.com", account=1)
        world.store.add(300 + index, f"b{index}@example.com", destination="mx.example.com", account=3, bulk=True)
    for index in range(3):
        world.store.add(200 + index, f"c{index}@example.com", destination="mx.example.com", account=2)
    world.run(3)
    first.callback(taken(fakes.Envelope("", ("x@example.com",))))
    world.run(1)
    order = [mail.recipients[0][0] for mail in server.mails[1:]]
    assert "".join(order[:6]) in ("acacac", "cacaca")
    assert set(order[13:]) == {"b"}
    assert len(order) == 23


# Faults of ours


def test_a_poison_message_is_set_aside_and_the_others_go_on() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.bodies[number(1)] = ValueError("poison")
    for email in (1, 2, 3):
        world.store.add(email, "bob@example.com")
    world.start().run(5)
    assert sorted(mail.sender for mail in server.mails) == ["b-2@send.sender.example", "b-3@send.sender.example"]
    assert world.store.last(1).reason == "Sending failed on our side (ValueError); it will be tried again."  # type: ignore[union-attr]
    world.run(3600)
    assert [type(outcome) for outcome in world.store.outcomes[number(1), 0]] == [Later, Later, Failed]
    assert "poison" not in world.store.last(1).reason  # type: ignore[union-attr]


def test_a_message_that_is_gone_fails() -> None:
    world = World()
    world.server("example.com", "1.1.1.1")
    world.store.bodies[number(1)] = None
    world.store.add(1, "bob@example.com")
    world.start().run(3)
    assert world.store.last(1) == Failed("The message is no longer stored.")


def test_signing_happens_once_for_all_destinations_of_an_email() -> None:
    world = World()
    for index in range(5):
        world.server(f"d{index}.example", f"1.1.1.{index}")
        world.store.add(1, f"bob@d{index}.example", recipient=index)
    world.start().run(3)
    assert len(world.store.outcomes) == 5
    assert len(world.sending.signed) == 1


def test_the_database_away_loses_no_outcome_and_sends_nothing_twice() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    world.store.failing["settle"] = Unavailable("gone")
    world.start().run(60)
    assert len(server.mails) == 1
    assert len(world.store.rows) == 1
    world.store.failing.clear()
    world.run(15)
    assert world.store.rows == {}
    assert len(server.mails) == 1


def test_a_connection_takes_no_mail_before_the_last_one_is_settled() -> None:
    world = World(connections_max=1)
    server = world.server("example.com", "1.1.1.1")
    world.store.settle_waits = []
    for email in (1, 2):
        world.store.add(email, "bob@example.com", destination="mx.example.com")
    world.start().run(30)
    assert len(server.mails) == 1
    world.store.settle_waits[0].callback(None)
    assert len(server.mails) == 2


def test_an_outcome_that_the_database_refuses_is_written_plainly() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    server.answer = lambda envelope: answered(envelope, Reply(550, "caf\x00é", "5.1.1"))
    settle = world.store.settle

    async def picky(settlement: Any) -> Any:
        if "\x00" in settlement.outcomes[0].outcome.reply:
            raise DataRejected("22021")
        return await settle(settlement)

    world.dispatch.attempts._settling.settle = picky  # type: ignore[method-assign]
    world.start().run(3)
    assert world.store.last(1) == Bounced("550 5.1.1 caf??", suppress=True)


def test_leases_lost_track_of_go_back() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com", lease=world.process.id)  # committed, but the answer never came
    world.start().run(20)
    assert server.mails == []
    world.run(60)
    assert len(server.mails) == 1


def test_a_process_taken_for_dead_sends_nothing_more_on_old_leases() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    world.start().run(2)
    world.process.fresh = False
    email, seats = world.email(2, "bob@example.com")
    assert seats == []
    world.commit(email, seats)
    world.run(30)
    assert len(server.mails) == 1
    world.process.id, world.process.fresh = 8, True
    world.dispatch.replaced(7, 8)
    world.run(3)
    assert len(server.mails) == 2
    assert world.store.settled[-1].lease == 8


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


def test_connections_are_reused_then_closed_when_idle_and_the_lane_goes() -> None:
    world = World(messages_per_connection=3, connections_max=1)
    server = world.server("example.com", "1.1.1.1")
    for email in range(1, 8):
        world.store.add(email, "bob@example.com", destination="mx.example.com")
    world.start().run(3)
    assert [mail.connection for mail in server.mails] == [1, 1, 1, 2, 2, 2, 3]
    assert len(server.open) == 1
    world.run(10)
    assert server.open == set()
    assert world.dispatch.lanes == {}
    assert world.dispatch.slots.taken == 0


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


def test_shutdown_with_nothing_under_way_is_quick() -> None:
    world = World()
    world.server("example.com", "1.1.1.1")
    world.store.add(1, "bob@example.com")
    world.start().run(2)
    stopped = world.stop()
    world.run(0.5)
    assert stopped.called
    assert world.dispatch.offer("example.com", 10, bulk=False) is None


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
