"""Requests of people about their data: where an address is stored, an archive of it, and erasing it. The engine: store/privacy.

Bodies of these requests are not in the request log, because they have the address that is to be erased.
"""

from __future__ import annotations

from uuid import UUID

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import audited, collection, created, ok, page
from mailsvc.http.fields import Flag, Record
from mailsvc.http.operations import AFTER, LIMIT, operation
from mailsvc.http.problem import invalid, not_found, unavailable
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources.send_fields import BareAddress
from mailsvc.http.views import Listing, View, choice, const, free, iso, maybe, uuid
from mailsvc.store.privacy import eraser
from mailsvc.store.privacy.finding import Busy, Finder, archive_lines
from mailsvc.store.privacy.journal import Recorded

BUSY = 30  # seconds after which to try again, while another request reads all data

_EMAIL = BareAddress("The address.", "someone@example.net", required=True)
ABOUT = Record(title="PrivacyRequest", fields={"email": _EMAIL})
_SUPPRESS = Flag("Whether to refuse mail to the address from now on. Only a keyed hash of it is kept for that.", False)
ERASE = Record(title="ErasureRequest", fields={"email": _EMAIL, "suppress": _SUPPRESS})
_COUNTS = {"emails.recipients": 3}
FOUND = View(
    "PrivacyReport",
    {
        "object": const("privacy_report", "Always `privacy_report`."),
        "counts": free("How many rows have the address, by table and column.", _COUNTS, type="object"),
        "examples": free("The keys of up to ten rows of each place.", {}, type="object"),
    },
)
ERASURE = View(
    "Erasure",
    {
        "object": const("erasure", "Always `erasure`."),
        "id": uuid("The erasure's ID."),
        "state": choice(
            "`waiting`: not finished, for example because a message still has to go to other recipients.", ("finished", "waiting"),
            lambda each: "waiting" if each.finished_at is None else "finished",
        ),
        "requested_at": iso("When it was requested."),
        "finished_at": maybe(iso("When it was finished.")),
        "erased": free("How many were erased, by place.", _COUNTS, lambda each: each.counts.get("erased", {}), type="object"),
        "kept": free("How many were kept, for you to change, by place.", {}, lambda each: each.counts.get("kept", {}), type="object"),
        "waiting": free("How many have to wait, by place.", {}, lambda each: each.counts.get("waiting", {}), type="object"),
    },
)  # fmt: skip


@attrs.define(eq=False)
class Privacy:
    """Only one request of an account at a time reads all its data."""

    app = collection()
    erasing: Recorded
    reader: Reader

    @app.route("/privacy/find", methods=["POST"])
    @operation(
        "Find an address",
        "Where the account's data has an address, and how often. Reads all data of the account, which can take minutes.",
        FOUND,
        body=ABOUT,
    )
    async def find(self, request: Request) -> bytes:
        return await request.detached(self._find(request))

    async def _find(self, request: Request) -> bytes:
        finder = await self._finder(request)
        try:
            with self.erasing.turn.take(request.caller.account_id):
                found = await finder.find()
        except Busy:
            raise unavailable(BUSY) from None
        return ok(request, FOUND.show(found))

    @app.route("/privacy/export", methods=["POST"])
    @operation(
        "Export what is stored about an address",
        "JSON lines: rows as `{table, row}`, and messages as `{message, content}` with pieces in base64. They can name other people.",
        "application/x-ndjson",
        body=ABOUT,
    )
    async def export(self, request: Request) -> bytes:
        finder = await self._finder(request)
        try:
            with self.erasing.turn.take(request.caller.account_id):
                request.content_type = b"application/x-ndjson"
                request.setResponseCode(200)
                await request.stream(archive_lines(finder))
        except Busy:
            raise unavailable(BUSY) from None
        return b""

    @app.route("/privacy/erasures", methods=["POST"])
    @operation(
        "Erase an address",
        "Erases an address from the account's data, in the background. The certificate tells when it is finished, and what was erased.",
        ERASURE,
        status=201,
        body=ERASE,
    )
    async def erase(self, request: Request) -> bytes:
        return await request.detached(self._erase(request))

    async def _erase(self, request: Request) -> bytes:
        request.unlogged = True
        given, account_id = await self.reader.record(request, ERASE), request.caller.account_id
        why = await eraser.refused(self.erasing.eraser.pool, given["email"], account_id)
        if why is not None:
            raise invalid(why)
        lines = [audited(request, "address erased")]
        return created(request, ERASURE.show(await self.erasing.begin(account_id, given["email"], bool(given["suppress"]), "api", lines)))

    @app.route("/privacy/erasures", methods=["GET"])
    @operation("List erasures", "The certificates of the account's erasures, newest first.", Listing(ERASURE), parameters=[LIMIT, AFTER])
    async def list(self, request: Request) -> bytes:
        wanted, account_id = parameters.page(request, backwards=False), request.caller.account_id
        limit = wanted.limit or parameters.PAGE_DEFAULT
        found, more = await request.detached(self.erasing.eraser.erasures.list(account_id, limit, wanted.after))
        return page(request, ERASURE, found, more)

    @app.route("/privacy/erasures/<id>", methods=["GET"])
    @operation("Retrieve an erasure", "The certificate of an erasure. It does not have the address.", ERASURE)
    async def get(self, request: Request, id: str) -> bytes:
        return await request.detached(self._get(request, parameters.uuid(id, "id")))

    async def _get(self, request: Request, id_: UUID) -> bytes:
        found = await self.erasing.eraser.erasures.get(request.caller.account_id, id_)
        if found is None:
            raise not_found("Erasure")
        return ok(request, ERASURE.show(found))

    async def _finder(self, request: Request) -> Finder:
        request.unlogged = True
        email = (await self.reader.record(request, ABOUT))["email"]
        return Finder(self.erasing.eraser.pool, email, request.caller.account_id, self.erasing.eraser.in_thread, self.erasing.eraser.bodies)
