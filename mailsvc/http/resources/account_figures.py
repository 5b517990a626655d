"""What an account can read of itself in numbers: `GET /emails/metrics` and `GET /usage`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import attrs

from mailsvc.accounts.quota import Quotas, Used
from mailsvc.clock import utc
from mailsvc.http.answer import collection, ok
from mailsvc.http.describe import COUNT, ISO_TIME, const, maybe, obj, told
from mailsvc.http.problem import invalid
from mailsvc.http.request import Request
from mailsvc.http.resources import metrics
from mailsvc.http.resources.email_views import iso
from mailsvc.store.events.rollups import Count, Wanted
from mailsvc.store.postgres.errors import DataRejected

_MAIL = obj({"used": COUNT, "limit": maybe(COUNT), "sent": COUNT, "received": COUNT, "resets_at": ISO_TIME})
_OF = obj({"used": COUNT, "limit": maybe(COUNT)})
USAGE = obj(
    {
        "object": const("usage"),
        "emails": obj({"daily": _MAIL, "monthly": _MAIL}),
        "contacts": _OF,
        "segments": _OF,
        "broadcasts": _OF,
        "ai_credits": obj({"used": COUNT, "limit": maybe(COUNT), "next_increase_at": maybe(ISO_TIME)}),
        "automation_runs": obj({"used": COUNT, "limit": maybe(COUNT), "resets_at": ISO_TIME}),
        "domains": _OF,
        "rate_limit": obj({"limit": COUNT, "duration": const("1000ms")}),
    }
)


class Rollups(Protocol):
    """store/events/rollups"""

    async def counts(self, account_id: UUID, wanted: Wanted) -> Sequence[Count]: ...
    async def sent(self, account_id: UUID, day: datetime, month: datetime) -> tuple[int, int]: ...
    async def domains(self, account_id: UUID) -> Mapping[UUID, str]: ...


@attrs.define(eq=False)
class Figures:
    """`rate`: requests a second of an account without a limit of its own."""

    app = collection()
    rollups: Rollups
    rate: int
    clock: Any
    quotas: Quotas | None = None

    @app.route("/emails/metrics", methods=["GET"])
    @told("What became of the account's mail, counted by recipients.", metrics.ANSWER, parameters=metrics.PARAMETERS)
    async def figures(self, request: Request) -> bytes:
        return await request.detached(self._metrics(request, metrics.asked(request, self._now())))

    async def _metrics(self, request: Request, question: metrics.Question) -> bytes:
        account_id = request.caller.account_id
        try:
            counts = [] if question.broadcasts else await self.rollups.counts(account_id, question.wanted)
        except DataRejected:
            raise invalid("The `timezone` parameter names a zone that is not known here.") from None
        names = await self.rollups.domains(account_id) if "domain" in question.dimensions else {}
        return ok(request, metrics.answer(question, counts, names))

    @app.route("/usage", methods=["GET"])
    @told("What the account has used, and of how much; a limit of null is none.", USAGE)
    async def usage(self, request: Request) -> bytes:
        return await request.detached(self._usage(request))

    async def _usage(self, request: Request) -> bytes:
        account_id, now = request.caller.account_id, self._now()
        day = now.replace(hour=0, minute=0, second=0, microsecond=0)
        month, tomorrow = day.replace(day=1), day + timedelta(days=1)
        next_month = (month + timedelta(days=31)).replace(day=1)
        today, this_month = await self.rollups.sent(account_id, day, month)
        plan = {} if self.quotas is None else await self.quotas.usage(account_id, request.caller.plan)
        none: dict[str, object] = {"used": 0, "limit": None}
        usage = {
            "object": "usage",
            "emails": {"daily": _mail(today, tomorrow, plan.get("day")), "monthly": _mail(this_month, next_month, plan.get("month"))},
            "contacts": none,
            "segments": none,
            "broadcasts": none,
            "ai_credits": {**none, "next_increase_at": None},
            "automation_runs": {**none, "resets_at": iso(next_month)},
            "domains": {"used": len(await self.rollups.domains(account_id)), "limit": None},
            "rate_limit": {"limit": request.caller.rate_limit or self.rate, "duration": "1000ms"},
        }
        return ok(request, usage)

    def _now(self) -> datetime:
        return utc(self.clock)


def _mail(sent: int, resets_at: datetime, plan: Used | None) -> dict[str, object]:
    """A plan counts what was accepted, `sent` what left its schedule since."""
    used = sent if plan is None or plan.used is None else plan.used
    return {"used": used, "limit": plan and plan.limit, "sent": sent, "received": 0, "resets_at": iso(resets_at)}
