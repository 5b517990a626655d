"""Forms that change the state of a broadcast: send, schedule, unschedule, cancel, continue, duplicate, delete."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import attrs

from mailsvc.broadcasts.copying import duplicate
from mailsvc.broadcasts.fanout import CHANNEL
from mailsvc.dashboard.broadcasts.detail import BroadcastPages
from mailsvc.dashboard.broadcasts.states import BROADCASTS
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, not_found, page, section_app
from mailsvc.dashboard.zones import BadTime, upcoming
from mailsvc.store.broadcasts.broadcasts import Broadcasts, Refused
from mailsvc.store.broadcasts.values import Broadcast, Status
from mailsvc.store.people.audit import Line

FORMS = ("send", "schedule", "unschedule", "cancel", "continue", "duplicate", "delete")  # the last segments of their paths


@attrs.define(eq=False)
class BroadcastChanges:
    """`notify` tells the processes that send broadcasts. `ahead`: how far in the future a broadcast can be scheduled."""

    app = section_app()
    context: PageContext
    stored: Broadcasts
    pages: BroadcastPages
    notify: Callable[[str], None]
    ahead: timedelta

    @page(app, f"{BROADCASTS}/<text>/send", "POST", access="change_audience")
    async def send(self, request: PageRequest, text: str) -> bytes:
        found = await self.pages.found(request, text)
        return await self._send(request, found, None, "sent", request.audit_entry("broadcast sent", str(found.id)))

    @page(app, f"{BROADCASTS}/<text>/schedule", "POST", access="change_audience")
    async def schedule(self, request: PageRequest, text: str) -> bytes:
        found = await self.pages.found(request, text)
        try:
            at = upcoming(request.field("at"), request.zone, self.context.now(), self.ahead)
        except BadTime as wrong:
            typed = {"errors": {"at": str(wrong)}, "typed": request.field("at")}
            return await self.pages.shown(request, found, 422, **typed)
        entry = request.audit_entry("broadcast scheduled", f"{found.id} for {at.isoformat(timespec='minutes')}")
        return await self._send(request, found, at, "scheduled", entry)

    async def _send(self, request: PageRequest, found: Broadcast, at: datetime | None, done: str, entry: Line) -> bytes:
        """Unless the review says no; the page then shows why."""
        if found.status == "draft" and (await self.pages.reviewer.review(found, self.context.now())).blocked:
            return await self.pages.shown(request, found, 422)
        refused = await self.stored.send(found.account_id, found.id, None, at, [entry])
        return self._moved(request, found, refused, done)

    @page(app, f"{BROADCASTS}/<text>/unschedule", "POST", access="change_audience")
    async def unschedule(self, request: PageRequest, text: str) -> bytes:
        return await self._cancel(request, text, "scheduled", "unscheduled")

    @page(app, f"{BROADCASTS}/<text>/cancel", "POST", access="change_audience")
    async def cancel(self, request: PageRequest, text: str) -> bytes:
        return await self._cancel(request, text, "queued", "canceled")

    async def _cancel(self, request: PageRequest, text: str, only: Status, done: str) -> bytes:
        found = await self.pages.found(request, text)
        entry = request.audit_entry(f"broadcast {done}", str(found.id))
        refused = await self.stored.cancel(found.account_id, found.id, [entry], only=(only,))
        return self._moved(request, found, refused, done)

    @page(app, f"{BROADCASTS}/<text>/continue", "POST", access="change_audience")
    async def continue_(self, request: PageRequest, text: str) -> bytes:
        found = await self.pages.found(request, text)
        refused = await self.stored.continue_(found.account_id, found.id, [request.audit_entry("broadcast continued", str(found.id))])
        return self._moved(request, found, refused, "continued")

    @page(app, f"{BROADCASTS}/<text>/duplicate", "POST", access="change_audience")
    async def duplicate(self, request: PageRequest, text: str) -> bytes:
        found = await self.pages.found(request, text)
        lines = [request.audit_entry("broadcast created")]
        copied = await duplicate(self.stored, self.context.in_thread, found.account_id, found.id, lines)
        if copied is None:
            raise not_found("broadcast")
        return request.redirect(f"{BROADCASTS}/{copied}", done="copied")

    @page(app, f"{BROADCASTS}/<text>/delete", "POST", access="change_audience")
    async def delete(self, request: PageRequest, text: str) -> bytes:
        found = await self.pages.found(request, text)
        refused = await self.stored.remove(found.account_id, found.id, [request.audit_entry("broadcast deleted", str(found.id))])
        if refused is None:
            return request.redirect(BROADCASTS, done="deleted")
        return self._moved(request, found, refused, "late")

    def _moved(self, request: PageRequest, found: Broadcast, refused: Refused | None, done: str) -> bytes:
        """Back to the broadcast. A form that came too late, or was sent twice, has changed nothing."""
        if refused == "not_found":
            raise not_found("broadcast")
        self.notify(CHANNEL)
        return request.redirect(f"{BROADCASTS}/{found.id}", done=done if refused is None else "late")
