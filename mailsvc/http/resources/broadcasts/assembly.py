"""Broadcasts of a process: the engine that sends them, and what their API shares."""

from __future__ import annotations

from typing import Any

from mailsvc.accounts.quota import Quotas
from mailsvc.broadcasts.assembly import start_engine
from mailsvc.broadcasts.fanout import Destination, Fanout, Screen
from mailsvc.http.resources.broadcasts.context import BroadcastContext
from mailsvc.runtime.database import Database
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.offload import InThread
from mailsvc.settings.schema import Settings
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.domains.domains import Domains
from mailsvc.store.postgres.notifications import Notifications
from mailsvc.tracking.outgoing import OutgoingTracking


def assemble(
    clock: Any, opened: Opened, database: Database, settings: Settings, domains: Domains, quotas: Quotas, destination: Destination,
    notifications: Notifications, in_thread: InThread, keys: AudienceKeys, screen: Screen | None, tracking: OutgoingTracking,
) -> tuple[BroadcastContext, Fanout]:  # fmt: skip
    """Starts the engine, until `opened` is closed."""
    engine = start_engine(clock, opened, database, settings, domains, quotas, destination, notifications, in_thread, screen, tracking)
    context = BroadcastContext.of(
        database.pool, clock, keys, domains, settings.base_url or "", in_thread, notifications.notify, settings.audience.topics,
        settings.broadcasts.listed, quotas.contacts,
    )  # fmt: skip
    return context, engine
