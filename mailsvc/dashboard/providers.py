"""Metrics by mailbox provider: the table, and which mail domains belong to which provider."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from mailsvc.dashboard.metrics import BOUNCE_DANGER, COMPLAINT_DANGER, METRICS, RANGES, Metrics, too_high
from mailsvc.dashboard.page import PageRequest, page, section_app
from mailsvc.store.mail.recipient_domains import DomainCounts, RecipientDomains

SHOWN = 20  # rows of a table; the others are shown together
_KNOWN = {
    "Gmail": "gmail.com googlemail.com",
    "Outlook": "outlook.com outlook.de outlook.fr hotmail.com hotmail.co.uk hotmail.de hotmail.fr live.com live.co.uk msn.com",
    "Yahoo": "yahoo.com yahoo.co.uk yahoo.de yahoo.fr yahoo.it yahoo.es yahoo.co.in ymail.com rocketmail.com aol.com",
    "iCloud": "icloud.com me.com mac.com",
    "GMX": "gmx.de gmx.net gmx.com gmx.at gmx.ch",
    "Proton": "proton.me protonmail.com pm.me",
}
_PROVIDER = {domain: name for name, domains in _KNOWN.items() for domain in domains.split()}


def provider_of(domain: str) -> str:
    """The name of the provider that a mail domain belongs to; the domain itself if it is none of the well-known ones."""
    return _PROVIDER.get(domain, domain)


@attrs.frozen
class Row:
    """A provider. The rates are in percent, None if nothing was delivered or bounced."""

    name: str
    delivered: int = 0
    bounced: int = 0
    deferred: int = 0
    complained: int = 0

    @property
    def recipients(self) -> int:
        return self.delivered + self.bounced

    @property
    def bounce(self) -> float | None:
        return 100 * self.bounced / self.recipients if self.recipients else None

    @property
    def complaint(self) -> float | None:
        return 100 * self.complained / self.delivered if self.delivered else None

    @property
    def bounces_high(self) -> bool:
        return too_high(self.bounce, self.recipients, BOUNCE_DANGER)

    @property
    def complaints_high(self) -> bool:
        return too_high(self.complaint, self.delivered, COMPLAINT_DANGER)

    def added(self, other: DomainCounts | Row) -> Row:
        return Row(
            self.name, self.delivered + other.delivered, self.bounced + other.bounced, self.deferred + other.deferred,
            self.complained + other.complained,
        )  # fmt: skip


def by_provider(domains: Iterable[DomainCounts]) -> Sequence[Row]:
    """The largest first; small ones are added up."""
    found: dict[str, Row] = {}
    for each in domains:
        name = provider_of(each.name)
        found[name] = found.get(name, Row(name)).added(each)
    largest = sorted(found.values(), key=lambda each: (-each.recipients, each.name))
    others = len(largest) - SHOWN
    rest = Row(f"{others} other domain{'' if others == 1 else 's'}")
    for row in largest[SHOWN:]:
        rest = rest.added(row)
    return [*largest[:SHOWN], *([rest] if largest[SHOWN:] else [])]


@attrs.define(eq=False)
class ProviderPages:
    app = section_app()
    metrics: Metrics
    stored: RecipientDomains

    @property
    def context(self) -> object:
        return self.metrics.context

    @page(app, f"{METRICS}/providers", access="see_figures")
    async def providers(self, request: PageRequest) -> bytes:
        chosen = await self.metrics.selection(request)
        domain_id = chosen.domain.id if chosen.domain else None
        counts, looked = await self.stored.counts(request.account_id, chosen.since, chosen.until, domain_id)
        return request.render("providers.html", rows=by_provider(counts), looked=looked, chosen=chosen, ranges=RANGES)
