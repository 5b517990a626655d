"""The page of a contact: names, properties, topics, segments, and its history. Changing, unsubscribing and deleting it."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import attrs

from mailsvc.dashboard.audience.contacts import AUDIENCE, CHOICES, CONTACTS
from mailsvc.dashboard.audience.forms import about, by, multiline, read, rules
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageError, PageRequest, not_found, page, section_app
from mailsvc.http.fields import Bounds
from mailsvc.http.resources.audience import fields
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.store.audience.values import Choice, Contact, Property, Unknown, WrongProperty
from mailsvc.store.broadcasts.recipients import Recipients
from mailsvc.store.mail.search import Filters, Found, Search
from mailsvc.store.paging import Page

ONE = f"{CONTACTS}/<text>"
EVIDENCE, BROADCASTS, EMAILS = 50, 20, 10  # the newest that are shown
FORM = Page(150)  # topics or properties in a form
SOURCES = {
    "api": "API",
    "dashboard": "Dashboard",
    "import": "Import",
    "confirmation": "Confirmed by email",
    "preferences": "Preference page",
    "one_click": "Unsubscribe button of the mail program",
}
DETAILS = {
    "ip": "IP address",
    "ip_address": "IP address",
    "user_agent": "program",
    "user_id": "member",
    "api_key_id": "API key",
    "email_id": "email",
}
DONE = {
    "added": "The contact was added.",
    "changed": "The contact was changed.",
    "topics": "The topics were saved.",
    "topics-asked": "The topics were saved. Those that ask for confirmation take effect when the contact confirms them by email.",
    "joined": "The contact was added to the segment.",
    "asked": "The contact was asked by email to confirm the segment.",
    "left": "The contact was removed from the segment.",
    "unsubscribed": "The contact is unsubscribed from all broadcasts.",
    "subscribed": "The contact is subscribed again.",
}


@attrs.define(eq=False)
class ContactPages:
    app = section_app()
    context: PageContext
    audience: AudienceContext
    recipients: Recipients
    search: Search
    bounds: Bounds

    @page(app, ONE, access="see_audience")
    async def show(self, request: PageRequest, text: str) -> bytes:
        return await self._shown(request, await self._own(request, text), done=DONE.get(request.query("done"), ""))

    async def _own(self, request: PageRequest, text: str) -> Contact:
        return _found(await self.audience.contacts.get(request.account_id, request.uuid(text, "contact")))

    async def _shown(self, request: PageRequest, contact: Contact, status: int = 200, **values: object) -> bytes:
        account_id = request.account_id
        segments, _ = await self.audience.lists.segments(account_id, contact.id, CHOICES)
        every, _ = await self.audience.segments.list(account_id, CHOICES)
        topics, _ = await self.audience.lists.topics(account_id, contact.id, FORM)
        inside = {each.id for each in segments}
        shown: dict[str, object] = {"errors": {}, "typed": {}, "done": ""}
        return request.render(
            "audience/contact.html", status, contact=contact, properties=await self._properties(request), segments=segments,
            others=[each for each in every if each.id not in inside], topics=topics, asking=await self._asking(request),
            sources=SOURCES, details=DETAILS,
            evidence=await self.audience.evidence.of(account_id, contact.hash, EVIDENCE),
            broadcasts=await self.recipients.of_contact(account_id, contact.id, BROADCASTS),
            emails=await self._emails(request, contact), **shown | values,
        )  # fmt: skip

    async def _properties(self, request: PageRequest) -> Sequence[Property]:
        return (await self.audience.properties.list(request.account_id, FORM))[0]

    async def _emails(self, request: PageRequest, contact: Contact) -> Sequence[Found]:
        """The newest emails to the address, among those that a search reads."""
        address = contact.email.lower()
        result = await self.search.emails(request.account_id, Filters(text=address), EMAILS)
        return [each for each in result.emails if address in map(str.lower, each.recipients)]

    # Changes

    @page(app, f"{ONE}/change", "POST", access="change_audience")
    async def change(self, request: PageRequest, text: str) -> bytes:
        contact, properties = await self._own(request, text), await self._properties(request)
        typed = {name: request.single_line(name) for name in ("first_name", "last_name")}
        names = read(fields.UPDATE.fields, typed, rules(request, self.bounds))
        given = _given(request, contact, properties)
        shown = {**typed, **{f"p:{key}": value or "" for key, value in given.items()}}
        if names.errors:
            return await self._shown(request, contact, 422, errors=names.errors, typed=shown)
        changes = {**names.values, "properties": given}
        try:
            return await self._done(request, contact, "changed", self._update(request, contact, changes, "contact changed"))
        except WrongProperty as wrong:
            return await self._shown(request, contact, 422, errors={f"p:{wrong.key}": f"This value {wrong.why}."}, typed=shown)

    @page(app, f"{ONE}/subscription", "POST", access="change_audience")
    async def subscription(self, request: PageRequest, text: str) -> bytes:
        """Unsubscribe from everything, or subscribe again."""
        contact, out = await self._own(request, text), request.field("action") != "subscribe"
        action, done = ("contact unsubscribed", "unsubscribed") if out else ("contact subscribed", "subscribed")
        return await self._done(request, contact, done, self._update(request, contact, {"unsubscribed": out}, action))

    def _update(self, request: PageRequest, contact: Contact, changes: Mapping[str, Any], action: str) -> Awaitable[Contact | None]:
        return self.audience.contacts.update(request.account_id, contact.id, changes, by(request), about(request, action))

    @page(app, f"{ONE}/topics", "POST", access="change_audience")
    async def topics(self, request: PageRequest, text: str) -> bytes:
        contact = await self._own(request, text)
        known, _ = await self.audience.lists.topics(request.account_id, contact.id, FORM)
        offered = set(request.field("offered").split())
        wanted = [
            Choice(each.id, f"topic:{each.id}" in request.form)
            for each in known
            if str(each.id) in offered and each.subscribed is not (f"topic:{each.id}" in request.form)
        ]
        asking = await self._asking(request)
        asked = any(each.subscribed and each.topic_id in asking for each in wanted)
        lines = about(request, "topics of a contact changed")
        work = self.audience.contacts.choose(request.account_id, contact.id, wanted, by(request), lines)
        return await self._done(request, contact, "topics-asked" if asked else "topics", work)

    async def _asking(self, request: PageRequest) -> Collection[UUID]:
        """The topics with a double opt-in."""
        topics, _ = await self.audience.topics.list(request.account_id, FORM)
        return {each.id for each in topics if each.confirmation is not None}

    @page(app, f"{ONE}/join", "POST", access="change_audience")
    async def join(self, request: PageRequest, text: str) -> bytes:
        contact, segment_id = await self._own(request, text), request.uuid(request.field("segment"), "segment")
        segment = await self.audience.segments.get(request.account_id, segment_id)
        if segment is None:
            raise not_found("segment")
        lines = about(request, "contact added to a segment")
        work = self.audience.contacts.join(request.account_id, contact.id, segment_id, by(request), lines)
        return await self._done(request, contact, "joined" if segment.confirmation is None else "asked", work)

    @page(app, f"{ONE}/leave", "POST", access="change_audience")
    async def leave(self, request: PageRequest, text: str) -> bytes:
        contact, segment_id = await self._own(request, text), request.uuid(request.field("segment"), "segment")
        lines = about(request, "contact removed from a segment")
        return await self._done(request, contact, "left", self.audience.contacts.leave(request.account_id, contact.id, segment_id, lines))

    @page(app, f"{ONE}/delete", "POST", access="change_audience")
    async def delete(self, request: PageRequest, text: str) -> bytes:
        contact_id = request.uuid(text, "contact")
        _found(await self.audience.contacts.delete(request.account_id, contact_id, about(request, "contact deleted")))
        self.audience.changed()
        return request.redirect(AUDIENCE, done="deleted")

    async def _done(self, request: PageRequest, contact: Contact, done: str, work: Awaitable[Contact | None]) -> bytes:
        """Back to the page after a change."""
        try:
            _found(await work)
        except Unknown as wrong:
            raise PageError(409, "Not saved", f"A {wrong.kind} was deleted meanwhile. Reload the page and try again.") from None
        self.audience.changed()
        return request.redirect(f"{CONTACTS}/{contact.id}", done=done)


def _found(contact: Contact | None) -> Contact:
    if contact is None:
        raise not_found("contact")
    return contact


def _given(request: PageRequest, contact: Contact, properties: Sequence[Property]) -> dict[str, str | None]:
    """The values of the form that differ from those of the contact. An empty one removes the value."""
    given: dict[str, str | None] = {}
    for each in properties:
        if f"p:{each.key}" in request.form:
            value = multiline(request, f"p:{each.key}")
            if value != str(contact.properties.get(str(each.number), "")).strip():
                given[each.key] = value or None
    return given
