"""The recipients of a broadcast: a list by outcome, and a table by provider."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast, get_args
from urllib.parse import urlencode

import attrs

from mailsvc.dashboard.broadcasts.detail import BroadcastPages
from mailsvc.dashboard.broadcasts.states import BROADCASTS, label
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, page, section_app
from mailsvc.store.broadcasts.overview import LOOKED, DomainShare, Overview
from mailsvc.store.broadcasts.recipients import Kind, Recipients
from mailsvc.store.broadcasts.values import MARKS
from mailsvc.store.paging import Page

PAGE = 50
PROVIDERS = 20  # rows of the table; the others are shown together
KINDS: dict[Kind, str] = {
    "sent": "All recipients",
    "delivered": "Delivered",
    "opened": "Opened",
    "clicked": "Clicked",
    "bounced": "Bounced",
    "complained": "Complained",
    "unsubscribed": "Unsubscribed",
    "suppressed": "Suppressed",
}
_KNOWN = {
    "Gmail": "gmail.com googlemail.com",
    "Outlook": "outlook.com outlook.de outlook.fr hotmail.com hotmail.co.uk hotmail.de hotmail.fr live.com live.co.uk msn.com",
    "Yahoo": "yahoo.com yahoo.co.uk yahoo.de yahoo.fr yahoo.it yahoo.es yahoo.co.in ymail.com rocketmail.com aol.com",
    "iCloud": "icloud.com me.com mac.com",
    "GMX": "gmx.de gmx.net gmx.com gmx.at gmx.ch",
    "Proton": "proton.me protonmail.com pm.me",
}
_PROVIDER = {domain: name for name, domains in _KNOWN.items() for domain in domains.split()}


@attrs.define(eq=False)
class RecipientPages:
    app = section_app()
    context: PageContext
    pages: BroadcastPages
    stored: Recipients
    overview: Overview

    @page(app, f"{BROADCASTS}/<text>/recipients")
    async def recipients(self, request: PageRequest, text: str) -> bytes:
        found = await self.pages.found(request, text)
        kind = cast(Kind, request.query("type")) if request.query("type") in get_args(Kind) else "sent"
        sought = request.query("q")[:254]
        after = request.uuid(request.query("after")) if request.query("after") else None
        rows, more = await self.stored.list(found.account_id, found.id, kind, Page(PAGE, after), sought)
        path, query = f"{BROADCASTS}/{found.id}/recipients", {"type": kind, "q": sought}
        older = f"{path}?{urlencode({**query, 'after': str(rows[-1].contact_id)})}" if more else None
        return request.render(
            "broadcasts/recipients.html", broadcast=found, label=label(found), rows=rows, kind=kind, kinds=KINDS, q=sought, older=older,
            newest=f"{path}?{urlencode(query)}" if after else None, tab="recipients", done="",
        )  # fmt: skip

    @page(app, f"{BROADCASTS}/<text>/providers")
    async def providers(self, request: PageRequest, text: str) -> bytes:
        found = await self.pages.found(request, text)
        shares = by_provider(await self.overview.domains(found))
        return request.render(
            "broadcasts/providers.html", broadcast=found, label=label(found), shares=shares, looked=LOOKED, tab="providers", done="",
            complete=sum(each.recipients for each in shares) < LOOKED,
        )  # fmt: skip


def by_provider(domains: Iterable[DomainShare]) -> Sequence[DomainShare]:
    """The largest providers first. Domains of the same provider are added up, and small ones are shown together."""
    found: dict[str, DomainShare] = {}
    for each in domains:
        name = _PROVIDER.get(each.name, each.name) or "Deleted contacts"
        found[name] = _added(name, found.get(name), each)
    largest = sorted(found.values(), key=lambda each: (-each.recipients, each.name))
    rest: DomainShare | None = None
    for each in largest[PROVIDERS:]:
        rest = _added(f"{len(largest) - PROVIDERS} other domains", rest, each)
    return largest[:PROVIDERS] + ([rest] if rest else [])


def _added(name: str, one: DomainShare | None, other: DomainShare) -> DomainShare:
    if one is None:
        return attrs.evolve(other, name=name)
    return DomainShare(name, one.recipients + other.recipients, {mark: one.marked[mark] + other.marked[mark] for mark in MARKS})
