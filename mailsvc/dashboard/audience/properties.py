"""Properties of contacts: the list, creating one, its fallback, deleting."""

from __future__ import annotations

import attrs

from mailsvc.dashboard.audience.contacts import AUDIENCE
from mailsvc.dashboard.audience.forms import full, multiline, read, rules
from mailsvc.dashboard.audience.undo import put_back, undo_path
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, not_found, page, section_app
from mailsvc.http.fields import Bounds
from mailsvc.http.resources.audience import fields
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.store.audience.properties import converted
from mailsvc.store.audience.values import Full, Property, PropertyValue, Taken
from mailsvc.store.paging import Page

PROPERTIES = f"{AUDIENCE}/properties"
ONE = f"{PROPERTIES}/<text>"
PAGE = 50
DONE = {
    "added": "The property was created.",
    "changed": "The fallback was saved.",
    "deleted": "The property was deleted.",
    "restored": "The property is back.",
}


@attrs.define(eq=False)
class PropertyPages:
    app = section_app()
    context: PageContext
    audience: AudienceContext
    bounds: Bounds

    @page(app, PROPERTIES, access="see_audience")
    async def list(self, request: PageRequest) -> bytes:
        return await self._listed(request)

    async def _listed(self, request: PageRequest, status: int = 200, **values: object) -> bytes:
        after = request.uuid(request.query("after")) if request.query("after") else None
        found, more = await self.audience.properties.list(request.account_id, Page(PAGE, after))
        shown: dict[str, object] = {"errors": {}, "typed": {}}
        return request.render(
            "audience/properties.html", status, found=found, first=after is None, query=f"?after={after}" if after else "",
            older=f"{PROPERTIES}?after={found[-1].id}" if more else None, done=DONE.get(request.query("done"), ""),
            undo_at=undo_path(request, PROPERTIES), **shown | values,
        )  # fmt: skip

    @page(app, PROPERTIES, "POST", access="change_audience")
    async def add(self, request: PageRequest) -> bytes:
        typed = {"key": request.field("key"), "type": request.field("type"), "fallback": multiline(request, "fallback")}
        found = read(fields.CREATE_PROPERTY.fields, {name: typed[name] for name in ("key", "type")}, rules(request, self.bounds))
        errors, key = dict(found.errors), typed["key"]
        fallback: PropertyValue | None = None
        if "type" not in errors:
            try:
                fallback = self._fallback(found.values["type"], typed["fallback"])
            except ValueError as wrong:
                errors["fallback"] = f"This value {wrong}."
        if errors:
            return await self._listed(request, 422, errors=errors, typed=typed)
        line = request.audit_entry("contact property created", key)
        try:
            await self.audience.properties.add(request.account_id, key, found.values["type"], fallback, [line])
        except Taken:
            return await self._listed(request, 422, errors={"key": "There is a property with this key."}, typed=typed)
        except Full as wrong:
            return await self._listed(request, 422, errors={"key": full(wrong)}, typed=typed)
        return request.redirect(PROPERTIES, done="added")

    @page(app, f"{ONE}/change", "POST", access="change_audience")
    async def change(self, request: PageRequest, text: str) -> bytes:
        found, typed = await self._own(request, text), multiline(request, "fallback")
        try:
            fallback = self._fallback(found.type, typed)
        except ValueError as wrong:
            return await self._listed(request, 422, errors={str(found.id): f"This value {wrong}."}, typed={str(found.id): typed})
        line = request.audit_entry("contact property changed", found.key)
        if await self.audience.properties.change(request.account_id, found.id, fallback, [line]) is None:
            raise not_found("property")
        same_page = {"after": request.query("after")} if request.query("after") else {}
        return request.redirect(PROPERTIES, done="changed", **same_page)

    @page(app, f"{ONE}/delete", "POST", access="change_audience")
    async def delete(self, request: PageRequest, text: str) -> bytes:
        found = await self._own(request, text)
        line = request.audit_entry("contact property deleted", found.key)
        if await self.audience.properties.remove(request.account_id, found.id, [line]) is None:
            raise not_found("property")
        return request.redirect(PROPERTIES, done="deleted", undo=str(found.id))

    @page(app, f"{ONE}/restore", "POST", access="change_audience")
    async def restore(self, request: PageRequest, text: str) -> bytes:
        """Undo a deletion."""
        property_id = request.uuid(text, "property")
        line = request.audit_entry("contact property restored", str(property_id))
        await put_back(self.audience.properties.restore(request.account_id, property_id, [line]))
        return request.redirect(PROPERTIES, done="restored")

    async def _own(self, request: PageRequest, text: str) -> Property:
        found = await self.audience.properties.get(request.account_id, request.uuid(text, "property"))
        if found is None:
            raise not_found("property")
        return found

    def _fallback(self, kind: str, text: str) -> PropertyValue | None:
        """Raises ValueError with the end of a sentence."""
        return converted("number" if kind == "number" else "string", text, self.audience.limits.value) if text else None
