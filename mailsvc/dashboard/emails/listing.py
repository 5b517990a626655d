"""The list of emails, with its search and filters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from urllib.parse import urlencode
from uuid import UUID

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.emails.detail import EMAILS
from mailsvc.dashboard.formatting import in_unicode, status
from mailsvc.dashboard.news import answer, of
from mailsvc.dashboard.page import PageRequest, page, section_app
from mailsvc.domains import names
from mailsvc.store.domains.domains import Domain, Domains
from mailsvc.store.mail.emails import Emails as Stored
from mailsvc.store.mail.search import SERVICE, Filters, Search
from mailsvc.store.people.api_keys import Keys, KeyView

PAGE = 50
STATUSES = (
    "delivered",
    "opened",
    "clicked",
    "sent",
    "delivery_delayed",
    "bounced",
    "complained",
    "failed",
    "scheduled",
    "canceled",
    "suppressed",
)
SPANS = {"1": "Last 24 hours", "3": "Last 3 days", "7": "Last 7 days", "15": "Last 15 days", "30": "Last 30 days"}


@attrs.frozen
class Selection:
    """The filters in a query string. `params`: those that apply, for links. `labels`: the same for people, as name and value."""

    filters: Filters
    params: dict[str, str]
    labels: Sequence[tuple[str, str]]
    domains: Sequence[Domain]
    keys: Sequence[KeyView]

    @property
    def query(self) -> str:
        return urlencode(self.params)


@attrs.define(eq=False)
class EmailList:
    app = section_app()
    context: PageContext
    stored: Stored
    search: Search
    domains: Domains
    keys: Keys

    @page(app, EMAILS, access="read_mail")
    async def list(self, request: PageRequest) -> bytes:
        found = await self._named(request, request.query("q"))
        if found is not None:
            return request.redirect(f"{EMAILS}/{found}")
        selection = await self.read_filters(request)
        news = await answer(
            request, EMAILS, selection.params, ("email", "emails"), partial(self.search.newer, request.account_id, selection.filters)
        )
        if news is not None:
            return news
        after = request.uuid(request.query("after")) if request.query("after") else None
        result = await self.search.emails(request.account_id, selection.filters, PAGE, after)
        older = f"{EMAILS}?{urlencode({**selection.params, 'after': str(result.after)})}" if result.after else None
        return request.render(
            "emails/list.html", page=result, older=older, first=after is None, selection=selection, statuses=STATUSES, spans=SPANS,
            news=None if after or selection.filters.status else of(
                request, EMAILS, selection.params, result.emails[0].email_id if result.emails else None
            ),
        )  # fmt: skip

    async def read_filters(self, request: PageRequest) -> Selection:
        """Unknown filter values are ignored; an unknown domain or key is not found."""
        domains, _ = await self.domains.list(request.account_id)
        keys = await self.keys.ever(request.account_id)
        given = {name: request.query(name)[:200] for name in ("q", "status", "days", "domain", "key")}
        domain, key = request.selected("domain", domains, "domain"), request.selected("key", keys, "API key")
        filters = Filters(
            text=names.searched(given["q"]),
            status=f"email.{given['status']}" if given["status"] in STATUSES else "",
            since=self.context.now() - timedelta(days=int(given["days"])) if given["days"] in SPANS else None,
            domain_id=domain.id if domain else None,
            key_id=key.id if key else None,
        )
        labels = {
            "q": ("Text", given["q"]),
            "status": ("Status", status(given["status"])[0] if filters.status else ""),
            "days": ("Time", SPANS.get(given["days"], "")),
            "domain": ("Domain", in_unicode(domain.name) if domain else ""),
            "key": ("API key", key.name if key else ""),
        }
        params = {name: given[name] for name, (_, value) in labels.items() if value}
        return Selection(filters, params, [labels[name] for name in params], domains, keys)

    async def _named(self, request: PageRequest, text: str) -> UUID | None:
        """The email whose full ID was searched for, or the Message-ID that it got from us, which begins with its ID."""
        try:
            email_id = UUID(text.strip("<>").partition("@")[0])
        except ValueError:
            return None
        found = await self.stored.get(request.account_id, email_id)
        return email_id if found is not None and found.source not in SERVICE else None
