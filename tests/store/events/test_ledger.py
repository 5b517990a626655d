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
from tests.store.fixtures import ACCOUNT, DOMAIN, MINUTE, NOW, OTHER, House, email, together


async def sequences(house: House) -> dict[Any, list[int]]:
    rows = await house.pool.rows("SELECT account_id, array_agg(sequence ORDER BY sequence) FROM event_log GROUP BY 1")
    return dict(rows)


@pytest_twisted.ensureDeferred
async def test_numbers_follow_what_happened(house: House) -> None:
    mail = email(lease=house.lease)
    await house.accept(mail, email(account=OTHER))
    await house.settle(mail, Delivered("250"))
    assert await house.books.number(100) == 3
    rows = await house.pool.rows(
        "SELECT l.sequence, e.type FROM event_log l JOIN events e USING (account_id, email_id, event_id) "
        "WHERE l.account_id = %s ORDER BY 1",
        (ACCOUNT,),
    )
    assert rows == [(1, "email.sent"), (2, "email.delivered")]
    assert await sequences(house) == {ACCOUNT: [1, 2], OTHER: [1]}
    assert await house.books.number(100) == await house.count("fresh_events") == 0


@pytest_twisted.ensureDeferred
async def test_events_without_an_email_are_numbered_among_the_others(house: House) -> None:
    mail, data = email(lease=house.lease), {"name": "example.com"}
    await house.accept(mail)
    of_domain = NewEvent(ACCOUNT, None, DOMAIN, None, "domain.created", NOW + MINUTE, data)
    of_account = NewEvent(ACCOUNT, None, None, None, "suppression.added", NOW + 2 * MINUTE, data)
    await house.pool.transact(lambda tx: events.write(tx, [of_domain, of_account]))
    assert await house.books.number(100) == 3
    rows = await house.pool.rows(
        "SELECT l.sequence, e.type, e.data, e.email_id = e.event_id FROM event_log l JOIN events e USING (account_id, email_id, event_id)"
        " WHERE l.account_id = %s ORDER BY 1",
        (ACCOUNT,),
    )
    assert rows == [(1, "email.sent", None, False), (2, "domain.created", data, True), (3, "suppression.added", data, True)]
    counted = await house.pool.rows("SELECT type, domain_id FROM rollups WHERE type NOT LIKE 'email.%%' ORDER BY 1", ())
    assert counted == [("domain.created", DOMAIN), ("suppression.added", events.NO_DOMAIN)]
    assert await house.events(mail) == [("email.sent", None)]


@pytest_twisted.ensureDeferred
async def test_two_ledgers_at_once_leave_no_gap(house: House) -> None:
    accounts = [uuid7(NOW.timestamp()) for _ in range(20)]
    assert len({shard(account) for account in accounts}) > 1
    first, second = EventLedger(house.pool), EventLedger(house.pool)
    for _ in range(3):
        await together(
            house.accept(*(email(account=account) for account in accounts * 3)),
            *(books.number(7) for books in (first, second) * 5),
        )
    while await house.count("fresh_events"):
        await together(first.number(7), second.number(7))
    assert await sequences(house) == {account: [*range(1, 10)] for account in accounts}


@pytest_twisted.ensureDeferred
async def test_events_that_others_are_at_are_left_to_them(house: House) -> None:
    await house.accept(email())

    async def meanwhile(tx: Transaction) -> int:
        await tx.rows("SELECT pg_advisory_xact_lock(%s, %s)", (ledger.LOCKS, shard(ACCOUNT)))
        return await house.books.number(100)

    assert await house.pool.transact(meanwhile) == 0
    assert await house.books.number(100) == 1


@pytest_twisted.ensureDeferred
async def test_a_batch_that_does_not_commit_leaves_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.accept(email())
    failing = ledger.NUMBER.sql + " WHERE 1 / (SELECT count(*) FROM taken WHERE account_id IS NULL) = 0"
    monkeypatch.setattr(ledger, "NUMBER", attrs.evolve(ledger.NUMBER, name="failing", sql=failing))
    with pytest.raises(StoreError):
        await house.books.number(100)
    monkeypatch.undo()
    assert [await house.count(table) for table in ("fresh_events", "event_log", "event_sequences", "rollups")] == [1, 0, 0, 0]
    assert await house.books.number(100) == 1
    assert await sequences(house) == {ACCOUNT: [1]}


@pytest_twisted.ensureDeferred
async def test_events_are_counted_by_hour_domain_and_type(house: House) -> None:
    other_domain = DOMAIN.__class__(int=0xD2)
    mails = [email(lease=house.lease) for _ in range(3)]
    await house.accept(*mails, email(domain_id=other_domain), email(created_at=NOW - 60 * MINUTE))
    await house.books.number(2)
    await house.settle(mails[0], Delivered("250"))
    while await house.books.number(2):
        pass
    hour = NOW.replace(minute=0, second=0)
    counted = Counter(
        {(h, d, kind): count for h, d, kind, count in await house.pool.rows("SELECT hour, domain_id, type, count FROM rollups")}
    )
    assert counted == {
        (hour, DOMAIN, "email.sent"): 3,
        (hour, DOMAIN, "email.delivered"): 1,
        (hour, other_domain, "email.sent"): 1,
        (hour - 60 * MINUTE, DOMAIN, "email.sent"): 1,
    }


@pytest_twisted.ensureDeferred
async def test_the_lag_is_how_long_the_oldest_waits(house: House) -> None:
    assert await house.books.lag(NOW) == Lag(0, 0.0)
    await house.accept(email(created_at=NOW - MINUTE), email())
    assert attrs.astuple(await house.books.lag(NOW)) == (2, 60.0)


def test_accounts_spread_over_all_shards() -> None:
    assert {shard(uuid7(NOW.timestamp())) for _ in range(1000)} == {*range(SHARDS)}
