"""Settings → Plan."""

from __future__ import annotations

import pytest_twisted

from mailsvc.accounts.quota import Quotas
from mailsvc.dashboard.account.plan import following
from mailsvc.settings.plans import Plans, load
from mailsvc.store.people.quota import Quota
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig

PLANS = load(Plans())


def test_the_next_plan_is_the_smallest_with_more_emails() -> None:
    named = {plan.name: (after := following(plan, PLANS)) and after.name for plan in PLANS.values()}
    assert named["free"] == "50k" and named["1000k"] == "1500k" and named["2500k"] is None
    assert following(None, PLANS) is None


async def shown(pool: Pool, plan: str | None, role: str = "billing", ramp: int | None = None) -> str:
    rig = DashboardRig(pool)
    rig.assembly.quotas = Quotas(Quota(pool), rig.clock, PLANS)
    rig.pages = rig.assembly.resource()
    account_id = await rig.account()
    await pool.run("UPDATE accounts SET plan = %s, ramp = %s WHERE id = %s", (plan, ramp, account_id))
    await rig.person("ann@example.com", account_id, role)  # type: ignore[arg-type]
    browser = rig.browser()
    await browser.sign_in("ann@example.com")
    page = await browser.get("/dashboard/settings/plan")
    return page.text if page.status == 200 else str(page.status)


@pytest_twisted.ensureDeferred
async def test_the_page_compares_the_plan_with_the_next_one(pool: Pool) -> None:
    page = await shown(pool, "free")
    assert "Plan free" in page and "What the next plan adds" in page and "50k" in page
    assert "3,000" in page and "50,000" in page and "Free" in page and "$20" in page
    assert "0 of 100" in page and "0 of 3,000" in page  # used today and this month


@pytest_twisted.ensureDeferred
async def test_the_largest_plan_has_no_next_one(pool: Pool) -> None:
    page = await shown(pool, "2500k", "admin")
    assert "This is the largest plan." in page and "What the plan includes" in page


@pytest_twisted.ensureDeferred
async def test_an_account_without_a_plan_is_told_so(pool: Pool) -> None:
    assert "This account has no quota." in await shown(pool, None)


@pytest_twisted.ensureDeferred
async def test_a_new_account_without_a_plan_sees_its_limit(pool: Pool) -> None:
    page = await shown(pool, None, ramp=200)
    assert "0 of 200" in page and "The daily limit of a new account grows" in page and "This account has no quota." not in page


@pytest_twisted.ensureDeferred
async def test_developers_do_not_see_the_plan(pool: Pool) -> None:
    assert await shown(pool, "free", "developer") == "403"
