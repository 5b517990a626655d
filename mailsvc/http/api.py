"""The API with everything it needs: which collection answers under which name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.web.resource import Resource

from mailsvc.budget import Budget
from mailsvc.http.caller import Keys
from mailsvc.http.domains import DomainDesk, Domains
from mailsvc.http.emails import Emails, Messages, Stored, Submitting
from mailsvc.http.eventlog import EventLog, Events
from mailsvc.http.gate import Gate, Limits, Networks
from mailsvc.http.health import Check, Health
from mailsvc.http.links import Links
from mailsvc.http.reading import InThread, Reader
from mailsvc.http.sandbox import Inbox, Sandbox
from mailsvc.http.site import ApiSite
from mailsvc.http.suppressions import Suppressions
from mailsvc.http.webhooks import Webhooks
from mailsvc.policy import Limits as EmailLimits
from mailsvc.ratelimit import RateLimit


@attrs.frozen
class Told:
    """What tells customers of events."""

    log: Events
    webhooks: Callable[[Reader], Webhooks]
    suppressions: Callable[[Reader], Suppressions]


@attrs.frozen(kw_only=True)
class Api:
    """`site()` is what listens. `inbox` only in development. `pages` are served beside the API, by the first segment of their paths."""

    reactor: IReactorTime
    keys: Keys
    well_formed: Callable[[str], bool]
    intake: Submitting
    emails: Stored
    messages: Messages
    links: Links
    rate: RateLimit
    budget: Budget
    in_thread: InThread
    checks: Mapping[str, Check]
    told: Told | None = None
    domains: DomainDesk | None = None
    inbox: Inbox | None = None
    limits: Limits = attrs.field(factory=Limits)
    email_limits: EmailLimits = attrs.field(factory=EmailLimits)
    batch_max: int = 100
    schedule_ahead: timedelta = timedelta(days=30)
    trusted: Networks = ()
    pages: Mapping[str, Resource] = attrs.field(factory=dict)

    def site(self) -> ApiSite:
        gate = Gate(self.keys, self.rate, self.limits, self.budget, self.well_formed)
        return ApiSite({**self._collections(), **self.pages}, gate, self.reactor, self.trusted, self.pages)

    def _collections(self) -> dict[str, Resource]:
        reader = Reader(self.email_limits, self.schedule_ahead, self.in_thread, self.reactor.seconds)
        emails = Emails(self.intake, self.emails, self.messages, reader, self.links, self.batch_max).app.resource()
        health = Health(self.checks).app.resource()
        found: dict[str, Resource] = {"emails": emails, "email": emails, "healthz": health, "readyz": health}
        if self.told is not None:
            found["event-log"] = EventLog(self.told.log).app.resource()
            found["webhooks"] = self.told.webhooks(reader).app.resource()
            found["suppressions"] = self.told.suppressions(reader).app.resource()
        if self.domains is not None:
            found["domains"] = Domains(self.domains, reader).app.resource()
        if self.inbox is not None:
            found["sandbox"] = Sandbox(self.inbox).app.resource()
        return found
