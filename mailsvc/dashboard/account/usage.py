"""Settings → Usage: what the account has used of its limits."""

from __future__ import annotations

from datetime import datetime, timedelta

import attrs

from mailsvc.accounts.quota import Quotas, Used
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.settings.plans import ends
from mailsvc.store.domains.domains import Domains
from mailsvc.store.events.rollups import Rollups, Wanted
from mailsvc.store.events.webhooks import Webhooks
from mailsvc.store.people.accounts import Accounts

USAGE = f"{HOME}/settings/usage"


@attrs.frozen
class Meter:
    """`limit` None: unlimited. `resets_at` None: never resets."""

    name: str
    used: int
    limit: int | None = None
    resets_at: datetime | None = None

    @property
    def share(self) -> int:
        """Percent of the limit, at most 100."""
        return 0 if not self.limit else min(100, round(100 * self.used / self.limit))

    @property
    def tone(self) -> str:
        return "bad" if self.share >= 100 else "warn" if self.share >= 80 else "good"


def _mail(name: str, sent: int, resets_at: datetime, quota: Used | None) -> Meter:
    """With a plan, the accepted recipients that it counts; otherwise the sent ones."""
    if quota is None:
        return Meter(name, sent, resets_at=resets_at)
    return Meter(name, sent if quota.used is None else quota.used, quota.limit, resets_at)


@attrs.define(eq=False)
class Usage:
    """`rate`: the default limit of requests per second. `most_webhooks`: endpoints per account."""

    app = section_app()
    context: PageContext
    rollups: Rollups
    accounts: Accounts
    domains: Domains
    webhooks: Webhooks
    rate: int
    most_webhooks: int
    quotas: Quotas

    @page(app, USAGE, access="see_usage")
    async def show(self, request: PageRequest) -> bytes:
        account_id, now = request.account_id, self.context.now()
        month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        tomorrow, next_month = ends("day", now), ends("month", now)
        today, this_month = await self.rollups.sent(account_id, now)
        account = await self.accounts.get(account_id)
        plan = self.quotas.plan(account.plan if account is not None else None)
        quota = {} if account is None else await self.quotas.usage(account_id, account.plan, account.ramp)
        domains, _ = await self.domains.list(account_id)
        webhooks, _ = await self.webhooks.list(account_id, 1000)
        return request.render(
            "settings/usage.html",
            mail=[_mail("Today", today, tomorrow, quota.get("day")), _mail("This month", this_month, next_month, quota.get("month"))],
            plan=plan and plan.name,
            others=[Meter("Domains", len(domains)), Meter("Webhook endpoints", len(webhooks), self.most_webhooks)],
            rate=(account.rate_limit if account is not None else None) or self.rate,
            days=await self._days(request, month, tomorrow),
            month=f"{month:%B %Y}",
            sent=this_month,
        )

    async def _days(self, request: PageRequest, month: datetime, tomorrow: datetime) -> list[tuple[datetime, list[tuple[str, int]]]]:
        """For each day the sent recipients, as text to show and as number."""
        query = Wanted(month, tomorrow, "day", "UTC", ("email.sent",), by_period=True)
        counts: dict[object, int] = {count.day: count.count for count in await self.rollups.counts(request.account_id, query)}
        days = [month + timedelta(days=number) for number in range((tomorrow - month).days)]
        found = [(day, counts.get(day.date(), 0)) for day in days]
        return [(day, [(f"{sent:,}", sent)]) for day, sent in found]
