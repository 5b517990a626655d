"""API requests and SMTP sessions in one list; and exports, whose progress any process can tell."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.store.ids import uuid7
from mailsvc.store.logs import search as logsearch
from mailsvc.store.logs.requests import NewLog, RequestLog
from mailsvc.store.logs.search import Filters, LogSearch
from mailsvc.store.logs.smtp_sessions import SmtpSession, SmtpSessions
from mailsvc.store.mail.exports import RETENTION, SILENT, Exports
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.postgres.pool import Pool
from tests.store.fixtures import ACCOUNT, NOW, OTHER

KEY = UUID(int=5)
REQUEST = NewLog(ACCOUNT, UUID(int=0), None, "POST", "/emails", 200, "me", 1.5, None, None)


async def kept(pool: Pool) -> list[UUID]:
    """Six entries, a second apart: requests and sessions in turn, the last of each went wrong; and one of somebody else."""
    ids = [uuid7(NOW.timestamp() - 60 + n) for n in range(6)]
    requests = [attrs.evolve(REQUEST, log_id=ids[n], status=status) for n, status in ((0, 200), (2, 201), (4, 422))]
    await RequestLog(pool).write([*requests, attrs.evolve(REQUEST, account_id=OTHER, log_id=uuid7(NOW.timestamp()))])
    clock = Clock()
    receipts = SmtpSessions(pool, clock)
    began = NOW - timedelta(seconds=90)
    sessions = [
        SmtpSession(ids[n], KEY, began, began + timedelta(seconds=2), 587, "TLSv1.3 X", 2, bad, "C: QUIT")
        for n, bad in ((1, 0), (3, 0), (5, 1))
    ]
    writing = [Deferred.fromCoroutine(receipts.add(ACCOUNT, one)) for one in sessions]
    clock.advance(1)
    for written in writing:
        await written
    return ids


@pytest_twisted.ensureDeferred
async def test_requests_and_sessions_are_one_list(pool: Pool) -> None:
    ids = await kept(pool)
    search = LogSearch(pool)
    first = await search.page(ACCOUNT, Filters(), 4)
    assert [(one.id, one.source, one.status) for one in first.entries] == [
        (ids[5], "smtp", 550), (ids[4], "api", 422), (ids[3], "smtp", 250), (ids[2], "api", 201),
    ]  # fmt: skip
    assert (first.entries[0].path, first.entries[0].milliseconds, first.entries[0].mails) == ("port 587, TLSv1.3 X", 2000.0, 2)
    second = await search.page(ACCOUNT, Filters(), 4, first.after)
    assert [one.id for one in second.entries] == [ids[1], ids[0]] and second.after is None
    assert len((await search.page(OTHER, Filters(), 4)).entries) == 1


@pytest.mark.parametrize(
    ("filters", "places"),
    [
        (Filters(source="api"), [4, 2, 0]),
        (Filters(source="smtp"), [5, 3, 1]),
        (Filters(refused=True), [5, 4]),
        (Filters(refused=False), [3, 2, 1, 0]),
        (Filters(status=201), [2]),
        (Filters(key_id=KEY), [5, 3, 1]),
        (Filters(text="POST /em"), [4, 2, 0]),
        (Filters(text="587"), [5, 3, 1]),
        (Filters(since=NOW - timedelta(seconds=57.5)), [5, 4, 3]),
        (Filters(source="smtp", refused=True), [5]),
    ],
)
@pytest_twisted.ensureDeferred
async def test_each_filter_holds(pool: Pool, filters: Filters, places: list[int]) -> None:
    ids = await kept(pool)
    found = await LogSearch(pool).page(ACCOUNT, filters, 10)
    assert [one.id for one in found.entries] == [ids[place] for place in places] and found.after is None


@pytest_twisted.ensureDeferred
async def test_a_search_that_finds_little_says_how_far_it_looked(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await kept(pool)
    monkeypatch.setattr(logsearch, "EXAMINED", 3)
    page = await LogSearch(pool).page(ACCOUNT, Filters(status=200), 10)
    assert page.entries == () and page.after == ids[3] and page.looked_until is not None
    page = await LogSearch(pool).page(ACCOUNT, Filters(status=200), 10, page.after)
    assert [one.id for one in page.entries] == [ids[0]]


@pytest_twisted.ensureDeferred
async def test_an_export_is_shown_until_it_is_old(pool: Pool) -> None:
    clock = Clock()
    clock.advance(NOW.timestamp())
    account, other = [(await Accounts(pool, clock).create(name)).id for name in ("A", "B")]
    exports, one = Exports(pool, clock), UUID(int=1)
    assert await exports.get(account, one) is None
    await exports.begin(account, one, "emails")
    await exports.tell(account, one, "running", 2000, NOW)
    found = await exports.get(account, one)
    assert found is not None and (found.state, found.rows, found.reached) == ("running", 2000, NOW)
    assert await exports.get(other, one) is None
    clock.advance(SILENT.total_seconds() + 1)
    found = await exports.get(account, one)
    assert found is not None and found.state == "stopped"  # whoever wrote it is gone
    await exports.begin(account, one, "emails")
    found = await exports.get(account, one)
    assert found is not None and (found.state, found.rows) == ("running", 0)
    clock.advance(RETENTION.total_seconds() + 1)
    await exports.begin(account, UUID(int=2), "logs")
    assert await exports.get(account, one) is None
