"""Settings → Data: how long the account's data is kept, what is not stored, and closing the account. For admins."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.settings.retention import Retention, days
from mailsvc.store.account_data.closing import Closing
from mailsvc.store.logs.retention import Retention as StoredRetention
from mailsvc.store.people import minimization
from mailsvc.store.people.minimization import Minimization

DATA = f"{HOME}/settings/data"
KINDS = {
    "bodies": "Message contents",
    "emails": "Emails and their history",
    "events": "Event log",
    "attempts": "Delivery attempts and transcripts",
    "requests": "API request log",
    "webhooks": "Webhook messages",
    "receipts": "SMTP session log",
}
_DONE = {
    "saved": "Retention saved. Older data is deleted within the next minutes.",
    "minimized": "Settings saved.",
    "reopened": "The account is no longer closed.",
}


@attrs.define(eq=False)
class DataPages:
    app = section_app()
    context: PageContext
    retention: StoredRetention
    settings: Retention
    closing: Closing
    grace_days: int
    minimization: Minimization

    @page(app, DATA, access="administer")
    async def show(self, request: PageRequest) -> bytes:
        return await self._shown(request, done=_DONE.get(request.query("done"), ""))

    @page(app, f"{DATA}/retention", "POST", access="administer", reauthenticate=True)
    async def keep(self, request: PageRequest) -> bytes:
        most, wanted, errors = days(self.settings), {}, {}
        for kind in KINDS:
            given = request.single_line(kind)
            if not (given.isascii() and given.isdecimal()) or len(given) > 4 or not 1 <= int(given) <= most[kind]:
                errors[kind] = f"Enter 1 to {most[kind]} days."
            elif int(given) < most[kind]:
                wanted[kind] = int(given)
        if errors:
            return await self._shown(request, 422, errors=errors)
        said = ", ".join(f"{kind} {number} days" for kind, number in wanted.items()) or "the default"
        entry = request.audit_entry("retention changed", said)
        await self.retention.want(request.account_id, wanted, self.context.now().timestamp(), [entry])
        return request.redirect(DATA, done="saved")

    @page(app, f"{DATA}/minimize", "POST", access="administer", reauthenticate=True)
    async def minimize(self, request: PageRequest) -> bytes:
        implied = await self._implied(request)
        chosen = [kind for kind in minimization.KINDS if request.field(kind) == "on" or kind in implied]
        entry = request.audit_entry("data minimization changed", ", ".join(chosen) or "nothing")
        await self.minimization.set(request.account_id, chosen, [entry])
        return request.redirect(DATA, done="minimized")

    @page(app, f"{DATA}/close", "POST", access="administer", reauthenticate=True)
    async def close(self, request: PageRequest) -> bytes:
        if request.single_line("name") != " ".join((request.user_session.account or "").split()):
            return await self._shown(request, 422, errors={"name": "Enter the name of the account to close it."})
        at = self.context.now() + timedelta(days=self.grace_days)
        entry = request.audit_entry("account closed", f"its data is deleted after {self.grace_days} days")
        await self.closing.close(request.account_id, at, [entry])
        return request.redirect(DATA)

    @page(app, f"{DATA}/reopen", "POST", access="administer", reauthenticate=True)
    async def reopen(self, request: PageRequest) -> bytes:
        if not await self.closing.reopen(request.account_id, [request.audit_entry("account reopened")]):
            return request.redirect(DATA)
        return request.redirect(DATA, done="reopened")

    async def _shown(self, request: PageRequest, status: int = 200, **values: object) -> bytes:
        most = days(self.settings)
        kept = days(self.settings, await self.retention.wanted(request.account_id))
        rows = [(kind, name, request.field(kind) or kept[kind], most[kind]) for kind, name in KINDS.items()]
        shown: dict[str, object] = {"errors": {}, "done": "", "closes_at": await self.closing.closes_at(request.account_id)}
        chosen = await self.minimization.of(request.account_id)
        shown |= {"grace_days": self.grace_days, "kinds": minimization.KINDS, "chosen": chosen, "implied": await self._implied(request)}
        return request.render("settings/data.html", status, rows=rows, **shown | values)

    async def _implied(self, request: PageRequest) -> Sequence[str]:
        """The kinds that are not stored because messages are encrypted."""
        return ["requests"] if await self.minimization.encrypted(request.account_id) else []
