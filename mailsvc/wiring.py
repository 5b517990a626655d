"""Converts settings to the types that delivery, the relay, the API and the fetcher take, and checks what needs those types."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from importlib import resources
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import attrs
from OpenSSL import SSL
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mailsvc import policy
from mailsvc.accounts.onboarding import REPORTS, publishing_of, tracking_host
from mailsvc.accounts.retention import RetentionSweep
from mailsvc.broadcasts.fanout import Screen
from mailsvc.broadcasts.sample import Sample
from mailsvc.clock import unix
from mailsvc.content_filter import ContentFilter, FilterRequest
from mailsvc.delivery import shaping
from mailsvc.delivery.connection import sources
from mailsvc.delivery.connection.sources import SourceRules, Sources
from mailsvc.delivery.connection.tls_policy import Source
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.shaping import Shaping
from mailsvc.domains import views
from mailsvc.domains.maintenance import DomainMaintenance
from mailsvc.http import gate
from mailsvc.http.api import EventApi
from mailsvc.http.resources.suppressions import Suppressions
from mailsvc.http.resources.webhooks import Webhooks
from mailsvc.insights.reputation import Reputation
from mailsvc.intake import Intake
from mailsvc.mail.address import AddressError, Mailbox, parse_mailbox
from mailsvc.mail.tracking.token import PURPOSE
from mailsvc.monitoring.regions import RegionWatch
from mailsvc.net import address_guard, urls
from mailsvc.net.dns import Resolver, configured
from mailsvc.net.fetch import Fetcher
from mailsvc.net.rspamd import Envelope, Rspamd
from mailsvc.relay.null_mx import NullMx
from mailsvc.relay.trusted_networks import TrustedNetworks
from mailsvc.reports.receiving import OwnSources, ReportIntake
from mailsvc.reports.tls_sending import TlsReportSender
from mailsvc.runtime.database import Database
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.offload import InThread
from mailsvc.runtime.privacy import ErasureService
from mailsvc.settings import reader, regions
from mailsvc.settings import schema as settings_
from mailsvc.settings.content_filter import ContentFilter as FilterSettings
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings
from mailsvc.smtp.client.client import Timeouts
from mailsvc.smtp.server import session
from mailsvc.smtp.server.certificates import CERTBOT, Certificates, self_signed
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.audience.objections import Objections
from mailsvc.store.broadcasts.values import Broadcast
from mailsvc.store.domains.domains import Domains
from mailsvc.store.domains.reports import Reports
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.events.event_log import EventLog
from mailsvc.store.events.rollups import Rollups
from mailsvc.store.events.suppressions import Suppressions as StoredSuppressions
from mailsvc.store.events.webhook_log import WebhookLog
from mailsvc.store.events.webhooks import Webhooks as StoredWebhooks
from mailsvc.store.postgres.notifications import Notifier
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.tls import TlsRecords
from mailsvc.tracking.outgoing import OutgoingTracking

log = Logger()


def _same(limits: type, section: object) -> dict[str, Any]:
    """The settings that have the same name in an attrs class of limits."""
    return {field.name: getattr(section, field.name) for field in attrs.fields(limits) if hasattr(section, field.name)}


def delivery_limits(delivery: settings_.Delivery) -> DeliveryLimits:
    networks("delivery.allowed_networks", delivery.allowed_networks)
    return DeliveryLimits(
        **_same(DeliveryLimits, delivery),
        allow_addresses=delivery.allowed_networks,
        own_names=tuple(filter(None, (delivery.ehlo_name, *(source.ehlo for source in source_addresses(delivery).all)))),
        retry_after=delivery.retry,
        retry_every=delivery.retry[-1],
    )


def provider_rules(path: Path | None) -> Shaping:
    """The rules of the file, or the built-in ones. A file without a schedule for warming up has the built-in one."""
    built_in = shaping.read(tomllib.loads((resources.files("mailsvc.delivery") / "shaping.toml").read_text("utf-8")))
    if path is None:
        return built_in
    try:
        found = shaping.read(reader.read(path))
        return found if found.warm_up else attrs.evolve(found, warm_up=built_in.warm_up)
    except SettingsError as error:
        raise SettingsError(f"The setting delivery.shaping: {error}") from None
    except shaping.BadRules as error:
        raise SettingsError(f"The file {path} (delivery.shaping) is not valid. {error}") from None


def source_addresses(delivery: settings_.Delivery) -> Sources:
    """The addresses that mail is sent from."""
    if delivery.dane and not all(ip_address(server.host).is_loopback for server in configured(delivery.nameservers)):
        raise SettingsError("The setting delivery.dane needs a validating resolver on this machine; see delivery.nameservers.")
    try:
        return Sources(sources.parse(delivery.sources))
    except ValueError as error:
        raise SettingsError(f"The setting delivery.sources has {error}.") from None


def sources_of_regions(settings: Settings) -> list[Source]:
    """The addresses that the settings of all regions name."""
    found: list[Source] = []
    for name, region in settings.regions.items():
        try:
            found += sources.parse(region.sources)
        except ValueError as error:
            raise SettingsError(f"The setting regions.{name}.sources has {error}.") from None
    return found


def bulk_pool(delivery: settings_.Delivery) -> str:
    """The pool of bulk mail; empty: the default pool."""
    return _pool("delivery.bulk_pool", delivery.bulk_pool or shaping.DEFAULT_POOL)


def source_rules(delivery: settings_.Delivery) -> SourceRules:
    """The addresses that mail is sent from, and what limits them."""
    return SourceRules(source_addresses(delivery).all, pool_overflow(delivery), tuple(delivery.block_lists))


def pool_overflow(delivery: settings_.Delivery) -> dict[str, str]:
    """By pool, the pool that takes its overflow."""
    where = "delivery.pool_overflow"
    return {_pool(where, pool): _pool(where, other) for pool, other in delivery.pool_overflow.items()}


def _pool(where: str, text: str) -> str:
    try:
        return shaping.pool_name(text)
    except ValueError as error:
        raise SettingsError(f"The setting {where} is not valid: {error}.") from None


def own_domains(settings: Settings) -> Sequence[str]:
    """The domains of the service's own emails."""
    return [parse_mailbox(each).domain for each in (settings.sender, settings.dashboard.test_sender) if each is not None]


def test_domain(settings: Settings) -> str:
    """The domain of test emails from the shared test sender; empty if there is none. Nothing else is sent from it."""
    if settings.dashboard.test_sender is None:
        return ""
    return parse_mailbox(settings.dashboard.test_sender).domain


def domains(settings: Settings, database: Database, clock: Any, notifications: Notifier) -> Domains:
    """The sending domains of all accounts."""
    payload = views.payload(publishing_of(settings, database.encryption))
    trusting, reserved = settings.domains.allow_trust, test_domain(settings)
    return Domains(database.pool, clock, database.encryption, notifications, payload, trusting=trusting, reserved=reserved)


def reputation(settings: Settings, pool: Pool, clock: Any) -> Reputation:
    """Looks up our reputation. With a smarthost, receivers don't see our servers, so none are looked up."""
    delivery, pages = settings.delivery, settings.dashboard
    resolver = Resolver(clock, delivery.nameservers, seconds=delivery.dns_seconds, size=2000, concurrent=20)
    own: list[tuple[str | None, str]] = [(each.address, each.ehlo) for each in source_addresses(delivery).all]
    servers = [] if "*" in delivery.routes else own or [(None, delivery.ehlo_name or "localhost")]
    lists = pages.block_lists, pages.domain_lists
    return Reputation(resolver, Rollups(pool), servers, *lists, clock, tracking_host(settings))


def start_deleting(reactor: Any, database: Database, settings: Settings, opened: Opened) -> None:
    """Deletes what is too old, and finishes erasures of personal data."""
    RetentionSweep(database.pool, reactor, settings.retention, timedelta(hours=settings.dashboard.session_idle_hours)).start(opened)
    if "ledger" in settings.roles:
        ErasureService(reactor, database.erasing).start(opened)


def reports(
    settings: Settings,
    database: Database,
    maintenance: DomainMaintenance,
    in_thread: InThread,
    seconds: Callable[[], float],
    held: Callable[[], str | None],
) -> ReportIntake:
    """Takes DMARC and TLS reports about customers' domains."""
    addresses = frozenset(each.address for each in (*source_addresses(settings.delivery).all, *sources_of_regions(settings)))
    own = OwnSources(maintenance.checker.resolver, maintenance.publishing, addresses)
    keep, secrets = timedelta(days=settings.retention.reports), partial(database.encryption.secrets_for, REPORTS)
    return ReportIntake(secrets, maintenance.domains, Reports(database.pool), own, in_thread, seconds, keep, held)


def start_tls_reports(
    settings: Settings, pool: Pool, resolver: Resolver, fetcher: Fetcher, intake: Intake, domains: Domains, reactor: Any, opened: Opened
) -> None:
    """Sends reports about TLS, unless they are turned off or have no sender."""
    if settings.sender is not None and settings.delivery.tls_reports:
        sender = parse_mailbox(settings.sender)
        TlsReportSender(TlsRecords(pool), resolver, fetcher, intake, domains, sender, partial(unix, reactor)).start(reactor, opened)


def outgoing_tracking(settings: Settings, encryption: Encryption, keys: AudienceKeys, in_thread: InThread) -> OutgoingTracking:
    """Tracks emails of domains that have it switched on. Links to this service, such as those to unsubscribe, stay as they are."""
    listed = frozenset(each.lower().strip(".") for each in settings.tracking.untracked_domains)
    secrets = partial(encryption.numbered_secrets_for, PURPOSE)
    return OutgoingTracking(tracking_host(settings), secrets, Objections(keys), in_thread, listed, settings.base_url or "")


def fetch_rules(fetch: settings_.Fetch) -> urls.Rules:
    """Which URLs from customers are allowed."""
    allowed = networks("fetch.allowed_networks", fetch.allowed_networks)
    return urls.Rules(frozenset(fetch.ports), fetch.allow_http, allowed, networks("fetch.denied_networks", fetch.denied_networks))


def content_filter(rules: FilterSettings, resolver: Resolver, clock: Any, in_thread: InThread) -> ContentFilter | None:
    """The content filter. Its URL comes from the operator, so it may have any address."""
    if rules.url is None:
        return None
    everywhere = urls.Rules(frozenset(), True, networks("content_filter.url", ("0.0.0.0/0", "::/0")))
    return ContentFilter(Rspamd(Fetcher(clock, resolver, everywhere), rules.url, rules.seconds), rules, clock, in_thread)


def screening(filter: ContentFilter | None) -> Screen | None:
    """Broadcasts are checked like other mail."""
    if filter is None:
        return None

    async def screen(found: Broadcast, sample: Sample) -> policy.Refusal | None:
        envelope = Envelope(str(found.id), sample.sender, (sample.to,), str(found.account_id))
        return (await filter.check({0: FilterRequest(envelope, sample.message)})).get(0)

    return screen


def smtp_timeouts(delivery: settings_.Delivery) -> Timeouts:
    greeting, reply = delivery.greeting_seconds, delivery.reply_seconds
    data, block, dot = delivery.data_seconds, delivery.block_seconds, delivery.final_seconds
    return Timeouts(greeting=greeting, ehlo=greeting, mail=reply, rcpt=reply, data=data, block=block, dot=dot)


def region_watch(pool: Pool, settings: Settings) -> RegionWatch:
    """Notices regions that no process delivers mail of."""
    return RegionWatch(pool, regions.all_regions(settings))


def own_names(settings: Settings) -> tuple[str, ...]:
    """The names for which mail to postmaster is accepted."""
    return regions.own_names(settings)


def certificates(smtp: settings_.Smtp, host: str, seconds: Callable[[], float]) -> Certificates:
    """The certificate of the SMTP ports. Raises SettingsError."""
    if smtp.self_signed is not None:
        pair = _self_signed(smtp.self_signed, host)
    elif smtp.certbot is not None:
        pair = (smtp.certbot / CERTBOT[0], smtp.certbot / CERTBOT[1])
    else:
        assert smtp.certificate is not None and smtp.key is not None
        pair = (smtp.certificate, smtp.key)
    try:
        return Certificates(*pair, seconds)
    except (OSError, ValueError, SSL.Error) as error:
        raise SettingsError(f"The certificate {pair[0]} cannot be used with the key {pair[1]}: {error}.") from None


def _self_signed(folder: Path, host: str) -> tuple[Path, Path]:
    try:
        return self_signed(folder, host)
    except OSError as error:
        raise SettingsError(f"The setting smtp.self_signed is {folder}, where no certificate can be stored: {error.strerror}.") from None


def mail_limits(limits: settings_.Limits) -> policy.Limits:
    """What a mail may have."""
    return policy.Limits(recipients_per_field=limits.recipients, message=limits.message, blocked_endings=frozenset(limits.blocked_endings))


def event_api(reactor: Any, database: Database, rules: urls.Rules, endpoints: int, notify: Callable[[str], None]) -> EventApi:
    """The collections of events: the log, webhooks and suppressions."""
    pool, stored = database.pool, StoredWebhooks(database.pool, reactor, database.encryption)
    read, hashes = partial(urls.read, rules=rules), database.hashes
    return EventApi(
        EventLog(pool),
        lambda reader: Webhooks(stored, WebhookLog(pool), reader, read, endpoints, lambda: notify("webhooks")),
        lambda reader: Suppressions(StoredSuppressions(pool, reactor, hashes), reader, lambda: notify("events")),
    )


def http_limits(http: settings_.Http, upload: int) -> gate.Limits:
    """The limits of API and dashboard clients. `upload`: bytes of a file with contacts."""
    return gate.Limits(**_same(gate.Limits, http), body=http.body_limit, upload=upload, idle=http.idle_seconds)


def smtp_limits(settings: Settings) -> session.Limits:
    """The limits of an SMTP session."""
    smtp = settings.smtp
    return session.Limits(**_same(session.Limits, smtp), size=settings.limits.message, idle=smtp.idle_seconds, rate=smtp.slowest)


def postmaster(settings: Settings) -> tuple[Mailbox, str, str] | None:
    """The operator's address, the sending domain that forwards mail to it, and this server's name."""
    smtp = settings.smtp
    if smtp.postmaster is None or smtp.postmaster_domain is None:
        return None
    try:
        return parse_mailbox(smtp.postmaster), smtp.postmaster_domain, settings.delivery.ehlo_name or "localhost"
    except AddressError as error:
        raise SettingsError(f"The setting smtp.postmaster is not a valid address: {error}") from None


def null_mx(settings: Settings, resolver: Resolver, clock: IReactorTime) -> NullMx:
    """Domains with a route in delivery.routes are not looked up."""
    fixed = {domain.lower().rstrip(".") for domain in settings.delivery.routes}
    return NullMx(resolver, clock, settings.smtp.null_mx, lambda domain: "*" in fixed or domain in fixed)


def trusted_networks(smtp: settings_.Smtp) -> TrustedNetworks:
    """The networks whose clients need neither TLS nor login. They are logged at every start."""
    balancers = networks("smtp.trusted_proxies", smtp.trusted_proxies)
    for text, key in smtp.trusted_networks.items():
        network = ip_network(text)
        if any(network.version == each.version and network.subnet_of(each) for each in balancers):
            raise SettingsError(
                f"The setting smtp.trusted_networks has {text}, inside smtp.trusted_proxies: "
                "all clients of the load balancer would be trusted."
            )
        log.info("Clients in {network} can send without TLS and login, with the API key {key}", network=text, key=key)
    return TrustedNetworks.of(smtp.trusted_networks, balancers)


def networks(where: str, texts: Sequence[str]) -> Any:
    """Parses the networks in the setting `where`. Raises SettingsError."""
    try:
        return address_guard.networks(texts)
    except ValueError as error:
        raise SettingsError(f"The setting {where} is a list; expected addresses or networks: {error}.") from None
