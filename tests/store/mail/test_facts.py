"""Facts about one email of any account: found by ID and Message-ID, with everything that it waits for and its webhooks."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import attrs
import pytest_twisted

from mailsvc.insights.explanation import explain
from mailsvc.outcome import Bounced, Deferred
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.facts import EmailFacts, Sender
from mailsvc.store.queue.holds import Hold, Slowdown, hold, slow
from mailsvc.store.queue.operator import Operating
from tests.store.fixtures import ACCOUNT, DAY, DOMAIN, MINUTE, NOW, OTHER, REGION, StoreRig, attempt, email

KEY = UUID(int=0xE1)


async def account(store: StoreRig, account_id: UUID = ACCOUNT, name: str = "Example Ltd") -> int:
    sql = "INSERT INTO accounts (id, name, created_at) VALUES (%s, %s, %s) RETURNING number"
    [(number,)] = await store.pool.rows(sql, (account_id, name, NOW))
    return int(number)


@pytest_twisted.ensureDeferred
async def test_an_email_is_found_by_its_ids_whoever_sent_it(store: StoreRig) -> None:
    await account(store), await account(store, OTHER)
    mine, other = email(message_id="<a@example.com>"), email(account=OTHER, message_id="<a@example.com>")
    await store.accept(mine, other)
    facts = EmailFacts(store.pool, store.clock)
    assert await facts.find(other.email_id) == (OTHER, other.email_id)
    assert await facts.find(uuid7(NOW.timestamp())) is None
    assert {found for _, found in await facts.find_message("<a@example.com>", 1)} == {mine.email_id, other.email_id}
    assert await facts.find_message("<b@example.com>", 1) == []
    assert await facts.read(ACCOUNT, other.email_id) is None


@pytest_twisted.ensureDeferred
async def test_the_facts_of_waiting_mail_have_each_pause_hold_and_slowdown(store: StoreRig) -> None:
    number = await account(store)
    await store.pool.run("INSERT INTO domains (id, account_id, name, region, created_at) VALUES (%s, %s, 'example.com', %s, %s)",
                         (DOMAIN, ACCOUNT, REGION, NOW))  # fmt: skip
    key = (
        "INSERT INTO api_keys (id, account_id, name, hash, hint, permission, created_at) "
        "VALUES (%s, %s, 'main', '', 'ms_abc', 'full_access', %s)"
    )
    await store.pool.run(key, (KEY, ACCOUNT, NOW))
    mail = email("a@example.org", "b@example.org", lease=store.lease, key_id=KEY)
    await store.accept(mail)
    record = attempt(source="198.51.100.7")
    await store.settle(mail, Deferred("451 Later", NOW + MINUTE), Bounced("550 No"), attempt=record)
    facts = await EmailFacts(store.pool, store.clock).read(ACCOUNT, mail.email_id)
    assert facts is not None
    assert facts.sender == Sender(number, "Example Ltd", "main (ms_abc…)", "example.com")
    assert [each.source for each in facts.attempts] == ["198.51.100.7"]
    [waiting] = facts.waiting
    assert (waiting.recipient, waiting.destination, waiting.due_at) == (0, "example.org", NOW + MINUTE)
    assert (waiting.account_reason, waiting.account_until, waiting.held, waiting.held_until, waiting.slow) == (None,) * 5

    await Operating(store.pool).pause_account(ACCOUNT, "Paused.", NOW + DAY, NOW)
    await hold(store.pool, REGION, "example.org", Hold("backoff", "Down.", NOW + 2 * DAY, 3), False)
    await slow(store.pool, REGION, "example.org", Slowdown(5.0, "Slowly.", NOW + DAY), NOW)
    facts = await EmailFacts(store.pool, store.clock).read(ACCOUNT, mail.email_id)
    assert facts is not None
    [waiting] = facts.waiting
    assert (waiting.account_reason, waiting.account_until) == ("Paused.", NOW + DAY)
    assert (waiting.held, waiting.held_until, waiting.failures) == ("Down.", NOW + 2 * DAY, 3)
    assert (waiting.slow, waiting.per_minute) == ("Slowly.", 5.0)
    first, second = explain(attrs.evolve(facts, now=NOW)).recipients
    assert "It is not delivered yet. " in first.next and " UTC" in first.next
    assert second.next.startswith("It bounced at ")


@pytest_twisted.ensureDeferred
async def test_the_webhooks_of_the_emails_events_are_found(store: StoreRig) -> None:
    await account(store)
    hook = uuid7((NOW - timedelta(days=1)).timestamp())
    sql = (
        "INSERT INTO webhooks (id, account_id, url, events, secret, created_at) "
        "VALUES (%s, %s, 'https://example.com/hook', '{email.bounced}', '', %s)"
    )
    await store.pool.run(sql, (hook, ACCOUNT, NOW))
    mail, other = email(lease=store.lease), email(lease=store.lease)
    await store.accept(mail, other)
    await store.settle(mail, Bounced("550 No"))
    await store.settle(other, Bounced("550 No"))
    await store.ledger.number(100)
    [(event,)] = await store.pool.rows("SELECT event_id FROM webhook_outbox WHERE email_id = %s", (mail.email_id,))
    for n, status in ((1, 503), (2, 500)):
        await store.pool.run(
            "INSERT INTO webhook_attempts (account_id, webhook_id, event_id, attempt_id, status, response, seconds, started_at) "
            "VALUES (%s, %s, %s, %s, %s, 'oops', 1, %s)",
            (ACCOUNT, hook, event, UUID(int=n), status, NOW),
        )
    facts = await EmailFacts(store.pool, store.clock).read(ACCOUNT, mail.email_id)
    assert facts is not None
    [webhook] = facts.webhooks
    assert (webhook.type, webhook.status, webhook.attempts, webhook.response_status, webhook.enabled) == (
        "email.bounced",
        None,
        2,
        500,
        True,
    )
    assert webhook.next_at is not None
