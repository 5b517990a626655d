"""Settings → Team → Review access: members and API keys, which of them are unused, and what was decided about each."""

from __future__ import annotations

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.mail import csv_file
from mailsvc.store.people.access_review import KEPT, Access, review, table
from mailsvc.store.people.roles import NAMES
from mailsvc.store.postgres.pool import Pool

ACCESS = f"{HOME}/settings/access"
ENDED = 200  # removed members and revoked keys on the page


@attrs.define(eq=False)
class AccessReviewPages:
    app = section_app()
    context: PageContext
    pool: Pool

    @page(app, ACCESS, access="administer")
    async def show(self, request: PageRequest) -> bytes:
        return request.render(
            "settings/access.html", found=await self._found(request, ENDED), roles=NAMES, done=request.query("done") == "kept", most=ENDED
        )

    @page(app, f"{ACCESS}/keep", "POST", access="administer")
    async def keep(self, request: PageRequest) -> bytes:
        """Record that a member or a key keeps its access."""
        one = next(
            (each for each in await self._found(request, 0) if each.id is not None and each.subject == request.field("subject")), None
        )
        if one is None:
            raise not_found("member or key")
        await request.write_audit_entry(KEPT, one.subject)
        return request.redirect(ACCESS, done="kept")

    @page(app, f"{ACCESS}/review.csv", access="administer")
    async def export(self, request: PageRequest) -> bytes:
        found, now = await self._found(request), self.context.now()
        body = await self.context.in_thread(lambda: csv_file.lines(table(found, now)))  # a year can have tens of thousands of keys
        await request.write_audit_entry("access review exported")
        request.set_header("Content-Disposition", 'attachment; filename="access-review.csv"')
        return request.send(body, "text/csv; charset=utf-8")

    async def _found(self, request: PageRequest, ended: int | None = None) -> list[Access]:
        return await review(self.pool, request.account_id, self.context.now(), ended)
