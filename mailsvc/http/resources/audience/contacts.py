"""Contacts: create, read, change, delete, list; their segments and topics. By ID or by address."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar
from uuid import UUID

import attrs
import orjson

from mailsvc.domains import names
from mailsvc.http import parameters
from mailsvc.http.answer import collection, created, ok, page
from mailsvc.http.fields import SOME_ID, Rules, unchanged
from mailsvc.http.operations import PAGING, Parameter, operation, or_unset
from mailsvc.http.problem import invalid, not_found
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources.audience import fields, views
from mailsvc.http.resources.audience.context import AudienceContext, about, by
from mailsvc.http.resources.audience.fields import REFUSED, contact_ref, problem
from mailsvc.http.views import Listing
from mailsvc.store.audience.contacts import Ref
from mailsvc.store.audience.keys import folded
from mailsvc.store.audience.listing import CHUNK, Filter
from mailsvc.store.audience.values import Choice, Contact, NewContact
from mailsvc.store.paging import ALL, Page

T = TypeVar("T")
LONGEST_SEARCH = 1000  # characters
SEARCH = Parameter(
    "search",
    "Returns only contacts with this text in their address or name, or with these whole addresses. A page can have fewer contacts than "
    "`limit` although there are more: continue with the `after` of the response. Not together with `before`.",
    "ada",
    {"type": "string"},
)
SEGMENT_ID = Parameter("segment_id", "Returns only contacts in this segment.", SOME_ID, or_unset({"type": "string", "format": "uuid"}))


async def written(work: Awaitable[T]) -> T:
    """The result of a change, or the problem if the store refused it."""
    try:
        return await work
    except REFUSED as wrong:
        raise problem(wrong) from None


def known(contact: Contact | None) -> Contact:
    if contact is None:
        raise not_found("Contact")
    return contact


async def listed(request: Request, context: AudienceContext, filter: Filter) -> bytes:
    """A page of contacts; all of them without parameters, streamed if there are many."""
    account_id, wanted = request.caller.account_id, parameters.page(request, default=None)
    if wanted.limit is not None:
        return page(request, views.CONTACT_ROW, *await request.detached(context.lists.page(account_id, wanted, filter)))
    first, more = await request.detached(context.lists.page(account_id, Page(CHUNK), filter))
    if not more:
        return page(request, views.CONTACT_ROW, first, False)
    request.setResponseCode(200)
    await request.stream(_everything(context, account_id, filter))
    return b""


async def searched(request: Request, context: AudienceContext, filter: Filter) -> bytes:
    """A page of what a search finds. It has fewer contacts than asked for if they are far apart."""
    if len(filter.text) > LONGEST_SEARCH:
        raise invalid(f"The `search` parameter can have at most {LONGEST_SEARCH} characters.")
    if parameters.one(request, "before"):
        raise invalid("The `before` and `search` parameters cannot be combined.")
    wanted = parameters.page(request)
    filter = attrs.evolve(filter, text=names.searched(filter.text))
    found = await context.lists.search(request.caller.account_id, filter, wanted.limit or parameters.PAGE_DEFAULT, wanted.after)
    after = {} if found.after is None else {"after": str(found.after)}
    rows = [views.CONTACT_ROW.show(each) for each in found.contacts]
    return ok(request, {"object": "list", "has_more": bool(after), "data": rows, **after})


async def _everything(context: AudienceContext, account_id: UUID, filter: Filter) -> AsyncGenerator[bytes, None]:
    yield b'{"object":"list","has_more":false,"data":['
    separator = b""
    async for contacts in context.lists.all(account_id, filter):
        rows = b",".join([orjson.dumps(views.CONTACT_ROW.show(contact)) for contact in contacts])
        yield separator + rows
        separator = b","
    yield b"]}"


@attrs.define(eq=False)
class Contacts:
    app = collection("imports")
    context: AudienceContext
    reader: Reader

    @app.route("/contacts", methods=["POST"])
    @operation(
        "Create a contact",
        "Creates a contact, or changes the one that has the address: fields of the request replace, segments are added, topics are set. "
        "Nobody who unsubscribed is subscribed again.",
        views.SAVED,
        status=201,
        body=fields.CREATE,
        errors=[404],
    )
    async def create(self, request: Request) -> bytes:
        return await request.detached(self._create(request))

    async def _create(self, request: Request) -> bytes:
        given = await self.reader.record(request, fields.CREATE)
        single = [given.pop(name) for name in ("segment_id", "audience_id")]  # resend-java has both
        segments = (*(given.pop("segments") or ()), *filter(None, single))
        return await create(request, self.context, given, segments)

    @app.route("/contacts", methods=["GET"])
    @operation(
        "List contacts",
        "The contacts of the account or of a segment, newest first; all of them without parameters.",
        views.CONTACTS,
        parameters=[*PAGING, SEGMENT_ID, SEARCH],
        errors=[404],
    )
    async def list(self, request: Request) -> bytes:
        segment, text = parameters.one(request, "segment_id"), parameters.one(request, "search").replace("\0", "").strip()
        segment_id = parameters.uuid(segment, "segment_id") if segment else None
        if segment_id is not None and await request.detached(self.context.segments.get(request.caller.account_id, segment_id)) is None:
            raise not_found("Audience")
        if text:
            return await request.detached(searched(request, self.context, Filter(segment_id, text=text)))
        return await listed(request, self.context, Filter(segment_id))

    @app.route("/contacts/<contact>", methods=["GET"])
    @operation("Retrieve a contact", "A contact with its properties, by its ID or its address.", views.CONTACT)
    async def get(self, request: Request, contact: str) -> bytes:
        return await request.detached(self._get(request, contact))

    async def _get(self, request: Request, contact: str) -> bytes:
        found = known(await self.context.contacts.get(request.caller.account_id, contact_ref(contact)))
        return await shown(request, self.context, found)

    @app.route("/contacts/<contact>", methods=["PATCH"])
    @operation("Update a contact", "Changes the fields that are given. The address cannot be changed.", views.SAVED, body=fields.UPDATE)
    async def update(self, request: Request, contact: str) -> bytes:
        return await request.detached(update(request, self.context, self.reader, contact))

    @app.route("/contacts/<contact>", methods=["DELETE"])
    @operation(
        "Delete a contact",
        "Deletes a contact. What it was unsubscribed from is remembered without the address, and applies if it is added again.",
        views.DELETED,
    )
    async def delete(self, request: Request, contact: str) -> bytes:
        return await request.detached(self._delete(request, contact))

    async def _delete(self, request: Request, contact: str) -> bytes:
        deleted = self.context.contacts.delete(request.caller.account_id, contact_ref(contact), about(request, "contact deleted"))
        found = known(await deleted)
        self.context.changed()
        return ok(request, views.DELETED.show(found, contact=str(found.id)))

    # Segments

    @app.route("/contacts/<contact>/segments", methods=["GET"])
    @operation(
        "List the segments of a contact",
        "The segments that a contact is in; all of them without parameters.",
        Listing(views.CONTACT_SEGMENT),
        parameters=PAGING,
    )
    async def segments(self, request: Request, contact: str) -> bytes:
        return await request.detached(self._segments(request, contact))

    async def _segments(self, request: Request, contact: str) -> bytes:
        wanted = parameters.page(request, default=None)
        found = known(await self.context.contacts.get(request.caller.account_id, contact_ref(contact)))
        return page(request, views.CONTACT_SEGMENT, *await self.context.lists.segments(request.caller.account_id, found.id, wanted))

    @app.route("/contacts/<contact>/segments/<segment_id>", methods=["POST"])
    @operation(
        "Add a contact to a segment",
        "Adds a contact to a segment. With a double opt-in, the contact is asked to confirm first.",
        views.ADDED,
    )
    async def join(self, request: Request, contact: str, segment_id: str) -> bytes:
        return await request.detached(self._join(request, contact, parameters.uuid(segment_id, "segment_id")))

    async def _join(self, request: Request, contact: str, segment_id: UUID) -> bytes:
        line = about(request, "contact added to a segment")
        joined = self.context.contacts.join(request.caller.account_id, contact_ref(contact), segment_id, by(request), line)
        found = known(await written(joined))
        self.context.changed()
        return ok(request, views.ADDED.show(id=segment_id, segment_id=segment_id, contact_id=found.id))

    @app.route("/contacts/<contact>/segments/<segment_id>", methods=["DELETE"])
    @operation("Remove a contact from a segment", "Removes a contact from a segment. It stays a contact.", views.LEFT)
    async def leave(self, request: Request, contact: str, segment_id: str) -> bytes:
        return await request.detached(self._leave(request, contact, parameters.uuid(segment_id, "segment_id")))

    async def _leave(self, request: Request, contact: str, segment_id: UUID) -> bytes:
        line = about(request, "contact removed from a segment")
        found = known(await self.context.contacts.leave(request.caller.account_id, contact_ref(contact), segment_id, line))
        return ok(request, views.LEFT.show(id=segment_id, segment_id=segment_id, contact_id=found.id))

    # Topics

    @app.route("/contacts/<contact>/topics", methods=["GET"])
    @operation(
        "List the topics of a contact",
        "Every topic of the account, and whether the contact is subscribed; all of them without parameters.",
        Listing(views.CONTACT_TOPIC),
        parameters=PAGING,
    )
    async def topics(self, request: Request, contact: str) -> bytes:
        return await request.detached(self._topics(request, contact))

    async def _topics(self, request: Request, contact: str) -> bytes:
        wanted = parameters.page(request, default=None)
        found = known(await self.context.contacts.get(request.caller.account_id, contact_ref(contact)))
        return page(request, views.CONTACT_TOPIC, *await self.context.lists.topics(request.caller.account_id, found.id, wanted))

    @app.route("/contacts/<contact>/topics", methods=["PATCH"])
    @operation(
        "Update the topics of a contact",
        "Subscribes a contact to topics or unsubscribes it. Other topics stay as they are.",
        views.CHOSEN,
        body=fields.CHOICES,
    )
    async def choose(self, request: Request, contact: str) -> bytes:
        return await request.detached(self._choose(request, contact))

    async def _choose(self, request: Request, contact: str) -> bytes:
        wanted = await self.reader.read(request, _choices)
        line = about(request, "topics of a contact changed")
        chosen = self.context.contacts.choose(request.caller.account_id, contact_ref(contact), wanted, by(request), line)
        found = known(await written(chosen))
        self.context.changed()
        return ok(request, views.CHOSEN.show(id=found.id, contact_id=found.id, topics=wanted))


def _choices(value: object, rules: Rules) -> tuple[Choice, ...]:
    return fields.CHOICES.read(value, "", rules)


async def create(request: Request, context: AudienceContext, given: dict[str, object], segments: tuple[UUID, ...]) -> bytes:
    """Create a contact and add it to segments."""
    known_fields = {name: value for name, value in given.items() if value is not None}
    new = NewContact(**known_fields, segments=segments)  # type: ignore[arg-type]
    found = await written(context.contacts.create(request.caller.account_id, new, by(request), about(request, "contact saved")))
    context.changed()
    return created(request, views.SAVED.show(found))


async def update(request: Request, context: AudienceContext, reader: Reader, contact: str, segment_id: UUID | None = None) -> bytes:
    """Change a contact; with `segment_id` only if it is in that segment."""
    ref = contact_ref(contact)
    changes = await reader.read(request, fields.UPDATE.present)
    for name in ("unsubscribed", "untracked"):
        if changes.get(name, True) is None:
            del changes[name]
    await _check_fixed(request, context, ref, changes.pop("email", None))
    for name in ("segments", "topics"):  # empty
        changes.pop(name, None)
    work = context.contacts.update(
        request.caller.account_id, ref, changes, by(request), about(request, "contact changed"), segment_id=segment_id
    )
    found = known(await written(work))
    context.changed()
    return ok(request, views.SAVED.show(found))


async def _check_fixed(request: Request, context: AudienceContext, ref: Ref, email: str | None) -> None:
    """Refuse another address. Client libraries send the one that the contact has."""
    if email is not None:
        found = known(await context.contacts.get(request.caller.account_id, ref))
        unchanged({"email": folded(email)}, "Create another contact and delete this one.", email=folded(found.email))


async def shown(request: Request, context: AudienceContext, found: Contact) -> bytes:
    definitions, _ = await context.properties.list(request.caller.account_id, ALL) if found.properties else ((), False)
    return ok(request, views.CONTACT.show(found, properties=views.shown_properties(found, definitions)))
