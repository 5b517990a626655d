"""Internal errors: poison messages, an unavailable or full database, lost leases. No recipient is lost, no lane stops."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import deferLater

from mailsvc.broadcasts.consent import BroadcastCanceled
from mailsvc.delivery.message_loader import Gone, Waits
from mailsvc.mail.reply import Reply
from mailsvc.outcome import Bounced, Canceled, Delivered, Failed
from mailsvc.outcome import Deferred as Later
from mailsvc.store.encryption.secrets import EncryptionError
from mailsvc.store.postgres.errors import DataRejected, OutOfResources, StatementFailed, Unavailable
from tests.delivery.fakes import MESSAGE, DeliveryRig, answered, number, taken

# Our own faults


def test_a_poison_message_fails_and_other_mail_continues() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.bodies[number(1)] = ValueError("poison")
    for email in (1, 2, 3):
        rig.store.add(email, "bob@example.com")
    rig.start().run(5)
    assert sorted(mail.sender for mail in server.mails) == ["b-2@send.sender.example", "b-3@send.sender.example"]
    assert rig.store.last(1).reason == "Sending failed because of an internal error (ValueError). It will be retried."  # type: ignore[union-attr]
    rig.run(3600)
    assert [type(outcome) for outcome in rig.store.outcomes[number(1), 0]] == [Later, Later, Failed]
    assert "poison" not in rig.store.last(1).reason  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "error", [EncryptionError("The secret of 1 does not open with key 1."), StatementFailed("XX002", "index is corrupted")]
)
def test_an_error_of_the_installation_defers_mail_and_never_fails_it(error: Exception) -> None:
    """With a wrong key, every email fails. Without this rule all of them would fail for good after a few attempts."""
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.sending.error = error
    rig.store.add(1, "bob@example.com")
    rig.start().run(14_400)  # a poison message fails within an hour
    outcomes = rig.store.outcomes[number(1), 0]
    assert len(outcomes) > 3 and {type(outcome) for outcome in outcomes} == {Later}
    assert "cannot be decrypted" in outcomes[-1].reason or "our database" in outcomes[-1].reason
    assert "does not open" not in outcomes[-1].reason and "index" not in outcomes[-1].reason
    assert server.mails == []
    rig.sending.error = None
    rig.run(14_400)
    assert rig.store.last(1) == Delivered("250 2.0.0 queued")


def test_mail_of_a_paused_broadcast_waits_without_an_attempt() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    for email, attempts in ((1, 0), (2, 3)):
        rig.store.bodies[number(email)] = Waits("The broadcast is paused.")
        rig.store.add(email, "bob@example.com", attempts=attempts)
    rig.start().run(7200)
    assert server.mails == [] and rig.store.outcomes.keys() == {(number(2), 0)}  # that one was tried before
    row = rig.store.rows[number(1), 0]
    assert (row.lease, row.leased.attempts, row.leased.status, row.reason) == (None, 0, "queued", "The broadcast is paused.")
    assert row.next_at > rig.store.now
    rig.store.bodies[number(1)], row.next_at = MESSAGE, rig.store.now  # somebody continues it
    rig.run(5)
    assert rig.store.last(1) == Delivered("250 2.0.0 queued")


def test_mail_of_a_canceled_broadcast_is_canceled_unless_it_may_have_been_delivered() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    for email, attempts, status in ((1, 0, "queued"), (2, 3, "delayed"), (3, 1, "uncertain")):
        rig.store.bodies[number(email)] = BroadcastCanceled()
        rig.store.add(email, "bob@example.com", attempts=attempts, status=status)
    rig.start().run(5)
    assert server.mails == [] and rig.store.rows == {}
    assert (rig.store.last(1), rig.store.last(2)) == (Canceled(), Canceled())
    assert isinstance(late := rig.store.last(3), Failed) and "may have delivered this email" in late.reason


def test_a_full_database_loses_no_outcome() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.store.failing["settle"] = OutOfResources("53100", "could not extend file")
    rig.start().run(60)
    assert len(server.mails) == 1 and len(rig.store.rows) == 1
    rig.store.failing.clear()
    rig.run(15)
    assert rig.store.rows == {} and len(server.mails) == 1
    assert rig.store.outcomes[number(1), 0] == [Delivered("250 2.0.0 queued")]


def test_a_message_that_is_gone_fails() -> None:
    rig = DeliveryRig()
    rig.server("example.com", "1.1.1.1")
    rig.store.bodies[number(1)] = None
    rig.store.add(1, "bob@example.com")
    rig.start().run(3)
    assert rig.store.last(1) == Failed("The message is no longer stored.")


def test_a_message_that_is_gone_after_an_attempt_bounces() -> None:
    rig = DeliveryRig()
    rig.server("example.com", "1.1.1.1")
    rig.sending.error = Gone("The sending domain no longer exists.")
    rig.store.add(1, "bob@example.com", attempts=1, status="delayed")
    rig.store.add(1, "bea@example.com", recipient=1)
    rig.start().run(3)
    assert rig.store.last(1) == Bounced("The sending domain no longer exists.", "Transient", "General")
    assert rig.store.last(1, 1) == Failed("The sending domain no longer exists.")


def test_signing_happens_once_for_all_destinations_of_an_email() -> None:
    rig = DeliveryRig()
    for index in range(5):
        rig.server(f"d{index}.example", f"1.1.1.{index}")
        rig.store.add(1, f"bob@d{index}.example", recipient=index)
    rig.start().run(3)
    assert len(rig.store.outcomes) == 5
    assert len(rig.sending.signed) == 1


def test_an_unavailable_database_loses_no_outcome_and_nothing_is_sent_twice() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.store.failing["settle"] = Unavailable("gone")
    rig.start().run(60)
    assert len(server.mails) == 1
    assert len(rig.store.rows) == 1
    rig.store.failing.clear()
    rig.run(15)
    assert rig.store.rows == {}
    assert len(server.mails) == 1


def test_mail_whose_destination_is_rejected_is_queued_under_its_domain_and_tried_again() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    key, release = rig.store.add(1, "bob@example.com"), rig.store.release

    async def rejects(*args: Any, destination: str | None = None, **others: Any) -> None:
        if destination == "mx.example.com":
            raise StatementFailed("54000", "index row size 5096 exceeds btree version 4 maximum 2704")
        await release(*args, destination=destination, **others)

    rig.store.release = rejects  # type: ignore[method-assign]
    rig.start().run(3)
    row = rig.store.rows[key]
    assert (row.lease, row.leased.destination) == (None, "example.com")
    assert rig.store.calls["claim"] == 1
    rig.store.release = release  # type: ignore[method-assign]
    rig.run(120)
    assert rig.store.rows == {} and len(server.mails) == 1


def test_delivery_continues_after_the_queue_was_unavailable() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com", destination="mx.example.com")
    rig.store.failing = {"ready": Unavailable("gone")}
    rig.start()
    for call in ("ready", "claim"):
        rig.store.failing = {call: Unavailable("gone")}
        rig.store.calls.clear()
        rig.run(10)
        assert server.mails == []
        assert rig.store.calls[call] <= 11
    rig.store.failing = {"load": Unavailable("gone")}
    rig.run(60)
    assert server.mails == []
    assert len(rig.store.rows) == 1
    rig.store.failing = {}
    rig.run(15)
    assert rig.store.outcomes[number(1), 0] == [Delivered("250 2.0.0 queued")]


def test_a_failed_chore_does_not_stop_delivery() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    for call in ("release_scheduled", "holds", "expire", "leased"):
        rig.store.failing[call] = StatementFailed("42601", "our own mistake")
    rig.store.add(1, "bob@example.com")
    rig.start().run(120)
    assert len(server.mails) == 1
    assert 100 <= rig.store.calls["release_scheduled"] <= 125


def test_a_connection_takes_no_mail_before_the_last_one_is_settled() -> None:
    rig = DeliveryRig(connections_max=1)
    server = rig.server("example.com", "1.1.1.1")
    rig.store.settle_waits = []
    for email in (1, 2):
        rig.store.add(email, "bob@example.com", destination="mx.example.com")
    rig.start().run(30)
    assert len(server.mails) == 1
    rig.store.settle_waits[0].callback(None)
    assert len(server.mails) == 2


def test_an_outcome_that_the_database_rejects_is_written_in_ascii() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    server.answer = lambda envelope: answered(envelope, Reply(550, "caf\x00é", "5.1.1"))
    settle = rig.store.settle

    async def picky(settlement: Any, expected: int | None = None) -> Any:
        if "\x00" in settlement.outcomes[0].outcome.reply:
            raise DataRejected("22021")
        return await settle(settlement)

    rig.delivery.attempts._settling.settle = picky  # type: ignore[method-assign]
    rig.start().run(3)
    assert rig.store.last(1) == Bounced("550 5.1.1 caf??", suppress=True)


@pytest.mark.parametrize("step", ["holds.held", "_leases.keep_claimed"])
def test_destinations_of_a_claim_that_failed_are_claimed_from_again(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DeliveryRig()
    for email, name in enumerate("ab"):
        rig.server(f"{name}.example", f"1.1.1.{email + 1}")
        rig.store.add(email, f"x@{name}.example")
    part, _, method = step.partition(".")
    works, failed = getattr(getattr(rig.delivery, part), method), list[object]()

    def fails_once(given: object) -> object:
        if (given == "b.example" or not isinstance(given, str)) and not failed:
            failed.append(given)
            raise MemoryError
        return works(given)

    monkeypatch.setattr(getattr(rig.delivery, part), method, fails_once)
    rig.start().run(120)
    assert failed and [rig.store.last(email) for email in range(2)] == [Delivered("250 2.0.0 queued")] * 2


def test_lost_leases_go_back_to_the_queue() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com", lease=rig.process.id)  # committed, but the answer never came
    rig.start().run(20)
    assert server.mails == []
    rig.run(60)
    assert len(server.mails) == 1


def test_a_row_that_was_leased_again_is_not_lost() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    key = rig.store.add(1, "bob@example.com", lease=rig.process.id)
    rig.start().run(30)
    rig.store.rows[key].place += 1  # given back and claimed; the answer is on its way
    rig.run(30)
    assert server.mails == []
    rig.run(30)
    assert len(server.mails) == 1


@pytest.mark.parametrize("seconds", [10.0, 37.0, 70.0])
@pytest.mark.parametrize("begun", [0, 7, 14])
def test_a_claim_that_is_answered_late_gets_nothing_sent_twice(seconds: float, begun: int) -> None:
    """Its leases may have been given back. While a look at the queue claims, nobody looks for lost leases; this claim fills up a lane."""
    rig = DeliveryRig(window=4)
    server = rig.server("example.com", "1.1.1.1")
    claim = rig.store.claim

    async def late(*args: Any) -> Any:
        claimed = await claim(*args)
        if rig.store.calls["claim"] == 3:  # the first one finds out where the mail goes
            await deferLater(rig.clock, seconds)
        return claimed

    rig.start().run(begun)
    rig.store.claim = late  # type: ignore[method-assign]
    for identity in range(30):
        rig.store.add(identity, "bob@example.com")
    rig.run(300.0)
    assert len(server.mails) == 30 and rig.store.rows == {} and rig.delivery.emails == 0


def test_a_reply_to_an_attempt_under_an_old_lease_does_not_end_the_new_one() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    server.answer = lambda envelope: deferLater(rig.clock, 60.0 if len(server.mails) == 1 else 300.0, taken, envelope)
    key = rig.store.add(1, "bob@example.com")
    rig.start().run(20)
    rig.process.id, rig.store.rows[key].lease = 8, None
    rig.delivery.replaced(7, 8)
    rig.run(400)
    assert len(server.mails) == 2  # SMTP cannot take back the first one
    assert [each.lease for each in rig.store.settled] == [7, 8] and len(rig.store.outcomes[key]) == 1
    assert rig.delivery.emails == 0


def test_leases_that_may_have_been_given_back_are_not_given_back_again() -> None:
    """They may have been claimed again."""
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    server.answer = lambda envelope: deferLater(rig.clock, 12.0, taken, envelope)
    release, calls = rig.store.release, rig.store.calls

    async def doubtful(*args: Any, **changes: Any) -> None:
        if server.mails:
            await release(*args, **changes)
        elif calls["release"]:
            raise Unavailable("down")
        else:
            await release(*args, **changes)
            raise Unavailable("lost", unknown=True)

    rig.store.release = doubtful  # type: ignore[method-assign]
    rig.store.add(1, "bob@example.com")  # it is given back once, to move to its destination
    rig.start().run(60)
    assert len(server.mails) == 1 and rig.store.rows == {} and rig.delivery.emails == 0


def test_an_outcome_that_was_written_is_not_written_to_a_later_claim() -> None:
    """The answer to the first settlement is lost, and others fail until the mail is sent again."""
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    server.answer = lambda envelope: answered(envelope, Reply(451, "later"))
    key = rig.store.add(1, "bob@example.com")
    settle, calls = rig.store.settle, rig.store.calls

    async def doubtful(settlement: Any, expected: int | None = None) -> Any:
        if calls["settle"] == 0:
            await settle(settlement)
            rig.store.rows[key].next_at = rig.store.now
            server.answer = lambda envelope: deferLater(rig.clock, 30.0, taken, envelope)
            raise Unavailable("lost", unknown=True)
        if len(server.mails) < 2:
            raise Unavailable("down")
        return await settle(settlement)

    rig.delivery.attempts._settling.settle = doubtful  # type: ignore[method-assign]
    rig.start().run(120)
    assert len(server.mails) == 2 and rig.store.rows == {} and rig.delivery.emails == 0


def test_a_process_that_was_replaced_sends_nothing_under_its_old_leases() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "bob@example.com")
    rig.start().run(2)
    rig.process.fresh = False
    email, reservations = rig.email(2, "bob@example.com")
    assert not reservations
    rig.commit(email, reservations)
    rig.run(30)
    assert len(server.mails) == 1
    rig.process.id, rig.process.fresh = 8, True
    rig.delivery.replaced(7, 8)
    rig.run(3)
    assert len(server.mails) == 2
    assert rig.store.settled[-1].lease == 8
