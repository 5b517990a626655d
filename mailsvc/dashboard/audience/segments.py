"""Segments: the list, one with its contacts, renaming, double opt-in, deleting."""

from __future__ import annotations

import attrs

from mailsvc.dashboard.audience import confirmation
from mailsvc.dashboard.audience.contacts import AUDIENCE
from mailsvc.dashboard.audience.forms import full, read, rules
from mailsvc.dashboard.audience.undo import put_back, undo_path
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, not_found, page, section_app
from mailsvc.http.fields import Bounds
from mailsvc.http.resources.audience import fields
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.store.audience.listing import Filter
from mailsvc.store.audience.values import Full, Segment
from mailsvc.store.paging import Page

SEGMENTS = f"{AUDIENCE}/segments"
ONE = f"{SEGMENTS}/<text>"
PAGE, MEMBERS = 25, 50
COUNTED, COUNTED_ONE = 1000, 20_000  # contacts of each segment in the list, and on its page
DONE = {
    "added": "The segment was created.",
    "changed": "The segment was changed.",
    "deleted": "The segment was deleted.",
    "restored": "The segment is back.",
}


@attrs.define(eq=False)
class SegmentPages:
    app = section_app()
    context: PageContext
    audience: AudienceContext
    bounds: Bounds

    @page(app, SEGMENTS, access="see_audience")
    async def list(self, request: PageRequest) -> bytes:
        return await self._listed(request)

    async def _listed(self, request: PageRequest, status: int = 200, **values: object) -> bytes:
        after = request.uuid(request.query("after")) if request.query("after") else None
        found, more = await self.audience.segments.list(request.account_id, Page(PAGE, after))
        sizes = await self.audience.lists.sizes(request.account_id, [each.id for each in found], COUNTED)
        shown: dict[str, object] = {"errors": {}, "typed": ""}
        return request.render(
            "audience/segments.html", status, found=found, sizes=sizes, counted=COUNTED, first=after is None,
            older=f"{SEGMENTS}?after={found[-1].id}" if more else None, done=DONE.get(request.query("done"), ""),
            undo_at=undo_path(request, SEGMENTS), **shown | values,
        )  # fmt: skip

    @page(app, SEGMENTS, "POST", access="change_audience")
    async def add(self, request: PageRequest) -> bytes:
        name = request.single_line("name")
        found = read(fields.CREATE_SEGMENT.fields, {"name": name}, rules(request, self.bounds))
        if found.errors:
            return await self._listed(request, 422, errors=found.errors, typed=name)
        try:
            added = await self.audience.segments.add(request.account_id, name, None, [request.audit_entry("segment created", name)])
        except Full as wrong:
            return await self._listed(request, 422, errors={"name": full(wrong)}, typed=name)
        return request.redirect(f"{SEGMENTS}/{added.id}", done="added")

    @page(app, ONE, access="see_audience")
    async def show(self, request: PageRequest, text: str) -> bytes:
        segment = await self._own(request, text)
        return await self._shown(request, segment, optin=confirmation.stored(segment.confirmation))

    async def _own(self, request: PageRequest, text: str) -> Segment:
        found = await self.audience.segments.get(request.account_id, request.uuid(text, "segment"))
        if found is None:
            raise not_found("segment")
        return found

    async def _shown(self, request: PageRequest, segment: Segment, status: int = 200, **values: object) -> bytes:
        after = request.uuid(request.query("after")) if request.query("after") else None
        members, more = await self.audience.lists.page(request.account_id, Page(MEMBERS, after), Filter(segment.id))
        sizes = await self.audience.lists.sizes(request.account_id, [segment.id], COUNTED_ONE)
        shown: dict[str, object] = {"errors": {}, "name": segment.name}
        return request.render(
            "audience/segment.html", status, segment=segment, members=members, first=after is None, size=sizes[segment.id],
            counted=COUNTED_ONE, older=f"{SEGMENTS}/{segment.id}?after={members[-1].id}" if more else None,
            done=DONE.get(request.query("done"), ""), labels=confirmation.LABELS, long=confirmation.LONG, **shown | values,
        )  # fmt: skip

    @page(app, f"{ONE}/change", "POST", access="change_audience")
    async def change(self, request: PageRequest, text: str) -> bytes:
        segment, name, limits = await self._own(request, text), request.single_line("name"), rules(request, self.bounds)
        found, optin = read(fields.CREATE_SEGMENT.fields, {"name": name}, limits), confirmation.given(request, limits)
        errors = {**found.errors, **optin.errors}
        if errors:
            return await self._shown(request, segment, 422, errors=errors, name=name, optin=optin)
        line = request.audit_entry("segment changed", name)
        changed = self.audience.segments.change(request.account_id, segment.id, name, optin.wording, reword=True, lines=[line])
        if await changed is None:
            raise not_found("segment")
        return request.redirect(f"{SEGMENTS}/{segment.id}", done="changed")

    @page(app, f"{ONE}/restore", "POST", access="change_audience")
    async def restore(self, request: PageRequest, text: str) -> bytes:
        """Undo a deletion."""
        segment_id = request.uuid(text, "segment")
        line = request.audit_entry("segment restored", str(segment_id))
        restored = await put_back(self.audience.segments.restore(request.account_id, segment_id, [line]))
        return request.redirect(f"{SEGMENTS}/{restored.id}", done="restored")

    @page(app, f"{ONE}/delete", "POST", access="change_audience")
    async def delete(self, request: PageRequest, text: str) -> bytes:
        segment = await self._own(request, text)
        line = request.audit_entry("segment deleted", segment.name)
        if await self.audience.segments.remove(request.account_id, segment.id, [line]) is None:
            raise not_found("segment")
        return request.redirect(SEGMENTS, done="deleted", undo=str(segment.id))
