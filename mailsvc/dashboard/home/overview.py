"""The home page's figures of the last seven days beside the seven before, and what needs somebody's attention. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Literal

import attrs

from mailsvc.accounts.quota import Used
from mailsvc.dashboard.formatting import in_unicode
from mailsvc.dashboard.metrics import BOUNCE_DANGER, COMPLAINT_DANGER, Rates, rates
from mailsvc.store.domains.values import Domain
from mailsvc.store.events.rollups import Count
from mailsvc.store.events.webhooks import Webhook
from mailsvc.store.people.quota import Period

DAYS = 7
SOON_USED = 80  # percent of a quota
SHOWN = 3  # domains, and webhook endpoints; the others are counted, so that the figures stay in sight
_QUOTAS: Mapping[Period, str] = {"day": "today’s", "month": "this month’s"}

Tone = Literal["bad", "warn", ""]


@attrs.frozen
class Figure:
    """`shown`: of the last seven days; `before`: of the seven before. `bars`: the height of each day's bar, in percent of the highest."""

    name: str
    shown: str
    before: str
    tone: Tone
    days: Sequence[str]
    bars: Sequence[int]


@attrs.frozen
class Concern:
    """`path`: of the page where something can be done about it, and what its link is called."""

    text: str
    path: str
    link: str
    tone: Tone = "bad"


def figures(counts: Sequence[Count], days: Sequence[date]) -> list[Figure]:
    """`counts` by day; `days`: fourteen, the oldest first."""
    each = [rates(count for count in counts if count.day == day) for day in days]
    before, week = (rates(count for count in counts if count.day in part) for part in (days[:DAYS], days[DAYS:]))
    change = f" ({100 * (week.sent - before.sent) / before.sent:+.0f}%)" if before.sent else ""
    last = each[DAYS:]
    return [
        _figure("Sent", f"{week.sent:,}", f"{before.sent:,}{change}", "", [(f"{of.sent:,}", of.sent) for of in last]),
        _figure("Deliverability", *_shown(week.deliverability, before.deliverability, 1), "", _days(last, "deliverability", 1)),
        _figure("Bounce rate", *_shown(week.bounce, before.bounce, 2), _tone(week.bounces_high), _days(last, "bounce", 2)),
        _figure(
            "Complaint rate", *_shown(week.complaint, before.complaint, 3), _tone(week.complaints_high), _days(last, "complaint", 3),
        ),
    ]  # fmt: skip


def concerns(
    domains: Iterable[Domain], webhooks: Iterable[Webhook], counts: Sequence[Count], days: Sequence[date], quotas: Mapping[Period, Used]
) -> list[Concern]:
    """The worst first."""
    week = rates(count for count in counts if count.day in days[DAYS:])
    named = _first(_of_domains(domains), "domain", "/dashboard/domains"), _first(_of_webhooks(webhooks), "endpoint", "/dashboard/webhooks")
    return _worst_first([*_of_rates(week), *named[0], *named[1], *_of_quotas(quotas)])


def _worst_first(found: Iterable[Concern]) -> list[Concern]:
    return sorted(found, key=lambda each: each.tone != "bad")


def _first(found: Iterable[Concern], noun: str, path: str) -> list[Concern]:
    """The worst, and how many more there are. One more is shown instead of being counted."""
    worst = _worst_first(found)
    if len(worst) <= SHOWN + 1:
        return worst
    more = worst[SHOWN:]
    return [*worst[:SHOWN], Concern(f"{len(more)} more {noun}s need attention.", path, f"View {noun}s", more[0].tone)]


def _of_rates(week: Rates) -> Iterator[Concern]:
    if week.bounces_high:
        text = (
            f"{week.bounce:.2f}% of your emails bounced in {DAYS} days. Above {BOUNCE_DANGER:g}%, mailbox providers start to reject mail."
        )
        yield Concern(text, "/dashboard/emails?status=bounced&days=7", "View bounced emails")
    if week.complaints_high:
        text = f"{week.complaint:.3f}% of your recipients complained in {DAYS} days. Above {COMPLAINT_DANGER:g}%, mail goes to spam."
        yield Concern(text, "/dashboard/emails?status=complained&days=7", "View complaints")


def _of_domains(domains: Iterable[Domain]) -> Iterator[Concern]:
    for one in domains:
        name, path = in_unicode(one.name), f"/dashboard/domains/{one.id}"
        if one.sending and not (one.may_send or one.reserved):
            yield Concern(f"{name} can’t send. {one.missing}", path, "See its records")
        elif one.status == "verified" and one.since is not None:
            text = f"DNS did not answer for records of {name}." if one.unanswered else f"DNS records of {name} are missing or incorrect."
            yield Concern(text, path, "See its records", "warn")


def _of_webhooks(webhooks: Iterable[Webhook]) -> Iterator[Concern]:
    for one in webhooks:
        path = f"/dashboard/webhooks/{one.id}"
        if one.status == "disabled" and one.disabled_why:
            yield Concern(f"The webhook endpoint {one.url} was disabled.", path, "Open endpoint")
        elif one.failing_since is not None:
            yield Concern(f"The webhook endpoint {one.url} fails.", path, "Open endpoint", "warn")


def _of_quotas(quotas: Mapping[Period, Used]) -> Iterator[Concern]:
    for period, used in quotas.items():
        share = 100 * (used.used or 0) // used.limit if used.limit else 100
        if share >= SOON_USED:
            text = f"{min(share, 100)}% of {_QUOTAS[period]} quota is used."
            yield Concern(text, "/dashboard/settings/usage", "See usage", "bad" if share >= 100 else "warn")


def _tone(high: bool) -> Tone:
    return "bad" if high else ""


def _shown(rate: float | None, before: float | None, digits: int) -> tuple[str, str]:
    return _percent(rate, digits), _percent(before, digits)


def _percent(rate: float | None, digits: int) -> str:
    return "–" if rate is None else f"{rate:.{digits}f}%"


def _days(last: Iterable[Rates], name: str, digits: int) -> list[tuple[str, float]]:
    found: list[float | None] = [getattr(of, name) for of in last]
    return [(_percent(rate, digits), rate or 0.0) for rate in found]


def _figure(name: str, shown: str, before: str, tone: Tone, days: Sequence[tuple[str, float]]) -> Figure:
    highest = max(value for _, value in days) or 1
    return Figure(name, shown, before, tone, [text for text, _ in days], [round(100 * value / highest) for _, value in days])
