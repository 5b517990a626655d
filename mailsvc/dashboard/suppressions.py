"""Suppressions: the list with its search, adding and removing addresses."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from itertools import accumulate
from typing import cast
from urllib.parse import urlencode
from uuid import UUID

import attrs

from mailsvc.clock import unix
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageError, PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin import tickets
from mailsvc.domains import names
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.events.suppressions import Origin, Suppression
from mailsvc.store.events.suppressions import Suppressions as Stored

SUPPRESSIONS = f"{HOME}/suppressions"
PAGE = 50
MOST = 1000  # addresses in one form
REMOVED = "mailsvc-removed"
REASON = 2000  # bytes of a reason in JSON: browsers drop cookies of more than 4,096 bytes
ORIGINS = {"bounce": "Bounce", "complaint": "Complaint", "manual": "Manual"}


@attrs.define(eq=False)
class SuppressionPages:
    """`changed` is called after each change."""

    app = section_app()
    context: PageContext
    stored: Stored
    changed: Callable[[], None]

    @page(app, SUPPRESSIONS, access="see_setup")
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
        query = urlencode({name: value for name, value in (("q", sought), ("origin", origin)) if value})
        shown: dict[str, object] = {"errors": {}, "typed": "", "done": request.query("done"), "query": query}
        shown["removed"] = self._remembered(request) if request.query("done") == "removed" else None
        return request.render(
            "suppressions.html", status, found=found, older=older, first=after is None, origin=origin, origins=ORIGINS, q=sought,
            **shown | values,
        )  # fmt: skip

    @page(app, SUPPRESSIONS, "POST", access="change_setup")
    async def add(self, request: PageRequest) -> bytes:
        typed = request.field("emails")
        read = {word: _address(word) for word in typed.replace(",", " ").replace(";", " ").split()}
        emails = [email for email in read.values() if email is not None]
        wrong = next((word for word, email in read.items() if email is None), None)
        if wrong is not None or not 0 < len(emails) <= MOST:
            error = f"“{wrong}” isn’t a valid email address." if wrong else f"Enter 1 to {MOST:,} addresses."
            return await self._listed(request, 422, errors={"emails": error}, typed=typed)
        entry = request.audit_entry("suppressions added", f"{len(emails)} addresses" if len(emails) > 1 else emails[0])
        await self.stored.add(request.account_id, emails, [entry])
        self.changed()
        return request.redirect(SUPPRESSIONS, done="added")

    @page(app, f"{SUPPRESSIONS}/<text>/remove", "POST", access="change_setup")
    async def remove(self, request: PageRequest, text: str) -> bytes:
        suppression_id, email = request.uuid(text, "suppression"), request.field("email")
        there = await self.stored.get(request.account_id, suppression_id)
        found = there or (await self.stored.named(request.account_id, email) if email else None)
        if found is None or found.id != suppression_id:
            raise not_found("suppression")
        entry = request.audit_entry("suppression removed", found.email)
        if there is not None:
            await self.stored.remove(request.account_id, ids=[there.id], lines=[entry])
            self._remember(request, there)
        else:  # of an address that was erased: only its hash is stored, and undoing would store it again
            await self.stored.remove(request.account_id, emails=[found.email], lines=[entry])
            request.set_cookie(REMOVED, "", 0)
        self.changed()
        return request.redirect(SUPPRESSIONS, done="removed")

    @page(app, f"{SUPPRESSIONS}/restore", "POST", access="change_setup")
    async def restore(self, request: PageRequest) -> bytes:
        """Undo the last removal in this browser."""
        removed = self._remembered(request)
        if removed is None:
            raise PageError(410, "Too late to undo", "Add the address again instead.")
        await self.stored.restore(request.account_id, removed, [request.audit_entry("suppression restored", removed.email)])
        self.changed()
        request.set_cookie(REMOVED, "", 0)
        return request.redirect(SUPPRESSIONS, done="restored")

    def _remember(self, request: PageRequest, removed: Suppression) -> None:
        """In a cookie: what was removed is stored nowhere else."""
        facts = {"id": str(removed.id), "email": removed.email, "origin": removed.origin, "at": removed.created_at.isoformat()}
        facts |= {"account": str(request.account_id), "source": str(removed.source_id or ""), "reason": _beginning(removed.reason or "")}
        ticket = tickets.issue(self.context.secrets()[0], request.binding, REMOVED, unix(self.context.clock), **facts)
        request.set_cookie(REMOVED, ticket, tickets.LIFE)

    def _remembered(self, request: PageRequest) -> Suppression | None:
        facts = tickets.read(self.context.secrets(), request.binding, REMOVED, request.cookie(REMOVED), unix(self.context.clock))
        if facts is None or facts["account"] != str(request.account_id):
            return None
        source, origin = UUID(facts["source"]) if facts["source"] else None, cast(Origin, facts["origin"])
        return Suppression(UUID(facts["id"]), facts["email"], origin, source, facts["reason"] or None, datetime.fromisoformat(facts["at"]))


def _beginning(reason: str) -> str:
    """As much of a reason as REASON allows. In a ticket, a character beyond ASCII takes up to 12 bytes."""
    sizes = accumulate(len(json.dumps(character)) - 2 for character in reason)
    return reason[: sum(1 for size in sizes if size <= REASON)]


def _address(text: str) -> str | None:
    """An address as it is stored, with A-labels; None if it is none, or has a name."""
    try:
        mailbox = parse_mailbox(text)
    except AddressError:
        return None
    return None if mailbox.name else mailbox.address
