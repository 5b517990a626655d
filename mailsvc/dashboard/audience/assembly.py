"""The sections of the audience, by the path below /dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mailsvc.dashboard.audience.contact import ContactPages
from mailsvc.dashboard.audience.contacts import ContactList
from mailsvc.dashboard.context import PageContext
from mailsvc.http.fields import Bounds
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.settings.schema import Settings
from mailsvc.store.broadcasts.recipients import Recipients
from mailsvc.store.mail.search import Search
from mailsvc.store.postgres.pool import Pool


def sections(context: PageContext, audience: AudienceContext, pool: Pool, settings: Settings) -> Mapping[str, Any]:
    bounds = Bounds(audience=settings.audience, broadcasts=settings.broadcasts)
    return {
        "audience": ContactList(context, audience, bounds),
        "audience/contacts": ContactPages(context, audience, Recipients(pool), Search(pool), bounds),
    }
