"""Outcomes are written once, by the holder of the lease, together with events, attempts and signatures."""

from __future__ import annotations

from typing import Any

import attrs
import pytest_twisted

from mailsvc.outcome import Bounced, Deferred, Delivered, Failed, Meaning, Uncertain
from mailsvc.store.mail.accept import NewEmail
from mailsvc.store.mail.inserts import INSERT_EMAILS, document, documents
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue import settle
from mailsvc.store.queue.settle import AttemptRecord, RecipientOutcome, Settlement, Settling
from mailsvc.store.queue.settle_sql import SETTLE
from tests.store.fixtures import ACCOUNT, DOMAIN, MINUTE, NOW, StoreRig, attempt, email, explain, nodes, together, visited

OK = Delivered("250 2.0.0 Ok")
LATER = Deferred("451 4.2.2 mailbox full", NOW + MINUTE)
PERHAPS = Uncertain("The connection was lost after the final dot.", NOW + MINUTE)


async def leased(store: StoreRig, *recipients: str) -> NewEmail:
    mail = email(*recipients, lease=store.lease)
    await store.accept(mail)
    return mail


@pytest_twisted.ensureDeferred
async def test_each_recipient_gets_its_own_outcome(store: StoreRig) -> None:
    mail = await leased(store, *(f"{n}@example.org" for n in range(6)))
    done = await store.settle(mail, OK, Bounced("550 5.1.1 unknown"), LATER, PERHAPS, Failed("The domain is gone."))
    assert done == {0, 1, 2, 3, 4}
    assert await store.statuses(mail) == ["delivered", "bounced", "delayed", "uncertain", "failed", "sending"]
    assert await store.events(mail) == [
        ("email.sent", None),
        ("email.delivered", 0),
        ("email.bounced", 1),
        ("email.delivery_delayed", 2),
        ("email.delivery_delayed", 3),
        ("email.failed", 4),
    ]
    assert await store.count("queue") == 3
    recipients = await store.emails.recipients(ACCOUNT, mail.email_id)
    assert [(r.attempts, r.last_reply) for r in recipients[:4]] == [
        (1, "250 2.0.0 Ok"),
        (1, "550 5.1.1 unknown"),
        (1, "451 4.2.2 mailbox full"),
        (1, "The connection was lost after the final dot."),
    ]
    assert (recipients[2].reason, recipients[2].next_at) == ("451 4.2.2 mailbox full", NOW + MINUTE)


@pytest_twisted.ensureDeferred
async def test_a_stale_lease_changes_nothing_and_writes_no_events(store: StoreRig) -> None:
    mail = await leased(store, "a@example.org", "b@example.org")
    await store.pool.run("UPDATE queue SET lease = %s WHERE recipient = 1", (await store.process(),))
    assert await store.settle(mail, OK, OK, signature=b"DKIM-Signature: x\r\n") == {0}
    assert await store.statuses(mail) == ["delivered", "sending"]
    [record] = await store.emails.attempts(ACCOUNT, mail.email_id)
    assert record.recipients == (0,)
    assert await store.settle(mail, None, OK) == frozenset()
    assert await store.settle(mail, OK) == frozenset()
    assert await store.events(mail) == [("email.sent", None), ("email.delivered", 0)]
    assert await store.count("attempts") == 1


@pytest_twisted.ensureDeferred
async def test_repeated_delays_write_one_event(store: StoreRig) -> None:
    mail = await leased(store)
    for outcome in (LATER, PERHAPS, LATER):
        await store.settle(mail, outcome)
        await store.claim(now=NOW + MINUTE)
    await store.settle(mail, OK)
    assert await store.events(mail) == [("email.sent", None), ("email.delivery_delayed", 0), ("email.delivered", 0)]
    assert [a.outcomes for a in await store.emails.attempts(ACCOUNT, mail.email_id)] == [
        ("deferred",),
        ("uncertain",),
        ("deferred",),
        ("delivered",),
    ]


@pytest_twisted.ensureDeferred
async def test_the_first_signature_is_kept(store: StoreRig) -> None:
    mail = await leased(store)
    for signature in (b"DKIM-Signature: one\r\n", b"DKIM-Signature: two\r\n", None):
        await store.settle(mail, LATER, signature=signature)
        await store.claim(now=NOW + MINUTE)
    stored = await store.messages.load(ACCOUNT, mail.email_id)
    assert stored is not None and (stored.signature, stored.body) == (b"DKIM-Signature: one\r\n", mail.message)


@pytest_twisted.ensureDeferred
async def test_an_attempt_keeps_its_transcript(store: StoreRig) -> None:
    mail = await leased(store, "a@example.org", "b@example.org")
    record: AttemptRecord = attempt(tls="TLSv1.3", transcript="S: 220 hi\nC: QUIT\n")
    await store.settle(mail, OK, LATER, attempt=record)
    [found] = await store.emails.attempts(ACCOUNT, mail.email_id)
    assert (found.recipients, found.outcomes) == ((0, 1), ("delivered", "deferred"))
    assert found.replies == ("250 2.0.0 Ok", "451 4.2.2 mailbox full")
    for name in ("attempt_id", "host", "address", "tls", "started_at", "transcript"):
        assert getattr(found, name) == getattr(record, name)


@pytest_twisted.ensureDeferred
async def test_without_smtp_there_is_no_attempt_to_record(store: StoreRig) -> None:
    mail = await leased(store)
    assert await store.settle(mail, LATER, attempt=None) == {0}
    assert await store.count("attempts") == 0


@pytest_twisted.ensureDeferred
async def test_settlements_share_a_commit_of_one_statement(store: StoreRig) -> None:
    rung: list[None] = []
    settling = Settling(store.pool, store.clock, on_events=lambda: rung.append(None))
    mails = [email(lease=store.lease) for _ in range(50)]
    await store.accept(*mails)
    before = store.pool.statements
    done = await together(
        *(settling.settle(Settlement(ACCOUNT, m.email_id, DOMAIN, store.lease, NOW, (RecipientOutcome(0, OK),), attempt())) for m in mails)
    )
    assert done == [{0}] * 50
    assert store.pool.statements - before == 1
    assert rung == [None]
    assert await store.count("queue") == 0
    assert await store.count("attempts") == 50


@pytest_twisted.ensureDeferred
async def test_settling_finds_its_rows_by_their_keys(store: StoreRig) -> None:
    """However many others this process has leased, and whatever the planner's statistics are."""
    lone = [email(lease=await store.process()) for _ in range(50)]
    await store.accept(*lone)
    await store.pool.run("ANALYZE queue")  # when each process had one
    mails = [email(lease=store.lease) for _ in range(500)]
    await store.accept(*mails)
    done = (RecipientOutcome(0, OK),)
    settlements = [Settlement(ACCOUNT, m.email_id, DOMAIN, store.lease, NOW, done, None) for m in mails[:50]]
    rows = [row for n, settlement in enumerate(settlements) for row in settle._rows(n, settlement)]
    plan = await explain(store, SETTLE.plain, (document(rows), "[]"))
    assert max(visited(plan)) <= 50, visited(plan)


@pytest_twisted.ensureDeferred
async def test_a_plan_made_for_an_empty_queue_suits_a_full_one(store: StoreRig) -> None:
    statement = attrs.evolve(SETTLE, name="settle_again")
    mails = [email(lease=store.lease) for _ in range(500)]
    done = (RecipientOutcome(0, OK),)
    settlements = [Settlement(ACCOUNT, m.email_id, DOMAIN, store.lease, NOW, done, None) for m in mails[:50]]
    rows = document([row for n, settlement in enumerate(settlements) for row in settle._rows(n, settlement)])

    async def planned_early(tx: Transaction) -> dict[str, Any]:
        assert SETTLE.first is not None
        await tx.rows(SETTLE.first.plain)
        for _ in range(10):  # by the sixth, the server keeps one plan for good
            await tx.run(statement, ("[]", "[]"))
        await tx.run(INSERT_EMAILS.plain, next(documents(mails)))
        [(plans,)] = await tx.rows("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE settle_again (%s, %s)", (rows, "[]"))
        plan: dict[str, Any] = plans[0]["Plan"]
        return plan

    await store.pool.run("ANALYZE queue")  # so that it is known to be empty
    plan = await store.pool.transact(planned_early)
    assert max(visited(plan)) == 50, visited(plan)
    assert "Seq Scan" not in [node["Node Type"] for node in nodes(plan) if node.get("Relation Name") == "queue"]


@pytest_twisted.ensureDeferred
async def test_a_new_connection_plans_for_itself(store: StoreRig) -> None:
    first, second = await leased(store), await leased(store)
    await store.settle(first, OK)
    other = Pool(store.pool.dsn, store.clock, size=1)
    await other.start()
    settlement = Settlement(ACCOUNT, second.email_id, DOMAIN, store.lease, NOW, (RecipientOutcome(0, OK),), attempt())
    assert await Settling(other, store.clock).settle(settlement) == {0}
    await other.stop()


@pytest_twisted.ensureDeferred
async def test_a_settlement_that_cannot_be_written_fails_alone(store: StoreRig) -> None:
    good, bad = await leased(store), await leased(store)

    async def settled(mail: NewEmail, reply: str) -> object:
        try:
            return await store.settle(mail, Delivered(reply))
        except StoreError as error:
            return type(error).__name__

    assert await together(settled(good, "250 ok"), settled(bad, "250 \0")) == [{0}, "DataRejected"]
    assert await store.statuses(good) + await store.statuses(bad) == ["delivered", "sending"]


@pytest_twisted.ensureDeferred
async def test_two_settlements_of_one_recipient_count_once(store: StoreRig) -> None:
    mail = await leased(store)
    done = await together(store.settle(mail, OK), store.settle(mail, OK))
    assert sorted(map(len, done)) == [0, 1]
    assert len(await store.events(mail)) == 2


@pytest_twisted.ensureDeferred
async def test_event_data_by_type(store: StoreRig) -> None:
    mail = await leased(store, *(f"{n}@example.org" for n in range(4)))
    await store.settle(mail, OK, Bounced("550 no", "Transient", "MailboxFull"), LATER, Failed("gone"))
    rows = await store.pool.rows("SELECT data FROM events WHERE recipient IS NOT NULL ORDER BY recipient")
    delivered, bounced, delayed, failed = (data for (data,) in rows)
    assert delivered == {"reply": "250 2.0.0 Ok"}
    assert bounced == {"type": "Transient", "sub_type": "MailboxFull", "reply": "550 no", "reason": "550 no"}
    assert delayed["reason"] == "451 4.2.2 mailbox full" and delayed["next_at"].startswith(f"{NOW + MINUTE:%Y-%m-%dT%H:%M}")
    assert failed == {"reason": "gone"}


@pytest_twisted.ensureDeferred
async def test_transcripts_are_not_in_the_repr(store: StoreRig) -> None:
    assert "secret" not in repr(attempt(transcript="220 secret")) and attrs.has(Settlement)


@pytest_twisted.ensureDeferred
async def test_the_meaning_of_a_refusal_is_stored_with_attempt_and_event(store: StoreRig) -> None:
    full, later = Meaning("mailbox_full", "r1", "recipient", "Full.", "Wait."), Meaning("greylisted", "r2", "provider", "New.", "Wait.")
    mail = await leased(store, *(f"{n}@example.org" for n in range(3)))
    bounced = Bounced("552 no", "Transient", "MailboxFull", reason="552 no. Full. Wait.", meaning=full)
    await store.settle(mail, OK, bounced, Deferred("451 no. New. Wait.", NOW + MINUTE, later))
    views = await store.emails.recipients(mail.account_id, mail.email_id)
    assert [(view.kind, view.rule) for view in views] == [(None, None), ("mailbox_full", "r1"), ("greylisted", "r2")]
    assert [view.reason for view in views] == [None, "552 no. Full. Wait.", "451 no. New. Wait."]
    [attempt] = await store.emails.attempts(mail.account_id, mail.email_id)
    assert (attempt.classes, attempt.rules) == ((None, "mailbox_full", "greylisted"), (None, "r1", "r2"))
    [(data,)] = await store.pool.rows("SELECT data FROM events WHERE type = 'email.bounced'")
    meant = {"class": "mailbox_full", "rule": "r1", "party": "recipient", "advice": "Wait."}
    assert data == {"type": "Transient", "sub_type": "MailboxFull", "reply": "552 no", "reason": "552 no. Full. Wait."} | meant
