"""The home page of an account that cannot send: its mail is on hold, or it is suspended or closed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest_twisted

from mailsvc.clock import utc
from mailsvc.store.account_data.closing import Closing
from mailsvc.store.people.abuse import AbuseStore
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.audit import Line
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
