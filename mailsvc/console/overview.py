"""The first page, with problems and the figures of Prometheus; and the audit log of the installation."""

from __future__ import annotations

import attrs

from mailsvc.console.serving import HOME, ConsoleContext, ConsolePage, page
from mailsvc.monitoring.readiness import Monitoring
from mailsvc.store.people.audit import INSTALLATION, Audit

AUDIT = f"{HOME}/audit"
PAGE = 50


@attrs.define(eq=False)
class OverviewPages:
    context: ConsoleContext
    monitoring: Monitoring
    audit: Audit

    @page(HOME)
    async def shown(self, request: ConsolePage) -> bytes:
        return request.render("overview.html", shown=await self.monitoring.overview())

    @page(AUDIT)
    async def log(self, request: ConsolePage) -> bytes:
        after = request.uuid(request.query("after")) if request.query("after") else None
        entries, more = await self.audit.list(INSTALLATION, PAGE, after)
        older = f"{AUDIT}?after={entries[-1].id}" if more else None
        return request.render("audit.html", entries=entries, older=older, first=after is None)
