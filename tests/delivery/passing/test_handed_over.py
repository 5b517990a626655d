"""Emails that another process hands over: into lanes after the commit, or back to the queue, and sent once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import attrs
import pytest
from twisted.internet.task import deferLater

from mailsvc.delivery.passing.frames import Committed, LeasedRecipients, Passed
from mailsvc.delivery.passing.handed_over import LATE, HandedOver
from mailsvc.delivery.passing.replies import Refused
from mailsvc.store.mail.envelope import EMPTY
from mailsvc.store.mail.values import NewRecipient
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.queue.claims import FOREVER, Hold
from tests.delivery.fakes import MESSAGE, DeliveryRig, number, taken

HERE = "the connection"
FULL = {Refused("mx.example.com", False)}


class Rig(DeliveryRig):
    """A process that delivers, and what another one does that accepts."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.server("example.com", "1.1.1.1")
        self.server("example.net", "1.1.1.2")
        self.start()
        self.deliver_before("x@example.com")
        self.deliver_before("x@example.net")

    def deliver_before(self, address: str) -> None:
        """The route is known, as with any mail but the first."""
        self.store.add(9000 + len(self.store.outcomes), address)
        self.run(12.0)

    @property
    def handed_over(self) -> HandedOver:
        return self.delivery.handed_over

    def frame(self, identity: int, *addresses: str, lease: int = 7, message: bytes | None = MESSAGE, unleased: int = 0) -> Passed:
        """The last `unleased` recipients are queued."""
        recipients = tuple(
            NewRecipient(address, "mx." + address.rpartition("@")[2], n < len(addresses) - unleased) for n, address in enumerate(addresses)
        )
        expires = self.store.now + timedelta(days=3)
        leased = LeasedRecipients(lease, self.clock.seconds(), number(1), number(9), "eu", False, expires, recipients)
        return Passed(number(identity), EMPTY, message, leased)

    def passed(self, *frames: Passed, owner: object = HERE) -> set[Refused]:
        return self.handed_over.passed([(each, each.body if isinstance(each.body, bytes) else None) for each in frames], owner)

    def stored(self, frame: Passed, *suppressed: int) -> None:
        """The other process has committed it."""
        assert frame.leased is not None
        for n, new in enumerate(frame.leased.recipients):
            if n not in suppressed:
                lease = frame.leased.lease if new.leased else None
                self.store.add(frame.email_id.int, new.address, destination=new.destination, recipient=n, lease=lease)

    def committed(self, frame: Passed, *suppressed: int) -> None:
        self.stored(frame, *suppressed)
        self.handed_over.committed([Committed(frame.email_id, suppressed)])

    def sent(self, *identities: int) -> list[int]:
        """How often each of these emails was sent, of one recipient."""
        return [len(self.store.outcomes.get((number(each), 0), [])) for each in identities]

    @property
    def at_rest(self) -> bool:
        """Nothing is reserved or held in memory."""
        leases = self.delivery._leases
        lanes = [lane.reserved for lane in self.delivery.lanes]
        return not (leases.held or leases.memory.used or any(lanes) or self.handed_over._waiting)


def test_it_is_sent_after_the_commit_without_a_claim_and_signed_before() -> None:
    rig = Rig()
    frame, signed, claims = rig.frame(1, "a@example.com"), len(rig.sending.signed), rig.store.calls["claim"]
    assert rig.passed(frame) == set()
    rig.run(0.1)
    assert rig.sent(1) == [0] and rig.sending.signed[signed:] == [number(1)]
    rig.committed(frame)
    rig.run(0.1)
    assert rig.sent(1) == [1] and not rig.store.rows and rig.at_rest
    assert (rig.store.calls["claim"], rig.store.calls["load"]) == (claims, 2)  # of the mail before
    assert rig.handed_over.counts == {"sent": 1}


def test_without_its_message_it_is_read_from_postgres() -> None:
    rig = Rig()
    frame = rig.frame(1, "a@example.com", message=None)
    assert rig.passed(frame) == set()
    rig.committed(frame)
    rig.run(0.1)
    assert rig.sent(1) == [1] and rig.store.calls["load"] == 3 and rig.at_rest


def test_each_recipient_gets_it_and_those_that_are_suppressed_do_not() -> None:
    rig = Rig()
    frame = rig.frame(1, "a@example.com", "b@example.com", "c@example.net", "d@example.net")
    rig.passed(frame)
    rig.committed(frame, 0, 3)
    rig.run(0.1)
    mails = [mail.recipients for server in rig.servers.values() for mail in server.mails[1:]]
    assert mails == [("b@example.com",), ("c@example.net",)] and rig.at_rest


def test_recipients_that_were_queued_are_claimed_and_the_message_is_there() -> None:
    rig = Rig(poll_seconds=60.0)
    frame = rig.frame(1, "a@example.com", "b@example.net", unleased=1)
    rig.passed(frame)
    rig.committed(frame)
    rig.run(0.1)
    assert [len(server.mails) for server in rig.servers.values()] == [2, 2]
    assert rig.store.calls["load"] == 2 and rig.at_rest


def test_what_is_not_committed_leaves_nothing() -> None:
    rig = Rig()
    frame = rig.frame(1, "a@example.com", "b@example.net", unleased=1)
    rig.passed(frame)
    assert not rig.at_rest and frame.email_id in rig.delivery._leases._recent
    rig.handed_over.dropped(frame.email_id)
    assert rig.at_rest and frame.email_id not in rig.delivery._leases._recent
    rig.stored(frame)  # it may have been committed: the lease is found later
    rig.handed_over.committed([Committed(frame.email_id)])
    rig.run(1.0)
    assert rig.sent(1) == [0]


def test_without_room_it_is_given_back_and_claimed() -> None:
    rig = Rig(window=2, poll_seconds=60.0)
    frames = [rig.frame(n, "a@example.com") for n in range(1, 6)]
    assert rig.passed(*frames) == FULL
    for frame in frames:
        rig.stored(frame)
    releases = rig.store.calls["release"]
    rig.handed_over.committed([Committed(each.email_id) for each in frames])
    assert rig.store.calls["release"] == releases + 1  # for all together
    rig.run(1.0)
    assert rig.sent(1, 2, 3, 4, 5) == [1] * 5
    assert rig.store.calls["load"] == 2 and rig.at_rest
    assert rig.handed_over.counts == {"sent": 2, "given_back": 3}


@pytest.mark.parametrize("name", ["mx.example.com", "*"])
def test_while_a_destination_is_held_it_is_given_back(name: str) -> None:
    rig = Rig()
    rig.store.hold_rows[name] = Hold("paused", "the operator says so", FOREVER, 0)
    rig.run(2.0)
    frame = rig.frame(1, "a@example.com")
    assert rig.passed(frame) == FULL
    rig.committed(frame)
    rig.run(1.0)
    assert rig.sent(1) == [0] and [row.lease for row in rig.store.rows.values()] == [None] and rig.at_rest


def test_mail_of_a_paused_account_waits_and_others_keep_their_leases() -> None:
    rig = Rig()
    until = rig.store.now + timedelta(hours=1)
    rig.store.paused[number(1)] = until
    rig.run(2.0)
    frame, claims = rig.frame(1, "a@example.com"), rig.store.calls["claim"]
    assert rig.passed(frame) == set()
    rig.committed(frame)
    rig.run(1.0)
    assert rig.store.calls["claim"] == claims
    assert [(row.lease, row.next_at) for row in rig.store.rows.values()] == [(None, until)] and rig.at_rest


def test_another_destination_than_its_route_says_is_given_back() -> None:
    rig = Rig(poll_seconds=60.0)
    frame = rig.frame(1, "a@example.com")
    assert frame.leased is not None
    moved = attrs.evolve(frame.leased, recipients=(NewRecipient("a@example.com", "mx.example.net", True),))
    frame = attrs.evolve(frame, leased=moved)
    assert rig.passed(frame) == {Refused("mx.example.net", False)}
    rig.committed(frame)
    rig.run(1.0)
    assert rig.sent(1) == [1] and len(rig.servers["1.1.1.1"].mails) == 2 and rig.at_rest


def test_with_a_lease_that_is_no_longer_ours_it_is_left_to_others() -> None:
    rig = Rig()
    old, lost = rig.frame(1, "a@example.com", lease=6), rig.frame(2, "a@example.com")
    assert rig.passed(old, lost) == FULL
    rig.process.id = 8
    rig.committed(old)
    rig.committed(lost)
    rig.run(1.0)
    assert rig.handed_over.counts == {"left": 2}
    assert rig.sent(1, 2) == [0, 0] and sorted(row.lease or 0 for row in rig.store.rows.values()) == [6, 7] and rig.at_rest


def test_a_process_that_ends_gives_back_what_it_committed() -> None:
    rig = Rig()
    committed, lost, other = (rig.frame(n, "a@example.com") for n in (1, 2, 3))
    rig.passed(committed, lost)
    rig.passed(other, owner="another")
    rig.stored(committed)
    rig.handed_over.lost(HERE)
    rig.committed(other)
    rig.run(0.5)
    assert rig.sent(1, 2, 3) == [0, 0, 1] and not rig.handed_over._waiting
    rig.run(1.0)
    assert rig.sent(1, 2, 3) == [1, 0, 1] and rig.at_rest


def test_what_is_not_heard_of_in_time_is_given_back_and_sent_once() -> None:
    rig = Rig()
    frame = rig.frame(1, "a@example.com")
    rig.passed(frame)
    rig.stored(frame)
    rig.run(LATE - 1.0)
    assert rig.sent(1) == [0]
    rig.run(3.0)
    assert rig.sent(1) == [1] and rig.at_rest
    rig.handed_over.committed([Committed(frame.email_id)])
    rig.run(100.0)
    assert rig.sent(1) == [1] and rig.at_rest


def test_places_of_mail_that_is_never_committed_are_freed() -> None:
    rig = Rig()
    frame = rig.frame(1, "a@example.com")
    rig.passed(frame)
    rig.run(LATE + 31.0)
    assert rig.at_rest
    rig.committed(frame)
    rig.run(1.0)
    assert rig.sent(1) == [0]
    rig.run(70.0)
    assert rig.sent(1) == [1]


@pytest.mark.parametrize("seconds", [0.0, 15.0, 25.0, 31.0, 45.0, 61.0, 70.0, 100.0])
@pytest.mark.parametrize("when", ["before it is written", "before the commit", "after the commit"])
@pytest.mark.parametrize("begun", range(0, 30, 7))
def test_a_process_that_stands_still_gets_nothing_sent_twice(seconds: float, when: str, begun: int) -> None:
    """For so long: before the other end reads what it has written, or around the commit."""
    rig = Rig()
    server = rig.servers["1.1.1.1"]
    server.answer = lambda envelope: deferLater(rig.clock, 12.0, taken, envelope)
    rig.run(begun)
    frame = rig.frame(1, "a@example.com")
    if when == "before it is written":
        rig.stored(frame)
        rig.run(seconds)
    rig.passed(frame)
    if when == "before the commit":
        rig.run(seconds)
    if when != "before it is written":
        rig.stored(frame)
    if when == "after the commit":
        rig.run(seconds)
    rig.handed_over.committed([Committed(frame.email_id)])
    rig.run(200.0)
    assert rig.sent(1) == [1] and len(server.mails) == 2 and rig.at_rest


@pytest.mark.parametrize("begun", range(0, 30, 2))
@pytest.mark.parametrize("seconds", range(41, 52))
def test_while_the_database_is_slow_nothing_is_sent_twice(begun: int, seconds: int) -> None:
    rig = Rig()
    rig.servers["1.1.1.1"].answer = lambda envelope: deferLater(rig.clock, 12.0, taken, envelope)
    leased = rig.store.leased

    async def slow(lease: int) -> Any:
        await deferLater(rig.clock, 14.0)
        found = await leased(lease)
        await deferLater(rig.clock, 14.0)
        return found

    rig.store.leased = slow  # type: ignore[method-assign]
    rig.run(60.0 + begun)
    frame = rig.frame(1, "a@example.com")
    rig.passed(frame)
    rig.stored(frame)
    rig.run(seconds)
    rig.handed_over.committed([Committed(frame.email_id)])
    rig.run(200.0)
    assert rig.sent(1) == [1] and len(rig.servers["1.1.1.1"].mails) == 2 and rig.at_rest


@pytest.mark.parametrize("begun", range(0, 30, 3))
def test_while_leases_cannot_be_given_back_nobody_else_does(begun: int) -> None:
    """Or they would be given back again when the email has been claimed and is being sent."""
    rig = Rig()
    rig.servers["1.1.1.1"].answer = lambda envelope: deferLater(rig.clock, 12.0, taken, envelope)
    rig.run(begun)
    frame = rig.frame(1, "a@example.com")
    rig.passed(frame)
    rig.stored(frame)
    rig.store.failing["release"] = Unavailable("down")
    rig.handed_over.lost(HERE)
    rig.run(75.0)
    del rig.store.failing["release"]
    rig.run(100.0)
    assert len(rig.servers["1.1.1.1"].mails) == 2 and rig.sent(1) == [1] and rig.at_rest


def test_mail_without_a_handover_is_claimed_and_its_message_is_there() -> None:
    rig = Rig(poll_seconds=60.0)
    frame = attrs.evolve(rig.frame(1, "a@example.com"), leased=None)
    assert rig.passed(frame) == set()
    rig.store.add(1, "a@example.com", destination="mx.example.com")
    rig.handed_over.committed([Committed(frame.email_id)])
    rig.run(0.1)
    assert rig.sent(1) == [1] and rig.store.calls["load"] == 2
