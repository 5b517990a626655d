"""Assembles what personal emails need (consent, unsubscribe links, composing), and starts the engine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import attrs

from mailsvc.broadcasts.breaker import Breaker
from mailsvc.broadcasts.consent import Consent
from mailsvc.broadcasts.fanout import CHANNEL, Destination, Fanout, Pace, Quotas, Screen
from mailsvc.broadcasts.links import UnsubscribeLinks
from mailsvc.broadcasts.personal import Composer
from mailsvc.mail.tracking.token import PURPOSE
from mailsvc.runtime.database import Database
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.offload import InThread
from mailsvc.runtime.polling import PollingLoop
from mailsvc.settings.schema import Settings
from mailsvc.store.audience.figures import AudienceFigures
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.consent import Consents
from mailsvc.store.broadcasts.personal import PersonalEmails
from mailsvc.store.broadcasts.sending import Sending
from mailsvc.store.domains.domains import Domains
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.postgres.notifications import Notifications
from mailsvc.store.postgres.pool import Pool
from mailsvc.tracking.outgoing import OutgoingTracking

EVERY = 1.0  # seconds


@attrs.frozen
class Personalization:
    """Delivery asks `consent`, and the store of messages uses `composer`."""

    keys: AudienceKeys
    links: UnsubscribeLinks
    consent: Consent
    composer: Composer

    @classmethod
    def of(cls, pool: Pool, reactor: Any, encryption: Encryption, in_thread: InThread) -> Personalization:
        keys = AudienceKeys(pool, encryption)
        links = UnsubscribeLinks(keys)
        composer = Composer(PersonalEmails(pool, reactor), links, in_thread, partial(encryption.numbered_secrets_for, PURPOSE))
        return cls(keys, links, Consent(keys, Consents(pool, reactor)), composer)


class Reserve(Protocol):
    """delivery/handoff.QueueOnly.reserve"""

    def __call__(self, domain: str, size: int, bulk: bool, pool: str = "") -> Any: ...


def destinations(reserve: Reserve, pool_of: Callable[[UUID, UUID, bool], str]) -> Destination:
    """Where the emails of broadcasts are queued."""

    def destination(account_id: UUID, domain_id: UUID, name: str) -> str:
        found: str = reserve(name, 0, True, pool_of(account_id, domain_id, True)).destination
        return found

    return destination


def start_engine(
    clock: Any, opened: Opened, database: Database, settings: Settings, domains: Domains, quotas: Quotas, destination: Destination,
    notifications: Notifications, in_thread: InThread, screen: Screen | None, tracking: OutgoingTracking,
) -> Fanout:  # fmt: skip
    """The engine, which several processes can run."""
    chosen, expiry = settings.broadcasts, timedelta(seconds=settings.delivery.expire)
    breaker = Breaker(chosen.judged_after, chosen.bounced, chosen.complained, chosen.judged_least)
    fanout = Fanout(
        Sending(database.pool, database.hashes), Broadcasts(database.pool, clock), AudienceFigures(database.pool, clock), domains, quotas,
        destination, notifications, clock, in_thread, settings.base_url or "", expiry, breaker,
        Pace(chosen.ahead, chosen.hourly_rate), screen, tracking,
    )  # fmt: skip
    loop = PollingLoop(clock, "sending broadcasts", fanout.run, EVERY)
    loop.start()
    opened.add("broadcasts", loop.stop)
    notifications.listen(CHANNEL, loop.wake)
    return fanout
