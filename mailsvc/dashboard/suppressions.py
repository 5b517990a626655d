"""Suppressions: the list with its search, adding and removing addresses."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.domains import names
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.events.suppressions import Suppressions as Stored

SUPPRESSIONS = f"{HOME}/suppressions"
PAGE = 50
MOST = 1000  # addresses in one form
ORIGINS = {"bounce": "Bounce", "complaint": "Complaint", "manual": "Manual"}


@attrs.define(eq=False)
class SuppressionPages:
    """`changed` is called after each change."""

    app = section_app()
    context: PageContext
    stored: Stored
    changed: Callable[[], None]

    @page(app, SUPPRESSIONS)
    async def list(self, request: PageRequest) -> bytes:
        return await self._listed(request)

    async def _listed(self, request: PageRequest, status: int = 200, **values: object) -> bytes:
        origin, sought = request.query("origin"), request.query("q")
        origin = origin if origin in ORIGINS else ""
        after = request.uuid(request.query("after")) if request.query("after") else None
        text, last = names.ascii_domain(sought[:320]), None
        if text:
            found, last = await self.stored.search(request.account_id, text, PAGE, after, origin or None)
            erased = None if found or after else await self.stored.named(request.account_id, text)
            found = [erased] if erased else found
        else:
            found, more = await self.stored.list(request.account_id, PAGE, after, None, origin or None)
            last = found[-1].id if more else None
        older = f"{SUPPRESSIONS}?{urlencode({'q': sought, 'origin': origin, 'after': str(last)})}" if last else None
        shown: dict[str, object] = {"errors": {}, "typed": ""}
        return request.render(
            "suppressions.html", status, found=found, older=older, first=after is None, origin=origin, origins=ORIGINS, q=sought,
            **shown | values,
        )  # fmt: skip

    @page(app, SUPPRESSIONS, "POST")
    async def add(self, request: PageRequest) -> bytes:
        typed = request.field("emails")
        emails = typed.replace(",", " ").replace(";", " ").split()
        wrong = next((text for text in emails if not _is_address(text)), None)
        if wrong is not None or not 0 < len(emails) <= MOST:
            error = f"“{wrong}” isn’t a valid email address." if wrong else f"Enter 1 to {MOST:,} addresses."
            return await self._listed(request, 422, errors={"emails": error}, typed=typed)
        entry = request.audit_entry("suppressions added", f"{len(emails)} addresses" if len(emails) > 1 else emails[0])
        await self.stored.add(request.account_id, emails, [entry])
        self.changed()
        return request.redirect(SUPPRESSIONS)

    @page(app, f"{SUPPRESSIONS}/<text>/remove", "POST")
    async def remove(self, request: PageRequest, text: str) -> bytes:
        there = await self.stored.get(request.account_id, request.uuid(text, "suppression"))
        if there is None:
            raise not_found("suppression")
        await self.stored.remove(request.account_id, ids=[there.id], lines=[request.audit_entry("suppression removed", there.email)])
        self.changed()
        return request.redirect(SUPPRESSIONS)


def _is_address(text: str) -> bool:
    try:
        return parse_mailbox(text).address.lower() == text.lower()
    except AddressError:
        return False
