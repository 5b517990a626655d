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
from twisted.logger import capturedLogs, formatEvent

from mailsvc.accounts.retention import RetentionSweep
from mailsvc.clock import TimeOfDay
from mailsvc.outcome import Delivered
from mailsvc.settings import retention as terms
from mailsvc.store.events import events
from mailsvc.store.events.event_log import EventLog
from mailsvc.store.events.events import NewEvent
from mailsvc.store.ids import uuid7
from mailsvc.store.logs import retention as retention_
from mailsvc.store.logs.requests import NewLog, RequestLog
from mailsvc.store.logs.retention import MAIL, Retention
from mailsvc.store.logs.smtp_sessions import SmtpSession, SmtpSessions
from mailsvc.store.mail.values import NewEmail
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.errors import TimedOut
from mailsvc.store.postgres.pool import Pool, Transaction
from tests.store.fixtures import ACCOUNT, DAY, MINUTE, NOW, OTHER, StoreRig, email, together

THIRTY = terms.days(terms.Retention())


async def of_age(store: StoreRig, days: int, **changes: Any) -> NewEmail:
    """An email that was accepted so many days ago and waits."""
    at = NOW - days * DAY
    await partitions.ensure(store.pool, at, 0)
    mail = email(email_id=uuid7(at.timestamp()), created_at=at, lease=store.lease, expires_at=NOW + 9 * DAY, **changes)
    await store.accept(mail)
    return mail


async def delivered(store: StoreRig, days: int, **changes: Any) -> NewEmail:
    """One that was accepted so many days ago, delivered and numbered."""
    mail = await of_age(store, days, **changes)
    await store.settle(mail, Delivered("250 OK"), at=mail.created_at)
    while await store.ledger.number(1000):
        pass
    return mail


async def left(pool: Pool, mail: NewEmail) -> dict[str, int]:
    """Its rows by table."""
    counts = {table: await pool.rows(f"SELECT count(*) FROM {table} WHERE email_id = %s", (mail.email_id,)) for table in MAIL}
    return {table: count for table, [(count,)] in counts.items() if count}


def of_mail(partitions: Sequence[str]) -> set[str]:
    return {name for name in partitions if name[:-9] in MAIL}


@pytest_twisted.ensureDeferred
async def test_days_go_as_partitions_and_what_waits_stays_whole(store: StoreRig) -> None:
    old, waiting, beside, young = (
        await delivered(store, 41), await of_age(store, 40), await delivered(store, 40), await delivered(store, 5)
    )  # fmt: skip
    retention = Retention(store.pool)
    before = {mail.email_id: await left(store.pool, mail) for mail in (waiting, beside, young)}
    gone = await retention.sweep(THIRTY, NOW)
    assert of_mail(gone) == {partitions.name_of(table, NOW - days * DAY) for table in MAIL for days in (41, 42)}
    assert await left(store.pool, old) == {}
    # Neither that mail nor anything else of its day is touched: its body, its events, its place.
    assert {mail.email_id: await left(store.pool, mail) for mail in (waiting, beside, young)} == before
    stored = await store.messages.load(waiting.account_id, waiting.email_id)
    assert stored is not None and stored.body == waiting.message

    await store.settle(waiting, Delivered("250 OK"))
    await retention.sweep(THIRTY, NOW)
    assert {"emails", "events"} <= set(await left(store.pool, waiting))  # its event has no number yet
    await store.ledger.number(1000)
    assert len(of_mail(await retention.sweep(THIRTY, NOW))) == len(MAIL)
    assert await left(store.pool, waiting) == await left(store.pool, beside) == {}
    assert await left(store.pool, young) == before[young.email_id]


@pytest_twisted.ensureDeferred
async def test_bodies_attempts_and_the_log_of_events_may_go_earlier(store: StoreRig) -> None:
    mail, waiting = await delivered(store, 10), await of_age(store, 9)
    retention = Retention(store.pool)
    shorter = terms.days(terms.Retention(bodies=7))
    assert await retention.sweep(shorter, NOW) == [partitions.name_of("messages", NOW - 10 * DAY)]
    assert set(await left(store.pool, mail)) == {"emails", "events", "attempts", "event_log"}
    assert await store.messages.load(ACCOUNT, waiting.email_id) is not None
    assert await retention.sweep(shorter, NOW) == []  # it is empty already
    assert len(await retention.sweep(terms.days(terms.Retention(attempts=1, events=1)), NOW)) == 2
    assert set(await left(store.pool, mail)) == {"emails", "events"}
    assert (await store.emails.recipients(ACCOUNT, mail.email_id))[0].status == "delivered"
    assert {"messages", "event_log"} & set(await left(store.pool, waiting)) == {"messages"}


@pytest_twisted.ensureDeferred
async def test_events_count_from_their_own_time(store: StoreRig) -> None:
    """They are in the partition of the email's day, which can be long before."""
    mail = await delivered(store, 10)
    await opened(store, mail, NOW - DAY)
    retention, shorter = Retention(store.pool), terms.days(terms.Retention(events=3))
    assert await retention.sweep(shorter, NOW) == await retention.sweep(shorter, NOW + 2 * DAY) == []
    assert sorted(await logged(store)) == ["email.delivered", "email.opened", "email.sent"]
    assert await retention.sweep(shorter, NOW + 3 * DAY) == [partitions.name_of("event_log", mail.created_at)]
    assert await logged(store) == []


@pytest_twisted.ensureDeferred
async def test_a_late_event_keeps_the_day_wherever_it_is_stored(store: StoreRig) -> None:
    """It can be in the place of a row that was deleted, long before the end of the table."""
    mail = await delivered(store, 10)
    await opened(store, mail, NOW - DAY)
    place = partitions.name_of("event_log", mail.created_at)
    await store.pool.run(f"ALTER TABLE {place} SET (fillfactor = 10)")  # so that few rows make a large table
    columns, values = "account_id, sequence, email_id, event_id", "%s, n, %s, %s FROM generate_series(1, 15000) n"
    await store.pool.run(f"INSERT INTO event_log ({columns}) SELECT {values}", (OTHER, mail.email_id, mail.email_id))
    retention, shorter = Retention(store.pool), terms.days(terms.Retention(events=3))
    assert await retention.sweep(shorter, NOW + 2 * DAY - 2 * MINUTE) == []
    assert "email.opened" in await logged(store)
    assert await retention.sweep(shorter, NOW + 3 * DAY) == [place]


@pytest_twisted.ensureDeferred
async def test_an_account_that_keeps_events_for_a_shorter_time_keeps_those_that_happened_lately(store: StoreRig) -> None:
    await opened(store, await delivered(store, 10), NOW - DAY)
    assert await Retention(store.pool).sweep_account(ACCOUNT, {"events": 3}, NOW) == 2
    assert await logged(store) == ["email.opened"]


async def opened(store: StoreRig, mail: NewEmail, at: datetime) -> None:
    event = NewEvent(ACCOUNT, mail.email_id, mail.domain_id, None, "email.opened", at)
    await store.pool.transact(lambda tx: events.write(tx, [event]))
    await store.ledger.number(1000)


async def logged(store: StoreRig) -> list[str]:
    found, _ = await EventLog(store.pool).after(ACCOUNT, 0, 100)
    return [event.type for _, event in found]


def test_nothing_of_an_email_outlives_it() -> None:
    days = terms.days(terms.Retention(emails=10, attempts=4), {"bodies": 40, "webhooks": 3})
    assert (days["emails"], days["bodies"], days["events"], days["attempts"], days["webhooks"], days["requests"]) == (10, 10, 10, 4, 3, 30)
    assert terms.days(terms.Retention(), {"emails": 2})["bodies"] == 2


@pytest_twisted.ensureDeferred
async def test_a_webhook_that_was_not_reached_keeps_the_day(store: StoreRig) -> None:
    mail = await delivered(store, 35)
    outbox = "INSERT INTO webhook_outbox (webhook_id, event_id, account_id, email_id, next_at) VALUES (%s, %s, %s, %s, %s)"
    event = uuid7((NOW - 34 * DAY).timestamp())
    await partitions.ensure(store.pool, NOW - 34 * DAY, 0)
    await store.pool.run(outbox, (UUID(int=7), event, ACCOUNT, mail.email_id, NOW))
    retention = Retention(store.pool)
    assert not {
        name for name in await retention.sweep(THIRTY, NOW) if name.startswith("emails") and name.endswith(f"{mail.created_at:%Y%m%d}")
    }
    held = await store.pool.rows("SELECT to_regclass(%s) IS NOT NULL", (partitions.name_of("webhook_messages", NOW - 34 * DAY),))
    assert "emails" in await left(store.pool, mail) and held == [(True,)]
    await store.pool.run("DELETE FROM webhook_outbox")
    assert partitions.name_of("webhook_messages", NOW - 34 * DAY) in await retention.sweep(THIRTY, NOW)
    assert await left(store.pool, mail) == {}


@pytest_twisted.ensureDeferred
async def test_what_is_to_be_told_by_mail_keeps_the_day_until_it_was_told(store: StoreRig) -> None:
    mail = await delivered(store, 35)
    due = "INSERT INTO notices (account_id, email_id, recipient, event_id, next_at, told) VALUES (%s, %s, 0, %s, %s, '{}')"
    await store.pool.run(due, (ACCOUNT, mail.email_id, UUID(int=7), NOW))
    retention = Retention(store.pool)
    assert partitions.name_of("messages", mail.created_at) not in await retention.sweep(THIRTY, NOW)
    await store.pool.run("UPDATE notices SET next_at = 'infinity'")  # told, and remembered so that it is told once
    assert partitions.name_of("messages", mail.created_at) in await retention.sweep(THIRTY, NOW)
    assert await left(store.pool, mail) == {}


@pytest_twisted.ensureDeferred
async def test_a_writer_is_not_overtaken(store: StoreRig) -> None:
    """What somebody is writing at this moment is waited for a little, and the day stays until the next sweep."""
    mail = await delivered(store, 35)
    retention = Retention(store.pool)

    async def write(tx: Transaction) -> None:
        await tx.run(
            "INSERT INTO events (account_id, email_id, event_id, type, at) VALUES (%s, %s, %s, 'email.bounced', %s)",
            (ACCOUNT, mail.email_id, uuid7(NOW.timestamp()), NOW),
        )
        assert partitions.name_of("emails", mail.created_at) not in await retention.sweep(THIRTY, NOW)

    await store.pool.transact(write)
    assert (await left(store.pool, mail))["events"] == 3
    assert partitions.name_of("emails", mail.created_at) in await retention.sweep(THIRTY, NOW)


@pytest_twisted.ensureDeferred
async def test_a_backup_is_waited_for_once_and_not_for_each_day(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    for days in (37, 36, 35):
        await delivered(store, days)
    monkeypatch.setattr(retention_, "PATIENCE", "SET LOCAL lock_timeout = 10")
    tried: list[datetime] = []
    end = Retention._end

    async def count(self: Retention, kind: retention_.Kind, day: datetime, before: datetime) -> list[str]:
        tried.append(day)
        return await end(self, kind, day, before)

    monkeypatch.setattr(Retention, "_end", count)

    async def read(tx: Transaction) -> None:
        await tx.rows("SELECT 1 FROM emails, messages LIMIT 1")
        with capturedLogs() as entries:
            assert await Retention(store.pool).sweep({"emails": 30, "bodies": 30}, NOW) == []
        assert len(tried) == 2
        assert [formatEvent(each) for each in entries] == [
            f"The table {table} is in use, so its data of {day.date()} stays until the next sweep."
            for table, day in zip(("emails", "messages"), tried, strict=True)
        ]

    await store.pool.transact(read)
    assert len(await Retention(store.pool).sweep({"emails": 30}, NOW)) == 4 * len(MAIL)


@pytest_twisted.ensureDeferred
async def test_what_begins_to_wait_at_that_moment_is_seen(store: StoreRig) -> None:
    """A late bounce is committed between the look and the lock: its event waits for a number, so the day stays."""
    mail = await delivered(store, 35)
    await Retention(store.pool).sweep({"emails": 30}, NOW - 5 * DAY)  # the day before is not what is waited for
    sweeping: list[Deferred[list[str]]] = []

    async def write(tx: Transaction) -> None:
        await events.write(tx, [NewEvent(ACCOUNT, mail.email_id, mail.domain_id, 0, "email.bounced", NOW)])
        sweeping.append(Deferred.fromCoroutine(Retention(store.pool).sweep({"emails": 30}, NOW)))
        while not sweeping[0].called and not await store.pool.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
            pass

    await store.pool.transact(write)
    assert partitions.name_of("emails", mail.created_at) not in await sweeping[0]
    assert (await left(store.pool, mail))["events"] == 3
    await store.ledger.number(10)
    assert partitions.name_of("emails", mail.created_at) in await Retention(store.pool).sweep({"emails": 30}, NOW)


@pytest_twisted.ensureDeferred
async def test_several_processes_sweep_at_once(store: StoreRig) -> None:
    await delivered(store, 35)
    gone = await together(*(Retention(store.pool).sweep(THIRTY, NOW) for _ in range(3)))
    gone.append(await Retention(store.pool).sweep(THIRTY, NOW))  # what nobody could get at
    dropped = sorted(name for names in gone for name in names if name.startswith("emails"))
    assert dropped == [partitions.name_of("emails", NOW - days * DAY) for days in (36, 35)]


@pytest_twisted.ensureDeferred
async def test_an_account_that_keeps_less(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_, "BATCH", 2)
    mails = [await delivered(store, 10) for _ in range(5)]
    waiting, foreign, young = await of_age(store, 10), await delivered(store, 10, account=OTHER), await delivered(store, 5)
    for account in (ACCOUNT, OTHER):
        await store.pool.run("INSERT INTO accounts (id, name, created_at) VALUES (%s, 'Example', now())", (account,))
    retention = Retention(store.pool)
    await retention.want(ACCOUNT, {"bodies": 7})
    assert await retention.accounts() == {ACCOUNT: {"bodies": 7}} and await retention.wanted(ACCOUNT) == {"bodies": 7}

    clock = Clock()
    clock.advance(NOW.timestamp())
    keeping = RetentionSweep(store.pool, clock, terms.Retention())
    wrong: Any = Clock()
    wrong.time_of_day = TimeOfDay(10.0, clock.seconds, lambda: clock.seconds() + 3600)
    wrong.time_of_day.measured(clock.seconds(), clock.seconds(), clock.seconds())
    await RetentionSweep(store.pool, wrong, terms.Retention()).sweep()
    assert (await left(store.pool, mails[0]))["messages"] == 1, "nothing is deleted while the clocks disagree"
    await keeping.sweep()
    for mail in mails:
        assert set(await left(store.pool, mail)) == {"emails", "events", "attempts", "event_log"}
    for mail in (waiting, foreign, young):
        assert (await left(store.pool, mail))["messages"] == 1

    await retention.want(ACCOUNT, {"emails": 7})
    await keeping.sweep()
    assert [await left(store.pool, mail) for mail in mails] == [{}] * 5
    assert {"emails", "messages", "events"} <= set(await left(store.pool, waiting)) and "emails" in await left(store.pool, foreign)
    clock.advance(40 * 86400)  # what is waiting is kept, whatever its age
    await keeping.sweep()
    assert {"emails", "messages", "events"} <= set(await left(store.pool, waiting))
    await retention.want(ACCOUNT, {})
    assert await retention.accounts() == {}


@pytest_twisted.ensureDeferred
async def test_what_fails_does_not_hold_up_what_is_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Any] = []

    async def accounts(self: Retention) -> dict[UUID, dict[str, int]]:
        return {ACCOUNT: {"bodies": 7}, OTHER: {"bodies": 7}}

    async def fail(self: Retention, what: Any, *given: Any) -> list[str]:
        swept.append(what)
        raise TimedOut("canceling statement due to statement timeout")

    for name, double in (("accounts", accounts), ("sweep_account", fail), ("_sweep", fail)):
        monkeypatch.setattr(Retention, name, double)
    pool: Any = None
    with pytest.raises(TimedOut):
        await RetentionSweep(pool, Clock(), terms.Retention())._accounts(NOW)
    with pytest.raises(TimedOut):
        await Retention(pool).sweep(THIRTY, NOW)
    assert swept == [ACCOUNT, OTHER, *(retention_.KINDS[kind] for kind in THIRTY)]


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
