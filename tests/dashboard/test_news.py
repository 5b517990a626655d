"""Lists say how many entries are newer than those shown: few are counted, and a page that stays open stops asking."""

from __future__ import annotations

from uuid import UUID

import pytest
import pytest_twisted

from mailsvc.clock import utc
from mailsvc.dashboard.news import LASTS, STOP
from mailsvc.store import newer
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.search import Filters, Search
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import Browser, DashboardRig, Response

LOG = "INSERT INTO request_log (account_id, log_id, method, path, status, user_agent, milliseconds) VALUES (%s, %s, 'GET', '/', 200, '', 1)"


async def started(pool: Pool) -> tuple[DashboardRig, UUID, Browser]:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account, domain.name)
    return rig, account, await rig.inside("ann@example.com")


async def ask(browser: Browser, shown: Response) -> Response:
    """As the page does."""
    path = shown.found(r'id="news"[^>]* hx-get="([^"]+)"')
    return await browser._request(b"GET", path, b"", {"HX-Request": "true"})


@pytest_twisted.ensureDeferred
async def test_new_emails_are_counted_and_shown_when_somebody_wants_them(pool: Pool) -> None:
    rig, account, ann = await started(pool)
    await rig.mail(account, "acme.example")
    for path in ("/dashboard", "/dashboard/emails", "/dashboard/emails?q=bob"):
        page = await ann.get(path)
        assert (await ask(ann, page)).text == ""
        await rig.mail(account, "acme.example")
        assert ">1 new email<" in (await ask(ann, page)).text
        await rig.mail(account, "acme.example")
        answer = await ask(ann, page)
        assert answer.found('href="([^"]+)"') == path and ">2 new emails<" in answer.text
        assert (await ask(ann, await ann.get(path))).text == ""
    await pool.run("UPDATE emails SET source = 'system'")
    assert (await ask(ann, page)).text == ""
    for path in ("/dashboard/emails?q=nobody", "/dashboard/emails?status=bounced", "/dashboard/emails?after=" + str(uuid7(9))):
        page = await ann.get(path)
        assert page.status == 200
        await rig.mail(account, "acme.example")
        assert 'id="news" class="news" role="status">' in page.text or (await ask(ann, page)).text == "", path


@pytest_twisted.ensureDeferred
async def test_new_log_entries_are_counted(pool: Pool) -> None:
    rig, account, ann = await started(pool)
    page = await ann.get("/dashboard/logs")
    for text in (">1 new entry<", ">2 new entries<"):
        await pool.run(LOG, (account, uuid7(rig.clock.seconds())))
        assert text in (await ask(ann, page)).text
    assert (await ask(ann, await ann.get("/dashboard/logs"))).text == ""


@pytest_twisted.ensureDeferred
async def test_few_are_counted_and_then_the_page_stops_asking(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, account, ann = await started(pool)
    page = await ann.get("/dashboard/emails")
    for _ in range(3):
        await rig.mail(account, "acme.example")
    monkeypatch.setattr(newer, "MOST", 3)
    monkeypatch.setattr("mailsvc.dashboard.news.MOST", 3)
    answer = await ask(ann, page)
    assert answer.status == STOP and ">2+ new emails<" in answer.text


@pytest_twisted.ensureDeferred
async def test_a_page_that_stays_open_stops_asking(pool: Pool) -> None:
    rig, _, ann = await started(pool)
    page = await ann.get("/dashboard/emails")
    rig.clock.advance(LASTS.total_seconds() - 1)
    assert (await ask(ann, page)).status == 200
    rig.clock.advance(2)
    answer = await ask(ann, page)
    assert answer.status == STOP and ">Show new entries<" in answer.text


@pytest_twisted.ensureDeferred
async def test_a_slow_database_leaves_the_list_as_it_is(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, account, ann = await started(pool)
    page = await ann.get("/dashboard/emails")
    monkeypatch.setattr(newer, "DEADLINE", "SET LOCAL statement_timeout = 20")
    monkeypatch.setattr("mailsvc.store.mail.search._NEWER", "SELECT e.* FROM emails e, pg_sleep(5) WHERE account_id <> %(account)s OR true")
    await rig.mail(account, "acme.example")
    began = utc(pool.reactor)
    assert await Search(pool).newer(account, Filters(), UUID(int=0)) is None
    assert (utc(pool.reactor) - began).total_seconds() < 3
    assert (await ask(ann, page)).status == 204


@pytest_twisted.ensureDeferred
async def test_without_htmx_the_address_is_the_list(pool: Pool) -> None:
    """As after signing in again, which leads back to it."""
    _, _, ann = await started(pool)
    page = await ann.get("/dashboard/emails")
    assert "<h1>Emails</h1>" in (await ann.get(page.found(r'id="news"[^>]* hx-get="([^"]+)"'))).text
