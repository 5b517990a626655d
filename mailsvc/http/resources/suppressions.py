"""Suppressions: the addresses that an account must not email. Read them, add some, remove some."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import audited, collection, created, ok, page
from mailsvc.http.fields import SOME_ID, Id, OneOrMany, Record
from mailsvc.http.operations import PAGING, Parameter, one_of, operation
from mailsvc.http.problem import invalid, not_found
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources.send_fields import BareAddress
from mailsvc.http.views import Listing, View, acknowledged, choice, const, many, maybe, text, time, uuid
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.events.suppressions import Suppressions as StoredSuppressions

BATCH = 100
ORIGINS = ("bounce", "complaint", "manual")


_ADDRESS = BareAddress("The address.", "someone@example.net", required=True)
_EMAILS = ["someone@example.net", "someone.else@example.net"]
ADD = Record(title="AddSuppression", fields={"email": _ADDRESS})
ADD_MANY = Record(
    title="AddSuppressions",
    fields={"emails": OneOrMany("The addresses: one or an array.", _EMAILS, item=_ADDRESS, most=BATCH, required=True)},
)
REMOVE_MANY = Record(
    title="RemoveSuppressions",
    fields={
        "emails": OneOrMany("The addresses. Either these or `ids`.", _EMAILS, item=_ADDRESS, most=BATCH),
        "ids": OneOrMany("The IDs. Either these or `emails`.", [SOME_ID], item=Id(), most=BATCH),
    },
    example={"emails": _EMAILS},
)
ORIGIN = Parameter("origin", "Returns only suppressions with this origin.", "bounce", one_of(*ORIGINS))

ROW = View(
    "SuppressionRow",
    {
        "id": uuid("The suppression's ID."),
        "email": text("The address.", "someone@example.net", format="email"),
        "origin": choice("Why the address is suppressed.", ORIGINS),
        "source_id": maybe(uuid("The ID of the email that caused it.")),
        "reason": maybe(text("What the recipient's server answered.", "550 5.1.1 No such user")),
        "created_at": time("When it was added."),
    },
)
SUPPRESSION = View("Suppression", {"object": const("suppression", "Always `suppression`."), **ROW.values})
ADDED = acknowledged("suppression", "AddedSuppression", "The suppression's ID.")
ADDED_MANY = View("AddedSuppressions", {"data": many(ADDED, "The suppressions, in the order of the request.")})
REMOVED = View("RemovedSuppression", {**SUPPRESSION.values, "deleted": const(True, "Always true.")})
REMOVED_MANY = View("RemovedSuppressions", {"data": many(REMOVED, "The removed suppressions.")})


@attrs.define(eq=False)
class Suppressions:
    """`on_change` is called after each change, because there are new events to number."""

    app = collection()
    suppressions: StoredSuppressions
    reader: Reader
    on_change: Callable[[], None] = lambda: None

    @app.route("/suppressions", methods=["POST"])
    @operation("Add a suppression", "Stops sending to an address.", ADDED, status=201, body=ADD)
    async def add(self, request: Request) -> bytes:
        return await request.detached(self._add(request))

    async def _add(self, request: Request) -> bytes:
        email = (await self.reader.record(request, ADD))["email"]
        [added] = await self.suppressions.add(request.caller.account_id, [email], [audited(request, "suppressions added", email)])
        self.on_change()
        return created(request, ADDED.show(added))

    @app.route("/suppressions/batch/add", methods=["POST"])
    @operation("Add several suppressions", "Stops sending to up to 100 addresses.", ADDED_MANY, status=201, body=ADD_MANY)
    async def add_batch(self, request: Request) -> bytes:
        return await request.detached(self._add_batch(request))

    async def _add_batch(self, request: Request) -> bytes:
        emails = (await self.reader.record(request, ADD_MANY))["emails"]
        line = audited(request, "suppressions added", _summary(emails))
        added = await self.suppressions.add(request.caller.account_id, emails, [line])
        self.on_change()
        return created(request, ADDED_MANY.show(data=added))

    @app.route("/suppressions/batch/remove", methods=["POST"])
    @operation("Remove several suppressions", "Allows sending to up to 100 addresses again.", REMOVED_MANY, body=REMOVE_MANY)
    async def remove_batch(self, request: Request) -> bytes:
        return await request.detached(self._remove_batch(request))

    async def _remove_batch(self, request: Request) -> bytes:
        given = await self.reader.record(request, REMOVE_MANY)
        ids, emails = given["ids"] or (), given["emails"] or ()
        if bool(ids) == bool(emails):
            raise invalid("The request body must have either `emails` or `ids`.")
        line = audited(request, "suppressions removed", _summary(emails or ids))
        removed = await self.suppressions.remove(request.caller.account_id, ids, emails, [line])
        self.on_change()
        return ok(request, REMOVED_MANY.show(data=removed))

    @app.route("/suppressions", methods=["GET"])
    @operation("List suppressions", "The suppressed addresses of the account, newest first.", Listing(ROW), parameters=[*PAGING, ORIGIN])
    async def list(self, request: Request) -> bytes:
        wanted, origin = parameters.page(request), parameters.choice(request, "origin", *ORIGINS)
        account_id = request.caller.account_id
        found, more = await request.detached(
            self.suppressions.list(account_id, wanted.limit or parameters.PAGE_DEFAULT, wanted.after, wanted.before, origin)
        )
        return page(request, ROW, found, more)

    @app.route("/suppressions/<id>", methods=["GET"])
    @operation("Retrieve a suppression", "Finds a suppression by its ID or by the address itself.", SUPPRESSION)
    async def get(self, request: Request, id: str) -> bytes:
        account_id = request.caller.account_id
        if "@" in id:
            found = await request.detached(self.suppressions.named(account_id, _address(id, "email")))
        else:
            found = await request.detached(self.suppressions.get(account_id, parameters.uuid(id, "id")))
        if found is None:
            raise not_found("Suppression")
        return ok(request, SUPPRESSION.show(found))

    @app.route("/suppressions/<id>", methods=["DELETE"])
    @operation("Remove a suppression", "Allows sending to an address again. The response says why it was suppressed.", REMOVED)
    async def remove(self, request: Request, id: str) -> bytes:
        return await request.detached(self._remove(request, id))

    async def _remove(self, request: Request, id: str) -> bytes:
        account_id = request.caller.account_id
        if "@" in id:
            email = _address(id, "email")
            removed = await self.suppressions.remove(account_id, (), [email], [audited(request, "suppression removed", email)])
        else:
            suppression_id = parameters.uuid(id, "id")
            found = await self.suppressions.get(account_id, suppression_id)
            line = audited(request, "suppression removed", found.email if found else "")
            removed = await self.suppressions.remove(account_id, [suppression_id], (), [line]) if found else []
        if not removed:
            raise not_found("Suppression")
        self.on_change()
        return ok(request, REMOVED.show(removed[0]))


def _summary(subjects: Sequence[object]) -> str:
    """For the audit log: the only one, or how many."""
    return str(subjects[0]) if len(subjects) == 1 else f"{len(subjects)} addresses"


def _address(text: str, field: str) -> str:
    try:
        return parse_mailbox(text).address
    except AddressError as wrong:
        raise invalid(f"Invalid `{field}` field. {wrong}") from None
