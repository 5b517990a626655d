"""Settings → Privacy: find, export and erase what the account stores about an address. For admins with a recent proof of identity."""

from __future__ import annotations

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.privacy import eraser
from mailsvc.store.privacy.finding import Busy, Finder, archive_lines
from mailsvc.store.privacy.inventory import purpose
from mailsvc.store.privacy.journal import Recorded

PRIVACY = f"{HOME}/settings/privacy"
SHOWN = 20  # erasures
_DONE = {"erase": "The address is being erased. Its certificate is below."}
INVALID = "Enter a valid email address."
_BUSY = "Another search is running. Try again in a minute."


@attrs.define(eq=False)
class PrivacyPages:
    app = section_app()
    context: PageContext
    erasing: Recorded

    @page(app, PRIVACY, access="administer", reauthenticate=True)
    async def show(self, request: PageRequest) -> bytes:
        return await self._shown(request, done=_DONE.get(request.query("done"), ""))

    @page(app, f"{PRIVACY}/find", "POST", access="administer", reauthenticate=True)
    async def find(self, request: PageRequest) -> bytes:
        email = _email(request)
        if email is None:
            return await self._invalid(request)
        await request.write_audit_entry("address searched")
        try:
            with self.erasing.turn.take(request.account_id):
                found = await self._finder(request, email).find()
        except Busy:
            return await self._shown(request, 503, email=email, errors={"email": _BUSY})
        places = [(place, count, purpose(place)) for place, count in sorted(found.counts.items())]
        return await self._shown(request, email=email, places=places)

    @page(app, f"{PRIVACY}/export", "POST", access="administer", reauthenticate=True)
    async def export(self, request: PageRequest) -> bytes:
        email = _email(request)
        if email is None:
            return await self._invalid(request)
        await request.write_audit_entry("personal data exported")
        try:
            with self.erasing.turn.take(request.account_id):
                await request.download("personal-data.jsonl", "application/x-ndjson", archive_lines(self._finder(request, email)))
        except Busy:
            return await self._shown(request, 503, email=email, errors={"email": _BUSY})
        return b""

    @page(app, f"{PRIVACY}/erase", "POST", access="administer", reauthenticate=True)
    async def erase(self, request: PageRequest) -> bytes:
        email = _email(request)
        if email is None:
            return await self._shown(request, 422, errors={"erase": INVALID})
        why = await eraser.refused(self.erasing.eraser.pool, email, request.account_id)
        if why is not None:
            return await self._shown(request, 422, errors={"erase": why})
        entry = request.audit_entry("address erased")
        await self.erasing.begin(request.account_id, email, request.field("suppress") == "on", "dashboard", [entry])
        return request.redirect(PRIVACY, done="erase")

    async def _invalid(self, request: PageRequest) -> bytes:
        return await self._shown(request, 422, email=request.field("email"), errors={"email": INVALID})

    async def _shown(self, request: PageRequest, status: int = 200, **values: object) -> bytes:
        erasures, _ = await self.erasing.eraser.erasures.list(request.account_id, SHOWN)
        shown: dict[str, object] = {"errors": {}, "email": "", "done": "", "places": None}
        return request.render("settings/privacy.html", status, erasures=erasures, **shown | values)

    def _finder(self, request: PageRequest, email: str) -> Finder:
        return Finder(self.erasing.eraser.pool, email, request.account_id, self.erasing.eraser.in_thread, self.erasing.eraser.bodies)


def _email(request: PageRequest) -> str | None:
    try:
        return parse_mailbox(request.field("email")).address
    except AddressError:
        return None
