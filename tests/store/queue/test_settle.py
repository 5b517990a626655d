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
from tests.store.fixtures import ACCOUNT, DOMAIN, MINUTE, NOW, House, attempt, email, explain, nodes, together, visited

OK = Delivered("250 2.0.0 Ok")
LATER = Deferred("451 4.2.2 mailbox full", NOW + MINUTE)
PERHAPS = Uncertain("The connection was lost after the final dot.", NOW + MINUTE)


async def leased(house: House, *recipients: str) -> NewEmail:
    mail = email(*recipients, lease=house.lease)
    await house.accept(mail)
    return mail


@pytest_twisted.ensureDeferred
async def test_each_recipient_gets_its_own_outcome(house: House) -> None:
    mail = await leased(house, *(f"{n}@example.org" for n in range(6)))
    done = await house.settle(mail, OK, Bounced("550 5.1.1 unknown"), LATER, PERHAPS, Failed("The domain is gone."))
    assert done == {0, 1, 2, 3, 4}
    assert await house.statuses(mail) == ["delivered", "bounced", "delayed", "uncertain", "failed", "sending"]
    assert await house.events(mail) == [
        ("email.sent", None),
        ("email.delivered", 0),
        ("email.bounced", 1),
        ("email.delivery_delayed", 2),
        ("email.delivery_delayed", 3),
        ("email.failed", 4),
    ]
    assert await house.count("queue") == 3
    told = await house.emails.recipients(ACCOUNT, mail.email_id)
    assert [(r.attempts, r.last_reply) for r in told[:4]] == [
        (1, "250 2.0.0 Ok"),
        (1, "550 5.1.1 unknown"),
        (1, "451 4.2.2 mailbox full"),
        (1, "The connection was lost after the final dot."),
    ]
    assert (told[2].reason, told[2].next_at) == ("451 4.2.2 mailbox full", NOW + MINUTE)


@pytest_twisted.ensureDeferred
async def test_a_stale_lease_changes_nothing_and_writes_no_events(house: House) -> None:
    mail = await leased(house, "a@example.org", "b@example.org")
    await house.pool.run("UPDATE queue SET lease = %s WHERE recipient = 1", (await house.process(),))
    assert await house.settle(mail, OK, OK, signature=b"DKIM-Signature: x\r\n") == {0}
    assert await house.statuses(mail) == ["delivered", "sending"]
    [told] = await house.emails.attempts(ACCOUNT, mail.email_id)
    assert told.recipients == (0,)
    assert await house.settle(mail, None, OK) == frozenset()
    assert await house.settle(mail, OK) == frozenset()
    assert await house.events(mail) == [("email.sent", None), ("email.delivered", 0)]
    assert await house.count("attempts") == 1


@pytest_twisted.ensureDeferred
async def test_repeated_delays_write_one_event(house: House) -> None:
    mail = await leased(house)
    for outcome in (LATER, PERHAPS, LATER):
        await house.settle(mail, outcome)
        await house.claim(now=NOW + MINUTE)
    await house.settle(mail, OK)
    assert await house.events(mail) == [("email.sent", None), ("email.delivery_delayed", 0), ("email.delivered", 0)]
    assert [a.outcomes for a in await house.emails.attempts(ACCOUNT, mail.email_id)] == [
        ("deferred",),
        ("uncertain",),
        ("deferred",),
        ("delivered",),
    ]


@pytest_twisted.ensureDeferred
async def test_the_first_signature_is_kept(house: House) -> None:
    mail = await leased(house)
    for signature in (b"DKIM-Signature: one\r\n", b"DKIM-Signature: two\r\n", None):
        await house.settle(mail, LATER, signature=signature)
        await house.claim(now=NOW + MINUTE)
    stored = await house.messages.load(ACCOUNT, mail.email_id)
    assert stored is not None and (stored.signature, stored.body) == (b"DKIM-Signature: one\r\n", mail.message)


@pytest_twisted.ensureDeferred
async def test_an_attempt_keeps_its_transcript(house: House) -> None:
    mail = await leased(house, "a@example.org", "b@example.org")
    record: AttemptRecord = attempt(tls="TLSv1.3", transcript="S: 220 hi\nC: QUIT\n")
    await house.settle(mail, OK, LATER, attempt=record)
    [found] = await house.emails.attempts(ACCOUNT, mail.email_id)
    assert (found.recipients, found.outcomes) == ((0, 1), ("delivered", "deferred"))
    assert found.replies == ("250 2.0.0 Ok", "451 4.2.2 mailbox full")
    for name in ("attempt_id", "host", "address", "tls", "started_at", "transcript"):
        assert getattr(found, name) == getattr(record, name)


@pytest_twisted.ensureDeferred
async def test_without_smtp_there_is_no_attempt_to_record(house: House) -> None:
    mail = await leased(house)
    assert await house.settle(mail, LATER, attempt=None) == {0}
    assert await house.count("attempts") == 0


@pytest_twisted.ensureDeferred
async def test_settlements_share_a_commit_of_one_statement(house: House) -> None:
    rung: list[None] = []
    settling = Settling(house.pool, house.clock, on_events=lambda: rung.append(None))
    mails = [email(lease=house.lease) for _ in range(50)]
    await house.accept(*mails)
    before = house.pool.statements
    done = await together(
        *(settling.settle(Settlement(ACCOUNT, m.email_id, DOMAIN, house.lease, NOW, (RecipientOutcome(0, OK),), attempt())) for m in mails)
    )
    assert done == [{0}] * 50
    assert house.pool.statements - before == 1
    assert rung == [None]
    assert await house.count("queue") == 0
    assert await house.count("attempts") == 50


@pytest_twisted.ensureDeferred
async def test_settling_finds_its_rows_by_their_keys(house: House) -> None:
    """However many others this process has leased, and whatever the planner's statistics are."""
    lone = [email(lease=await house.process()) for _ in range(50)]
    await house.accept(*lone)
    await house.pool.run("ANALYZE queue")  # when each process had one
    mails = [email(lease=house.lease) for _ in range(500)]
    await house.accept(*mails)
    done = (RecipientOutcome(0, OK),)
    settlements = [Settlement(ACCOUNT, m.email_id, DOMAIN, house.lease, NOW, done, None) for m in mails[:50]]
    rows = [row for n, settlement in enumerate(settlements) for row in settle._rows(n, settlement)]
    plan = await explain(house, SETTLE.plain, (document(rows), "[]"))
    assert max(visited(plan)) <= 50, visited(plan)


@pytest_twisted.ensureDeferred
async def test_a_plan_made_for_an_empty_queue_suits_a_full_one(house: House) -> None:
    statement = attrs.evolve(SETTLE, name="settle_again")
    mails = [email(lease=house.lease) for _ in range(500)]
    done = (RecipientOutcome(0, OK),)
    settlements = [Settlement(ACCOUNT, m.email_id, DOMAIN, house.lease, NOW, done, None) for m in mails[:50]]
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

    await house.pool.run("ANALYZE queue")  # so that it is known to be empty
    plan = await house.pool.transact(planned_early)
    assert max(visited(plan)) == 50, visited(plan)
    assert "Seq Scan" not in [node["Node Type"] for node in nodes(plan) if node.get("Relation Name") == "queue"]


@pytest_twisted.ensureDeferred
async def test_a_new_connection_plans_for_itself(house: House) -> None:
    first, second = await leased(house), await leased(house)
    await house.settle(first, OK)
    other = Pool(house.pool.dsn, house.clock, size=1)
    await other.start()
    settlement = Settlement(ACCOUNT, second.email_id, DOMAIN, house.lease, NOW, (RecipientOutcome(0, OK),), attempt())
    assert await Settling(other, house.clock).settle(settlement) == {0}
    await other.stop()


@pytest_twisted.ensureDeferred
async def test_a_settlement_that_cannot_be_written_fails_alone(house: House) -> None:
    good, bad = await leased(house), await leased(house)

    async def settled(mail: NewEmail, reply: str) -> object:
        try:
            return await house.settle(mail, Delivered(reply))
        except StoreError as error:
            return type(error).__name__

    assert await together(settled(good, "250 ok"), settled(bad, "250 \0")) == [{0}, "DataRejected"]
    assert await house.statuses(good) + await house.statuses(bad) == ["delivered", "sending"]


@pytest_twisted.ensureDeferred
async def test_two_settlements_of_one_recipient_count_once(house: House) -> None:
    mail = await leased(house)
    done = await together(house.settle(mail, OK), house.settle(mail, OK))
    assert sorted(map(len, done)) == [0, 1]
    assert len(await house.events(mail)) == 2


@pytest_twisted.ensureDeferred
async def test_event_data_by_type(house: House) -> None:
    mail = await leased(house, *(f"{n}@example.org" for n in range(4)))
    await house.settle(mail, OK, Bounced("550 no", "Transient", "MailboxFull"), LATER, Failed("gone"))
    rows = await house.pool.rows("SELECT data FROM events WHERE recipient IS NOT NULL ORDER BY recipient")
    delivered, bounced, delayed, failed = (data for (data,) in rows)
    assert delivered == {"reply": "250 2.0.0 Ok"}
    assert bounced == {"type": "Transient", "sub_type": "MailboxFull", "reply": "550 no", "reason": "550 no"}
    assert delayed["reason"] == "451 4.2.2 mailbox full" and delayed["next_at"].startswith(f"{NOW + MINUTE:%Y-%m-%dT%H:%M}")
    assert failed == {"reason": "gone"}


@pytest_twisted.ensureDeferred
async def test_transcripts_are_not_in_the_repr(house: House) -> None:
    assert "220" not in repr(attempt(transcript="220 secret")) and attrs.has(Settlement)


@pytest_twisted.ensureDeferred
async def test_the_meaning_of_a_refusal_is_stored_with_attempt_and_event(house: House) -> None:
    full, later = Meaning("mailbox_full", "r1", "recipient", "Full.", "Wait."), Meaning("greylisted", "r2", "provider", "New.", "Wait.")
    mail = await leased(house, *(f"{n}@example.org" for n in range(3)))
    bounced = Bounced("552 no", "Transient", "MailboxFull", reason="552 no. Full. Wait.", meaning=full)
    await house.settle(mail, OK, bounced, Deferred("451 no. New. Wait.", NOW + MINUTE, later))
    views = await house.emails.recipients(mail.account_id, mail.email_id)
    assert [(view.kind, view.rule) for view in views] == [(None, None), ("mailbox_full", "r1"), ("greylisted", "r2")]
    assert [view.reason for view in views] == [None, "552 no. Full. Wait.", "451 no. New. Wait."]
    [attempt] = await house.emails.attempts(mail.account_id, mail.email_id)
    assert (attempt.classes, attempt.rules) == ((None, "mailbox_full", "greylisted"), (None, "r1", "r2"))
    [(told,)] = await house.pool.rows("SELECT data FROM events WHERE type = 'email.bounced'")
    meant = {"class": "mailbox_full", "rule": "r1", "party": "recipient", "advice": "Wait."}
    assert told == {"type": "Transient", "sub_type": "MailboxFull", "reply": "552 no", "reason": "552 no. Full. Wait."} | meant
