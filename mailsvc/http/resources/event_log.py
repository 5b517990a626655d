"""The event log: everything that happened to an account, in the order of its numbers, so that an application can catch up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import attrs

from mailsvc.events import payload
from mailsvc.http import parameters
from mailsvc.http.answer import collection, page
from mailsvc.http.describe import listed, told
from mailsvc.http.request import Request
from mailsvc.http.resources import event_schema as schema
from mailsvc.store.events.event_log import Fact


class Events(Protocol):
    """store/events/event_log"""

    async def after(self, account_id: UUID, sequence: int, limit: int) -> tuple[Sequence[tuple[int, Fact]], bool]: ...


@attrs.define(eq=False)
class EventLog:
    app = collection()
    events: Events

    @app.route("/event-log", methods=["GET"])
    @told("All events of the account in their order, without gaps.", listed(schema.FACT), parameters=schema.SEQUENCES)
    async def list(self, request: Request) -> bytes:
        """Oldest first, from the number that `after` gives. The id is the one under which webhooks tell of the event."""
        after, limit = parameters.sequence(request, "after"), parameters.limit(request)
        found, has_more = await request.detached(self.events.after(request.caller.account_id, after, limit))
        return page(request, [_listed(sequence, fact) for sequence, fact in found], has_more)


def _listed(sequence: int, fact: Fact) -> dict[str, object]:
    return {"sequence": sequence, "id": f"msg_{fact.event_id.hex}", **payload.render(fact)}
