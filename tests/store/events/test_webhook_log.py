"""Changes of an endpoint's log while others write to it."""

from __future__ import annotations

from typing import Any

import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults

from mailsvc.store.events.ledger import NUMBER
from mailsvc.store.events.webhook_log import REPLAY
from mailsvc.store.postgres.pool import Transaction
from tests.store.events.test_webhooks import Setup, setup
from tests.store.fixtures import MINUTE, NOW, email

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
