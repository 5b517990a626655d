"""The event log: everything that happened in an account, numbered without gaps, so that an application can catch up."""

from __future__ import annotations

import attrs

from mailsvc.events import payload
from mailsvc.http import parameters
from mailsvc.http.answer import collection, ok
from mailsvc.http.fields import SOME_ID
from mailsvc.http.operations import LIMIT, Parameter, operation, or_unset
from mailsvc.http.request import Request
from mailsvc.http.resources.webhook_fields import SOME_MESSAGE, shown_message
from mailsvc.http.views import Listing, View, count, free, text
from mailsvc.store.events.event_log import EventLog as StoredEventLog
from mailsvc.store.events.event_log import Fact

AFTER = Parameter("after", "Returns the events after this number.", 1234, or_unset({"type": "integer", "minimum": 0}))
ROW = View(
    "EventLogRow",
    {
        "sequence": count("The number of the event. Numbers of an account have no gaps.", 1235),
        "id": text("The ID, the same as in webhooks.", SOME_MESSAGE, pattern="^msg_[0-9a-f]{32}$"),
        "type": text("The event type.", "email.delivered"),
        "created_at": text("When the event happened.", "2026-01-02T03:04:05.678Z", format="date-time"),
        "data": free("What the event is about. Its fields depend on the type: see `webhooks`.", {"email_id": SOME_ID}, type="object"),
    },
)


@attrs.define(eq=False)
class EventLog:
    app = collection()
    events: StoredEventLog

    @app.route("/event-log", methods=["GET"])
    @operation("List all events", "The events of the account after a number, oldest first.", Listing(ROW), parameters=[LIMIT, AFTER])
    async def list(self, request: Request) -> bytes:
        parameters.no_before(request)
        after, limit = parameters.sequence(request, "after"), parameters.limit(request)
        found, has_more = await request.detached(self.events.after(request.caller.account_id, after, limit))
        return ok(request, {"object": "list", "has_more": has_more, "data": [_shown(sequence, fact) for sequence, fact in found]})


def _shown(sequence: int, fact: Fact) -> dict[str, object]:
    return {"sequence": sequence, "id": shown_message(fact.event_id), **payload.render(fact)}
