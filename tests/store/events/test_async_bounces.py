"""Recording asynchronous bounces and complaints: the moves of a recipient, once each, and what is written with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_twisted

from mailsvc.outcome import Bounced, Deferred, Delivered, Failed, Outcome, Uncertain
from mailsvc.store.events import async_bounces
from mailsvc.store.events.async_bounces import AsyncBounces, Complained, Recorded, Report
from mailsvc.store.events.rollups import Rollups, Wanted
from mailsvc.store.events.suppressions import Suppressions
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.accept import NewEmail
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.postgres import partitions
from tests.store.fixtures import ACCOUNT, MINUTE, NOW, OTHER, StoreRig, email, together

LATER = NOW + MINUTE
OK = Delivered("250 2.0.0 Ok")
BOUNCE = Bounced("550 5.1.1 no", "Permanent", "General", True, "It was refused later.")
FULL = Bounced("552 5.2.2 full", "Transient", "MailboxFull", False, "Full.")
COMPLAINT = Complained("Unwanted.", "abuse", "Test/1")
CLAIMED = Deferred("not now", NOW)


def about(*what: Bounced | Complained, first: int = 0) -> Callable[[Sequence[str]], list[Report]]:
    return lambda addresses: [Report(first + n, each) for n, each in enumerate(what)]


async def settled(store: StoreRig, *outcomes: Outcome, **changes: Any) -> NewEmail:
    mail = email(*(f"{n}@example.org" for n in range(len(outcomes))), lease=store.lease, **changes)
    await store.accept(mail)
    await store.settle(mail, *outcomes)
    return mail


async def record(store: StoreRig, mail: NewEmail, *what: Bounced | Complained, first: int = 0) -> dict[int, Recorded] | None:
    found = await AsyncBounces(store.pool).record(mail.account_id, mail.email_id, about(*what, first=first), LATER)
    return None if found is None else dict(found)


@pytest_twisted.ensureDeferred
async def test_a_delivery_becomes_a_bounce_or_a_complaint(store: StoreRig) -> None:
    mail = await settled(store, OK, OK, OK)
    assert await record(store, mail, BOUNCE, COMPLAINT) == {0: "changed", 1: "changed"}
    assert await store.statuses(mail) == ["bounced", "complained", "delivered"]
    bounced, complained, delivered = await store.emails.recipients(mail.account_id, mail.email_id)
    assert (bounced.reason, bounced.last_reply) == ("It was refused later.", "550 5.1.1 no")
    assert (complained.reason, delivered.reason, delivered.last_reply) == ("Unwanted.", None, "250 2.0.0 Ok")
    assert await store.count("fresh_events") == 1 + 3 + 2 + 1 + 2  # a correction of what was counted, and two suppressions
    assert await store.ledger.number(100) == 9
    assert await store.pool.rows("SELECT last FROM event_sequences") == [(8,)]  # the correction is not an event
    rows = await store.pool.rows("SELECT data, at FROM events WHERE type IN ('email.bounced', 'email.complained') ORDER BY recipient")
    bounce = {"type": "Permanent", "sub_type": "General", "reply": "550 5.1.1 no", "reason": "It was refused later."}
    assert rows[0] == (bounce | {"late": True}, LATER)
    assert rows[1] == ({"reason": "Unwanted.", "feedback_type": "abuse", "user_agent": "Test/1", "late": True}, LATER)


@pytest_twisted.ensureDeferred
async def test_a_bounce_takes_back_that_the_recipient_was_counted_as_delivered(store: StoreRig) -> None:
    """In the hour of the delivery. Counts by the hour, by domain and by email agree, and add up to what was sent."""
    mail = await settled(store, OK, OK, OK, Uncertain("silence", NOW), FULL)
    hour = NOW.replace(minute=0, second=0, microsecond=0)
    later = hour + timedelta(hours=5)
    await store.ledger.number(100)
    for _ in range(2):  # the second report is repeated
        await AsyncBounces(store.pool).record(ACCOUNT, mail.email_id, about(BOUNCE, COMPLAINT, first=1), later)
        await AsyncBounces(store.pool).record(ACCOUNT, mail.email_id, about(BOUNCE, first=3), later)
    await store.ledger.number(100)
    expected = {
        (hour, "email.sent"): 5,
        (hour, "email.delivered"): 2,
        (hour, "email.delivery_delayed"): 1,
        (hour, "email.bounced.transient"): 1,
        (later, "email.bounced.permanent"): 2,
        (later, "email.complained"): 1,
    }
    types = [kind for _, kind in expected]
    for emails in (None, [mail.email_id]):
        wanted = Wanted(hour, later + timedelta(hours=1), "hour", "UTC", types, by_period=True, by_domain=True, emails=emails)
        found = await Rollups(store.pool).counts(ACCOUNT, wanted)
        assert {(each.hour, each.type): each.count for each in found} == expected
        assert {each.domain_id for each in found} == {mail.domain_id}


@pytest_twisted.ensureDeferred
async def test_a_delivery_that_is_not_counted_yet_can_be_taken_back(store: StoreRig) -> None:
    mail = await settled(store, OK)
    await record(store, mail, BOUNCE)
    await store.pool.run("UPDATE fresh_events SET shard = shard + 16 WHERE type = 'email.delivered'")  # counted later than the correction
    await store.ledger.number(100)
    await store.pool.run("UPDATE fresh_events SET shard = shard - 16")
    await store.ledger.number(100)
    assert await store.pool.rows("SELECT count FROM rollups WHERE type = 'email.delivered'") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_a_repeated_report_changes_nothing(store: StoreRig) -> None:
    mail = await settled(store, OK)
    assert await together(*(record(store, mail, BOUNCE) for _ in range(4))) in [
        [{0: "changed" if n == m else "repeated"} for n in range(4)] for m in range(4)
    ]
    assert await record(store, mail, COMPLAINT) == {0: "repeated"}
    assert [kind for kind, _ in await store.events(mail)] == ["email.sent", "email.delivered", "email.bounced"]


@pytest.mark.parametrize(
    ("outcome", "what", "expected", "status"),
    [
        (FULL, BOUNCE, "repeated", "bounced"),
        (FULL, COMPLAINT, "repeated", "bounced"),
        (Failed("gone"), BOUNCE, "repeated", "failed"),
        (Deferred("later", LATER), BOUNCE, "early", "delayed"),
        (Deferred("later", LATER), COMPLAINT, "early", "delayed"),
        (Uncertain("silence", LATER), BOUNCE, "changed", "bounced"),
        (Uncertain("silence", LATER), COMPLAINT, "early", "uncertain"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_allowed_moves(store: StoreRig, outcome: Outcome, what: Bounced | Complained, expected: Recorded, status: str) -> None:
    mail = await settled(store, outcome)
    assert await record(store, mail, what) == {0: expected}
    assert await store.statuses(mail) == [status]
    assert await store.count("queue") == (0 if status in ("bounced", "failed") else 1)


@pytest_twisted.ensureDeferred
async def test_a_recipient_that_is_being_sent_is_too_early(store: StoreRig) -> None:
    mail = email(lease=store.lease)
    await store.accept(mail)
    assert await record(store, mail, BOUNCE) == {0: "early"}
    uncertain = await settled(store, Uncertain("silence", NOW))
    assert len(await store.claim(now=LATER)) == 1
    assert await record(store, uncertain, BOUNCE) == {0: "early"}
    await store.settle(mail, OK)
    assert await record(store, mail, BOUNCE) == {0: "changed"}


@pytest_twisted.ensureDeferred
async def test_a_concurrent_settlement_is_seen_or_reported_as_early(store: StoreRig) -> None:
    mails = [email(lease=store.lease) for _ in range(10)]
    await store.accept(*mails)
    recordings = [AsyncBounces(store.pool).record(ACCOUNT, mail.email_id, about(BOUNCE), LATER) for mail in mails]
    found = await together(*(store.settle(mail, OK) for mail in mails), *recordings)
    for mail, result in zip(mails, found[10:], strict=True):
        assert result in ({0: "early"}, {0: "changed"})
        assert await store.statuses(mail) == ["bounced" if result == {0: "changed"} else "delivered"]


@pytest_twisted.ensureDeferred
async def test_other_accounts_and_unknown_emails_record_nothing(store: StoreRig) -> None:
    mail = await settled(store, OK)
    assert await AsyncBounces(store.pool).record(OTHER, mail.email_id, about(BOUNCE), LATER) is None
    assert await AsyncBounces(store.pool).record(ACCOUNT, UUID(int=1), about(BOUNCE), LATER) is None
    assert await AsyncBounces(store.pool).record(ACCOUNT, mail.email_id, lambda _: [], LATER) == {}
    assert await record(store, mail, BOUNCE, first=7) == {7: "repeated"}
    assert await store.statuses(mail) == ["delivered"]


@pytest_twisted.ensureDeferred
async def test_an_old_partition_is_written_too(store: StoreRig) -> None:
    long_ago = NOW - timedelta(days=90)
    await partitions.ensure_day(store.pool, long_ago)
    mail = await settled(store, OK, email_id=uuid7(long_ago.timestamp()), created_at=long_ago)
    assert await record(store, mail, BOUNCE) == {0: "changed"}
    assert await store.statuses(mail) == ["bounced"]
    view = await store.emails.get(mail.account_id, mail.email_id)
    assert view is not None and view.last_event == "email.bounced"
    await store.ledger.number(100)
    [(name,)] = await store.pool.rows("SELECT tableoid::regclass::text FROM events WHERE type = 'email.bounced'")
    assert name == partitions.name_of("events", long_ago.astimezone(UTC))
    assert await store.count("event_log") == 4


@pytest_twisted.ensureDeferred
async def test_submitters_with_notify_get_a_notice(store: StoreRig) -> None:
    envelope = StoredEnvelope("shop@example.com", notify=("FAILURE", None, "NEVER", "SUCCESS,FAILURE"))
    mail = await settled(store, OK, OK, OK, OK, envelope=envelope)
    await store.pool.run("DELETE FROM notices")
    await record(store, mail, BOUNCE, BOUNCE, BOUNCE, COMPLAINT)
    statement = "SELECT n.recipient, v.type, v.data ->> 'reply' FROM notices n JOIN events v USING (account_id, email_id, event_id)"
    assert await store.pool.rows(statement) == [(0, "email.bounced", "550 5.1.1 no")]


@pytest_twisted.ensureDeferred
async def test_an_event_is_never_dated_before_the_delivery(store: StoreRig) -> None:
    mail = await settled(store, OK)
    found = await AsyncBounces(store.pool).record(ACCOUNT, mail.email_id, about(BOUNCE), NOW - timedelta(hours=1))
    assert found == {0: "changed"}
    assert await store.statuses(mail) == ["bounced"]


@pytest_twisted.ensureDeferred
async def test_only_bounces_of_the_address_and_complaints_suppress(store: StoreRig) -> None:
    mail = await settled(store, OK, OK, OK)
    notified: list[int] = []
    bounces = AsyncBounces(store.pool, lambda: notified.append(1))
    for _ in range(2):
        await bounces.record(ACCOUNT, mail.email_id, about(BOUNCE, FULL, COMPLAINT), LATER)
    listed, _ = await Suppressions(store.pool, store.clock).list(ACCOUNT, 10)
    assert sorted((each.email, each.origin, each.source_id, each.reason) for each in listed) == [
        ("0@example.org", "bounce", mail.email_id, "550 5.1.1 no"),
        ("2@example.org", "complaint", mail.email_id, "Unwanted."),
    ]
    assert notified == [1]
    assert await store.pool.rows("SELECT count(*) FROM events WHERE type = 'suppression.added'") == [(2,)]


def test_the_advisory_locks_differ_from_the_ledgers() -> None:
    from mailsvc.store.events import ledger

    assert async_bounces.LOCKS != ledger.LOCKS
