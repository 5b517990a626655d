"""Settings → Plan: what the account's plan includes, how much of it is used, and what the next plan adds."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mailsvc.accounts.quota import Quotas
from mailsvc.dashboard.account.usage import Meter
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PLAN, PageRequest, page, section_app
from mailsvc.settings.plans import Plan, ends
from mailsvc.store.audience.figures import AudienceFigures
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.quota import Period

_NAMES: Mapping[Period, str] = {"day": "Emails today", "month": "Emails this month"}


@attrs.define(eq=False)
class PlanPage:
    app = section_app()
    context: PageContext
    accounts: Accounts
    quotas: Quotas
    audience: AudienceFigures

    @page(app, PLAN, access="see_plan")
    async def show(self, request: PageRequest) -> bytes:
        account = await self.accounts.get(request.account_id)
        assert account is not None
        plan, now = self.quotas.plan(account.plan), self.context.now()
        used = await self.quotas.usage(account.id, account.plan, account.ramp)
        meters = [Meter(_NAMES[period], one.used or 0, one.limit, ends(period, now)) for period, one in used.items()]
        if plan is not None and plan.contacts is not None:
            meters.append(Meter("Contacts", (await self.audience.size(account.id)).contacts, plan.contacts))
        larger = following(plan, self.quotas.plans)
        return request.render(
            "settings/plan.html",
            plan=plan,
            larger=larger,
            rows=_compared(plan, larger),
            meters=meters,
            growing=self.quotas.limits(account.plan, account.ramp) != self.quotas.limits(account.plan),
        )


def following(plan: Plan | None, plans: Mapping[str, Plan]) -> Plan | None:
    """The smallest plan with more emails per month; None if there is none, or no plan to compare with."""
    larger = [] if plan is None else [one for one in plans.values() if one.emails > plan.emails]
    return min(larger, key=lambda one: one.emails, default=None)


def _compared(plan: Plan | None, larger: Plan | None) -> list[tuple[str, str, str]]:
    """What is compared, the value of the plan and that of the larger one."""
    both = [one for one in (plan, larger) if one is not None]
    values = (
        ("Emails per month", [f"{one.emails:,}" for one in both]),
        ("Emails per day", [_limit(one.daily) for one in both]),
        ("Contacts for broadcasts", [_limit(one.contacts) for one in both]),
        ("Price per month", [_price(one) for one in both]),
    )
    return [(name, shown[0], shown[-1]) for name, shown in values] if both else []


def _limit(count: int | None) -> str:
    return "Unlimited" if count is None else f"{count:,}"


def _price(plan: Plan) -> str:
    return "Ask the operator" if plan.price is None else "Free" if plan.price == 0 else f"${plan.price:,.2f}".removesuffix(".00")
