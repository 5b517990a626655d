"""The home page: the steps to a first delivered email, the figures of a week, what needs attention, and why the account cannot send."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from uuid import uuid4

import attrs

from mailsvc.accounts.quota import Quotas
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.emails.trial import TrialPages
from mailsvc.dashboard.home import overview
from mailsvc.dashboard.home.checklist import Checklist
from mailsvc.dashboard.metrics import ceiling, counted
from mailsvc.dashboard.news import answer, of
from mailsvc.dashboard.page import PageRequest, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.store.account_data.closing import Closing
from mailsvc.store.domains.domains import Domains
from mailsvc.store.events.rollups import Rollups
from mailsvc.store.events.webhooks import Webhooks
from mailsvc.store.mail.search import Filters, Search
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.api_keys import Keys
from mailsvc.store.queue.operator import Operating

DELIVERED = ("email.delivered", "email.opened", "email.clicked")
ENDPOINTS = 100  # webhook endpoints that are looked at


@attrs.define(eq=False)
class Home:
    app = section_app()
    context: PageContext
    domains: Domains
    keys: Keys
    search: Search
    rollups: Rollups
    queue: Operating
    accounts: Accounts
    closing: Closing
    trials: TrialPages
    webhooks: Webhooks
    quotas: Quotas

    @page(app, HOME, access="see_figures")
    async def show(self, request: PageRequest) -> bytes:
        news = await answer(request, HOME, {}, ("email", "emails"), partial(self.search.newer, request.account_id, Filters()))
        if news is not None:
            return news
        return await self._shown(request, "")

    @page(app, f"{HOME}/start", "POST", access="change_setup")
    async def start(self, request: PageRequest) -> bytes:
        """Create a key and show it once, in the code examples too."""
        entry = request.audit_entry("key created", "first key")
        _, secret = await self.keys.create(
            request.account_id, "first key", "sending_access", lines=[entry], created_by=request.user_session.user_id
        )
        return await self._shown(request, secret)

    @page(app, f"{HOME}/steps", "POST", access="change_setup")
    async def steps(self, request: PageRequest) -> bytes:
        """Hide the steps from this member, or show them again."""
        hidden = request.field("show") != "1"
        entry = request.audit_entry("setup steps hidden" if hidden else "setup steps shown")
        await self.context.users.hide_steps(request.account_id, request.user_session.user_id, hidden, [entry])
        return request.redirect(HOME, **({"done": "hidden"} if hidden else {}))

    async def _shown(self, request: PageRequest, secret: str) -> bytes:
        domains, _ = await self.domains.list(request.account_id)
        keys, _ = await self.keys.list(request.account_id)
        latest = await self.search.emails(request.account_id, Filters(), 5)
        now = self.context.now()
        until = ceiling(now, "day", request.zone)
        days = [(until - timedelta(days=number)).date() for number in range(2 * overview.DAYS, 0, -1)]
        wanted = counted(until - timedelta(days=len(days)), until, "day", request.zone.key, by_period=True)
        counts = await self.rollups.counts(request.account_id, wanted)
        webhooks, _ = await self.webhooks.list(request.account_id, ENDPOINTS)
        account = await self.accounts.get(request.account_id)
        suspended = account is not None and account.suspended_at is not None
        quotas = {} if account is None else await self.quotas.usage(account.id, account.plan, account.ramp)
        ready = next((domain for domain in domains if domain.may_send), None)
        delivered = any(email.last_event in DELIVERED for email in latest.emails) or any(count.type == DELIVERED[0] for count in counts)
        return request.render(
            "home.html",
            domains=domains,
            ready=ready,
            suspended=suspended,
            closes_at=await self.closing.closes_at(request.account_id) if suspended else None,
            held=await self.queue.pause_of(request.account_id, now),
            stepping=request.query("steps") == "1",  # shown even when all steps are done, while the page updates itself
            checklist=await self._checklist(
                request, domain=ready is not None, key=bool(keys), sent=bool(latest.emails), delivered=delivered, webhook=bool(webhooks)
            ),
            hidden_now=request.query("done") == "hidden",
            trial=await self.trials.of(request),
            offer=await self.trials.shared.offer(request) if ready is None else None,
            once=uuid4().hex,
            keys=keys,
            secret=secret,
            latest=latest.emails,
            news=of(request, HOME, {}, latest.emails[0].email_id if latest.emails else None),
            delivered=delivered,
            figures=overview.figures(counts, days),
            concerns=overview.concerns(domains, webhooks, counts, days, quotas),
            code=self.context.samples.of(domains, request.user_session.email, secret),
        )

    async def _checklist(self, request: PageRequest, **there: bool) -> Checklist:
        session, users = request.user_session, self.context.users
        teammate = len(await users.members(request.account_id)) > 1 or bool(await self.context.sessions.invitations(request.account_id))
        return Checklist.of(
            **there, teammate=teammate, hidden=bool(session.steps_hidden),
            second_factor=session.second_factor or session.single_sign_on is not None,
        )  # fmt: skip
