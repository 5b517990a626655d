"""The list of contacts with its search and filters, and adding one. The page of a contact: contact."""

from __future__ import annotations

from urllib.parse import urlencode
from uuid import UUID

import attrs

from mailsvc.dashboard.audience.forms import about, by, read, rules
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.domains.names import searched
from mailsvc.http.fields import Bounds
from mailsvc.http.resources.audience import fields
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.audience.listing import Filter, Found
from mailsvc.store.audience.values import NewContact, Unknown
from mailsvc.store.paging import Page

AUDIENCE = f"{HOME}/audience"
CONTACTS = f"{AUDIENCE}/contacts"
NEW = f"{AUDIENCE}/new"
PAGE = 50
LONGEST = 200  # characters of a search
CHOICES = Page(1000)  # segments in a list of choices
STATES = {"subscribed": "Subscribed", "unsubscribed": "Unsubscribed"}


@attrs.define(eq=False)
class ContactList:
    app = section_app()
    context: PageContext
    audience: AudienceContext
    bounds: Bounds

    @page(app, AUDIENCE, access="see_audience")
    async def list(self, request: PageRequest) -> bytes:
        segments, _ = await self.audience.segments.list(request.account_id, CHOICES)
        segment = request.selected("segment", segments, "segment")
        given = {name: request.query(name)[:LONGEST] for name in ("q", "segment", "state")}
        state = given["state"] if given["state"] in STATES else ""
        text = searched(given["q"])
        filter = Filter(segment.id if segment else None, {"": None}.get(state, state == "unsubscribed"), text)
        params = {name: value for name, value in {**given, "state": state}.items() if value}
        after = request.uuid(request.query("after")) if request.query("after") else None
        found = await self._search(request, filter, after)
        size = await self.audience.figures.size(request.account_id)
        older = f"{AUDIENCE}?{urlencode({**params, 'after': str(found.after)})}" if found.after else None
        return request.render(
            "audience/contacts.html", found=found.contacts, older=older, first=after is None, params=params, query=urlencode(params),
            segments=segments, states=STATES, size=size.contacts, deleted=request.query("done") == "deleted",
        )  # fmt: skip

    async def _search(self, request: PageRequest, filter: Filter, after: UUID | None) -> Found:
        """A page. A search reads some contacts at a time; if there is none among them, whose address begins with the text."""
        found = await self.audience.lists.search(request.account_id, filter, PAGE, after)
        if found.contacts or found.after is None or after is not None or filter != Filter(text=filter.text):
            return found
        return attrs.evolve(found, contacts=await self.audience.lists.beginning(request.account_id, filter.text, PAGE))

    @page(app, NEW, access="change_audience")
    async def new(self, request: PageRequest) -> bytes:
        return await self._new(request)

    async def _new(self, request: PageRequest, status: int = 200, **values: object) -> bytes:
        segments, _ = await self.audience.segments.list(request.account_id, CHOICES)
        shown: dict[str, object] = {"errors": {}, "typed": {}, "existing": None}
        return request.render("audience/new.html", status, segments=segments, **shown | values)

    @page(app, NEW, "POST", access="change_audience")
    async def add(self, request: PageRequest) -> bytes:
        typed = {name: request.single_line(name) for name in ("email", "first_name", "last_name", "segment")}
        names = read(fields.UPDATE.fields, {name: typed[name] for name in ("first_name", "last_name")}, rules(request, self.bounds))
        errors, email = dict(names.errors), _address(typed["email"])
        if email is None:
            errors["email"] = "Enter a valid email address."
        segments = [request.uuid(typed["segment"], "segment")] if typed["segment"] else []
        if email is None or errors:
            return await self._new(request, 422, errors=errors, typed=typed)
        existing = await self.audience.contacts.get(request.account_id, email)
        if existing is not None:
            return await self._new(request, 422, errors={"email": "This address is already a contact."}, typed=typed, existing=existing)
        new = NewContact(email, **names.values, segments=segments)
        try:
            contact = await self.audience.contacts.create(request.account_id, new, by(request), about(request, "contact saved"))
        except Unknown:
            return await self._new(request, 422, errors={"segment": "This segment no longer exists."}, typed=typed)
        self.audience.changed()
        return request.redirect(f"{CONTACTS}/{contact.id}", done="added")


def _address(text: str) -> str | None:
    try:
        return parse_mailbox(text).address
    except AddressError:
        return None
