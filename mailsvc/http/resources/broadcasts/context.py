"""What the API of broadcasts and the unsubscribe page share: the stores, and what happens after a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from mailsvc.broadcasts.links import UnsubscribeLinks
from mailsvc.clock import utc
from mailsvc.runtime.budget import Turns
from mailsvc.runtime.offload import InThread
from mailsvc.store.audience.contacts import Contacts
from mailsvc.store.audience.figures import AudienceFigures
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.audience.preferences import Preferences
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.recipients import Recipients
from mailsvc.store.broadcasts.sending import Sending
from mailsvc.store.broadcasts.settings import StoredSettings
from mailsvc.store.domains.domains import Domains
from mailsvc.store.postgres.pool import Pool

# Segments that are counted at the same time. It can take Postgres seconds, and others need the connections of this process.
COUNTED_AT_ONCE = 2


@attrs.define(eq=False)
class BroadcastContext:
    """`in_thread` runs a function off the reactor's thread. `notify` tells the other processes that there is work ("broadcasts"), or
    that there are new events ("events"). `topics`: the most that an account has. `most_contacts`: of a plan.
    """

    stored: Broadcasts
    recipients: Recipients
    sending: Sending
    settings: StoredSettings
    contacts: Contacts
    preferences: Preferences
    links: UnsubscribeLinks
    domains: Domains
    base_url: str
    in_thread: InThread
    figures: AudienceFigures
    now: Callable[[], datetime]
    counting: Turns
    notify: Callable[[str], None] = lambda channel: None
    topics: int = 100
    most_contacts: Callable[[str | None], int | None] = lambda plan: None
    unsubscribed: Counter[str] = attrs.field(factory=Counter, init=False)  # people since the start, by what they used

    @classmethod
    def of(
        cls, pool: Pool, clock: Any, keys: AudienceKeys, domains: Domains, base_url: str,
        in_thread: InThread, notify: Callable[[str], None] = lambda channel: None, topics: int = 100, listed: int = 10_000,
        most_contacts: Callable[[str | None], int | None] = lambda plan: None,
    ) -> BroadcastContext:  # fmt: skip
        return cls(
            Broadcasts(pool, clock, listed), Recipients(pool), Sending(pool), StoredSettings(pool, clock), Contacts(pool, clock, keys),
            Preferences(pool, clock), UnsubscribeLinks(keys), domains, base_url, in_thread, AudienceFigures(pool, clock),
            partial(utc, clock), Turns(COUNTED_AT_ONCE, clock), notify, topics, most_contacts,
        )  # fmt: skip
