"""What is too old goes, by days and by accounts; what waits stays with everything that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.accounts.retention import RetentionSweep
from mailsvc.clock import TimeOfDay
from mailsvc.outcome import Delivered
from mailsvc.settings import retention as terms
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.ids import uuid7
from mailsvc.store.logs import retention as retention_
from mailsvc.store.logs.requests import NewLog, RequestLog
from mailsvc.store.logs.retention import MAIL, Retention
from mailsvc.store.logs.smtp_sessions import SmtpSession, SmtpSessions
from mailsvc.store.mail.values import NewEmail
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.pool import Pool, Transaction
from tests.store.fixtures import ACCOUNT, DAY, NOW, OTHER, House, email, together

THIRTY = terms.days(terms.Retention())


async def of_age(house: House, days: int, **changes: Any) -> NewEmail:
    """An email that was accepted so many days ago and waits."""
    at = NOW - days * DAY
    await partitions.ensure(house.pool, at, 0)
    mail = email(email_id=uuid7(at.timestamp()), created_at=at, lease=house.lease, expires_at=NOW + 9 * DAY, **changes)
    await house.accept(mail)
    return mail


async def delivered(house: House, days: int, **changes: Any) -> NewEmail:
    """One that was accepted so many days ago, delivered and numbered."""
    mail = await of_age(house, days, **changes)
    await house.settle(mail, Delivered("250 OK"))
    while await house.books.number(1000):
        pass
    return mail


async def left(pool: Pool, mail: NewEmail) -> dict[str, int]:
    """Its rows by table."""
    counts = {table: await pool.rows(f"SELECT count(*) FROM {table} WHERE email_id = %s", (mail.email_id,)) for table in MAIL}
    return {table: count for table, [(count,)] in counts.items() if count}


def of_mail(partitions: Sequence[str]) -> set[str]:
    return {name for name in partitions if name[:-9] in MAIL}


@pytest_twisted.ensureDeferred
async def test_days_go_as_partitions_and_what_waits_stays_whole(house: House) -> None:
    old, waiting, beside, young = (
        await delivered(house, 41), await of_age(house, 40), await delivered(house, 40), await delivered(house, 5)
    )  # fmt: skip
    store = Retention(house.pool)
    before = {mail.email_id: await left(house.pool, mail) for mail in (waiting, beside, young)}
    gone = await store.sweep(THIRTY, NOW)
    assert of_mail(gone) == {partitions.name_of(table, NOW - days * DAY) for table in MAIL for days in (41, 42)}
    assert await left(house.pool, old) == {}
    # Neither that mail nor anything else of its day is touched: its body, its events, its place.
    assert {mail.email_id: await left(house.pool, mail) for mail in (waiting, beside, young)} == before
    stored = await house.messages.load(waiting.account_id, waiting.email_id)
    assert stored is not None and stored.body == waiting.message

    await house.settle(waiting, Delivered("250 OK"))
    await store.sweep(THIRTY, NOW)
    assert {"emails", "events"} <= set(await left(house.pool, waiting))  # its event has no number yet
    await house.books.number(1000)
    assert len(of_mail(await store.sweep(THIRTY, NOW))) == len(MAIL)
    assert await left(house.pool, waiting) == await left(house.pool, beside) == {}
    assert await left(house.pool, young) == before[young.email_id]


@pytest_twisted.ensureDeferred
async def test_bodies_attempts_and_the_log_of_events_may_go_earlier(house: House) -> None:
    mail, waiting = await delivered(house, 10), await of_age(house, 9)
    store = Retention(house.pool)
    shorter = terms.days(terms.Retention(bodies=7))
    assert await store.sweep(shorter, NOW) == [partitions.name_of("messages", NOW - 10 * DAY)]
    assert set(await left(house.pool, mail)) == {"emails", "events", "attempts", "event_log"}
    assert await house.messages.load(ACCOUNT, waiting.email_id) is not None
    assert await store.sweep(shorter, NOW) == []  # it is empty already
    assert len(await store.sweep(terms.days(terms.Retention(attempts=1, events=1)), NOW)) == 2
    assert set(await left(house.pool, mail)) == {"emails", "events"}
    assert (await house.emails.recipients(ACCOUNT, mail.email_id))[0].status == "delivered"
    assert {"messages", "event_log"} & set(await left(house.pool, waiting)) == {"messages"}


def test_nothing_of_an_email_outlives_it() -> None:
    days = terms.days(terms.Retention(emails=10, attempts=4), {"bodies": 40, "webhooks": 3})
    assert (days["emails"], days["bodies"], days["events"], days["attempts"], days["webhooks"], days["requests"]) == (10, 10, 10, 4, 3, 30)
    assert terms.days(terms.Retention(), {"emails": 2})["bodies"] == 2


@pytest_twisted.ensureDeferred
async def test_a_webhook_that_was_not_reached_keeps_the_day(house: House) -> None:
    mail = await delivered(house, 35)
    outbox = "INSERT INTO webhook_outbox (webhook_id, event_id, account_id, email_id, next_at) VALUES (%s, %s, %s, %s, %s)"
    event = uuid7((NOW - 34 * DAY).timestamp())
    await partitions.ensure(house.pool, NOW - 34 * DAY, 0)
    await house.pool.run(outbox, (UUID(int=7), event, ACCOUNT, mail.email_id, NOW))
    store = Retention(house.pool)
    assert not {name for name in await store.sweep(THIRTY, NOW) if name.startswith("emails") and name.endswith(f"{mail.created_at:%Y%m%d}")}
    held = await house.pool.rows("SELECT to_regclass(%s) IS NOT NULL", (partitions.name_of("webhook_messages", NOW - 34 * DAY),))
    assert "emails" in await left(house.pool, mail) and held == [(True,)]
    await house.pool.run("DELETE FROM webhook_outbox")
    assert partitions.name_of("webhook_messages", NOW - 34 * DAY) in await store.sweep(THIRTY, NOW)
    assert await left(house.pool, mail) == {}


@pytest_twisted.ensureDeferred
async def test_what_is_to_be_told_by_mail_keeps_the_day_until_it_was_told(house: House) -> None:
    mail = await delivered(house, 35)
    due = "INSERT INTO notices (account_id, email_id, recipient, event_id, next_at, told) VALUES (%s, %s, 0, %s, %s, '{}')"
    await house.pool.run(due, (ACCOUNT, mail.email_id, UUID(int=7), NOW))
    store = Retention(house.pool)
    assert partitions.name_of("messages", mail.created_at) not in await store.sweep(THIRTY, NOW)
    await house.pool.run("UPDATE notices SET next_at = 'infinity'")  # told, and remembered so that it is told once
    assert partitions.name_of("messages", mail.created_at) in await store.sweep(THIRTY, NOW)
    assert await left(house.pool, mail) == {}


@pytest_twisted.ensureDeferred
async def test_a_writer_is_not_overtaken(house: House) -> None:
    """What somebody is writing at this moment is waited for a little, and the day stays until the next sweep."""
    mail = await delivered(house, 35)
    store = Retention(house.pool)

    async def write(tx: Transaction) -> None:
        await tx.run(
            "INSERT INTO events (account_id, email_id, event_id, type, at) VALUES (%s, %s, %s, 'email.bounced', %s)",
            (ACCOUNT, mail.email_id, uuid7(NOW.timestamp()), NOW),
        )
        assert partitions.name_of("emails", mail.created_at) not in await store.sweep(THIRTY, NOW)

    await house.pool.transact(write)
    assert (await left(house.pool, mail))["events"] == 3
    assert partitions.name_of("emails", mail.created_at) in await store.sweep(THIRTY, NOW)


@pytest_twisted.ensureDeferred
async def test_a_backup_is_waited_for_once_and_not_for_each_day(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for days in (37, 36, 35):
        await delivered(house, days)
    monkeypatch.setattr(retention_, "PATIENCE", "SET LOCAL lock_timeout = 10")
    tried: list[datetime] = []
    end = Retention._end

    async def count(self: Retention, kind: retention_.Kind, day: datetime) -> list[str]:
        tried.append(day)
        return await end(self, kind, day)

    monkeypatch.setattr(Retention, "_end", count)

    async def read(tx: Transaction) -> None:
        await tx.rows("SELECT 1 FROM emails, messages LIMIT 1")
        assert await Retention(house.pool).sweep({"emails": 30, "bodies": 30}, NOW) == []
        assert len(tried) == 2

    await house.pool.transact(read)
    assert len(await Retention(house.pool).sweep({"emails": 30}, NOW)) == 4 * len(MAIL)


@pytest_twisted.ensureDeferred
async def test_what_begins_to_wait_at_that_moment_is_seen(house: House) -> None:
    """A late bounce is committed between the look and the lock: its event waits for a number, so the day stays."""
    mail = await delivered(house, 35)
    await Retention(house.pool).sweep({"emails": 30}, NOW - 5 * DAY)  # the day before is not what is waited for
    sweeping: list[Deferred[list[str]]] = []

    async def write(tx: Transaction) -> None:
        await events.write(tx, [NewEvent(ACCOUNT, mail.email_id, mail.domain_id, 0, "email.bounced", NOW)])
        sweeping.append(Deferred.fromCoroutine(Retention(house.pool).sweep({"emails": 30}, NOW)))
        while not sweeping[0].called and not await house.pool.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
            pass

    await house.pool.transact(write)
    assert partitions.name_of("emails", mail.created_at) not in await sweeping[0]
    assert (await left(house.pool, mail))["events"] == 3
    await house.books.number(10)
    assert partitions.name_of("emails", mail.created_at) in await Retention(house.pool).sweep({"emails": 30}, NOW)


@pytest_twisted.ensureDeferred
async def test_several_processes_sweep_at_once(house: House) -> None:
    await delivered(house, 35)
    gone = await together(*(Retention(house.pool).sweep(THIRTY, NOW) for _ in range(3)))
    gone.append(await Retention(house.pool).sweep(THIRTY, NOW))  # what nobody could get at
    dropped = sorted(name for names in gone for name in names if name.startswith("emails"))
    assert dropped == [partitions.name_of("emails", NOW - days * DAY) for days in (36, 35)]


@pytest_twisted.ensureDeferred
async def test_an_account_that_keeps_less(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_, "BATCH", 2)
    mails = [await delivered(house, 10) for _ in range(5)]
    waiting, foreign, young = await of_age(house, 10), await delivered(house, 10, account=OTHER), await delivered(house, 5)
    for account in (ACCOUNT, OTHER):
        await house.pool.run("INSERT INTO accounts (id, name, created_at) VALUES (%s, 'Example', now())", (account,))
    store = Retention(house.pool)
    await store.want(ACCOUNT, {"bodies": 7})
    assert await store.accounts() == {ACCOUNT: {"bodies": 7}} and await store.wanted(ACCOUNT) == {"bodies": 7}

    clock = Clock()
    clock.advance(NOW.timestamp())
    keeping = RetentionSweep(house.pool, clock, terms.Retention())
    wrong: Any = Clock()
    wrong.time_of_day = TimeOfDay(10.0, clock.seconds, lambda: clock.seconds() + 3600)
    wrong.time_of_day.measured(clock.seconds(), clock.seconds(), clock.seconds())
    await RetentionSweep(house.pool, wrong, terms.Retention()).sweep()
    assert (await left(house.pool, mails[0]))["messages"] == 1, "nothing is deleted while the clocks disagree"
    await keeping.sweep()
    for mail in mails:
        assert set(await left(house.pool, mail)) == {"emails", "events", "attempts", "event_log"}
    for mail in (waiting, foreign, young):
        assert (await left(house.pool, mail))["messages"] == 1

    await store.want(ACCOUNT, {"emails": 7})
    await keeping.sweep()
    assert [await left(house.pool, mail) for mail in mails] == [{}] * 5
    assert {"emails", "messages", "events"} <= set(await left(house.pool, waiting)) and "emails" in await left(house.pool, foreign)
    clock.advance(40 * 86400)  # and by itself what is waiting outlives all days
    await keeping.sweep()
    assert {"emails", "messages", "events"} <= set(await left(house.pool, waiting))
    await store.want(ACCOUNT, {})
    assert await store.accounts() == {}


@pytest_twisted.ensureDeferred
async def test_logs_and_transcripts_go(pool: Pool) -> None:
    at = NOW - 40 * DAY
    await partitions.ensure(pool, at, 0)
    clock = Clock()
    log, receipts = RequestLog(pool), SmtpSessions(pool, clock)

    def entry(moment: datetime) -> NewLog:
        return NewLog(ACCOUNT, uuid7(moment.timestamp()), None, "GET", "/emails", 200, None, 1.0, None, None)

    await log.write([entry(at), entry(NOW)])
    old = SmtpSession(uuid7(at.timestamp()), UUID(int=5), at, at, 587, "TLSv1.3 X", 2, 1, "C: QUIT")
    await receipts._write([(ACCOUNT, old)])
    sizes = await Retention(pool).sizes()
    assert sizes["receipts"].oldest == sizes["requests"].oldest == at.replace(hour=0, minute=0, second=0) and sizes["requests"].bytes > 0
    await Retention(pool).sweep(THIRTY, NOW)
    assert await receipts.get(ACCOUNT, old.receipt_id) is None
    assert await pool.rows("SELECT count(*) FROM request_log") == [(1,)]
    assert (await Retention(pool).sizes())["receipts"].oldest is None


@pytest_twisted.ensureDeferred
async def test_who_is_no_account_keeps_nothing(pool: Pool) -> None:
    assert await Retention(pool).wanted(UUID(int=99)) == {}
    account = await Accounts(pool, Clock()).create("Example")
    assert await Retention(pool).wanted(account.id) == {}
    assert timedelta(days=THIRTY["emails"]) == 30 * DAY
