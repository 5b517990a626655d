"""Starts serving what emails refer to: tracked links, pixels and the images of broadcasts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from twisted.logger import Logger
from twisted.web.resource import Resource

from mailsvc.http.resources.tracking.certificates import CertificateQuestions
from mailsvc.http.resources.tracking.images import PATH, PublicImages
from mailsvc.http.resources.tracking.links import TrackedLinks, Tracking
from mailsvc.mail.tracking.token import CLICKS, OPENS, PURPOSE
from mailsvc.runtime.database import Database
from mailsvc.runtime.lifecycle import Opened
from mailsvc.settings.schema import Settings
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.audience.objections import Objections
from mailsvc.store.broadcasts.images import Images
from mailsvc.store.cache import CHANNEL
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.notifications import Notifications
from mailsvc.store.tracking.hits import Hits
from mailsvc.store.tracking.hosts import ServedHosts
from mailsvc.tracking.hits import HitRecorder
from mailsvc.tracking.hosts import TrackingHosts

log = Logger()


async def start_tracking(clock: Any, opened: Opened, settings: Settings, database: Database, notifications: Notifications) -> Tracking:
    """Call it before the listeners open, so that the last opens and clicks are stored after they have closed."""
    chosen, pool, encryption = settings.tracking, database.pool, database.encryption
    hosts = TrackingHosts(ServedHosts(pool), own_hosts(settings))
    await hosts.refresh()
    reading = hosts.loop(clock)
    reading.start(at_once=False)
    notifications.listen(CHANNEL, reading.wake)
    opened.add("hosts of tracked links", reading.stop)
    objections, wake = Objections(AudienceKeys(pool, encryption)), partial(notifications.notify, "events")
    recorder = HitRecorder(Hits(pool), objections, clock, wake, chosen.pending, chosen.truncate_addresses)
    storing = recorder.loop()
    storing.start(at_once=False)

    async def stop() -> None:
        await storing.stop()
        try:
            await recorder.store_pending()
        except StoreError as error:
            log.warn("{count} opens and clicks are lost: {error}", count=len(recorder), error=str(error))

    opened.add("opens and clicks", stop)
    return Tracking(partial(encryption.numbered_secrets_for, PURPOSE), hosts, recorder, chosen.link_days, clock, Images(pool, clock))


def own_hosts(settings: Settings) -> frozenset[str]:
    """The installation's hosts for tracked links and images."""
    found = (settings.tracking.host, settings.broadcasts.images_host, urlsplit(settings.base_url or "").hostname)
    return frozenset(host.lower() for host in found if host)


def pages(tracking: Tracking) -> Mapping[str, Resource]:
    """The resources by the first segment of their paths."""
    images = {} if tracking.images is None else {PATH.strip("/"): PublicImages(tracking.hosts, tracking.images, tracking.clock)}
    return {
        **images,
        CLICKS.strip("/"): TrackedLinks(tracking, clicks=True),
        OPENS.strip("/"): TrackedLinks(tracking, clicks=False),
        "tracking": CertificateQuestions(tracking.hosts, tracking.clock),
    }
