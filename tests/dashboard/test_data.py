"""Settings → Data: admins shorten retention and close the account; members cannot."""

from __future__ import annotations

import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig

PAGE = "/dashboard/settings/data"
ANN, BOB = "ann@example.com", "bob@example.com"


@pytest_twisted.ensureDeferred
async def test_retention(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    ann = await rig.inside(ANN)
    most = {"bodies": 30, "emails": 30, "events": 30, "attempts": 30, "requests": 30, "webhooks": 30, "receipts": 30}
    assert (await ann.get(PAGE)).text.count('value="30"') == len(most)
    for wrong in ("31", "0", "-1", "", "3.5", "x", "٣"):
        shown = await ann.post(f"{PAGE}/retention", {**most, "bodies": wrong})
        assert shown.status == 422 and "Enter 1 to 30 days." in shown.text, wrong
    assert await pool.rows("SELECT retention FROM accounts") == [(None,)]
    done = await ann.post(f"{PAGE}/retention", {**most, "bodies": "1", "requests": "7"})
    assert (done.status, done.location) == (303, f"{PAGE}?done=saved")
    assert await pool.rows("SELECT retention FROM accounts") == [({"bodies": 1, "requests": 7},)]
    shown = (await ann.get(PAGE)).text
    assert 'value="1"' in shown and 'value="7"' in shown
    await ann.post(f"{PAGE}/retention", most)
    assert await pool.rows("SELECT retention FROM accounts") == [(None,)]
    assert ("retention changed", "bodies 1 days, requests 7 days") in await rig.audit(account_id)


@pytest_twisted.ensureDeferred
async def test_encrypted_messages_leave_bodies_out_of_the_request_log(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    ann = await rig.inside(ANN)
    assert "Always so" not in (await ann.get(PAGE)).text
    await pool.run("UPDATE accounts SET encrypt_bodies = true")
    assert 'name="requests" value="on" checked disabled' in (await ann.get(PAGE)).text
    await ann.post(f"{PAGE}/minimize", {"tracking": "on"})
    assert await pool.rows("SELECT minimize FROM accounts") == [(["requests", "tracking"],)]


@pytest_twisted.ensureDeferred
async def test_an_account_is_closed_and_kept_after_all(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    ann = await rig.inside(ANN)
    await ann.get(PAGE)
    shown = await ann.post(f"{PAGE}/close", {"name": "Other"})
    assert shown.status == 422 and "Enter the name of the account to close it." in shown.text
    assert (await ann.post(f"{PAGE}/close", {"name": "Acme"})).location == PAGE
    shown = (await ann.get(PAGE)).text
    assert "This account is closed. All its data will be deleted" in shown and "Keep the account" in shown
    assert await pool.rows("SELECT suspended_at IS NOT NULL, closes_at > now() + interval '29 days' FROM accounts") == [(True, True)]
    assert (await ann.post(f"{PAGE}/reopen", {})).location == f"{PAGE}?done=reopened"
    assert await pool.rows("SELECT suspended_at, closes_at FROM accounts") == [(None, None)]
    assert (await ann.post(f"{PAGE}/reopen", {})).location == PAGE
    actions = [action for action, _ in await rig.audit(account_id)]
    assert actions.count("account closed") == actions.count("account reopened") == 1


@pytest_twisted.ensureDeferred
async def test_an_account_whose_name_has_two_spaces_can_be_closed(pool: Pool) -> None:
    """Commands give such names, and browsers show them as one."""
    rig = DashboardRig(pool)
    await rig.person(ANN, await rig.account("Acme  Ltd"))
    ann = await rig.inside(ANN)
    await ann.get(PAGE)
    assert (await ann.post(f"{PAGE}/close", {"name": "Acme Ltd"})).location == PAGE


@pytest_twisted.ensureDeferred
async def test_members_cannot_open_it(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    await rig.person(BOB, account_id, "developer")
    bob = await rig.inside(BOB)
    assert PAGE not in (await bob.get("/dashboard/settings")).text
    for shown in (await bob.get(PAGE), await bob.post(f"{PAGE}/close", {"name": "Acme"})):
        assert shown.status == 403
