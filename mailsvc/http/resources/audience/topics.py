"""Topics, and contact properties: what the account defines for its contacts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import audited, collection, created, ok
from mailsvc.http.fields import unchanged
from mailsvc.http.operations import PAGING, operation
from mailsvc.http.problem import invalid, not_found
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources.audience import definitions, fields, views
from mailsvc.http.resources.audience.contacts import written
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.http.views import Listing
from mailsvc.store.audience.properties import converted
from mailsvc.store.audience.values import Property, PropertyValue, Taken, Topic

_DEFAULT_OUT = (
    "The `double_opt_in` field requires `default_subscription` to be `opt_out`, because contacts without a choice have not confirmed."
)


@attrs.define(eq=False)
class Topics:
    app = collection()
    context: AudienceContext
    reader: Reader

    @app.route("/topics", methods=["POST"])
    @operation(
        "Create a topic",
        "Creates a topic, a kind of mail that contacts can choose.",
        views.TOPIC_SAVED,
        status=201,
        body=fields.CREATE_TOPIC,
    )
    async def create(self, request: Request) -> bytes:
        return await request.detached(self._create(request))

    async def _create(self, request: Request) -> bytes:
        given = await self.reader.record(request, fields.CREATE_TOPIC)
        subscribed = given["default_subscription"] == "opt_in"
        if subscribed and given["double_opt_in"] is not None:
            raise invalid(_DEFAULT_OUT)
        added = await written(
            self.context.topics.add(
                request.caller.account_id, given["name"], subscribed, given["description"], given["visibility"] == "public",
                given["double_opt_in"], [audited(request, "topic created", given["name"])],
            )
        )  # fmt: skip
        self.context.changed()
        return created(request, views.TOPIC_SAVED.show(added))

    @app.route("/topics", methods=["GET"])
    @operation("List topics", "The topics of the account, newest first.", Listing(views.TOPIC_ROW), parameters=PAGING)
    async def list(self, request: Request) -> bytes:
        return await definitions.listed(request, self.context.topics.list, views.TOPIC_ROW, parameters.PAGE_DEFAULT)

    @app.route("/topics/<id>", methods=["GET"])
    @operation("Retrieve a topic", "A topic.", views.TOPIC)
    async def get(self, request: Request, id: str) -> bytes:
        return ok(request, views.TOPIC.show(await request.detached(self._own(request, id))))

    @app.route("/topics/<id>", methods=["PATCH"])
    @operation(
        "Update a topic", "Changes the fields that are given. The default subscription cannot be changed.", views.TOPIC_SAVED,
        body=fields.UPDATE_TOPIC,
    )  # fmt: skip
    async def update(self, request: Request, id: str) -> bytes:
        return await request.detached(self._update(request, parameters.uuid(id, "id")))

    async def _update(self, request: Request, topic_id: UUID) -> bytes:
        given = await self.reader.read(request, fields.UPDATE_TOPIC.present)
        before = await self._own(request, topic_id)
        unchanged(given, "Create another topic.", default_subscription="opt_in" if before.subscribed else "opt_out")
        changes: dict[str, Any] = {name: given[name] for name in ("name", "visibility") if given.get(name) is not None}
        if "visibility" in changes:
            changes["public"] = changes.pop("visibility") == "public"
        if "description" in given:
            changes["description"] = given["description"]
        if "double_opt_in" in given:
            changes["confirmation"] = given["double_opt_in"]
            if before.subscribed and given["double_opt_in"] is not None:
                raise invalid(_DEFAULT_OUT)
        line = audited(request, "topic changed", changes.get("name") or before.name)
        if await self.context.topics.change(request.caller.account_id, topic_id, changes, [line]) is None:
            raise not_found("Topic")
        self.context.changed()
        return ok(request, views.TOPIC_SAVED.show(id=topic_id))

    @app.route("/topics/<id>", methods=["DELETE"])
    @operation("Delete a topic", "Deletes a topic and what contacts have chosen for it.", views.TOPIC_DELETED)
    async def delete(self, request: Request, id: str) -> bytes:
        return await request.detached(self._delete(request, parameters.uuid(id, "id")))

    async def _delete(self, request: Request, topic_id: UUID) -> bytes:
        found = await self._own(request, topic_id)
        line = audited(request, "topic deleted", found.name)
        if await self.context.topics.remove(request.caller.account_id, topic_id, [line]) is None:
            raise not_found("Topic")
        self.context.changed()
        return ok(request, views.TOPIC_DELETED.show(id=topic_id))

    async def _own(self, request: Request, id: UUID | str) -> Topic:
        return await definitions.own(request, self.context.topics.get, id, "Topic")


@attrs.define(eq=False)
class ContactProperties:
    app = collection()
    context: AudienceContext
    reader: Reader

    @app.route("/contact-properties", methods=["POST"])
    @operation(
        "Create a contact property", "Defines a field of contacts, for placeholders.", views.PROPERTY_SAVED, status=201,
        body=fields.CREATE_PROPERTY,
    )  # fmt: skip
    async def create(self, request: Request) -> bytes:
        return await request.detached(self._create(request))

    async def _create(self, request: Request) -> bytes:
        given = await self.reader.record(request, fields.CREATE_PROPERTY)
        key = given["key"]
        fallback = self._fallback(given["type"], given["fallback_value"])
        line = audited(request, "contact property created", key)
        try:
            added = await written(self.context.properties.add(request.caller.account_id, key, given["type"], fallback, [line]))
        except Taken:
            raise invalid(f"The `key` field must be unique: there is a contact property `{key}` already.") from None
        return created(request, views.PROPERTY_SAVED.show(added))

    @app.route("/contact-properties", methods=["GET"])
    @operation(
        "List contact properties", "The contact properties of the account, newest first; all of them without parameters.",
        Listing(views.PROPERTY), parameters=PAGING,
    )  # fmt: skip
    async def list(self, request: Request) -> bytes:
        return await definitions.listed(request, self.context.properties.list, views.PROPERTY, None)

    @app.route("/contact-properties/<id>", methods=["GET"])
    @operation("Retrieve a contact property", "A contact property.", views.PROPERTY)
    async def get(self, request: Request, id: str) -> bytes:
        return ok(request, views.PROPERTY.show(await request.detached(self._own(request, id))))

    @app.route("/contact-properties/<id>", methods=["PATCH"])
    @operation(
        "Update a contact property", "Changes the fallback value. Key and type cannot be changed.", views.PROPERTY_SAVED,
        body=fields.UPDATE_PROPERTY,
    )  # fmt: skip
    async def update(self, request: Request, id: str) -> bytes:
        return await request.detached(self._update(request, parameters.uuid(id, "id")))

    async def _update(self, request: Request, property_id: UUID) -> bytes:
        given = await self.reader.read(request, fields.UPDATE_PROPERTY.present)
        found = await self._own(request, property_id)
        unchanged(given, "Create another property.", key=found.key, type=found.type)
        if "fallback_value" in given:
            line = audited(request, "contact property changed", found.key)
            fallback = self._fallback(found.type, given["fallback_value"])
            if await self.context.properties.change(request.caller.account_id, property_id, fallback, [line]) is None:
                raise not_found("Contact property")
        return ok(request, views.PROPERTY_SAVED.show(id=property_id))

    @app.route("/contact-properties/<id>", methods=["DELETE"])
    @operation("Delete a contact property", "Deletes a contact property and its values.", views.PROPERTY_DELETED)
    async def delete(self, request: Request, id: str) -> bytes:
        return await request.detached(self._delete(request, parameters.uuid(id, "id")))

    async def _delete(self, request: Request, property_id: UUID) -> bytes:
        found = await self._own(request, property_id)
        line = audited(request, "contact property deleted", found.key)
        if await self.context.properties.remove(request.caller.account_id, property_id, [line]) is None:
            raise not_found("Contact property")
        return ok(request, views.PROPERTY_DELETED.show(id=property_id))

    async def _own(self, request: Request, id: UUID | str) -> Property:
        return await definitions.own(request, self.context.properties.get, id, "Contact property")

    def _fallback(self, kind: Any, value: Any) -> PropertyValue | None:
        """A fallback has to be of the type itself."""
        if value is None:
            return None
        if isinstance(value, str) is not (kind == "string"):
            raise invalid(f"The `fallback_value` field must be a {kind}, the type of the property.")
        try:
            return converted(kind, value, self.context.limits.value)
        except ValueError as wrong:
            raise invalid(f"The `fallback_value` field {wrong}.") from None
