"""The links of a broadcast that were followed, most frequent first."""

from __future__ import annotations

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import collection, ok
from mailsvc.http.operations import operation
from mailsvc.http.problem import not_found
from mailsvc.http.request import Request
from mailsvc.http.resources.broadcasts import fields
from mailsvc.http.resources.broadcasts.context import BroadcastContext
from mailsvc.http.views import Listing


@attrs.define(eq=False)
class ClickedLinks:
    app = collection()
    context: BroadcastContext

    @app.route("/broadcasts/<id>/clicked-links", methods=["GET"])
    @operation(
        "List the clicked links of a broadcast", "The links that were followed, the most frequent first.", Listing(fields.CLICKED_LINK),
        parameters=fields.CURSORS,
    )  # fmt: skip
    async def list(self, request: Request, id: str) -> bytes:
        return await request.detached(self._list(request, id))

    async def _list(self, request: Request, id: str) -> bytes:
        broadcast_id, wanted = parameters.uuid(id, "id"), parameters.page(request, fields.cursor)
        account_id = request.caller.account_id
        if await self.context.stored.get(account_id, broadcast_id) is None:
            raise not_found("Broadcast")
        rows, more = await self.context.recipients.clicked_links(account_id, broadcast_id, wanted)
        data = [fields.CLICKED_LINK.show(row, id=fields.cursor_of(row.target)) for row in rows]
        return ok(request, {"object": "list", "has_more": more, "data": data})
