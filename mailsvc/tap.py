"""The whole daemon on one page: every service, in the order in which it starts.

`twistd mailsvc --config FILE` calls `makeService`. Startup, shutdown and failures: runtime/lifecycle. This is the only module that names
the reactor; everything else gets it, or a clock, from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import attrs
from twisted.application.service import IService

from mailsvc import __version__, wiring
from mailsvc.accounts.onboarding import Customers, People, domain_maintenance
from mailsvc.accounts.ratelimit import Block, RateLimit
from mailsvc.accounts.usage import Accounting
from mailsvc.audit import service as audit
from mailsvc.bounces.intake import BounceIntake
from mailsvc.broadcasts.assembly import Personalization, destinations
from mailsvc.broadcasts.topics import TopicMail
from mailsvc.clock import held, prepare, unix
from mailsvc.console.assembly import ConsoleAssembly, status_page
from mailsvc.dashboard.assembly import Assembly as Dashboard
from mailsvc.dashboard.signin.mails import Mailer
from mailsvc.dashboard.signin.providers import providers_of
from mailsvc.delivery.assembly import assemble
from mailsvc.delivery.connection.pools import Pools
from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.handoff import QueueOnly
from mailsvc.delivery.passing.assembly import Passing
from mailsvc.delivery.sending_domain import SendingDomains
from mailsvc.delivery.service import Delivery
from mailsvc.delivery.signing.signer import signer
from mailsvc.domains.schedule import CHANNEL as DOMAINS
from mailsvc.domains.schedule import CheckSchedule
from mailsvc.events.ledger import Ledger
from mailsvc.http.api import Api
from mailsvc.http.fields import Bounds
from mailsvc.http.request_log import Recorder
from mailsvc.http.resources.attachment_links import Links
from mailsvc.http.resources.audience.assembly import assemble as assemble_audience
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.http.resources.broadcasts.assembly import assemble as assemble_broadcasts
from mailsvc.http.resources.broadcasts.context import BroadcastContext
from mailsvc.http.resources.domains import DomainContext
from mailsvc.http.resources.tracking import assembly as tracked_links
from mailsvc.intake import Handoff, Intake
from mailsvc.mail import return_path
from mailsvc.mail.address import parse_mailbox
from mailsvc.monitoring import logs, metrics
from mailsvc.monitoring.control_socket import ControlFactory, open_socket
from mailsvc.monitoring.failures import explain
from mailsvc.monitoring.listener import private
from mailsvc.monitoring.operator_commands import OperatorCommands
from mailsvc.monitoring.readiness import Monitoring
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
from mailsvc.runtime.cells.serving import serve as serve_cells
from mailsvc.runtime.database import follow_keys, in_thread, open_database, wrong_keys
from mailsvc.runtime.lifecycle import Lifespan, Opened, awaited
from mailsvc.runtime.listeners import Listening, address, within
from mailsvc.runtime.offload import Threads
from mailsvc.runtime.options import Options as Options
from mailsvc.runtime.polling import every
from mailsvc.runtime.slices import Slices
from mailsvc.runtime.tracing import start_tracing
from mailsvc.sandbox.opening import sandbox
from mailsvc.sandbox.welcome import Welcome
from mailsvc.settings.schema import Settings
from mailsvc.store.broadcasts.sending import Sending
from mailsvc.store.events.async_bounces import AsyncBounces
from mailsvc.store.events.ledger import EventLedger
from mailsvc.store.events.outbox import Outbox
from mailsvc.store.events.rollups import Rollups
from mailsvc.store.events.suppressions import Suppressions as StoredSuppressions
from mailsvc.store.events.webhooks import Webhooks as StoredWebhooks
from mailsvc.store.logs.requests import RequestLog
from mailsvc.store.logs.smtp_sessions import SmtpSessions as SmtpSessions
from mailsvc.store.mail.accept import Acceptance
from mailsvc.store.mail.dsn_requests import Notices as StoredNotices
from mailsvc.store.mail.emails import Emails as StoredEmails
from mailsvc.store.mail.messages import Messages
from mailsvc.store.mail.sandbox import Sandbox as SandboxMail
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.api_keys import Keys, is_well_formed
from mailsvc.store.people.ratelimit import RateWindows
from mailsvc.store.postgres.partitions import PartitionMaker
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.operator import Operating
from mailsvc.store.queue.processes import HEARTBEAT, ProcessRegistration
from mailsvc.store.queue.settle import Settling
from mailsvc.system_mail import SystemMail
from mailsvc.traced_intake import TracedIntake
from mailsvc.webhooks.failure_notices import FailureNotices
from mailsvc.webhooks.sender import Limits as WebhookLimits
from mailsvc.webhooks.sender import WebhookSender

DSNS_EVERY = KEYS_EVERY = 2.0  # seconds
BEAT = 10.0  # seconds
STOP = 15.0  # seconds that a shutdown may take beyond delivery.drain_seconds


def makeService(options: Options) -> IService:
    """Returns the service that twistd starts and stops."""
    from twisted.internet import reactor

    interpreter.return_memory()
    settings: Settings = options["settings"]
    prepare(reactor, settings.database.clock_tolerance)  # before any timer is set
    start = partial(serve_cells, reactor, options) if options["by cell"] else lambda opened: Daemon(reactor, settings, opened).start()
    seconds = settings.delivery.drain_seconds + STOP
    return Lifespan(reactor, start, explain, options.checked(lambda: logs.observer(settings.log)), signals=True, stop_seconds=seconds)


class Daemon:
    """All services, in the order in which they start. They stop in reverse order."""

    def __init__(self, reactor: Any, settings: Settings, opened: Opened) -> None:
        self.reactor, self.settings, self.opened = reactor, settings, opened
        self.listen = Listening(reactor, opened).open
        self.in_thread = partial(in_thread, reactor)
        self.unix, self.held = partial(unix, reactor), partial(held, reactor)
        self.threads = Threads.start(reactor)
        self.ready = False
        self.relay_ports: dict[str, int] = {}  # the actual port for each standard SMTP port, once open

    async def start(self) -> None:
        """First the database, then delivery, then the listeners: no mail is accepted that cannot be stored."""
        roles, monitor = self.settings.roles, self.settings.metrics
        await self.open_database()
        self.tracing = start_tracing(self.settings.tracing, self.process.id, __version__, self.reactor, self.opened)
        self.open_stores()
        if "http" in roles:  # before delivery: with a backlog, it can use all connections to the database for long
            self.tracked = await tracked_links.start_tracking(self.reactor, self.opened, self.settings, self.database, self.notifications)
            self.status = await status_page(self.settings, self.reactor, self.database, self.monitoring, self.opened)
        self.passing = Passing(self.reactor, self.process, self.database, self.notifications, self.opened)
        delivery = await self.start_delivery() if "delivery" in roles else None
        handoff = self.passing.handoff(self.routes(self.resolver)) if delivery is None else delivery.handoff
        await self.open_control_socket(delivery)
        if "ledger" in roles:
            self.start_ledger()
        if "domains" in roles:
            self.start_domain_checks()
        await self.open_sandbox()
        if {"http", "smtp", "webhooks"} & set(roles):
            self.prepare_intake(handoff)
        if "webhooks" in roles:
            self.start_webhooks()
        self.relay_ports = await self.open_relay() if "smtp" in roles else {}
        ports = await self.open_api() if "http" in roles else []
        await self.listen("metrics.listen", [private(text) for text in monitor.listen], self.monitoring.site(monitor.token))
        await self.open_console()
        interpreter.tune(self.reactor)
        collector = interpreter.GrowthCollector(interpreter.resident_bytes)
        self.opened.add("garbage collection", every(self.reactor, BEAT / 2, "collecting garbage", collector.collect_if_grown))
        self.ready = True
        await self.welcome(ports, self.relay_ports)

    async def open_database(self) -> None:
        """The database, notifications between processes, and this process's registration, which its leases refer to."""
        reactor, pool_size = self.reactor, self.settings.database.pool
        self.database = await open_database(reactor, self.settings, self.opened, size=pool_size)
        pool = self.pool = self.database.pool
        self.opened.add("partitions", every(reactor, BEAT, "making partitions", PartitionMaker(pool, reactor).make))
        wiring.start_deleting(reactor, self.database, self.settings, self.opened)
        self.pools = await Pools.opened(pool, wiring.bulk_pool(self.settings.delivery), reactor, self.opened)
        notifications = self.notifications = self.database.notifications(reactor)
        self.database.bodies.follow(notifications)
        await notifications.start()
        self.opened.add("notifications", notifications.stop)
        self.process = ProcessRegistration(pool, reactor, version=__version__, keys=self.database.encryption.keys.fingerprints)
        await self.process.start(self.settings.region, self.settings.roles)
        self.process.announce(notifications)
        self.opened.add("leases", self.process.end)
        self.opened.add("heartbeats", every(reactor, HEARTBEAT, "sending a heartbeat", self.process.renew, retry=1.0))
        self.opened.add("restore guard", every(reactor, BEAT, "checking for a restored database", self.database.check_restored))
        follow = partial(follow_keys, self.database.encryption, self.process, partial(wrong_keys, pool, self.settings))
        self.opened.add("encryption keys", every(reactor, KEYS_EVERY, "reading the encryption keys", follow, deadline=60.0))
        self.monitoring = Monitoring(reactor, pool, notifications, lambda: self.process.id, wiring.region_watch(pool, self.settings))
        await self.monitoring.start(self.opened)

    def open_stores(self) -> None:
        """The tables that several services use, and what reads customers' DNS and web servers."""
        reactor, pool, notifications, delivery = self.reactor, self.pool, self.notifications, self.settings.delivery
        self.accounts, self.keys = Accounts(pool, reactor, notifications), Keys(pool, reactor, notifications)
        # A separate resolver: slow zones of customers must not delay delivery.
        resolver = Resolver(reactor, delivery.nameservers, seconds=delivery.dns_seconds, size=5000, concurrent=300)
        self.domains = wiring.domains(self.settings, self.database, reactor, notifications)
        maintenance = partial(domain_maintenance, self.settings, self.database, reactor, self.domains, resolver)
        self.maintenance = maintenance(partial(notifications.notify, DOMAINS))
        self.personal = Personalization.of(pool, reactor, self.database.encryption, self.threads.body)
        self.tracking = wiring.outgoing_tracking(self.settings, self.database.encryption, self.personal.keys, self.threads.body)
        self.messages, self.sandbox_mail = Messages(pool, reactor, self.personal.composer, self.database.bodies), SandboxMail(pool)
        self.rate_windows, self.smtp_sessions = RateWindows(pool), SmtpSessions(pool, reactor)
        async_bounces = AsyncBounces(pool, on_events=lambda: notifications.notify("events"))
        signing = self.signing = partial(self.database.encryption.secrets_for, "return path")
        self.bounces = BounceIntake(
            lambda path: return_path.read(path, *signing()), self.accounts, async_bounces, self.threads.body, self.unix, self.held
        )
        self.reports = wiring.reports(self.settings, self.database, self.maintenance, self.threads.body, self.unix, self.held)
        self.monitoring.add(metrics.returned(self.bounces), metrics.reports(self.reports), metrics.cell(self.database.hold))
        web = Resolver(reactor, delivery.nameservers, seconds=delivery.dns_seconds, concurrent=self.settings.webhooks.connections)
        self.resolver = Resolver(reactor, delivery.nameservers, seconds=delivery.dns_seconds)  # for recipients' domains
        audit.start(self.settings.audit, pool, reactor, web, delivery.ehlo_name or "", self.opened, self.in_thread)
        self.fetcher = Fetcher(reactor, web, wiring.fetch_rules(self.settings.fetch))

    def routes(self, resolver: Resolver) -> Routes:
        limits, shaping = wiring.delivery_limits(self.settings.delivery), wiring.provider_rules(self.settings.delivery.shaping)
        return Routes(self.reactor, resolver, limits.routes, port=limits.port, own=limits.own_names, provider=shaping.provider)

    async def start_delivery(self) -> Delivery:
        """Delivery, from the queue through lanes to other servers."""
        reactor, settings, given, linger = self.reactor, self.settings, self.settings.delivery, self.settings.database.commit_linger
        fetcher = Fetcher(reactor, self.resolver, attrs.evolve(wiring.fetch_rules(settings.fetch), ports=frozenset({443}), clear=False))
        settling = self.settling = Settling(self.pool, reactor, on_events=lambda: self.notifications.notify("events"), linger=linger)
        delivery, upkeep = assemble(
            reactor, self.pool, wiring.delivery_limits(given), region=settings.region, ehlo_name=given.ehlo_name or "",
            process=self.process, resolver=self.resolver, routes=self.routes(self.resolver), shaping=wiring.provider_rules(given.shaping),
            sources=wiring.source_rules(given), pools=self.pools, timeouts=wiring.smtp_timeouts(given),
            policy_fetcher=fetcher if given.mta_sts else None, messages=self.messages, settling=settling, consent=self.personal.consent,
            sending=SendingDomains(self.domains, self.accounts, self.signing, signer(reactor, self.opened), self.threads.body),
        )  # fmt: skip
        delivery.attempts.tls_counts.start(self.opened)
        delivery.attempts.tracing = self.tracing
        self.process.on_replaced, self.process.on_freed = delivery.replaced, lambda count: delivery.wake()
        self.database.restore_guard.on_hold = delivery.hold_restored
        self.notifications.listen("queue", delivery.wake)
        self.monitoring.add(metrics.deliveries(delivery, settling), metrics.sources(upkeep.state), settle=settling.batch)
        await delivery.holds.refresh()  # before the first mail
        await upkeep.start(self.opened)
        delivery.start(self.opened)
        self.passing.take(delivery)
        return delivery

    async def open_control_socket(self, delivery: Delivery | None) -> None:
        """The control socket, for `mailsvc queue`."""
        path = self.settings.control.socket
        self.commands = OperatorCommands(
            Queue(self.pool), Operating(self.pool), self.settings.region, self.unix, self.accounts,
            lambda: self.notifications.notify("queue"), delivery, self.settling.outcomes if delivery is not None else {},
        )  # fmt: skip
        if path is not None:
            port = open_socket(self.reactor, path, ControlFactory(self.commands.by_name(), explain))
            self.opened.add("control socket", awaited(port.stopListening))

    def start_ledger(self) -> None:
        """Numbers and counts committed events."""
        events = EventLedger(self.pool, lambda: self.notifications.notify("webhooks"), wiring.own_domains(self.settings))
        ledger = Ledger(events, self.notifications, self.reactor)
        ledger.startService()
        self.opened.add("event ledger", awaited(ledger.stopService))

    def start_webhooks(self) -> None:
        """Start sending numbered events to customers' endpoints."""
        webhooks = self.settings.webhooks
        limits = WebhookLimits(**{field.name: getattr(webhooks, field.name) for field in attrs.fields(WebhookLimits)})
        outbox = Outbox(self.pool, self.reactor, self.database.encryption)
        sender = WebhookSender(outbox, self.fetcher, self.notifications, self.reactor, limits, self.tracing)
        self.monitoring.add(metrics.webhooks(sender))
        sender.startService()
        self.opened.add("webhooks", awaited(sender.stopService))
        stored = StoredWebhooks(self.pool, self.reactor, self.database.encryption)
        FailureNotices(stored, self.system_mail(), self.unix, webhooks.warn_after).start(self.reactor, self.opened)

    def start_domain_checks(self) -> None:
        """Checks customers' DNS records when they are due."""
        checks = CheckSchedule(self.maintenance.checks, self.maintenance, self.notifications, self.reactor)
        checks.startService()
        self.opened.add("domain checks", awaited(checks.stopService))

    async def open_sandbox(self) -> None:
        """In development: an SMTP server that receives outgoing mail."""
        find, port_25 = self.bounces.find_email, lambda: self.relay_ports.get("25")
        receivers = sandbox(self.reactor, self.opened, self.sandbox_mail, find, self.threads.body, port_25)
        await self.listen("sandbox.listen", self.settings.sandbox.listen, receivers)

    def prepare_intake(self, handoff: Handoff) -> None:
        """What the API and the SMTP ports share: intake, quotas, the rate limit and the memory budgets."""
        reactor, settings, expiry = self.reactor, self.settings, timedelta(seconds=self.settings.delivery.expire)
        self.limits = wiring.mail_limits(settings.limits)
        linger, compress, writing = settings.database.commit_linger, settings.database.compress, handoff.writing
        hashes, bodies, pace = self.database.hashes, self.database.bodies, self.passing.pace.wait
        store = Acceptance(self.pool, reactor, linger=linger, hashes=hashes, bodies=bodies, compress=compress, pace=pace, writing=writing)
        intake = Intake if self.tracing is None else partial(TracedIntake, tracing=self.tracing)
        self.intake = intake(store, self.domains, handoff, self.notifications, self.limits, expiry, self.threads.body, self.unix)
        accounting = Accounting.of(self.pool, reactor, settings.plans, self.system_mail(), settings.abuse, settings.smtp.postmaster)
        accounting.start(reactor, self.opened)
        self.intake.pool_of, self.intake.topics = self.pools.of, TopicMail(self.personal.links, Sending(self.pool), settings.base_url or "")
        self.intake.quotas = self.quotas = accounting.quotas
        self.intake.pause, self.intake.held, self.intake.tracking = Slices(reactor).pause, self.held, self.tracking
        self.intake.content_filter = wiring.content_filter(settings.content_filter, self.resolver, reactor, self.threads.body)
        self.monitoring.add(metrics.quotas(accounting), metrics.accepts(self.intake), accept=store.batch)
        self.rate = RateLimit(reactor, settings.http.rate_limit, self.lease_block, self.alone)
        self.budgets = Budgets.of(settings.http.in_flight, settings.http.spool, reactor)
        self.monitoring.add(metrics.budgets(self.budgets))
        wiring.start_tls_reports(settings, self.pool, self.resolver, self.fetcher, self.intake, self.domains, reactor, self.opened)

    async def open_relay(self) -> dict[str, int]:
        """The SMTP ports. Returns the actual port for each standard one."""
        reactor, settings = self.reactor, self.settings
        smtp, host = settings.smtp, settings.delivery.ehlo_name or ""
        if not smtp.listen:
            return {}
        session_log = SessionLog(self.smtp_sessions, reactor)
        self.opened.add("session log", session_log.stop)
        bounces, reports = self.bounces, self.reports
        relay = Relay(
            user=smtp.username, keys=self.keys, well_formed=is_well_formed, rate=self.rate, budgets=self.budgets,
            submissions=Submissions(self.intake, host, self.in_thread, self.unix, self.threads.body), session_log=session_log,
            inbound=InboundMail(
                wiring.own_names(settings), bounces.find_email, bounces.take, self.postmaster(), reports.find_domain, reports.take,
                self.domains.has_return_path),
            per_address=ConnectionLimits(smtp.connections_per_address), per_key=ConnectionLimits(smtp.connections_per_key),
            login_failures=LoginFailures(reactor, smtp.login_failures), max_connections=smtp.connections,
            null_mx=wiring.null_mx(settings, self.resolver, reactor), trusted_networks=wiring.trusted_networks(smtp),
        )  # fmt: skip
        dsns = DsnSender(StoredNotices(self.pool), self.messages, self.intake, host, self.unix)
        self.opened.add("delivery status notifications", every(reactor, DSNS_EVERY, "sending delivery status notifications", dsns.send_due))
        context = await self.in_thread(lambda: wiring.certificates(smtp, host, reactor.seconds))
        self.monitoring.add(metrics.certificate(lambda: context.expires_at))
        trusted = wiring.networks("smtp.trusted_proxies", smtp.trusted_proxies)
        found: dict[str, int] = {}
        ports = Ports(host, wiring.smtp_limits(settings), context, relay.open_session, reactor, trusted).make(smtp.listen)
        self.opened.add("SMTP sessions", partial(stop_sessions, ports))
        for port in ports:
            for listening in await self.listen("smtp.listen", [port.endpoint], port.factory):
                found.setdefault(port.number, getattr(listening.getHost(), "port", 0))
        return found

    def postmaster(self) -> Forward | None:
        """Forwards mail for postmaster to the operator."""
        to = wiring.postmaster(self.settings)
        return None if to is None else Postmaster(*to, self.domains, self.intake, self.unix, self.bounces.take_abuse_report).forward

    async def open_api(self) -> Sequence[Any]:
        """The HTTP listeners: API and dashboard."""
        reactor, settings = self.reactor, self.settings
        http, most = settings.http, settings.limits
        requests = RequestLog(self.pool)
        recorder = Recorder(requests.write, reactor, http.log_body)
        self.opened.add("request log", recorder.stop)
        events = wiring.event_api(reactor, self.database, self.fetcher.rules, settings.webhooks.endpoints, self.notifications.notify)
        audience = assemble_audience(
            reactor, self.pool, self.database.encryption, settings.audience, self.notifications, self.threads.body, self.opened,
            self.intake, settings.base_url or "",
        )  # fmt: skip
        self.dashboard = self.open_dashboard(audience)
        pages = self.dashboard.resource()
        self.monitoring.add(metrics.tracking(self.tracked.recorder), metrics.imports(audience.imports))
        api = Api(
            reactor=reactor, keys=self.keys, well_formed=is_well_formed, intake=self.intake, emails=StoredEmails(self.pool, reactor),
            messages=self.messages, rate=self.rate, budgets=self.budgets, in_thread=self.threads.body,
            checks={
                "start": self.started, "database": self.monitoring.writable, "heartbeat": self.process.late,
                "clock": self.monitoring.punctual,
            },
            remarks={**self.monitoring.remarks, "keys": self.database.keys_rejected},
            domains=DomainContext(self.domains, self.maintenance, self.maintenance.publishing, self.reports.store),
            events=events, audience=audience, broadcasts=self.broadcasts(), links=Links(self.fetcher, self.limits.message, reactor),
            inbox=self.sandbox_mail if settings.sandbox.listen else None, tracing=self.tracing,
            limits=wiring.http_limits(http, settings.audience.import_size), moved_to=self.database.moved_to,
            bounds=Bounds(self.limits, most.batch, timedelta(days=most.schedule_ahead), settings.audience, settings.broadcasts),
            requests=requests, sessions=self.smtp_sessions, recorder=recorder, rollups=Rollups(self.pool), quotas=self.quotas,
            link_secrets=partial(self.database.encryption.secrets_for, "links"), base_url=settings.base_url or "",
            trusted=wiring.networks("http.trusted_proxies", http.trusted_proxies), erasing=self.database.erasing,
            pages={"": pages, "dashboard": pages, **tracked_links.pages(self.tracked), **self.status},
            uploader=self.dashboard.uploader.account,
        )  # fmt: skip
        site = api.site()
        self.monitoring.add(metrics.connections(site.connections))
        self.opened.add("requests in progress", lambda: within(settings.delivery.drain_seconds, site.drain(), reactor))
        return await self.listen("http.listen", http.listen, site)

    def broadcasts(self) -> BroadcastContext:
        """Broadcasts, and the engine that sends them."""
        place = destinations(QueueOnly(self.routes(self.resolver)).reserve, self.pools.of)
        context, engine = assemble_broadcasts(
            self.reactor, self.opened, self.database, self.settings, self.domains, self.quotas, place, self.notifications,
            self.threads.body, self.personal.keys, wiring.screening(self.intake.content_filter), self.tracking,
        )  # fmt: skip
        self.monitoring.add(metrics.broadcasts(engine, context))
        return context

    def open_dashboard(self, audience: AudienceContext) -> Dashboard:
        """The dashboard."""
        settings = self.settings
        mailer = Mailer(self.system_mail()) if settings.sender is not None else None
        return Dashboard(
            pool=self.pool, clock=self.reactor, encryption=self.database.encryption, in_thread=self.threads.body,
            base_url=settings.base_url or "", password_thread=self.threads.password, notify=self.notifications.notify,
            accounts=self.accounts, domains=self.domains, maintenance=self.maintenance, keys=self.keys, messages=self.messages,
            mailer=mailer, sign_up=settings.dashboard.sign_up, webhooks=StoredWebhooks(self.pool, self.reactor, self.database.encryption),
            fetcher=self.fetcher, most_webhooks=settings.webhooks.endpoints,
            providers=providers_of(settings.sign_in, self.fetcher, self.unix), inbox=self.sandbox_mail if settings.sandbox.listen else None,
            intake=self.intake, quotas=self.quotas, settings=settings, relay_ports=self.relay_ports,
            reputation=wiring.reputation(settings, self.pool, self.reactor), erasing=self.database.erasing, audience=audience,
        )  # fmt: skip

    async def open_console(self) -> None:
        """The operator's console."""
        await ConsoleAssembly(
            settings=self.settings, clock=self.reactor, database=self.database, accounts=self.accounts, monitoring=self.monitoring,
            commands=self.commands, shaping=partial(wiring.provider_rules, self.settings.delivery.shaping),
            password_thread=self.threads.password, blocking=self.in_thread, notify=self.notifications.notify,
        ).open(self.listen)  # fmt: skip

    def system_mail(self) -> SystemMail:
        sender = self.settings.sender
        return SystemMail(self.intake, self.domains, None if sender is None else parse_mailbox(sender))

    def people(self) -> People | None:
        return People(self.dashboard.users, self.dashboard.sessions) if "http" in self.settings.roles else None

    async def welcome(self, ports: Sequence[Any], relay: Mapping[str, int]) -> None:
        """In development: creates a first account and prints how to start."""
        if (file := self.settings.development.dev_file) is not None:
            customers = Customers(self.reactor, self.accounts, self.domains, self.keys, self.maintenance, self.people())
            suppress = StoredSuppressions(self.pool, self.reactor).add if self.settings.sandbox.listen else None
            welcome = Welcome(customers, self.settings, file, address(self.settings.base_url or "", ports), relay, suppress)
            self.opened.add("welcome page", welcome.end)
            await welcome.begin()

    # Used by several services

    async def lease_block(self, account_id: UUID, limit: int, wanted: int) -> Block:
        """Leases requests of an account for this second, from the count that all processes share."""
        return Block(*await self.rate_windows.lease(account_id, limit, wanted))

    def alone(self) -> bool:
        """Whether no other process accepts requests."""
        return max(self.process.live("http"), self.process.live("smtp")) <= 1

    async def started(self) -> str | None:
        return None if self.ready else "it is still starting"
