"""Suppressions: addresses that get no mail any more, why, and taking them off the list or putting them on it."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import Visit, area, not_found, page
from mailsvc.dashboard.safety import HOME
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.events.suppressions import Suppressions as Stored

SUPPRESSIONS = f"{HOME}/suppressions"
PAGE = 50
MOST = 1000  # addresses put on the list at once
ORIGINS = {"bounce": "Bounce", "complaint": "Complaint", "manual": "Manual"}


@attrs.define(eq=False)
class SuppressionPages:
    """`changed` is called after each change."""

    app = area()
    desk: PageContext
    stored: Stored
    changed: Callable[[], None]

    @page(app, SUPPRESSIONS)
    async def list(self, visit: Visit) -> bytes:
        return await self._listed(visit)

    async def _listed(self, visit: Visit, status: int = 200, **values: object) -> bytes:
        origin, sought = visit.query("origin"), visit.query("q")
        origin = origin if origin in ORIGINS else ""
        after = visit.uuid(visit.query("after")) if visit.query("after") else None
        if sought:
            one = await self.stored.named(visit.account_id, sought)
            found, more = ([one] if one else []), False
        else:
            found, more = await self.stored.list(visit.account_id, PAGE, after, None, origin or None)
        older = f"{SUPPRESSIONS}?origin={origin}&after={found[-1].id}" if more else None
        shown: dict[str, object] = {"errors": {}, "typed": ""}
        return visit.render(
            "suppressions.html", status, found=found, older=older, first=after is None, origin=origin, origins=ORIGINS, q=sought,
            **shown | values,
        )  # fmt: skip

    @page(app, SUPPRESSIONS, "POST")
    async def add(self, visit: Visit) -> bytes:
        typed = visit.field("emails")
        emails = typed.replace(",", " ").replace(";", " ").split()
        wrong = next((text for text in emails if not _is_address(text)), None)
        if wrong is not None or not 0 < len(emails) <= MOST:
            said = f"“{wrong}” isn’t a valid email address." if wrong else f"Enter 1 to {MOST:,} addresses."
            return await self._listed(visit, 422, errors={"emails": said}, typed=typed)
        line = visit.line("suppressions added", f"{len(emails)} addresses" if len(emails) > 1 else emails[0])
        await self.stored.add(visit.account_id, emails, [line])
        self.changed()
        return visit.redirect(SUPPRESSIONS)

    @page(app, f"{SUPPRESSIONS}/<text>/remove", "POST")
    async def remove(self, visit: Visit, text: str) -> bytes:
        there = await self.stored.get(visit.account_id, visit.uuid(text, "suppression"))
        if there is None:
            raise not_found("suppression")
        await self.stored.remove(visit.account_id, ids=[there.id], lines=[visit.line("suppression removed", there.email)])
        self.changed()
        return visit.redirect(SUPPRESSIONS)


def _is_address(text: str) -> bool:
    try:
        return parse_mailbox(text).address.lower() == text.lower()
    except AddressError:
        return False
