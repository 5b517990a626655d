"""The home page of an account whose mail is on hold."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest_twisted

from mailsvc.store.people.abuse import AbuseStore
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
