"""Changes of an endpoint's log while others write to it."""

from __future__ import annotations

from typing import Any

import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults

from mailsvc.store.events.ledger import NUMBER
from mailsvc.store.events.webhook_log import EVENT, GET, REPLAY
from mailsvc.store.ids import uuid7
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.pool import Transaction
from tests.store.events.test_webhooks import Setup, setup
from tests.store.fixtures import DAY, MINUTE, NOW, email, explain, nodes

__all__ = ["setup"]

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


async def blocked(setup: Setup, count: int, *works: Deferred[Any]) -> None:
    """Until so many statements wait for a lock, or one of the works has ended."""
    while not any(work.called for work in works) and (await setup.store.pool.rows(WAITING))[0][0] < count:
        pass


@pytest_twisted.ensureDeferred
async def test_an_endpoint_gets_events_that_were_being_numbered_when_it_was_enabled(setup: Setup) -> None:
    """The ledger took them while it was disabled, and commits after it was enabled."""
    webhook = await setup.subscribe("email.sent")
    await setup.webhooks.change(setup.account, webhook.id, status="disabled")
    early, late = (email(account=setup.account) for _ in range(2))
    await setup.store.accept(late)
    await setup.store.ledger.number(1000)
    await setup.store.accept(early)
    works: list[Deferred[None]] = []

    async def numbering(tx: Transaction) -> None:
        await tx.rows(NUMBER, (1000, []))
        works.append(Deferred.fromCoroutine(setup.log.enable(webhook, webhook.id, NOW)))
        await blocked(setup, 1, *works)

    await setup.store.pool.transact(numbering)
    await works[0]
    assert {due.fact.mail.email_id for due in await setup.claim() if due.fact and due.fact.mail} == {early.email_id, late.email_id}


@pytest_twisted.ensureDeferred
async def test_a_message_can_be_replayed_while_an_attempt_is_recorded(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent")
    await setup.happen()
    [due] = await setup.claim()
    works: list[Deferred[Any]] = []

    async def in_between(tx: Transaction) -> None:
        await tx.rows("SELECT FROM webhook_messages FOR UPDATE")
        works.append(Deferred.fromCoroutine(setup.log.replay(setup.account, webhook.id, due.event_id, NOW)))
        await blocked(setup, 1, *works)
        works.append(Deferred.fromCoroutine(setup.settle(due, 200, "success", NOW + MINUTE)))
        await blocked(setup, 2, *works)

    await setup.store.pool.transact(in_between)
    assert await gatherResults(works, consumeErrors=True) == [True, False]


@pytest_twisted.ensureDeferred
async def test_attempts_that_are_recorded_together_wait_for_a_replay_of_the_same_messages(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent")
    await setup.happen(3)
    first, second, other = sorted(await setup.claim(), key=lambda due: due.event_id)
    works: list[Deferred[Any]] = []

    async def replaying(tx: Transaction) -> None:
        await tx.run("SET LOCAL deadlock_timeout = 10")  # this transaction would notice first
        await tx.rows("SELECT FROM webhook_outbox WHERE event_id = %s FOR UPDATE", (first.event_id,))
        for due, outcome in ((other, "success"), (second, "success"), (first, "retry")):  # the last two in one statement
            works.append(Deferred.fromCoroutine(setup.settle(due, 200, outcome, next_at=NOW)))
        await blocked(setup, 1, works[-1])
        named = {"account_id": setup.account, "webhook_id": webhook.id, "event_ids": [first.event_id, second.event_id], "now": NOW}
        await tx.run(REPLAY, named)

    await setup.store.pool.transact(replaying)
    assert await gatherResults(works, consumeErrors=True) == [False, False, False]


@pytest_twisted.ensureDeferred
async def test_a_message_about_an_email_of_another_day_is_found_with_its_event(setup: Setup) -> None:
    """Messages are stored with the day of their event, and events with the day of their email."""
    webhook = await setup.subscribe("email.clicked", "email.sent")
    await setup.happen()
    yesterday, clicked = NOW - DAY, uuid7(NOW.timestamp())
    mail = email(account=setup.account, email_id=uuid7(yesterday.timestamp()), created_at=yesterday)
    await partitions.ensure_day(setup.store.pool, yesterday)
    await setup.store.accept(mail)
    sql = "INSERT INTO events (account_id, email_id, event_id, type, at) VALUES (%s, %s, %s, 'email.clicked', %s)"
    await setup.store.pool.run(sql, (setup.account, mail.email_id, clicked, NOW))
    sql = """INSERT INTO webhook_messages (account_id, webhook_id, event_id, email_id, type, created_at, status)
        VALUES (%s, %s, %s, %s, 'email.clicked', %s, 'success')"""
    await setup.store.pool.run(sql, (setup.account, webhook.id, clicked, mail.email_id, NOW))
    found = await setup.log.get(setup.account, webhook.id, clicked)
    assert found and found.fact and found.fact.mail
    assert (found.status, found.fact.event_id, found.fact.mail.email_id) == ("success", clicked, mail.email_id)
    named = {"account_id": setup.account, "webhook_id": webhook.id, "event_id": clicked, "email_id": mail.email_id}
    read = {
        str(node["Relation Name"])
        for sql in (GET, EVENT)
        for node in nodes(await explain(setup.store, sql, named))
        if "Relation Name" in node
    }
    assert read == {f"webhook_messages_{NOW:%Y%m%d}", "webhook_outbox", f"emails_{yesterday:%Y%m%d}", f"events_{yesterday:%Y%m%d}"}
    await setup.store.pool.run("DELETE FROM emails WHERE email_id = %s", (mail.email_id,))
    deleted = await setup.log.get(setup.account, webhook.id, clicked)
    assert deleted and deleted.fact is None
    await setup.store.pool.run("DELETE FROM events WHERE event_id = %s", (clicked,))
    assert await setup.log.get(setup.account, webhook.id, clicked) == deleted
    assert await setup.log.get(setup.account, webhook.id, mail.email_id) is None
