"""What is stored for each recipient of a broadcast is short, and everything is shown nevertheless."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest_twisted

from mailsvc.outcome import Deferred, Delivered, Outcome
from mailsvc.store.events.event_log import EventLog
from mailsvc.store.events.rollups import Rollups, Wanted
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.emails import Emails
from mailsvc.store.mail.history import History
from mailsvc.store.mail.search import Filters, Search
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.settle import AttemptRecord, RecipientOutcome, Settlement, Settling
from tests.broadcasts.fixtures import ACCOUNT, DOMAIN_ID, NOW, BroadcastRig

AT = NOW + timedelta(seconds=5)
PROCESS = "INSERT INTO processes (host, pid, region, roles) VALUES ('h', 1, %s, '{}') RETURNING id"
SUPPRESS = """
INSERT INTO suppressions (id, account_id, address, email, origin, created_at) VALUES (%s, %s, 'ada@example.net', '', 'manual', %s)
"""
OK = Delivered("250 2.0.0 Ok: queued")


@pytest_twisted.async_yield_fixture
async def rig(pool: Pool) -> AsyncIterator[BroadcastRig]:
    from twisted.internet import reactor

    rig = BroadcastRig(pool, reactor)
    await rig.start()
    await rig.contact("ada@example.net", "Ada")
    yield rig


async def sent(rig: BroadcastRig) -> UUID:
    """The email of a broadcast that is in the queue."""
    await rig.send()
    await rig.fanout.run()
    [(email_id,)] = await rig.pool.rows("SELECT email_id FROM emails")
    return UUID(str(email_id))


async def settle(rig: BroadcastRig, email_id: UUID, outcome: Outcome) -> None:
    from twisted.internet import reactor

    record = AttemptRecord(uuid7(AT.timestamp()), "mx.example.net", "192.0.2.1:25", "TLSv1.3", AT, 0.25, "C: MAIL\nS: 250\n", "192.0.2.9")
    lease: Any = None
    settlement = Settlement(ACCOUNT, email_id, DOMAIN_ID, lease, AT, (RecipientOutcome(0, outcome),), record, brief=True)
    assert await Settling(rig.pool, reactor).settle(settlement) == {0}
    await rig.number()


@pytest_twisted.ensureDeferred
async def test_that_it_was_sent_is_shown_and_counted_without_an_event(rig: BroadcastRig) -> None:
    email_id = await sent(rig)
    await rig.number()
    assert await rig.pool.rows("SELECT type FROM events") == []
    [event] = await History(rig.pool).events(ACCOUNT, email_id)
    assert (event.type, event.recipient, event.at) == ("email.sent", None, NOW)
    emails = Emails(rig.pool, rig.clock)
    email = await emails.get(ACCOUNT, email_id)
    assert email is not None and email.last_event == "email.sent"
    for status, there in (("email.sent", True), ("email.delivered", False)):
        page = await Search(rig.pool).emails(ACCOUNT, Filters(status=status), 10)
        assert [found.last_event for found in page.emails] == ["email.sent"] * there
    for emails_of in (None, [email_id]):
        wanted = Wanted(NOW - timedelta(hours=1), NOW + timedelta(hours=1), "hour", "UTC", ["email.sent"], emails=emails_of)
        assert [each.count for each in await Rollups(rig.pool).counts(ACCOUNT, wanted)] == [1]
    assert await EventLog(rig.pool).after(ACCOUNT, 0, 10) == ([], False)


@pytest_twisted.ensureDeferred
async def test_an_endpoint_that_wants_to_know_gets_the_event(rig: BroadcastRig) -> None:
    add = "INSERT INTO webhooks (id, account_id, url, events, secret, created_at) VALUES (%s, %s, 'https://a', %s, '', %s)"
    await rig.pool.run(add, (uuid7(NOW.timestamp() - 60), ACCOUNT, ["email.sent"], NOW))
    email_id = await sent(rig)
    await rig.number()
    assert await rig.pool.rows("SELECT type, email_id FROM webhook_messages") == [("email.sent", email_id)]
    [(_, fact)], _ = await EventLog(rig.pool).after(ACCOUNT, 0, 10)
    assert fact.type == "email.sent" and fact.mail is not None
    assert [event.type for event in await History(rig.pool).events(ACCOUNT, email_id)] == ["email.sent"]


@pytest_twisted.ensureDeferred
async def test_a_suppressed_recipient_was_not_sent_to(rig: BroadcastRig) -> None:
    await rig.pool.run(SUPPRESS, (ACCOUNT, ACCOUNT, NOW))
    email_id = await sent(rig)
    assert [event.type for event in await History(rig.pool).events(ACCOUNT, email_id)] == ["email.suppressed"]


@pytest_twisted.ensureDeferred
async def test_a_delivery_is_stored_with_its_event(rig: BroadcastRig) -> None:
    email_id = await sent(rig)
    await settle(rig, email_id, OK)
    assert await rig.pool.rows("SELECT attempt_id FROM attempts") == []
    emails = Emails(rig.pool, rig.clock)
    [attempt] = await emails.attempts(ACCOUNT, email_id)
    assert (attempt.recipients, attempt.outcomes, attempt.replies) == ((0,), ("delivered",), (OK.reply,))
    assert (attempt.host, attempt.address, attempt.tls, attempt.source) == ("mx.example.net", "192.0.2.1:25", "TLSv1.3", "192.0.2.9")
    assert (attempt.started_at, attempt.seconds, attempt.transcript) == (AT - timedelta(seconds=0.25), 0.25, "")
    [recipient] = await emails.recipients(ACCOUNT, email_id)
    assert (recipient.status, recipient.attempts, recipient.last_reply) == ("delivered", 1, OK.reply)
    assert [event.type for event in await History(rig.pool).events(ACCOUNT, email_id)] == ["email.sent", "email.delivered"]
    [(_, fact)], _ = await EventLog(rig.pool).after(ACCOUNT, 0, 10)
    assert fact.type == "email.delivered"


@pytest_twisted.ensureDeferred
async def test_what_was_not_delivered_keeps_its_transcript(rig: BroadcastRig) -> None:
    email_id = await sent(rig)
    await settle(rig, email_id, Deferred("451 4.2.2 mailbox full", AT + timedelta(minutes=1)))
    await settle(rig, email_id, OK)
    emails = Emails(rig.pool, rig.clock)
    attempts = await emails.attempts(ACCOUNT, email_id)
    assert [(each.outcomes, bool(each.transcript)) for each in attempts] == [(("deferred",), True), (("delivered",), False)]
    [recipient] = await emails.recipients(ACCOUNT, email_id)
    assert (recipient.attempts, recipient.last_reply) == (2, OK.reply)


@pytest_twisted.ensureDeferred
async def test_a_claim_brings_what_messages_are_composed_from(rig: BroadcastRig) -> None:
    email_id = await sent(rig)
    [(region, destination)] = await rig.pool.rows("SELECT region, destination FROM queue")
    [(lease,)] = await rig.pool.rows(PROCESS, (region,))
    claimed = await Queue(rig.pool).claim(region, {destination: 10}, AT, lease)
    assert [row.email_id for row in claimed.rows] == [email_id] == [*claimed.personal]
    composed = await rig.messages.composed(claimed.personal[email_id])
    assert composed is not None and composed == await rig.messages.in_pieces(ACCOUNT, email_id)
