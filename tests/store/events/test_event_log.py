"""Pages of the event log: each event once, in the order of the numbers, whatever days its email and itself are stored with."""

from __future__ import annotations

from uuid import UUID

import pytest
import pytest_twisted

from mailsvc.store.events import event_log
from mailsvc.store.events.event_log import FACTS, NUMBERS, EventLog, facts
from mailsvc.store.ids import uuid7
from mailsvc.store.postgres import partitions
from tests.store.fixtures import ACCOUNT, DAY, NOW, OTHER, StoreRig, email, explain, nodes

MIDNIGHT = NOW.replace(hour=0, minute=0, second=0, microsecond=0)
# Of the days before the last two, the log has nothing from one.
TIMES = [MIDNIGHT - DAY * days - DAY / 86_400_000 * before for days in (4, 3, 1, 0) for before in (1, 0)]


async def filled(store: StoreRig) -> list[UUID]:
    """Emails right before and after midnight, each clicked on its day and again on the last; the IDs of the events by number, from 1."""
    for days in range(6):
        await partitions.ensure_day(store.pool, NOW - DAY * days)
    mails = [email(email_id=uuid7(at.timestamp()), created_at=at) for at in TIMES]
    await store.accept(*mails, email(account=OTHER))
    clicks = [(mail.email_id, uuid7(at.timestamp()), at) for mail, at in zip(mails, TIMES, strict=True)]
    clicks += [(mail.email_id, uuid7(NOW.timestamp()), NOW) for mail in mails]
    for email_id, event_id, at in clicks:
        sql = "INSERT INTO events (account_id, email_id, event_id, type, at) VALUES (%s, %s, %s, 'email.clicked', %s)"
        await store.pool.run(sql, (ACCOUNT, email_id, event_id, at))
    of_account = uuid7(NOW.timestamp())
    sql = "INSERT INTO events (account_id, email_id, event_id, type, at) VALUES (%s, %s, %s, 'suppression.added', %s)"
    await store.pool.run(sql, (ACCOUNT, of_account, of_account, NOW))
    sent = "SELECT email_id, event_id FROM events WHERE account_id = %s AND type = 'email.sent' ORDER BY email_id"
    keys = [*await store.pool.rows(sent, (ACCOUNT,)), *(key[:2] for key in clicks), (of_account, of_account)]
    for number, (email_id, event_id) in enumerate(keys, 1):
        sql = "INSERT INTO event_log (account_id, sequence, email_id, event_id) VALUES (%s, %s, %s, %s)"
        await store.pool.run(sql, (ACCOUNT, number, email_id, event_id))
    return [event_id for _, event_id in keys]


@pytest_twisted.ensureDeferred
async def test_pages_follow_each_other_over_midnights_and_days_without_events(store: StoreRig) -> None:
    ids = await filled(store)
    log = EventLog(store.pool)
    for limit in (1, 2, 3, 7, 100):
        for after in range(len(ids) + 2):
            page, more = await log.after(ACCOUNT, after, limit)
            assert [(number, fact.event_id) for number, fact in page] == [*enumerate(ids, 1)][after : after + limit]
            assert more == (len(ids) > after + limit)
    page, _ = await log.after(ACCOUNT, 0, 100)
    assert [fact.mail is None for _, fact in page] == [False] * (len(ids) - 1) + [True]


@pytest_twisted.ensureDeferred
async def test_deleted_events_are_passed_over_and_do_not_shorten_a_page(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "LOOKED", 4)
    ids = await filled(store)
    kept = [(number, id_) for number, id_ in enumerate(ids, 1) if not 4 <= number <= 15]
    await store.pool.run("DELETE FROM events WHERE event_id = ANY (%s)", (ids[3:15],))
    log = EventLog(store.pool)
    for limit in (1, 2, 3, 100):
        for after in range(len(ids) + 1):
            page, more = await log.after(ACCOUNT, after, limit)
            following = [each for each in kept if each[0] > after]
            assert ([(number, fact.event_id) for number, fact in page], more) == (following[:limit], len(following) > limit)
    await store.pool.run("DELETE FROM emails WHERE account_id = %s", (ACCOUNT,))
    page, more = await log.after(ACCOUNT, 0, 1)
    assert ([number for number, _ in page], more) == ([len(ids)], False)


@pytest_twisted.ensureDeferred
async def test_a_page_is_planned_for_the_days_of_its_emails(store: StoreRig) -> None:
    """The number of days grows with the retention, and planning for all of them takes longer than reading the page."""
    await filled(store)
    numbers = await store.pool.rows(NUMBERS, (ACCOUNT, 1, 2))
    plan = await explain(store, FACTS, facts(ACCOUNT, numbers, 2))
    read = {str(node["Relation Name"]) for node in nodes(plan) if "Relation Name" in node}
    assert read == {f"{table}_{MIDNIGHT - DAY * 4:%Y%m%d}" for table in ("emails", "events")}


@pytest_twisted.ensureDeferred
async def test_a_page_of_a_long_log_reads_no_more_than_the_page(store: StoreRig) -> None:
    ids = [uuid7(NOW.timestamp()) for _ in range(3000)]
    events_of = "INSERT INTO events (account_id, email_id, event_id, type, at) SELECT %s, e, e, 'suppression.added', %s FROM unnest(%s) e"
    await store.pool.run(events_of, (ACCOUNT, NOW, ids))
    numbered = "INSERT INTO event_log (account_id, email_id, event_id, sequence) SELECT %s, e, e, n FROM unnest(%s) WITH ORDINALITY u(e, n)"
    await store.pool.run(numbered, (ACCOUNT, ids))
    for table in ("events", "event_log"):
        await store.pool.run(f"ANALYZE {table}")
    numbers = await store.pool.rows(NUMBERS, (ACCOUNT, 100, 11))
    for sql, params, most in ((NUMBERS, (ACCOUNT, 100, 11), 11), (FACTS, facts(ACCOUNT, numbers, 11), 22)):
        scans = [node for node in nodes(await explain(store, sql, params, "SELECT")) if "Relation Name" in node]
        assert sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in scans) <= most
    page, more = await EventLog(store.pool).after(ACCOUNT, 100, 10)
    assert ([number for number, _ in page], page[0][1].event_id, more) == ([*range(101, 111)], ids[100], True)
