"""Gathers what the review of a broadcast needs: its content, its segment, its domain, limits, and a sample message for insights.

What follows from it: broadcasts/review and insights/checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from mailsvc.accounts.quota import Quotas
from mailsvc.broadcasts.fanout import own_values
from mailsvc.broadcasts.review import Finding, Place, Setup, Written, domain_of, review
from mailsvc.broadcasts.sample import sample
from mailsvc.domains.names import is_registrable, same_organisation
from mailsvc.insights import checks
from mailsvc.insights.checks import Grouped
from mailsvc.mail import merge, mime
from mailsvc.runtime.offload import InThread
from mailsvc.store.audience.figures import AudienceFigures
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.overview import Overview, Reach
from mailsvc.store.broadcasts.personal import SentContent
from mailsvc.store.broadcasts.sending import Sending
from mailsvc.store.broadcasts.values import Broadcast
from mailsvc.store.domains.domains import Domain, Domains
from mailsvc.store.people.accounts import Accounts

_NOBODY: Mapping[str, str] = {}


@attrs.frozen
class Reviewed:
    """`reach`: None without a segment. `insights`: None without content or sender. `domain`: that of the sender, if it was added."""

    findings: Sequence[Finding]
    reach: Reach | None
    segment: str | None
    topic: str | None
    domain: Domain | None
    insights: Grouped | None

    @property
    def blocked(self) -> bool:
        return any(each.blocks for each in self.findings)

    @property
    def recipients(self) -> int:
        return 0 if self.reach is None else self.reach.recipients


@attrs.define(eq=False)
class Reviewer:
    """`base_url`: what unsubscribe links begin with; empty: not configured."""

    stored: Broadcasts
    overview: Overview
    sending: Sending
    domains: Domains
    accounts: Accounts
    quotas: Quotas
    figures: AudienceFigures
    in_thread: InThread
    base_url: str

    async def review(self, found: Broadcast, now: datetime) -> Reviewed:
        html, text = await self.stored.bodies(found.account_id, found.id)
        properties = await self.sending.properties(found.account_id)
        fallbacks = {key: each.fallback for key, each in properties.items()}
        written: Written = await self.in_thread(lambda: Written.of(html, text, (found.subject, found.preview_text), fallbacks))
        segment, topic = await self.overview.names(found)
        numbers = {key: properties[key].number if key in properties else "" for key in sorted(written.keys)}
        reach = None if segment is None else await self._reach(found, numbers)
        name = domain_of(found.sender)
        domain = None if name is None else await self.domains.find(found.account_id, name)
        setup = Setup(
            found.sender, found.subject, _missing(name, domain), None if reach is None else reach.total,
            0 if reach is None else reach.recipients, {} if reach is None else reach.missing, *await self._limits(found),
            topic_deleted=found.topic_id is not None and topic is None,
        )  # fmt: skip
        insights = None if written.empty or name is None else await self._insights(found, written, name, properties, now)
        return Reviewed(review(setup, written), reach, segment, topic, domain, insights)

    async def _reach(self, found: Broadcast, numbers: Mapping[str, str]) -> Reach:
        default = None if found.topic_id is None else bool(await self.sending.default(found.account_id, found.topic_id))
        return await self.overview.reach(found, default, numbers)

    async def _limits(self, found: Broadcast) -> tuple[int | None, tuple[str, Place] | None]:
        """How many recipients the quota has room for, and why the account cannot send broadcasts."""
        account = await self.accounts.get(found.account_id)
        if account is None or account.suspended_at is not None:
            return None, ("This account is suspended and can’t send.", "operator")
        if not self.base_url:
            return None, ("The setting base_url, which unsubscribe links need, isn’t configured.", "operator")
        most = self.quotas.contacts(account.plan)
        if most is not None and await self.figures.exceeds(account.id, most):
            return None, (f"Your plan allows broadcasts with up to {most:,} contacts, and you have more.", "plan")
        used = await self.quotas.usage(account.id, account.plan, account.ramp)
        return min((max(0, each.limit - (each.used or 0)) for each in used.values()), default=None), None

    async def _insights(self, found: Broadcast, written: Written, domain: str, properties: Mapping[str, Any], now: datetime) -> Grouped:
        """About the message for the first contact of the segment, or for the sender if there is none."""
        used = {key: properties[key].number if key in properties else "" for key in merge.keys(written.templates, properties)}
        members = [] if found.segment_id is None else await self.sending.members(attrs.evolve(found, numbers=used), 1)
        to, values = (members[0].email, own_values(used, members[0])) if members and members[0].email else (found.sender, _NOBODY)

        def look() -> Grouped:
            text = merge.text_of(written.html) if written.text is None and written.html else written.text
            content = SentContent(
                found.sender, tuple(found.reply_to), found.preview_text, written.html, text, written.fallbacks, self.base_url
            )  # fmt: skip
            made = sample(found, content, str(to), values, domain, now)
            mail = checks.mail_of(mime.parse(made.message), len(made.message), True, same_organisation, is_registrable, (made.to,), now)
            return checks.grouped(checks.of_mail(mail))

        insights: Grouped = await self.in_thread(look)
        return insights


def _missing(name: str | None, domain: Domain | None) -> str | None:
    if name is None:
        return None
    return "It isn’t one of your domains." if domain is None else domain.missing
