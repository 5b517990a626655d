"""The API with everything it needs, and which collection answers which path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.web.resource import Resource

from mailsvc.accounts.quota import Quotas
from mailsvc.accounts.ratelimit import RateLimit
from mailsvc.clock import unix
from mailsvc.http import docs_site
from mailsvc.http.fields import Bounds
from mailsvc.http.gate import Gate, Limits, MovedTo, Networks, Uploader
from mailsvc.http.openapi import Description, document
from mailsvc.http.reading import Reader
from mailsvc.http.request_log import Recorder
from mailsvc.http.resources.account_figures import Figures
from mailsvc.http.resources.api_keys import ApiKeys
from mailsvc.http.resources.attachment_links import Links
from mailsvc.http.resources.attachments import Attachments
from mailsvc.http.resources.audience.confirmation_page import ConfirmationPage
from mailsvc.http.resources.audience.consents import Consents
from mailsvc.http.resources.audience.contacts import Contacts
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.http.resources.audience.imports import ContactImports
from mailsvc.http.resources.audience.segments import Audiences, Segments
from mailsvc.http.resources.audience.topics import ContactProperties, Topics
from mailsvc.http.resources.broadcasts.broadcasts import Broadcasts, PreferencePageApi
from mailsvc.http.resources.broadcasts.clicked_links import ClickedLinks
from mailsvc.http.resources.broadcasts.context import BroadcastContext
from mailsvc.http.resources.broadcasts.unsubscribe import UnsubscribePage
from mailsvc.http.resources.contents import Contents
from mailsvc.http.resources.domains import DomainContext, Domains
from mailsvc.http.resources.emails import Emails
from mailsvc.http.resources.event_log import EventLog
from mailsvc.http.resources.health import Check, Health
from mailsvc.http.resources.logs import Logs
from mailsvc.http.resources.privacy import Privacy
from mailsvc.http.resources.sandbox import Sandbox
from mailsvc.http.resources.share import Share
from mailsvc.http.resources.suppressions import Suppressions
from mailsvc.http.resources.webhooks import Webhooks
from mailsvc.http.site import ApiSite
from mailsvc.intake import Intake
from mailsvc.net.signed_links import SignedLinks
from mailsvc.runtime.budget import Budgets
from mailsvc.runtime.offload import InThread
from mailsvc.runtime.tracing import Tracing
from mailsvc.store.events.event_log import EventLog as StoredEventLog
from mailsvc.store.events.rollups import Rollups
from mailsvc.store.logs.requests import RequestLog
from mailsvc.store.logs.smtp_sessions import SmtpSessions
from mailsvc.store.mail.emails import Emails as StoredEmails
from mailsvc.store.mail.messages import Messages
from mailsvc.store.mail.sandbox import Sandbox as Inbox
from mailsvc.store.people.api_keys import Keys
from mailsvc.store.people.quota import Period
from mailsvc.store.privacy.journal import Recorded


@attrs.frozen
class EventApi:
    """The collections about events."""

    log: StoredEventLog
    webhooks: Callable[[Reader], Webhooks]
    suppressions: Callable[[Reader], Suppressions]


@attrs.frozen(kw_only=True)
class Api:
    """`site()` is the factory to listen with. There is an `inbox` in development only."""

    reactor: IReactorTime
    keys: Keys
    well_formed: Callable[[str], bool]
    intake: Intake
    emails: StoredEmails
    messages: Messages
    links: Links
    rate: RateLimit
    budgets: Budgets
    in_thread: InThread
    checks: Mapping[str, Check]
    domains: DomainContext
    sessions: SmtpSessions
    requests: RequestLog
    rollups: Rollups
    link_secrets: Callable[[], Sequence[bytes]]  # the first one signs
    quotas: Quotas | None = None
    events: EventApi | None = None
    audience: AudienceContext | None = None
    broadcasts: BroadcastContext | None = None
    erasing: Recorded | None = None
    recorder: Recorder | None = None
    base_url: str = ""
    inbox: Inbox | None = None
    limits: Limits = attrs.field(factory=Limits)
    bounds: Bounds = attrs.field(factory=Bounds)
    trusted: Networks = ()
    remarks: Mapping[str, Check] = attrs.field(factory=dict)
    uploader: Uploader | None = None
    moved_to: MovedTo | None = None
    tracing: Tracing | None = None
    pages: Mapping[str, Resource] = attrs.field(factory=dict)  # the dashboard, by the first segment of its paths

    def site(self) -> ApiSite:
        gate = Gate(self.keys, self.rate, self.limits, self.budgets, self.well_formed, self.uploader, self.moved_to)
        unsubscribe = {} if self.broadcasts is None else {"unsubscribe": UnsubscribePage(self.broadcasts).app.resource()}
        confirm = {} if self.audience is None else {"confirm": ConfirmationPage(self.audience).app.resource()}
        pages = {**docs_site.pages(can_try=self.inbox is not None), **self.pages, **unsubscribe, **confirm}
        found = {**self._resources(), **pages}
        return ApiSite(found, gate, self.reactor, self.trusted, self.recorder, pages, self.in_thread, self.tracing)

    def document(self) -> dict[str, Any]:
        """The response of `GET /openapi.json`."""
        return document(self.collections(), self.base_url, self.bounds)

    def collections(self) -> list[type]:
        return [*(type(one) for one in self._collections()), Description]

    def _used(self, account_id: UUID) -> Mapping[Period, int]:
        return {} if self.quotas is None else self.quotas.used(account_id)

    def _resources(self) -> dict[str, Resource]:
        """The resource for each place (see ApiSite), from the routes of the collections. The first collection gets the first segment."""
        found: dict[str, Resource] = {}
        for one in [*self._collections(), Description(self.document())]:
            resource = one.app.resource()
            for rule in one.app.url_map.iter_rules():
                for place in _places(rule.rule):
                    found.setdefault(place, resource)
        return found

    def _collections(self) -> list[Any]:
        reader = Reader(self.bounds, self.in_thread, partial(unix, self.reactor))
        contents, signed = Contents(self.messages, self.in_thread), SignedLinks(self.link_secrets)
        found: list[Any] = [
            Emails(self.intake, self.emails, contents, reader, self.links, self._used),
            Attachments(self.emails, contents, signed, self.base_url, self.reactor),
            Share(self.emails, contents, signed, reader, self.base_url, self.reactor),
            Figures(self.rollups, self.rate.default, self.reactor, self.in_thread, self.domains, self.audience, self.quotas),
            ApiKeys(self.keys, self.domains.stored, reader, self.reactor),
            Domains(self.domains, reader),
            Logs(self.requests, self.sessions),
            Health(self.checks, self.remarks),
        ]
        if self.events is not None:
            found += [EventLog(self.events.log), self.events.webhooks(reader), self.events.suppressions(reader)]
        if self.audience is not None:
            found += [
                each(self.audience, reader) for each in (Contacts, ContactImports, Consents, Segments, Audiences, Topics, ContactProperties)
            ]
        if self.broadcasts is not None:
            found += [Broadcasts(self.broadcasts, reader), PreferencePageApi(self.broadcasts, reader), ClickedLinks(self.broadcasts)]
        if self.erasing is not None:
            found.append(Privacy(self.erasing, reader))
        return [*found, Sandbox(self.inbox)] if self.inbox is not None else found


def _places(rule: str) -> Iterator[str]:
    first, *rest = rule[1:].split("/")
    yield first
    if len(rest) > 1 and "<" not in rest[1]:
        yield f"{first}/*/{rest[1]}"
    elif rest and "<" not in rest[0]:
        yield f"{first}/{rest[0]}"
