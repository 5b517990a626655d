"""The first page: from nothing to a first delivered mail, then how the last day went."""

from __future__ import annotations

from datetime import timedelta

import attrs

from mailsvc.dashboard import snippets
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.metrics import rates, wanted
from mailsvc.dashboard.page import Visit, area, page
from mailsvc.dashboard.safety import HOME
from mailsvc.store.domains.domains import Domains
from mailsvc.store.events.rollups import Rollups
from mailsvc.store.mail.search import Filters, Search
from mailsvc.store.people.api_keys import Keys


@attrs.define(eq=False)
class Home:
    app = area()
    desk: PageContext
    domains: Domains
    keys: Keys
    search: Search
    rollups: Rollups

    @page(app, HOME)
    async def show(self, visit: Visit) -> bytes:
        return await self._shown(visit, "")

    @page(app, f"{HOME}/start", "POST")
    async def start(self, visit: Visit) -> bytes:
        """A key, shown this once, in code that sends."""
        line = visit.line("key created", "first key")
        _, secret = await self.keys.create(visit.account_id, "first key", "sending_access", lines=[line], created_by=visit.who.user_id)
        return await self._shown(visit, secret)

    async def _shown(self, visit: Visit, secret: str) -> bytes:
        domains, _ = await self.domains.list(visit.account_id)
        keys, _ = await self.keys.list(visit.account_id)
        latest = await self.search.emails(visit.account_id, Filters(), 5)
        now = self.desk.now()
        counts = await self.rollups.counts(visit.account_id, wanted(now - timedelta(days=1), now + timedelta(hours=1)))
        ready = next((domain for domain in domains if domain.may_send), None)
        sender = f"hello@{(ready or domains[0]).name}" if domains else "hello@your-domain.example"
        return visit.render(
            "home.html",
            domains=domains,
            ready=ready,
            steps=visit.query("steps") == "1",  # also when all of them are done: the page that led here follows them
            keys=keys,
            secret=secret,
            latest=latest.emails,
            delivered=any(email.last_event == "email.delivered" for email in latest.emails),
            rates=rates(counts),
            code=snippets.all_of(self.desk.base_url, secret or "ms_…", sender, visit.who.email),
        )
