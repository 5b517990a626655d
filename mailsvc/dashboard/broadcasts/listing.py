"""The list of broadcasts, and creating a draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import cast, get_args
from uuid import UUID

import attrs

from mailsvc.dashboard.broadcasts.states import BROADCASTS, LABELS, label
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.metrics import ENGAGED, TYPES, UNSUBSCRIBED, BroadcastRow
from mailsvc.dashboard.page import PageError, PageRequest, page, section_app
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.overview import Listed, Overview
from mailsvc.store.broadcasts.values import Content, Status
from mailsvc.store.events.rollups import Count, Rollups, Wanted
from mailsvc.store.paging import Page

PAGE = 50
NAME = "Untitled"
_DONE = {"deleted": "Broadcast deleted."}
_BEGINNING = datetime.fromtimestamp(0, UTC)


@attrs.define(eq=False)
class BroadcastList:
    app = section_app()
    context: PageContext
    stored: Broadcasts
    overview: Overview
    rollups: Rollups

    @page(app, BROADCASTS, access="see_audience")
    async def list(self, request: PageRequest) -> bytes:
        status = cast(Status, request.query("status")) if request.query("status") in get_args(Status) else None
        after = request.uuid(request.query("after")) if request.query("after") else None
        found, more = await self.overview.list(request.account_id, status, Page(PAGE, after))
        first = f"{BROADCASTS}?status={status}" if status else BROADCASTS
        older = f"{BROADCASTS}?status={status or ''}&after={found[-1].broadcast.id}" if more else None
        return request.render(
            "broadcasts/list.html", found=found, figures=await self._figures(request, found), label=label, labels=LABELS, chosen=status,
            older=older, newest=first if after else None, done=_DONE.get(request.query("done"), ""),
        )  # fmt: skip

    @page(app, BROADCASTS, "POST", access="change_audience")
    async def create(self, request: PageRequest) -> bytes:
        """A draft with the sender of the newest broadcast. Everything else is written in the editor."""
        newest, _ = await self.stored.list(request.account_id, Page(1))
        content = Content(name=NAME, segment_id=None, sender=newest[0].sender if newest else "", subject="")
        added = await self.stored.add(request.account_id, content, [request.audit_entry("broadcast created")])
        if not isinstance(added, UUID):
            raise PageError(503, "Temporarily unavailable", "The draft couldn’t be created. Try again.")
        return request.redirect(f"{BROADCASTS}/{added}/edit")

    async def _figures(self, request: PageRequest, found: Sequence[Listed]) -> Mapping[UUID, BroadcastRow]:
        """Delivered, opened and clicked emails of those that were started, by ID."""
        started = {each.broadcast.id: each.broadcast.name for each in found if each.broadcast.started_at is not None}
        if not started:
            return {}
        counts: dict[UUID | None, list[Count]] = {}
        for count in await self.rollups.counts(request.account_id, counted(self.context.now(), list(started))):
            counts.setdefault(count.broadcast_id, []).append(count)
        return {id_: BroadcastRow.of(name, counts.get(id_, []), programs=True) for id_, name in started.items()}


def counted(now: datetime, ids: Sequence[UUID], *, by_hour: bool = False) -> Wanted:
    """All counts of some broadcasts; with `by_hour`, those of each hour."""
    return Wanted(
        _BEGINNING, now + timedelta(hours=1), "hour", "UTC", (*TYPES, *ENGAGED, UNSUBSCRIBED), by_period=by_hour, of_broadcasts=True,
        by_broadcast=True, broadcasts=ids,
    )  # fmt: skip
