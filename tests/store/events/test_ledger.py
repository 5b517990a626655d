"""Every committed event gets one number in its account's sequence, and is counted once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import pytest
import pytest_twisted

from mailsvc.outcome import Delivered
from mailsvc.store.events import events, ledger
from mailsvc.store.events.events import NewEvent
from mailsvc.store.events.ledger import EventLedger, Lag
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.inserts import SHARDS, shard
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.pool import Transaction
from tests.store.fixtures import ACCOUNT, DOMAIN, MINUTE, NOW, OTHER, StoreRig, email, together


async def sequences(store: StoreRig) -> dict[Any, list[int]]:
    rows = await store.pool.rows("SELECT account_id, array_agg(sequence ORDER BY sequence) FROM event_log GROUP BY 1")
    return dict(rows)


@pytest_twisted.ensureDeferred
async def test_numbers_follow_what_happened(store: StoreRig) -> None:
    mail = email(lease=store.lease)
    await store.accept(mail, email(account=OTHER))
    await store.settle(mail, Delivered("250"))
    assert await store.ledger.number(100) == 3
    rows = await store.pool.rows(
        "SELECT l.sequence, e.type FROM event_log l JOIN events e USING (account_id, email_id, event_id) "
        "WHERE l.account_id = %s ORDER BY 1",
        (ACCOUNT,),
    )
    assert rows == [(1, "email.sent"), (2, "email.delivered")]
    assert await sequences(store) == {ACCOUNT: [1, 2], OTHER: [1]}
    assert await store.ledger.number(100) == await store.count("fresh_events") == 0


@pytest_twisted.ensureDeferred
async def test_events_without_an_email_are_numbered_among_the_others(store: StoreRig) -> None:
    mail, data = email(lease=store.lease), {"name": "example.com"}
    await store.accept(mail)
    of_domain = NewEvent(ACCOUNT, None, DOMAIN, None, "domain.created", NOW + MINUTE, data)
    of_account = NewEvent(ACCOUNT, None, None, None, "suppression.added", NOW + 2 * MINUTE, data)
    await store.pool.transact(lambda tx: events.write(tx, [of_domain, of_account]))
    assert await store.ledger.number(100) == 3
    rows = await store.pool.rows(
        "SELECT l.sequence, e.type, e.data, e.email_id = e.event_id FROM event_log l JOIN events e USING (account_id, email_id, event_id)"
        " WHERE l.account_id = %s ORDER BY 1",
        (ACCOUNT,),
    )
    assert rows == [(1, "email.sent", None, False), (2, "domain.created", data, True), (3, "suppression.added", data, True)]
    counted = await store.pool.rows("SELECT type, domain_id FROM rollups WHERE type NOT LIKE 'email.%%' ORDER BY 1", ())
    assert counted == [("domain.created", DOMAIN), ("suppression.added", events.NO_DOMAIN)]
    assert await store.events(mail) == [("email.sent", None)]


@pytest_twisted.ensureDeferred
async def test_the_services_own_emails_are_not_counted(store: StoreRig) -> None:
    await store.pool.run("INSERT INTO accounts (id, name, created_at) VALUES (%s, 'Acme', %s) ON CONFLICT DO NOTHING", (ACCOUNT, NOW))
    sql = "INSERT INTO domains (id, account_id, name, region, status, created_at) VALUES (%s, %s, 'acme.example', 'r1', 'verified', %s)"
    await store.pool.run(sql, (DOMAIN, ACCOUNT, NOW))
    reset, sent, test = email(source="dashboard", lease=store.lease), email(), email(source="shared-test")
    await store.accept(reset, sent, test)
    await store.settle(reset, Delivered("250"))
    assert await EventLedger(store.pool, own_domains=["other.example", "acme.example"]).number(100) == 4
    assert await store.pool.rows("SELECT type, count FROM rollups") == [("email.sent", 1)]
    assert await sequences(store) == {ACCOUNT: [1, 2, 3, 4]}


@pytest_twisted.ensureDeferred
async def test_two_ledgers_at_once_leave_no_gap(store: StoreRig) -> None:
    accounts = [uuid7(NOW.timestamp()) for _ in range(20)]
    assert len({shard(account) for account in accounts}) > 1
    first, second = EventLedger(store.pool), EventLedger(store.pool)
    for _ in range(3):
        await together(
            store.accept(*(email(account=account) for account in accounts * 3)),
            *(each.number(7) for each in (first, second) * 5),
        )
    while await store.count("fresh_events"):
        await together(first.number(7), second.number(7))
    assert await sequences(store) == {account: [*range(1, 10)] for account in accounts}


@pytest_twisted.ensureDeferred
async def test_events_that_others_are_at_are_left_to_them(store: StoreRig) -> None:
    await store.accept(email())

    async def meanwhile(tx: Transaction) -> int:
        await tx.rows("SELECT pg_advisory_xact_lock(%s, %s)", (ledger.LOCKS, shard(ACCOUNT)))
        return await store.ledger.number(100)

    assert await store.pool.transact(meanwhile) == 0
    assert await store.ledger.number(100) == 1


@pytest_twisted.ensureDeferred
async def test_a_batch_that_does_not_commit_leaves_nothing(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.accept(email())
    failing = ledger.NUMBER.sql + " WHERE 1 / (SELECT count(*) FROM taken WHERE account_id IS NULL) = 0"
    monkeypatch.setattr(ledger, "NUMBER", attrs.evolve(ledger.NUMBER, name="failing", sql=failing))
    with pytest.raises(StoreError):
        await store.ledger.number(100)
    monkeypatch.undo()
    assert [await store.count(table) for table in ("fresh_events", "event_log", "event_sequences", "rollups")] == [1, 0, 0, 0]
    assert await store.ledger.number(100) == 1
    assert await sequences(store) == {ACCOUNT: [1]}


@pytest_twisted.ensureDeferred
async def test_events_are_counted_by_hour_domain_and_type(store: StoreRig) -> None:
    other_domain = DOMAIN.__class__(int=0xD2)
    mails = [email(lease=store.lease) for _ in range(3)]
    await store.accept(*mails, email(domain_id=other_domain), email(created_at=NOW - 60 * MINUTE))
    await store.ledger.number(2)
    await store.settle(mails[0], Delivered("250"))
    while await store.ledger.number(2):
        pass
    hour = NOW.replace(minute=0, second=0)
    counted = Counter(
        {(h, d, kind): count for h, d, kind, count in await store.pool.rows("SELECT hour, domain_id, type, count FROM rollups")}
    )
    assert counted == {
        (hour, DOMAIN, "email.sent"): 3,
        (hour, DOMAIN, "email.delivered"): 1,
        (hour, other_domain, "email.sent"): 1,
        (hour - 60 * MINUTE, DOMAIN, "email.sent"): 1,
    }


@pytest_twisted.ensureDeferred
async def test_the_lag_is_how_long_the_oldest_waits(store: StoreRig) -> None:
    assert await store.ledger.lag(NOW) == Lag(0, 0.0)
    await store.accept(email(created_at=NOW - MINUTE), email())
    assert attrs.astuple(await store.ledger.lag(NOW)) == (2, 60.0)


def test_accounts_spread_over_all_shards() -> None:
    assert {shard(uuid7(NOW.timestamp())) for _ in range(1000)} == {*range(SHARDS)}
