"""The sections of the dashboard that are about broadcasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from mailsvc.accounts.quota import Quotas
from mailsvc.dashboard.broadcasts.changes import FORMS, BroadcastChanges
from mailsvc.dashboard.broadcasts.detail import BroadcastPages
from mailsvc.dashboard.broadcasts.listing import BroadcastList
from mailsvc.dashboard.broadcasts.recipients import RecipientPages
from mailsvc.dashboard.broadcasts.results import Results
from mailsvc.dashboard.broadcasts.review import Reviewer
from mailsvc.dashboard.context import PageContext
from mailsvc.settings.schema import Settings
from mailsvc.store.audience.figures import AudienceFigures
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.overview import Overview
from mailsvc.store.broadcasts.recipients import Recipients
from mailsvc.store.broadcasts.sending import Sending
from mailsvc.store.domains.domains import Domains
from mailsvc.store.events.rollups import Rollups
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.postgres.pool import Pool


def sections(
    context: PageContext, pool: Pool, settings: Settings, domains: Domains, accounts: Accounts, quotas: Quotas,
    notify: Callable[[str], None],
) -> Mapping[str, Any]:  # fmt: skip
    stored, overview, recipients, rollups = Broadcasts(pool, context.clock), Overview(pool), Recipients(pool), Rollups(pool)
    reviewer = Reviewer(
        stored, overview, Sending(pool), domains, accounts, quotas, AudienceFigures(pool, context.clock), context.in_thread,
        settings.base_url or "",
    )  # fmt: skip
    pages = BroadcastPages(context, stored, reviewer, Results(overview, recipients, rollups))
    changes = BroadcastChanges(context, stored, pages, notify, timedelta(days=settings.limits.schedule_ahead))
    of_recipients = RecipientPages(context, pages, recipients, overview)
    return {
        "broadcasts/": BroadcastList(context, stored, overview, rollups),
        "broadcasts": pages,
        "broadcasts/*/recipients": of_recipients,
        "broadcasts/*/providers": of_recipients,
        **{f"broadcasts/*/{form}": changes for form in FORMS},
    }
