"""An account in numbers: `GET /emails/metrics` and `GET /usage`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs

from mailsvc.accounts.quota import Quotas, Used
from mailsvc.clock import iso_time, utc
from mailsvc.http.answer import collection, ok
from mailsvc.http.operations import operation
from mailsvc.http.problem import invalid, unavailable
from mailsvc.http.request import Request
from mailsvc.http.resources import metrics
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.http.resources.domains import DomainContext
from mailsvc.http.views import View, const, count, iso, maybe, one
from mailsvc.runtime.offload import InThread
from mailsvc.settings.plans import ends
from mailsvc.store.audience.figures import AudienceSize
from mailsvc.store.events.rollups import Rollups, TooManyCounts
from mailsvc.store.postgres.errors import DataRejected

_USED = {"used": count("How much was used.", 42), "limit": maybe(count("The limit; null if there is none.", 3000))}
_USAGE = View("UsageOfOne", _USED)
_EMAILS = View(
    "UsageOfEmails",
    {
        **_USED,
        "sent": count("How many recipients were sent to.", 42),
        "received": count("Always 0.", 0),
        "resets_at": iso("When the count resets."),
    },
)
_PERIODS = View("UsageOfPeriods", {"daily": one(_EMAILS, "Today, in UTC."), "monthly": one(_EMAILS, "This month, in UTC.")})
USAGE = View(
    "Usage",
    {
        "object": const("usage", "Always `usage`."),
        "emails": one(_PERIODS, "Recipients of emails.", source="emails"),
        "contacts": one(_USAGE, "Contacts, as of at most ten seconds ago. With more than the limit, broadcasts cannot be sent."),
        "segments": one(_USAGE, "Segments."),
        "broadcasts": one(_USAGE, "Broadcasts, without drafts."),
        "ai_credits": one(View("UsageOfCredits", {**_USED, "next_increase_at": maybe(iso("Always null."))}), "Not available yet."),
        "automation_runs": one(View("UsageOfRuns", {**_USED, "resets_at": iso("When the count resets.")}), "Not available yet."),
        "domains": one(_USAGE, "Domains."),
        "rate_limit": one(
            View("UsageOfRequests", {"limit": count("Requests per duration.", 10), "duration": const("1000ms", "The duration.")}),
            "The rate limit of the API.",
        ),
    },
)


@attrs.define(eq=False)
class Figures:
    """`rate`: requests per second for an account without a limit of its own."""

    app = collection()
    rollups: Rollups
    rate: int
    clock: Any
    in_thread: InThread
    domains: DomainContext
    audience: AudienceContext | None = None
    quotas: Quotas | None = None

    @app.route("/emails/metrics", methods=["GET"])
    @operation(
        "Retrieve metrics", "Counts what happened to the account's emails, by recipients.", metrics.ANSWER, parameters=metrics.PARAMETERS
    )
    async def figures(self, request: Request) -> bytes:
        return await request.detached(self._metrics(request, metrics.question(request, self._now())))

    async def _metrics(self, request: Request, question: metrics.Question) -> bytes:
        account_id, expected = request.caller.account_id, question.counts_expected
        if expected > metrics.LIGHT and not await request.turn(expected * metrics.COUNT_BYTES):
            raise unavailable()
        try:
            counts = await self.rollups.counts(account_id, question.wanted, metrics.COUNTS_MAX)
        except DataRejected:
            raise invalid("The `timezone` parameter names a time zone that the database does not know.") from None
        except TooManyCounts:
            raise invalid(
                "The response would be too large. Choose a coarser `granularity`, a shorter time or fewer `dimensions`."
            ) from None
        names = await self.rollups.domains(account_id) if "domain" in question.dimensions else {}
        names |= await self.rollups.broadcasts(account_id, [*{count.broadcast_id for count in counts if count.broadcast_id is not None}])
        if max(expected, len(counts)) <= metrics.LIGHT:
            return ok(request, metrics.answer(question, counts, names))
        return ok(request, await self.in_thread(lambda: metrics.answer(question, counts, names)))

    @app.route("/usage", methods=["GET"])
    @operation("Retrieve usage", "What the account has used, and its limits.", USAGE)
    async def usage(self, request: Request) -> bytes:
        return await request.detached(self._usage(request))

    async def _usage(self, request: Request) -> bytes:
        account_id, now = request.caller.account_id, self._now()
        tomorrow, next_month = ends("day", now), ends("month", now)
        today, this_month = await self.rollups.sent(account_id, now)
        plan = {} if self.quotas is None else await self.quotas.usage(account_id, request.caller.plan, request.caller.ramp)
        size = AudienceSize() if self.audience is None else await self.audience.figures.size(account_id)
        contacts = None if self.quotas is None else self.quotas.contacts(request.caller.plan)
        none = {"used": 0, "limit": None}
        usage = {
            "object": "usage",
            "emails": {"daily": _emails(today, tomorrow, plan.get("day")), "monthly": _emails(this_month, next_month, plan.get("month"))},
            "contacts": {"used": size.contacts, "limit": contacts},
            "segments": {"used": size.segments, "limit": self.audience and self.audience.segments.most},
            "broadcasts": {"used": size.broadcasts, "limit": None},
            "ai_credits": {**none, "next_increase_at": None},
            "automation_runs": {**none, "resets_at": iso_time(next_month)},
            "domains": {"used": len(await self.rollups.domains(account_id)), "limit": self.domains.maintenance.limits.per_account},
            "rate_limit": {"limit": request.caller.rate_limit or self.rate, "duration": "1000ms"},
        }
        return ok(request, usage)

    def _now(self) -> datetime:
        return utc(self.clock)


def _emails(sent: int, resets_at: datetime, plan: Used | None) -> dict[str, object]:
    """A plan counts accepted recipients, `sent` those whose email is due."""
    used = sent if plan is None or plan.used is None else plan.used
    return {"used": used, "limit": plan and plan.limit, "sent": sent, "received": 0, "resets_at": iso_time(resets_at)}
