"""Settings → Audit log shows the operator's accesses to content: a notice while one is open, and past ones with what was read."""

from __future__ import annotations

from datetime import timedelta

import pytest_twisted

from mailsvc.store.people.audit import by_operator
from mailsvc.store.people.operator_access import OperatorAccesses
from mailsvc.store.postgres.pool import Pool, Transaction
from tests.dashboard.fixtures import DashboardRig

PAGE = "/dashboard/settings/audit"
ANN = "ann@example.com"
EMAIL = "01234567-0000-7000-8000-000000000001"


async def nothing(tx: Transaction) -> None:
    pass


@pytest_twisted.ensureDeferred
async def test_admins_see_who_opened_it_why_until_when_and_what_was_read(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    ann = await rig.inside(ANN)
    assert "Access by the operator" not in (await ann.get(PAGE)).text
    accesses = OperatorAccesses(pool, rig.clock)
    other = await rig.account("Other")
    await accesses.open(other, "ann", "about somebody else", timedelta(hours=1))
    ends_at = await accesses.open(account_id, "eve", "Ticket 7 <b>", timedelta(hours=1))
    await accesses.read(by_operator(account_id, "email read", EMAIL), nothing)
    await accesses.read(by_operator(account_id, "account exported"), nothing)

    notice = f"The operator has access to the content of this account until {ends_at:%Y-%m-%d %H:%M:%S} UTC. Reason: Ticket 7 &lt;b&gt;"
    shown = (await ann.get(PAGE)).text
    assert notice in shown and "Access by the operator" in shown and "about somebody else" not in shown
    assert f'<a href="/dashboard/emails/{EMAIL}">{EMAIL}</a>' in shown and "Account exported" in shown and "eve" in shown

    rig.clock.advance(3600)
    shown = (await (await rig.inside(ANN)).get(PAGE)).text
    assert "The operator has access" not in shown
    assert "Ticket 7 &lt;b&gt;" in shown and f"/dashboard/emails/{EMAIL}" in shown
