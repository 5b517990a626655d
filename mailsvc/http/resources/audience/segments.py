"""Segments, and audiences: their former name, with routes and response keys of their own that older libraries call."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import audited, collection, created, ok
from mailsvc.http.operations import PAGING, operation
from mailsvc.http.problem import Problem, not_found
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources.audience import contacts, definitions, fields, views
from mailsvc.http.resources.audience.contacts import known, listed, written
from mailsvc.http.resources.audience.context import AudienceContext, about
from mailsvc.http.resources.audience.fields import contact_ref
from mailsvc.http.views import Listing, View
from mailsvc.store.audience.listing import Filter
from mailsvc.store.audience.values import Segment

_UNKNOWN = "Audience"  # what client libraries' users know from the service that they were written for


@attrs.define(eq=False)
class Segments:
    app = collection()
    context: AudienceContext
    reader: Reader

    @app.route("/segments", methods=["POST"])
    @operation(
        "Create a segment", "Creates a segment, a named group of contacts.", views.SEGMENT_CREATED, status=201, body=fields.CREATE_SEGMENT
    )
    async def create(self, request: Request) -> bytes:
        return await request.detached(self._create(request))

    async def _create(self, request: Request) -> bytes:
        given = await self.reader.record(request, fields.CREATE_SEGMENT)
        line = audited(request, "segment created", given["name"])
        added = self.context.segments.add(request.caller.account_id, given["name"], given["double_opt_in"], [line])
        return created(request, views.SEGMENT_CREATED.show(await written(added)))

    @app.route("/segments", methods=["GET"])
    @operation(
        "List segments", "The segments of the account, newest first; all of them without parameters.", Listing(views.SEGMENT_ROW),
        parameters=PAGING,
    )  # fmt: skip
    async def list(self, request: Request) -> bytes:
        return await _listed(request, self.context)

    @app.route("/segments/<id>", methods=["GET"])
    @operation("Retrieve a segment", "A segment.", views.SEGMENT)
    async def get(self, request: Request, id: str) -> bytes:
        return ok(request, views.SEGMENT.show(await request.detached(_own(request, self.context, id))))

    @app.route("/segments/<id>", methods=["PATCH"])
    @operation("Update a segment", "Changes the name of a segment or its double opt-in.", views.SEGMENT_CHANGED, body=fields.UPDATE_SEGMENT)
    async def update(self, request: Request, id: str) -> bytes:
        return await request.detached(self._update(request, parameters.uuid(id, "id")))

    async def _update(self, request: Request, segment_id: UUID) -> bytes:
        given = await self.reader.read(request, fields.UPDATE_SEGMENT.present)
        line = audited(request, "segment changed", given.get("name") or str(segment_id))
        changed = await self.context.segments.change(
            request.caller.account_id, segment_id, given.get("name"), given.get("double_opt_in"),
            reword="double_opt_in" in given, lines=[line],
        )  # fmt: skip
        if changed is None:
            raise not_found(_UNKNOWN)
        return ok(request, views.SEGMENT_CHANGED.show(changed))

    @app.route("/segments/<id>", methods=["DELETE"])
    @operation("Delete a segment", "Deletes a segment. Its contacts stay. Succeeds if there is no such segment.", views.SEGMENT_DELETED)
    async def delete(self, request: Request, id: str) -> bytes:
        return await request.detached(_deleted(request, self.context, id, views.SEGMENT_DELETED))

    @app.route("/segments/<id>/contacts", methods=["GET"])
    @operation(
        "List the contacts of a segment", "The contacts in a segment, newest first; all of them without parameters.",
        Listing(views.CONTACT_ROW), parameters=PAGING,
    )  # fmt: skip
    async def contacts(self, request: Request, id: str) -> bytes:
        return await _contacts(request, self.context, id)


@attrs.define(eq=False)
class Audiences:
    app = collection()
    context: AudienceContext
    reader: Reader

    @app.route("/audiences", methods=["POST"])
    @operation("Create an audience", "The former name of segments.", views.AUDIENCE_CREATED, status=201, body=fields.CREATE_AUDIENCE)
    async def create(self, request: Request) -> bytes:
        return await request.detached(self._create(request))

    async def _create(self, request: Request) -> bytes:
        given = await self.reader.record(request, fields.CREATE_AUDIENCE)
        line = audited(request, "segment created", given["name"])
        added = self.context.segments.add(request.caller.account_id, given["name"], None, [line])
        return created(request, views.AUDIENCE_CREATED.show(await written(added)))

    @app.route("/audiences", methods=["GET"])
    @operation("List audiences", "The former name of segments.", Listing(views.SEGMENT_ROW), parameters=PAGING)
    async def list(self, request: Request) -> bytes:
        return await _listed(request, self.context)

    @app.route("/audiences/<id>", methods=["GET"])
    @operation("Retrieve an audience", "The former name of segments.", views.AUDIENCE)
    async def get(self, request: Request, id: str) -> bytes:
        return ok(request, views.AUDIENCE.show(await request.detached(_own(request, self.context, id))))

    @app.route("/audiences/<id>", methods=["DELETE"])
    @operation("Delete an audience", "The former name of segments. Succeeds if there is none with this ID.", views.AUDIENCE_DELETED)
    async def delete(self, request: Request, id: str) -> bytes:
        return await request.detached(_deleted(request, self.context, id, views.AUDIENCE_DELETED))

    # Contacts by the path of an audience

    @app.route("/audiences/<id>/contacts", methods=["GET"])
    @operation("List the contacts of an audience", "The former name of segments.", Listing(views.CONTACT_ROW), parameters=PAGING)
    async def contacts(self, request: Request, id: str) -> bytes:
        return await _contacts(request, self.context, id)

    @app.route("/audiences/<id>/contacts", methods=["POST"])
    @operation(
        "Create a contact in an audience", "Creates or changes a contact, and adds it to the segment.", views.SAVED, status=201,
        body=fields.LEGACY_CREATE,
    )  # fmt: skip
    async def create_contact(self, request: Request, id: str) -> bytes:
        return await request.detached(self._create_contact(request, id))

    async def _create_contact(self, request: Request, id: str) -> bytes:
        segment = await _own(request, self.context, id)
        given = await self.reader.record(request, fields.LEGACY_CREATE)
        return await contacts.create(request, self.context, given, (segment.id,))

    @app.route("/audiences/<id>/contacts/<contact>", methods=["GET"])
    @operation("Retrieve a contact of an audience", "A contact, if it is in the segment.", views.CONTACT)
    async def get_contact(self, request: Request, id: str, contact: str) -> bytes:
        return await request.detached(self._get_contact(request, id, contact))

    async def _get_contact(self, request: Request, id: str, contact: str) -> bytes:
        segment = await _own(request, self.context, id)
        found = await self.context.contacts.get_member(request.caller.account_id, segment.id, contact_ref(contact))
        return await contacts.shown(request, self.context, known(found))

    @app.route("/audiences/<id>/contacts/<contact>", methods=["PATCH"])
    @operation("Update a contact of an audience", "Changes a contact, if it is in the segment.", views.SAVED, body=fields.UPDATE)
    async def update_contact(self, request: Request, id: str, contact: str) -> bytes:
        return await request.detached(self._update_contact(request, id, contact))

    async def _update_contact(self, request: Request, id: str, contact: str) -> bytes:
        segment = await _own(request, self.context, id)
        return await contacts.update(request, self.context, self.reader, contact, segment.id)

    @app.route("/audiences/<id>/contacts/<contact>", methods=["DELETE"])
    @operation(
        "Remove a contact from an audience",
        "Removes a contact from the segment. It stays a contact. Succeeds if there is no such contact.",
        views.REMOVED,
    )
    async def remove_contact(self, request: Request, id: str, contact: str) -> bytes:
        return await request.detached(self._remove_contact(request, id, contact))

    async def _remove_contact(self, request: Request, id: str, contact: str) -> bytes:
        segment = await _own(request, self.context, id)
        line = about(request, "contact removed from a segment")
        with suppress(Problem):  # not even an address
            await self.context.contacts.leave(request.caller.account_id, contact_ref(contact), segment.id, line)
        return ok(request, views.REMOVED.show(contact=contact))


async def _own(request: Request, context: AudienceContext, id: str) -> Segment:
    return await definitions.own(request, context.segments.get, id, _UNKNOWN)


async def _listed(request: Request, context: AudienceContext) -> bytes:
    return await definitions.listed(request, context.segments.list, views.SEGMENT_ROW, None)


async def _deleted(request: Request, context: AudienceContext, id: str, view: View) -> bytes:
    """Also if there was nothing to delete, as the service that the client libraries were written for answers."""
    segment_id = parameters.uuid(id, "id")
    found = await context.segments.get(request.caller.account_id, segment_id)
    if found is not None:
        line = audited(request, "segment deleted", found.name)
        await context.segments.remove(request.caller.account_id, segment_id, [line])
    return ok(request, view.show(id=segment_id))


async def _contacts(request: Request, context: AudienceContext, id: str) -> bytes:
    segment = await request.detached(_own(request, context, id))
    return await listed(request, context, Filter(segment.id))
