"""Emails: the list, with what may be looked for in it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import urlencode
from uuid import UUID

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.emails.detail import EMAILS
from mailsvc.dashboard.page import Visit, area, page
from mailsvc.dashboard.words import status
from mailsvc.store.domains.domains import Domain, Domains
from mailsvc.store.mail.emails import Emails as Stored
from mailsvc.store.mail.search import Filters, Search
from mailsvc.store.people.api_keys import Keys, KeyView

PAGE = 50
STATUSES = ("delivered", "sent", "delivery_delayed", "bounced", "complained", "failed", "scheduled", "canceled", "suppressed")
SPANS = {"1": "Last 24 hours", "3": "Last 3 days", "7": "Last 7 days", "15": "Last 15 days", "30": "Last 30 days"}


@attrs.frozen
class Asked:
    """What the address of the page asks for. `kept` are the parts that say something, `said` the same for people."""

    filters: Filters
    kept: dict[str, str]
    said: Sequence[tuple[str, str]]
    domains: Sequence[Domain]
    keys: Sequence[KeyView]

    @property
    def query(self) -> str:
        return urlencode(self.kept)


@attrs.define(eq=False)
class EmailList:
    app = area()
    desk: PageContext
    stored: Stored
    search: Search
    domains: Domains
    keys: Keys

    @page(app, EMAILS)
    async def list(self, visit: Visit) -> bytes:
        found = await self._named(visit, visit.query("q"))
        if found is not None:
            return visit.redirect(f"{EMAILS}/{found}")
        asked = await self.asked(visit)
        after = visit.uuid(visit.query("after")) if visit.query("after") else None
        result = await self.search.emails(visit.account_id, asked.filters, PAGE, after)
        older = f"{EMAILS}?{urlencode({**asked.kept, 'after': str(result.after)})}" if result.after else None
        return visit.render(
            "emails/list.html", page=result, older=older, first=after is None, asked=asked, statuses=STATUSES, spans=SPANS,
        )  # fmt: skip

    async def asked(self, visit: Visit) -> Asked:
        """A word that is no filter is none; a domain or a key that does not exist is not found."""
        domains, _ = await self.domains.list(visit.account_id)
        keys, _ = await self.keys.list(visit.account_id)
        given = {name: visit.query(name)[:200] for name in ("q", "status", "days", "domain", "key")}
        domain, key = visit.chosen("domain", domains, "domain"), visit.chosen("key", keys, "API key")
        filters = Filters(
            text=given["q"],
            status=f"email.{given['status']}" if given["status"] in STATUSES else "",
            since=self.desk.now() - timedelta(days=int(given["days"])) if given["days"] in SPANS else None,
            domain_id=domain.id if domain else None,
            key_id=key.id if key else None,
        )
        said = {
            "q": ("Text", given["q"]),
            "status": ("Status", status(given["status"])[0] if filters.status else ""),
            "days": ("Time", SPANS.get(given["days"], "")),
            "domain": ("Domain", domain.name if domain else ""),
            "key": ("API key", key.name if key else ""),
        }
        kept = {name: given[name] for name, (_, value) in said.items() if value}
        return Asked(filters, kept, [said[name] for name in kept], domains, keys)

    async def _named(self, visit: Visit, text: str) -> UUID | None:
        """The email whose whole id was searched for."""
        try:
            email_id = UUID(text)
        except ValueError:
            return None
        return email_id if await self.stored.get(visit.account_id, email_id) else None
