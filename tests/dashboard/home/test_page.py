"""The home page: of an account that cannot send, because it is on hold, suspended or closed; and its test email."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest_twisted

from mailsvc.accounts.quota import Quotas
from mailsvc.clock import utc
from mailsvc.store.account_data.closing import Closing
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.values import Content
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.people.abuse import AbuseStore
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.audit import Line
from mailsvc.store.people.quota import Quota
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig

ANN = "ann@example.com"
REASON = "The account's mail is on hold. 14.3 % of this account's recipients bounced."


@pytest_twisted.ensureDeferred
async def test_the_home_page_says_that_mail_is_on_hold_and_why(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person(ANN, account)
    ann = await rig.inside(ANN)
    assert "on hold" not in (await ann.get("/dashboard")).text
    await AbuseStore(pool).hold(account, REASON, datetime.now(UTC), Line(account, None, None, "mailsvc", "", "mail held"))
    shown = await ann.get("/dashboard")
    assert REASON.replace("'", "&#39;") in shown.text and "New emails are accepted and queued." in shown.text


@pytest_twisted.ensureDeferred
async def test_the_home_page_says_that_the_account_is_suspended_or_closed(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person(ANN, account)
    ann = await rig.inside(ANN)
    assert "it can’t send" not in (await ann.get("/dashboard")).text
    accounts, closing = Accounts(pool, rig.clock), Closing(pool, rig.clock)
    await accounts.suspend(account)
    rig.clock.advance(3)  # until the cached account is too old
    assert "This account is suspended: it can’t send." in (await ann.get("/dashboard")).text
    await accounts.suspend(account, False)
    await closing.close(account, utc(rig.clock) + timedelta(days=30), [Line(account, None, None, "mailsvc", "", "account closed")])
    rig.clock.advance(3)
    shown = (await ann.get("/dashboard")).text
    assert "This account is closed: it can’t send" in shown and 'href="/dashboard/settings/data">Keep the account' in shown


@pytest_twisted.ensureDeferred
async def test_a_test_email_to_oneself_shows_its_result_on_the_page_that_sent_it(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person(ANN, account)
    domain = await rig.assembly.domains.add(account, "acme.example", "us-east-1", [])
    ann = await rig.inside(ANN)
    assert "Send a test email" not in (await ann.get("/dashboard")).text  # nothing to send it from
    form = {"domain": str(domain.id), "back": "/dashboard", "once": "1"}
    refused = await ann.post("/dashboard/test", form)
    assert refused.status == 422 and "Test email not sent" in refused.text
    await rig.assembly.domains.trust(account, domain.name)
    for path in ("/dashboard", f"/dashboard/domains/{domain.id}"):
        page = await ann.get(path)
        assert page.found('name="domain" value="([^"]+)"') == str(domain.id)
        back = page.found('name="back" value="(/dashboard[^"]*)"><button class="btn')
        sent = await ann.post("/dashboard/test", {**form, "back": back, "once": path})
        email_id = sent.query["test"]
        assert sent.location == f"{path}?test={email_id}"
        shown = (await ann.get(sent.location)).text
        for part in (f"Test email to {ANN}", "On its way.", f'hx-get="{path}?', f"test={email_id}"):
            assert part in shown, (path, part)
        await pool.run("DELETE FROM queue")
        now = utc(rig.clock)
        event = NewEvent(account, UUID(email_id), domain.id, 0, "email.delivered", now, {"reply": "250 OK"})
        await pool.transact(lambda tx, event=event: events.write(tx, [event]))  # type: ignore[misc]
        assert "The recipient’s server accepted it." in (await ann.get(sent.location)).text
    assert await pool.rows("SELECT DISTINCT recipients, source FROM emails") == [([ANN], "test")]
    other = await rig.mail(account, domain.name)
    assert "Test email to" not in (await ann.get(f"/dashboard?test={other}")).text


@pytest_twisted.ensureDeferred
async def test_the_limit_of_a_new_account_counts_test_emails(pool: Pool) -> None:
    rig = DashboardRig(pool)
    rig.intake.quotas = Quotas(Quota(pool), rig.clock, {})
    account = await rig.account("Acme")
    await pool.run("UPDATE accounts SET ramp = 2")
    await rig.person(ANN, account)
    domain = await rig.assembly.domains.add(account, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account, domain.name)
    content = Content(name="News", segment_id=None, sender="news@acme.example", subject="News", html="<p>Hi</p>")
    broadcast = await Broadcasts(pool, rig.clock).add(account, content)
    ann = await rig.inside(ANN)
    await ann.get("/dashboard")
    form = {"domain": str(domain.id), "back": "/dashboard"}
    assert [(await ann.post("/dashboard/test", {**form, "once": str(n)})).status for n in range(3)] == [303, 303, 429]
    tested = await ann.post(f"/dashboard/broadcasts/{broadcast}/edit/test", {})
    assert "The quota of a new account grows" in tested.text
    assert await pool.rows("SELECT count(*) FROM emails") == [(2,)]
