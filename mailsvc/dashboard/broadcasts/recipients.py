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
from mailsvc.dashboard.providers import SHOWN, provider_of
from mailsvc.domains.names import searched
from mailsvc.store.broadcasts.overview import EXACT, SAMPLE, DomainShare, Overview
from mailsvc.store.broadcasts.recipients import Kind, Recipients
from mailsvc.store.broadcasts.values import MARKS
from mailsvc.store.paging import Page

PAGE = 50
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


@attrs.define(eq=False)
class RecipientPages:
    app = section_app()
    context: PageContext
    pages: BroadcastPages
    stored: Recipients
    overview: Overview

    @page(app, f"{BROADCASTS}/<text>/recipients", access="see_audience")
    async def recipients(self, request: PageRequest, text: str) -> bytes:
        found = await self.pages.found(request, text)
        kind = cast(Kind, request.query("type")) if request.query("type") in get_args(Kind) else "sent"
        sought = request.query("q")[:254]
        after = request.uuid(request.query("after")) if request.query("after") else None
        rows, last = await self.stored.list(found.account_id, found.id, kind, Page(PAGE, after), email=searched(sought))
        path, query = f"{BROADCASTS}/{found.id}/recipients", {"type": kind, "q": sought}
        older = f"{path}?{urlencode({**query, 'after': str(last)})}" if last else None
        return request.render(
            "broadcasts/recipients.html", broadcast=found, label=label(found), rows=rows, kind=kind, kinds=KINDS, q=sought, older=older,
            newest=f"{path}?{urlencode(query)}" if after else None, tab="recipients", done="",
        )  # fmt: skip

    @page(app, f"{BROADCASTS}/<text>/providers", access="see_audience")
    async def providers(self, request: PageRequest, text: str) -> bytes:
        found = await self.pages.found(request, text)
        shares = by_provider(await self.overview.domains(found))
        return request.render(
            "broadcasts/providers.html", broadcast=found, label=label(found), shares=shares, looked=SAMPLE, tab="providers", done="",
            complete=found.queued <= EXACT,
        )  # fmt: skip


def by_provider(domains: Iterable[DomainShare]) -> Sequence[DomainShare]:
    """The largest providers first. Domains of the same provider are added up, and small ones are shown together."""
    found: dict[str, DomainShare] = {}
    for each in domains:
        name = provider_of(each.name) or "Deleted contacts"
        found[name] = _added(name, found.get(name), each)
    largest = sorted(found.values(), key=lambda each: (-each.recipients, each.name))
    rest: DomainShare | None = None
    for each in largest[SHOWN:]:
        rest = _added(f"{len(largest) - SHOWN} other domains", rest, each)
    return largest[:SHOWN] + ([rest] if rest else [])


def _added(name: str, one: DomainShare | None, other: DomainShare) -> DomainShare:
    if one is None:
        return attrs.evolve(other, name=name)
    return DomainShare(name, one.recipients + other.recipients, {mark: one.marked[mark] + other.marked[mark] for mark in MARKS})
