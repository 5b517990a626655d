"""The sections of the audience, by the path below /dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mailsvc.dashboard.audience.contact import ContactPages
from mailsvc.dashboard.audience.contacts import ContactList
from mailsvc.dashboard.audience.imports import ImportPages
from mailsvc.dashboard.audience.preference_page import PreferencePages
from mailsvc.dashboard.audience.properties import PropertyPages
from mailsvc.dashboard.audience.segments import SegmentPages
from mailsvc.dashboard.audience.topics import TopicPages
from mailsvc.dashboard.context import PageContext
from mailsvc.http.fields import Bounds
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.settings.schema import Settings
from mailsvc.store.broadcasts.recipients import Recipients
from mailsvc.store.broadcasts.settings import StoredSettings
from mailsvc.store.mail.search import Search
from mailsvc.store.postgres.pool import Pool


def sections(context: PageContext, audience: AudienceContext, pool: Pool, settings: Settings) -> Mapping[str, Any]:
    bounds = Bounds(audience=settings.audience, broadcasts=settings.broadcasts)
    return {
        "audience": ContactList(context, audience, bounds),
        "audience/contacts": ContactPages(context, audience, Recipients(pool), Search(pool), bounds),
        "audience/imports": ImportPages(context, audience, settings.audience.import_size),
        "audience/segments": SegmentPages(context, audience, bounds),
        "audience/topics": TopicPages(context, audience, bounds),
        "audience/properties": PropertyPages(context, audience, bounds),
        "audience/page": PreferencePages(context, audience, StoredSettings(pool, context.clock), bounds),
    }
