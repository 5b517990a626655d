"""The page of one broadcast: the review of a draft or a scheduled one, the progress of one that is being sent, the result of others."""

from __future__ import annotations

import attrs

from mailsvc.dashboard.broadcasts.results import Results
from mailsvc.dashboard.broadcasts.review import Reviewer
from mailsvc.dashboard.broadcasts.states import BROADCASTS, label
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, not_found, page, section_app
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.values import Broadcast

_DONE = {
    "sent": "Sending has started. This page updates automatically.",
    "scheduled": "Scheduled.",
    "unscheduled": "No longer scheduled. It’s a draft again.",
    "canceled": "Canceled. Emails that weren’t sent yet won’t be.",
    "continued": "Sending continues.",
    "copied": "This is the copy.",
    "not-draft": "Only drafts can be edited.",
    "late": "Nothing was changed: the status of this broadcast changed in the meantime.",
}


@attrs.define(eq=False)
class BroadcastPages:
    app = section_app()
    context: PageContext
    stored: Broadcasts
    reviewer: Reviewer
    results: Results

    @page(app, f"{BROADCASTS}/<text>", access="see_audience")
    async def one(self, request: PageRequest, text: str) -> bytes:
        return await self.shown(request, await self.found(request, text))

    async def found(self, request: PageRequest, text: str) -> Broadcast:
        found = await self.stored.get(request.account_id, request.uuid(text, "broadcast"))
        if found is None:
            raise not_found("broadcast")
        return found

    async def shown(self, request: PageRequest, found: Broadcast, status: int = 200, **values: object) -> bytes:
        """`values`: the submitted form and its errors."""
        shared = {"broadcast": found, "label": label(found), "done": _DONE.get(request.query("done"), "")}
        if found.status in ("draft", "scheduled"):
            reviewed = await self.reviewer.review(found, self.context.now())
            form: dict[str, object] = {"errors": {}, "typed": ""}
            return request.render("broadcasts/review.html", status, reviewed=reviewed, **shared, **form | values)
        result = await self.results.of(found, request.now)
        return request.render("broadcasts/result.html", status, result=result, tab="overview", **shared)
