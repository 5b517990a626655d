"""Recording asynchronous bounces and complaints: the moves of a recipient, once each, and what is written with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_twisted

from mailsvc.mail.envelope import StoredEnvelope
from mailsvc.outcome import Bounced, Deferred, Delivered, Failed, Outcome, Uncertain
from mailsvc.store.events import async_bounces
from mailsvc.store.events.async_bounces import AsyncBounces, Complained, Recorded, Report
from mailsvc.store.events.suppressions import Suppressions
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.accept import NewEmail
from mailsvc.store.postgres import partitions
from tests.store.fixtures import ACCOUNT, MINUTE, NOW, OTHER, House, email, together

LATER = NOW + MINUTE
OK = Delivered("250 2.0.0 Ok")
BOUNCE = Bounced("550 5.1.1 no", "Permanent", "General", True, "It was refused later.")
FULL = Bounced("552 5.2.2 full", "Transient", "MailboxFull", False, "Full.")
COMPLAINT = Complained("Unwanted.", "abuse", "Test/1")
CLAIMED = Deferred("not now", NOW)


def about(*what: Bounced | Complained, first: int = 0) -> Callable[[Sequence[str]], list[Report]]:
    return lambda addresses: [Report(first + n, each) for n, each in enumerate(what)]


async def settled(house: House, *outcomes: Outcome, **changes: Any) -> NewEmail:
    mail = email(*(f"{n}@example.org" for n in range(len(outcomes))), lease=house.lease, **changes)
    await house.accept(mail)
    await house.settle(mail, *outcomes)
    return mail


async def record(house: House, mail: NewEmail, *what: Bounced | Complained, first: int = 0) -> dict[int, Recorded] | None:
    found = await AsyncBounces(house.pool).record(mail.account_id, mail.email_id, about(*what, first=first), LATER)
    return None if found is None else dict(found)


@pytest_twisted.ensureDeferred
async def test_a_delivery_becomes_a_bounce_or_a_complaint(house: House) -> None:
    mail = await settled(house, OK, OK, OK)
    assert await record(house, mail, BOUNCE, COMPLAINT) == {0: "changed", 1: "changed"}
    assert await house.statuses(mail) == ["bounced", "complained", "delivered"]
    bounced, complained, delivered = await house.emails.recipients(mail.account_id, mail.email_id)
    assert (bounced.reason, bounced.last_reply) == ("It was refused later.", "550 5.1.1 no")
    assert (complained.reason, delivered.reason, delivered.last_reply) == ("Unwanted.", None, "250 2.0.0 Ok")
    assert await house.count("fresh_events") == 1 + 3 + 2 + 2  # the last two are suppressions
    assert await house.books.number(100) == 8
    rows = await house.pool.rows("SELECT data, at FROM events WHERE type IN ('email.bounced', 'email.complained') ORDER BY recipient")
    bounce = {"type": "Permanent", "sub_type": "General", "reply": "550 5.1.1 no", "reason": "It was refused later."}
    assert rows[0] == (bounce | {"late": True}, LATER)
    assert rows[1] == ({"reason": "Unwanted.", "feedback_type": "abuse", "user_agent": "Test/1", "late": True}, LATER)


@pytest_twisted.ensureDeferred
async def test_a_repeated_report_changes_nothing(house: House) -> None:
    mail = await settled(house, OK)
    assert await together(*(record(house, mail, BOUNCE) for _ in range(4))) in [
        [{0: "changed" if n == m else "repeated"} for n in range(4)] for m in range(4)
    ]
    assert await record(house, mail, COMPLAINT) == {0: "repeated"}
    assert [kind for kind, _ in await house.events(mail)] == ["email.sent", "email.delivered", "email.bounced"]


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
async def test_allowed_moves(house: House, outcome: Outcome, what: Bounced | Complained, expected: Recorded, status: str) -> None:
    mail = await settled(house, outcome)
    assert await record(house, mail, what) == {0: expected}
    assert await house.statuses(mail) == [status]
    assert await house.count("queue") == (0 if status in ("bounced", "failed") else 1)


@pytest_twisted.ensureDeferred
async def test_a_recipient_that_is_being_sent_is_too_early(house: House) -> None:
    mail = email(lease=house.lease)
    await house.accept(mail)
    assert await record(house, mail, BOUNCE) == {0: "early"}
    uncertain = await settled(house, Uncertain("silence", NOW))
    assert len(await house.claim(now=LATER)) == 1
    assert await record(house, uncertain, BOUNCE) == {0: "early"}
    await house.settle(mail, OK)
    assert await record(house, mail, BOUNCE) == {0: "changed"}


@pytest_twisted.ensureDeferred
async def test_a_concurrent_settlement_is_seen_or_reported_as_early(house: House) -> None:
    mails = [email(lease=house.lease) for _ in range(10)]
    await house.accept(*mails)
    recordings = [AsyncBounces(house.pool).record(ACCOUNT, mail.email_id, about(BOUNCE), LATER) for mail in mails]
    found = await together(*(house.settle(mail, OK) for mail in mails), *recordings)
    for mail, result in zip(mails, found[10:], strict=True):
        assert result in ({0: "early"}, {0: "changed"})
        assert await house.statuses(mail) == ["bounced" if result == {0: "changed"} else "delivered"]


@pytest_twisted.ensureDeferred
async def test_other_accounts_and_unknown_emails_record_nothing(house: House) -> None:
    mail = await settled(house, OK)
    assert await AsyncBounces(house.pool).record(OTHER, mail.email_id, about(BOUNCE), LATER) is None
    assert await AsyncBounces(house.pool).record(ACCOUNT, UUID(int=1), about(BOUNCE), LATER) is None
    assert await AsyncBounces(house.pool).record(ACCOUNT, mail.email_id, lambda _: [], LATER) == {}
    assert await record(house, mail, BOUNCE, first=7) == {7: "repeated"}
    assert await house.statuses(mail) == ["delivered"]


@pytest_twisted.ensureDeferred
async def test_an_old_partition_is_written_too(house: House) -> None:
    long_ago = NOW - timedelta(days=90)
    for statement in partitions.days(long_ago, days_ahead=0)[-1].values():
        await house.pool.run(statement)
    mail = await settled(house, OK, email_id=uuid7(long_ago.timestamp()), created_at=long_ago)
    assert await record(house, mail, BOUNCE) == {0: "changed"}
    assert await house.statuses(mail) == ["bounced"]
    view = await house.emails.get(mail.account_id, mail.email_id)
    assert view is not None and view.last_event == "email.bounced"
    await house.books.number(100)
    [(name,)] = await house.pool.rows("SELECT tableoid::regclass::text FROM events WHERE type = 'email.bounced'")
    assert name == partitions.name_of("events", long_ago.astimezone(UTC))
    assert await house.count("event_log") == 4


@pytest_twisted.ensureDeferred
async def test_submitters_with_notify_get_a_notice(house: House) -> None:
    envelope = StoredEnvelope("shop@example.com", notify=("FAILURE", None, "NEVER", "SUCCESS,FAILURE"))
    mail = await settled(house, OK, OK, OK, OK, envelope=envelope)
    await house.pool.run("DELETE FROM notices")
    await record(house, mail, BOUNCE, BOUNCE, BOUNCE, COMPLAINT)
    asked = "SELECT n.recipient, v.type, v.data ->> 'reply' FROM notices n JOIN events v USING (account_id, email_id, event_id)"
    assert await house.pool.rows(asked) == [(0, "email.bounced", "550 5.1.1 no")]


@pytest_twisted.ensureDeferred
async def test_an_event_is_never_dated_before_the_delivery(house: House) -> None:
    mail = await settled(house, OK)
    found = await AsyncBounces(house.pool).record(ACCOUNT, mail.email_id, about(BOUNCE), NOW - timedelta(hours=1))
    assert found == {0: "changed"}
    assert await house.statuses(mail) == ["bounced"]


@pytest_twisted.ensureDeferred
async def test_only_bounces_of_the_address_and_complaints_suppress(house: House) -> None:
    mail = await settled(house, OK, OK, OK)
    notified: list[int] = []
    store = AsyncBounces(house.pool, lambda: notified.append(1))
    for _ in range(2):
        await store.record(ACCOUNT, mail.email_id, about(BOUNCE, FULL, COMPLAINT), LATER)
    listed, _ = await Suppressions(house.pool, house.clock).list(ACCOUNT, 10)
    assert sorted((each.email, each.origin, each.source_id, each.reason) for each in listed) == [
        ("0@example.org", "bounce", mail.email_id, "550 5.1.1 no"),
        ("2@example.org", "complaint", mail.email_id, "Unwanted."),
    ]
    assert notified == [1]
    assert await house.pool.rows("SELECT count(*) FROM events WHERE type = 'suppression.added'") == [(2,)]


def test_the_advisory_locks_differ_from_the_ledgers() -> None:
    from mailsvc.store.events import ledger

    assert async_bounces.LOCKS != ledger.LOCKS
