"""The whole daemon on one page: every service in the order in which mail meets it.

`twistd mailsvc --config FILE` comes in at `makeService`. Starting, stopping and failing: lifespan.py. This is the only module that
names the reactor; whoever needs it, or a clock, is given it here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import attrs
from twisted.application.service import IService
from twisted.python.usage import Options as UsageOptions

from mailsvc import __version__, policy, wiring
from mailsvc.accounts.onboarding import Customers, People, domain_maintenance, publishing_of
from mailsvc.accounts.ratelimit import Block, RateLimit
from mailsvc.accounts.retention import RetentionSweep
from mailsvc.accounts.usage import Accounting
from mailsvc.bounces.intake import BounceIntake
from mailsvc.clock import held, prepare, unix
from mailsvc.dashboard.assembly import Assembly as Dashboard
from mailsvc.dashboard.signin.mails import Mailer
from mailsvc.dashboard.signin.providers import providers_of
from mailsvc.delivery.assembly import assemble
from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.handoff import LocalHandoff, QueueOnly
from mailsvc.delivery.service import Delivery
from mailsvc.domains import views
from mailsvc.domains.schedule import CHANNEL as DOMAINS
from mailsvc.domains.schedule import CheckSchedule
from mailsvc.events.ledger import Ledger
from mailsvc.http.api import Api, EventApi
from mailsvc.http.fields import Bounds
from mailsvc.http.request_log import Recorder
from mailsvc.http.resources.attachment_links import Links
from mailsvc.http.resources.domains import DomainContext
from mailsvc.http.resources.suppressions import Suppressions
from mailsvc.http.resources.webhooks import Webhooks
from mailsvc.intake import Intake
from mailsvc.mail import return_path
from mailsvc.mail.address import parse_mailbox
from mailsvc.monitoring import logs, metrics
from mailsvc.monitoring.control_socket import Controls, open_socket
from mailsvc.monitoring.failures import explain
from mailsvc.monitoring.listener import private
from mailsvc.monitoring.operator_commands import Orders
from mailsvc.monitoring.readiness import Watching
from mailsvc.net import urls
from mailsvc.net.dns import Resolver
from mailsvc.net.fetch import Fetcher
from mailsvc.relay.connection_limits import ConnectionLimits, LoginFailures
from mailsvc.relay.dsn_sender import DsnSender
from mailsvc.relay.inbound import Forward, InboundMail
from mailsvc.relay.ports import Ports, stop_sessions
from mailsvc.relay.postmaster import Postmaster
from mailsvc.relay.session import Relay
from mailsvc.relay.session_log import SessionLog
from mailsvc.relay.submission import Submissions
from mailsvc.runtime import interpreter
from mailsvc.runtime.budget import Budgets
from mailsvc.runtime.database import follow_keys, in_thread, open_database, wrong_keys
from mailsvc.runtime.lifecycle import Lifespan, Opened, awaited
from mailsvc.runtime.listeners import Listening, address, within
from mailsvc.runtime.offload import Offload, Threads
from mailsvc.runtime.polling import every
from mailsvc.runtime.slices import Slices
from mailsvc.sandbox.opening import sandbox
from mailsvc.sandbox.welcome import Welcome
from mailsvc.settings import loading
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings
from mailsvc.store.domains.domains import Domains
from mailsvc.store.events.async_bounces import AsyncBounces
from mailsvc.store.events.event_log import EventLog
from mailsvc.store.events.ledger import EventLedger
from mailsvc.store.events.outbox import Outbox
from mailsvc.store.events.rollups import Rollups
from mailsvc.store.events.suppressions import Suppressions as StoredSuppressions
from mailsvc.store.events.webhook_log import WebhookLog
from mailsvc.store.events.webhooks import Webhooks as StoredWebhooks
from mailsvc.store.logs.requests import RequestLog
from mailsvc.store.logs.smtp_sessions import SmtpSessions as StoredReceipts
from mailsvc.store.mail.accept import Acceptance
from mailsvc.store.mail.dsn_requests import Notices as StoredNotices
from mailsvc.store.mail.emails import Emails as StoredEmails
from mailsvc.store.mail.messages import Messages
from mailsvc.store.mail.sandbox import Sandbox as Shelf
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.api_keys import Keys, is_well_formed
from mailsvc.store.people.ratelimit import RateWindows
from mailsvc.store.postgres.notifications import Notifications
from mailsvc.store.postgres.partitions import PartitionMaker
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.operator import Operating
from mailsvc.store.queue.processes import HEARTBEAT, ProcessRegistration
from mailsvc.store.queue.settle import Settling
from mailsvc.system_mail import SystemMail
from mailsvc.webhooks.failure_notices import FailureNotices
from mailsvc.webhooks.sender import Limits as WebhookLimits
from mailsvc.webhooks.sender import WebhookSender

NOTICES_EVERY = KEYS_EVERY = 2.0
BEAT = 10.0
STOP = 15.0  # seconds that a shutdown may take beyond delivery.drain_seconds


class Options(UsageOptions):
    """What stands behind `twistd mailsvc`."""

    longdesc = "Transactional email delivery: in by HTTP, out by SMTP, kept in Postgres."
    optParameters: ClassVar[list[list[Any]]] = [
        ["config", "c", os.environ.get("MAILSVC_CONFIG"), "The settings (TOML); etc/mailsvc.toml explains them."]
    ]

    def postOptions(self) -> None:
        if self["config"] is None:
            sys.exit("mailsvc cannot start. It needs its settings: twistd mailsvc --config FILE")
        try:
            self["settings"] = loading.load(Path(self["config"]))
        except SettingsError as error:
            sys.exit(f"mailsvc cannot start. {error}")


def makeService(options: Options) -> IService:
    """The service that twistd starts and stops."""
    from twisted.internet import reactor

    interpreter.return_memory()
    settings: Settings = options["settings"]
    prepare(reactor, settings.database.clock_tolerance)  # before any timer is set
    return Lifespan(
        reactor, lambda opened: Daemon(reactor, settings, opened).start(), explain, logs.observer(settings.log), signals=True,
        stop_seconds=settings.delivery.drain_seconds + STOP,
    )  # fmt: skip


class Daemon:
    """What runs, in the order of its starting; everything is closed in reverse."""

    def __init__(self, reactor: Any, settings: Settings, opened: Opened) -> None:
        self.reactor, self.settings, self.opened = reactor, settings, opened
        self.listen = Listening(reactor, opened).open
        self.in_thread = partial(in_thread, reactor)
        self.unix, self.held = partial(unix, reactor), partial(held, reactor)
        self.threads = Threads.start(reactor)
        self.ready = False
        self.relay_ports: dict[str, int] = {}  # where each standard port of the relay really is, once it is open

    async def start(self) -> None:
        """First the memory, then the way out, then the doors: nothing is let in that cannot be kept."""
        roles = self.settings.roles
        await self.remember()
        delivery = await self.deliver() if "delivery" in roles else None
        handoff = QueueOnly(self.process.id, self.routes(self.names)) if delivery is None else delivery.handoff
        await self.take_orders(delivery)
        if "ledger" in roles:
            self.keep_books()
        if "domains" in roles:
            self.check_domains()
        await self.open_sandbox()
        if {"http", "smtp", "webhooks"} & set(roles):
            self.prepare_listeners(handoff)
        if "webhooks" in roles:
            self.post_webhooks()
        self.relay_ports = await self.open_relay() if "smtp" in roles else {}
        ports = await self.open_api() if "http" in roles else []
        monitor = self.settings.metrics
        await self.listen("metrics.listen", [private(text) for text in monitor.listen], self.watching.site(monitor.token))
        interpreter.tune(self.reactor)
        collector = interpreter.GrowthCollector(interpreter.resident_bytes)
        self.opened.add("garbage collection", every(self.reactor, BEAT / 2, "collecting garbage", collector.collect_if_grown))
        self.ready = True
        await self.welcome(ports, self.relay_ports)

    async def remember(self) -> None:
        """The tables, what tells other processes of changes in them, and this process' claim to leases."""
        reactor, pool_size = self.reactor, self.settings.database.pool
        self.database = await open_database(reactor, self.settings, self.opened, size=pool_size)
        pool = self.pool = self.database.pool
        self.opened.add("the partitions", every(reactor, BEAT, "making partitions", PartitionMaker(pool, reactor).make))
        RetentionSweep(pool, reactor, self.settings.retention).start(self.opened)
        notifications = self.notifications = Notifications(self.database.dsn, reactor)
        await notifications.start()
        self.opened.add("notifications", notifications.stop)
        self.process = ProcessRegistration(pool, reactor, version=__version__, keys=self.database.encryption.keys.fingerprints)
        await self.process.start(self.settings.region, self.settings.roles)
        self.process.announce(notifications)
        self.opened.add("the leases", self.process.end)
        self.opened.add("heartbeats", every(reactor, HEARTBEAT, "sending a heartbeat", self.process.renew, retry=1.0))
        assert self.database.restore_guard is not None
        self.opened.add("the restore guard", every(reactor, BEAT, "checking for a restored database", self.database.restore_guard.check))
        follow = partial(follow_keys, self.database.encryption, self.process, partial(wrong_keys, pool, self.settings))
        self.opened.add("the encryption keys", every(reactor, KEYS_EVERY, "reading the encryption keys", follow, deadline=60.0))
        self.watching = Watching(reactor, pool, notifications, lambda: self.process.id)
        await self.watching.start(self.opened)
        self.accounts, self.keys = Accounts(pool, reactor, notifications), Keys(pool, reactor, notifications)
        # One of its own: strangers' zones that are slow to answer take nothing from delivery.
        delivery = self.settings.delivery
        resolver = Resolver(reactor, delivery.nameservers, seconds=delivery.dns_seconds, size=5000, concurrent=300)
        payload, trusting = views.payload(publishing_of(self.settings)), self.settings.domains.allow_trust
        self.domains = Domains(pool, reactor, self.database.encryption, notifications, payload, trusting=trusting)
        self.maintenance = domain_maintenance(self.settings, reactor, pool, self.domains, resolver, lambda: notifications.notify(DOMAINS))
        self.messages, self.shelf = Messages(pool, reactor), Shelf(pool)
        self.rates, self.receipts = RateWindows(pool), StoredReceipts(pool, reactor)
        async_bounces = AsyncBounces(pool, on_events=lambda: notifications.notify("events"))
        signing = self.signing = partial(self.database.encryption.secrets_for, "return path")
        self.returns = BounceIntake(
            lambda path: return_path.read(path, *signing()), self.accounts, async_bounces, self.threads.body, self.unix, self.held
        )
        self.watching.add(metrics.returned(self.returns))
        web = Resolver(reactor, delivery.nameservers, seconds=delivery.dns_seconds, concurrent=self.settings.webhooks.connections)
        self.names = self.resolver()  # of recipients' domains
        self.fetcher = Fetcher(reactor, web, wiring.rules_of(self.settings.fetch))

    def resolver(self) -> Resolver:
        return Resolver(self.reactor, self.settings.delivery.nameservers, seconds=self.settings.delivery.dns_seconds)

    def routes(self, resolver: Resolver) -> Routes:
        terms, shaping = wiring.terms_of(self.settings.delivery), wiring.rules_for_providers(self.settings.delivery.shaping)
        return Routes(self.reactor, resolver, terms.routes, port=terms.port, own=terms.own_names, provider=shaping.provider)

    async def deliver(self) -> Delivery:
        """From the queue over lanes to other servers."""
        reactor, settings, given = self.reactor, self.settings, self.settings.delivery
        fetcher = Fetcher(reactor, self.names, attrs.evolve(wiring.rules_of(settings.fetch), ports=frozenset({443}), clear=False))
        linger = settings.database.commit_linger
        settling = self.settling = Settling(self.pool, reactor, on_events=lambda: self.notifications.notify("events"), linger=linger)
        delivery = assemble(
            reactor, self.pool, wiring.terms_of(given), region=settings.region, ehlo_name=given.ehlo_name or "", process=self.process,
            resolver=self.names, routes=self.routes(self.names), shaping=wiring.rules_for_providers(given.shaping),
            sources=wiring.sources_of(given), timeouts=wiring.timeouts_of(given), policy_fetcher=fetcher if given.mta_sts else None,
            domains=self.domains, accounts=self.accounts, secrets=self.signing, messages=self.messages, settling=settling,
            signing_thread=Offload(reactor, pool=self.threads.signing), body_thread=self.threads.body,
        )  # fmt: skip
        counts = delivery.attempts.tls_counts
        self.opened.add("the last TLS results", counts.write)
        self.opened.add("TLS results", every(reactor, 60.0, "writing TLS results", counts.write))
        self.process.on_replaced = delivery.replaced
        self.process.on_freed = lambda count: delivery.wake()
        self.notifications.listen("queue", delivery.wake)
        self.watching.add(metrics.deliveries(delivery, settling), settle=settling.batch)
        await delivery.holds.refresh()  # before the first mail
        delivery.startService()
        self.opened.add("delivery", awaited(delivery.stopService))
        return delivery

    async def take_orders(self, delivery: Delivery | None) -> None:
        """The operator's socket."""
        where = self.settings.control.socket
        if where is not None:
            orders = Orders(
                Queue(self.pool), Operating(self.pool), self.settings.region, self.unix, self.accounts,
                lambda: self.notifications.notify("queue"), delivery, self.settling.outcomes if delivery is not None else {},
            )  # fmt: skip
            port = open_socket(self.reactor, where, Controls(orders.by_name(), explain))
            self.opened.add("control.socket", awaited(port.stopListening))

    def keep_books(self) -> None:
        """Numbers and counts what was committed."""
        ledger = Ledger(EventLedger(self.pool, lambda: self.notifications.notify("webhooks")), self.notifications, self.reactor)
        ledger.startService()
        self.opened.add("the ledger", awaited(ledger.stopService))

    def post_webhooks(self) -> None:
        """Start sending numbered events to customers' endpoints."""
        webhooks = self.settings.webhooks
        limits = WebhookLimits(**{field.name: getattr(webhooks, field.name) for field in attrs.fields(WebhookLimits)})
        sender = WebhookSender(
            Outbox(self.pool, self.reactor, self.database.encryption), self.fetcher, self.notifications, self.reactor, limits
        )
        self.watching.add(metrics.webhooks(sender))
        sender.startService()
        self.opened.add("the webhooks", awaited(sender.stopService))
        stored = StoredWebhooks(self.pool, self.reactor, self.database.encryption)
        notices = FailureNotices(stored, self.system_mail(), self.unix, webhooks.warn_after)
        self.opened.add(
            "webhook failure notices",
            every(self.reactor, min(60.0, webhooks.warn_after), "sending webhook failure notices", notices.send_due),
        )

    def check_domains(self) -> None:
        """Looks at customers' DNS when it is due."""
        checks = CheckSchedule(self.maintenance.checks, self.maintenance, self.notifications, self.reactor)
        checks.startService()
        self.opened.add("the checks of domains", awaited(checks.stopService))

    async def open_sandbox(self) -> None:
        """In development: a receiving server for the mail that goes out."""
        port_25 = lambda: self.relay_ports.get("25")  # noqa: E731
        receivers = sandbox(self.reactor, self.opened, self.shelf, self.returns.find_email, self.threads.body, port_25)
        await self.listen("sandbox.listen", self.settings.sandbox.listen, receivers)

    def prepare_listeners(self, handoff: LocalHandoff | QueueOnly) -> None:
        """What all doors share: the one intake, the count of requests, and how much may come in at once."""
        reactor, settings = self.reactor, self.settings
        self.limits = policy.Limits(
            recipients_per_field=settings.limits.recipients,
            message=settings.limits.message,
            blocked_endings=frozenset(settings.limits.blocked_endings),
        )
        store = Acceptance(self.pool, reactor, linger=settings.database.commit_linger)
        expiry = timedelta(seconds=settings.delivery.expire)
        self.intake = Intake(store, self.domains, handoff, self.notifications, self.limits, expiry, self.threads.body, self.unix)
        accounting = Accounting.of(self.pool, reactor, settings.plans, self.system_mail())
        accounting.start(reactor, self.opened)
        self.watching.add(metrics.quotas(accounting))
        self.intake.quotas = self.quotas = accounting.quotas
        self.intake.pause, self.intake.held = Slices(reactor).pause, self.held
        self.watching.add(metrics.accepts(self.intake), accept=store.batch)
        self.rate = RateLimit(reactor, settings.http.rate_limit, self.lease_block, self.alone)
        self.budgets = Budgets.of(settings.http.in_flight, settings.http.spool, reactor)
        self.watching.add(metrics.budgets(self.budgets))

    async def open_relay(self) -> dict[str, int]:
        """The door for SMTP: where each standard port really is."""
        reactor, settings = self.reactor, self.settings
        smtp, host = settings.smtp, settings.delivery.ehlo_name or ""
        if not smtp.listen:
            return {}
        session_log = SessionLog(self.receipts, reactor)
        self.opened.add("the session log", session_log.stop)
        relay = Relay(
            user=smtp.username, keys=self.keys, well_formed=is_well_formed, rate=self.rate, budgets=self.budgets,
            submissions=Submissions(self.intake, host, self.in_thread, self.unix, self.threads.body), session_log=session_log,
            inbound=InboundMail((host, *smtp.names), self.returns.find_email, self.returns.take, self.postmaster()),
            per_address=ConnectionLimits(smtp.connections_per_address), per_key=ConnectionLimits(smtp.connections_per_key),
            login_failures=LoginFailures(reactor, smtp.login_failures), max_connections=smtp.connections,
            null_mx=wiring.null_mx_of(settings, self.names, reactor), trusted_networks=wiring.trusted_networks_of(smtp),
        )  # fmt: skip
        dsns = DsnSender(StoredNotices(self.pool), self.messages, self.intake, host, self.unix)
        self.opened.add("the notifications", every(reactor, NOTICES_EVERY, "sending notifications", dsns.send_due))
        context = await self.in_thread(lambda: wiring.certificates_of(smtp, host, reactor.seconds))
        trusted = wiring.networks("smtp.trusted_proxies", smtp.trusted_proxies)
        found: dict[str, int] = {}
        ports = Ports(host, wiring.limits_of(settings), context, relay.open_session, reactor, trusted).make(smtp.listen)
        self.opened.add("the sessions of the relay", partial(stop_sessions, ports))
        for port in ports:
            for listening in await self.listen("smtp.listen", [port.endpoint], port.factory):
                found.setdefault(port.number, getattr(listening.getHost(), "port", 0))
        return found

    def postmaster(self) -> Forward | None:
        """Where mail for the operator goes."""
        to = wiring.postmaster_of(self.settings.smtp)
        return None if to is None else Postmaster(*to, self.domains, self.intake, self.unix, self.returns.take_abuse_report).forward

    async def open_api(self) -> Sequence[Any]:
        """The door for HTTP."""
        reactor, settings = self.reactor, self.settings
        http, most = settings.http, settings.limits
        self.dashboard = self.open_dashboard()
        pages = self.dashboard.resource()
        requests = RequestLog(self.pool)
        recorder = Recorder(requests.write, reactor, http.log_body)
        self.opened.add("the request log", recorder.stop)
        events = EventApi(
            EventLog(self.pool),
            lambda reader: Webhooks(
                StoredWebhooks(self.pool, reactor, self.database.encryption), WebhookLog(self.pool), reader,
                partial(urls.read, rules=self.fetcher.rules), settings.webhooks.endpoints, lambda: self.notifications.notify("webhooks"),
            ),
            lambda reader: Suppressions(StoredSuppressions(self.pool, reactor), reader, lambda: self.notifications.notify("events")),
        )  # fmt: skip
        api = Api(
            reactor=reactor, keys=self.keys, well_formed=is_well_formed, intake=self.intake, emails=StoredEmails(self.pool, reactor),
            messages=self.messages, rate=self.rate, budgets=self.budgets, in_thread=self.threads.body,
            checks={"start": self.started, "database": self.watching.writable, "heartbeat": self.fresh, "clock": self.watching.punctual},
            remarks={"ledger": self.watching.numbered, "connections": self.watching.connected, "keys": self.database.keys_rejected},
            domains=DomainContext(self.domains, self.maintenance, self.maintenance.publishing, settings.region),
            events=events, links=Links(self.fetcher, self.limits.message),
            inbox=self.shelf if settings.sandbox.listen else None,
            limits=wiring.gate_limits_of(http), bounds=Bounds(self.limits, most.batch, timedelta(days=most.schedule_ahead)),
            requests=requests, sessions=self.receipts, recorder=recorder, rollups=Rollups(self.pool), quotas=self.quotas,
            link_secrets=partial(self.database.encryption.secrets_for, "links"), base_url=settings.base_url or "",
            trusted=wiring.networks("http.trusted_proxies", http.trusted_proxies), pages={"": pages, "dashboard": pages},
        )  # fmt: skip
        site = api.site()
        self.watching.add(metrics.connections(site.connections))
        self.opened.add("the requests in work", lambda: within(settings.delivery.drain_seconds, site.drain(), reactor))
        return await self.listen("http.listen", http.listen, site)

    def open_dashboard(self) -> Dashboard:
        """The pages for people, beside the API."""
        settings = self.settings
        mailer = Mailer(self.system_mail()) if settings.sender is not None else None
        return Dashboard(
            pool=self.pool, clock=self.reactor, encryption=self.database.encryption, in_thread=self.threads.body,
            base_url=settings.base_url or "", password_thread=self.threads.password, notify=self.notifications.notify,
            accounts=self.accounts, domains=self.domains, maintenance=self.maintenance, keys=self.keys, messages=self.messages,
            mailer=mailer, sign_up=settings.dashboard.sign_up, webhooks=StoredWebhooks(self.pool, self.reactor, self.database.encryption),
            read_url=partial(urls.read, rules=self.fetcher.rules), most_webhooks=settings.webhooks.endpoints,
            providers=providers_of(settings.sign_in, self.fetcher, self.unix),
            inbox=self.shelf if settings.sandbox.listen else None,
            intake=self.intake, quotas=self.quotas, settings=settings, relay_ports=self.relay_ports,
            reputation=wiring.standing_of(settings, self.pool, self.reactor),
        )  # fmt: skip

    def system_mail(self) -> SystemMail:
        sender = self.settings.sender
        return SystemMail(self.intake, self.domains, None if sender is None else parse_mailbox(sender))

    def people(self) -> People | None:
        return People(self.dashboard.users, self.dashboard.sessions) if "http" in self.settings.roles else None

    async def welcome(self, ports: Sequence[Any], relay: Mapping[str, int]) -> None:
        """In development: somebody to be, and how to begin."""
        file = self.settings.development.dev_file
        if file is not None:
            customers = Customers(self.reactor, self.accounts, self.domains, self.keys, self.maintenance, self.people())
            suppress = StoredSuppressions(self.pool, self.reactor).add if self.settings.sandbox.listen else None
            welcome = Welcome(customers, self.settings, file, address(self.settings.base_url or "", ports), relay, suppress)
            self.opened.add("the welcome", welcome.end)
            await welcome.begin()

    # What the stations share

    async def lease_block(self, account_id: UUID, limit: int, wanted: int) -> Block:
        """Requests of an account in this second, from the count that all processes share."""
        return Block(*await self.rates.lease(account_id, limit, wanted))

    def alone(self) -> bool:
        """Whether no other process lets anything in."""
        return max(self.process.live("http"), self.process.live("smtp")) <= 1

    async def started(self) -> str | None:
        return None if self.ready else "it is still starting"

    async def fresh(self) -> str | None:
        return None if self.process.fresh else "the heartbeat could not be written"
