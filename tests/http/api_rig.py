"""The API on string transports with the real intake and store. Every response is checked against its description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, cast
from uuid import UUID

import attrs
import pytest_twisted
from twisted.internet.defer import Deferred

from mailsvc.accounts.quota import Quotas
from mailsvc.accounts.ratelimit import RateLimit
from mailsvc.broadcasts.links import UnsubscribeLinks
from mailsvc.broadcasts.topics import TopicMail
from mailsvc.domains import views
from mailsvc.domains.maintenance import DomainMaintenance
from mailsvc.domains.records import Publishing
from mailsvc.domains.rotation import Rules
from mailsvc.http.api import Api, EventApi
from mailsvc.http.fields import Bounds
from mailsvc.http.request_log import Recorder
from mailsvc.http.resources.attachment_links import Links
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.http.resources.broadcasts.context import BroadcastContext
from mailsvc.http.resources.domains import DomainContext
from mailsvc.http.resources.suppressions import Suppressions
from mailsvc.http.resources.webhooks import Webhooks
from mailsvc.http.site import ApiSite
from mailsvc.intake import Intake
from mailsvc.net.address_guard import networks
from mailsvc.net.urls import Rules as WebRules
from mailsvc.net.urls import read
from mailsvc.policy import Limits
from mailsvc.runtime.budget import Budgets
from mailsvc.settings.audience import Audience, Broadcasts
from mailsvc.settings.plans import Plan
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.broadcasts.sending import Sending
from mailsvc.store.domains.checks import DomainChecks
from mailsvc.store.domains.claims import DomainClaims
from mailsvc.store.domains.domains import Domains
from mailsvc.store.domains.reports import Reports
from mailsvc.store.events.event_log import EventLog
from mailsvc.store.events.rollups import Rollups
from mailsvc.store.events.suppressions import Suppressions as StoredSuppressions
from mailsvc.store.events.webhook_log import WebhookLog
from mailsvc.store.events.webhooks import Webhooks as StoredWebhooks
from mailsvc.store.logs.requests import RequestLog
from mailsvc.store.logs.smtp_sessions import SmtpSessions
from mailsvc.store.mail.accept import Acceptance
from mailsvc.store.mail.emails import Emails
from mailsvc.store.mail.messages import Messages
from mailsvc.store.mail.sandbox import Sandbox
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.api_keys import Keys, is_well_formed
from mailsvc.store.people.quota import Quota
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy.eraser import Eraser
from mailsvc.store.privacy.journal import Recorded
from tests.http.contract import Contract
from tests.http.rig import Connection, Response, Web, request
from tests.store.encryption.test_secrets import ENCRYPTION

GOOD: dict[str, Any] = {"from": "Acme <hello@example.test>", "to": ["zoe@example.net"], "subject": "Grüße", "html": "<p>Hello</p>"}


class NoDelivery:
    """A hand-off and a notifier that do nothing."""

    destination = "example.net"
    leased = False
    lease = 0

    def reserve(
        self, domain: str, size: int, bulk: bool, pool: str = "", region: str | None = None, account_id: UUID | None = None
    ) -> NoDelivery:
        return self

    def prepare(self, email: Any) -> None: ...
    def deliver(self, email: Any, reservations: Any) -> None: ...
    def release(self, email_id: Any, reservations: Any) -> None: ...
    def notify(self, channel: str) -> None: ...


async def called(work: Callable[..., Any], *given: Any) -> Any:
    return work(*given)


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


@attrs.frozen
class ApiRig:
    site: ApiSite
    pool: Pool
    key: str
    foreign_key: str
    account_id: UUID
    domain_id: UUID
    keys: Keys
    recorder: Recorder
    contract: Contract
    intake: Intake
    erasing: Recorded
    clock: Any = None
    web: Web = attrs.field(factory=Web)

    async def flush(self) -> None:
        """Let the request log be written."""
        await self.recorder.stop()

    def request(self, method: str, path: str, body: object = b"", key: str | None = None, **headers: str) -> Deferred[Response]:
        """One request on a connection of its own; the Deferred fires when the answer is there."""
        connection: Any = Connection(self, "192.0.2.1")
        answered: Deferred[Response] = Deferred()
        write = connection.transport.write

        def done(response: Response) -> None:
            if not answered.called:
                try:
                    self.contract.check(method, path, response.status, response.headers["content-type"], response.any)
                except AssertionError:
                    answered.errback()
                else:
                    answered.callback(response)

        def written(data: bytes) -> None:
            write(data)
            for response in connection.responses():
                if len(response.body) == int(response.headers.get("content-length", -1)):
                    self.site.reactor.callLater(0, done, response)  # once the request is over

        connection.transport.write = written
        connection.send(request(method, path, body, self.key if key is None else key or None, **headers))
        return answered.addTimeout(10, self.site.reactor)


def event_api(pool: Pool, clock: Any) -> EventApi:
    rules = WebRules(clear=True, allowed=networks(["127.0.0.1"]))
    return EventApi(
        EventLog(pool),
        lambda reader: Webhooks(StoredWebhooks(pool, clock, ENCRYPTION), WebhookLog(pool), reader, partial(read, rules=rules), 3),
        lambda reader: Suppressions(StoredSuppressions(pool, clock), reader),
    )


FEW = Audience(segments=20, topics=20, properties=20)
MANY = Broadcasts()


@attrs.define
class Later:
    """The reactor, with a clock that the test advances."""

    reactor: Any
    ahead: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reactor, name)

    def seconds(self) -> float:
        return float(self.reactor.seconds()) + self.ahead

    def advance(self, seconds: float) -> None:
        self.ahead += seconds


async def build(pool: Pool, audience: Audience = FEW, broadcasts: Broadcasts = MANY) -> ApiRig:
    """The rig with these settings."""
    from twisted.internet import reactor

    clock: Any = Later(reactor)
    publishing = Publishing({"us-east-1": "out.example.net"}, tracking_host="track.example.net")
    domains = Domains(pool, clock, ENCRYPTION, payload=views.payload(publishing))
    accounts, keys = Accounts(pool, clock), Keys(pool, clock)
    account, foreign = await accounts.create("one"), await accounts.create("another")
    domain = await domains.add(account.id, "example.test", "us-east-1", [])
    await domains.trust(account.id, "example.test")
    _, token = await keys.create(account.id, "a key", "full_access")
    _, foreign_token = await keys.create(foreign.id, "a key", "full_access")
    no_delivery: Any = NoDelivery()
    web = Web()
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = at_once
    quotas = Quotas(Quota(pool), clock, {"tiny": Plan("tiny", 7, 5), "month": Plan("month", 4), "few": Plan("few", 100, contacts=2)})
    intake = Intake(
        Acceptance(pool, clock), domains, no_delivery, no_delivery, Limits(), timedelta(days=5), in_thread, clock.seconds, quotas
    )
    links = UnsubscribeLinks(AudienceKeys(pool, ENCRYPTION))
    intake.topics = TopicMail(links, Sending(pool), "https://api.example.com")
    checker = cast(Any, None)  # nobody checks DNS here
    rules = Rules(timedelta(days=7), timedelta(days=180))
    maintenance = DomainMaintenance(
        domains, DomainChecks(pool, domains), DomainClaims(pool, domains), checker, publishing, rules, in_thread, own=frozenset()
    )
    requests, erasing = RequestLog(pool), Recorded(Eraser(pool, clock, ENCRYPTION, called, patience=0.0), None)
    recorder = Recorder(requests.write, clock)
    api = Api(
        reactor=clock, keys=keys, well_formed=is_well_formed, intake=intake, emails=Emails(pool, clock), messages=Messages(pool, clock),
        links=Links(web, 1000, clock), events=event_api(pool, clock),
        audience=AudienceContext.of(pool, clock, ENCRYPTION, audience), bounds=Bounds(audience=audience, broadcasts=broadcasts),
        broadcasts=BroadcastContext.of(
            pool, clock, AudienceKeys(pool, ENCRYPTION), domains, "https://api.example.com", in_thread, most_contacts=quotas.contacts,
            topics=audience.topics, listed=broadcasts.listed,
        ),
        rate=RateLimit(clock, 10_000), budgets=Budgets.of(1 << 28, 1 << 31, clock), in_thread=in_thread, checks={},
        domains=DomainContext(domains, maintenance, publishing, Reports(pool)),
        requests=requests, sessions=SmtpSessions(pool, clock),
        rollups=Rollups(pool), quotas=quotas, link_secrets=lambda: (b"secret",), inbox=Sandbox(pool),
        base_url="https://api.example.com", recorder=recorder, erasing=erasing,
    )  # fmt: skip
    contract = Contract(api.document())
    return ApiRig(api.site(), pool, token, foreign_token, account.id, domain.id, keys, recorder, contract, intake, erasing, clock, web)


@pytest_twisted.async_fixture
async def rig(pool: Pool) -> ApiRig:
    return await build(pool)
