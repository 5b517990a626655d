"""Every setting of mailsvc: its default, its description and its checks.

loading.py reads them at startup; example.py prints etc/mailsvc.toml from them.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path

import attrs

from mailsvc.policy import BLOCKED_ENDINGS
from mailsvc.settings import checks
from mailsvc.settings.abuse import Abuse
from mailsvc.settings.audience import Audience, Broadcasts
from mailsvc.settings.audit import Audit
from mailsvc.settings.checks import RELAY_PORTS, ROLES
from mailsvc.settings.console import Console, Status
from mailsvc.settings.content_filter import ContentFilter
from mailsvc.settings.customers import Domains, Webhooks
from mailsvc.settings.identity_providers import SignIn
from mailsvc.settings.plans import Plans
from mailsvc.settings.privacy import Privacy
from mailsvc.settings.reader import named_sections, section, setting
from mailsvc.settings.region import Region
from mailsvc.settings.retention import Retention
from mailsvc.settings.tracing import Tracing
from mailsvc.settings.tracking import Tracking

BLOCK_LISTS = ("zen.spamhaus.org", "bl.spamcop.net")


@attrs.frozen
class Database:
    """The Postgres database."""

    url: str | None = setting(
        None, "The libpq URL of a Postgres database, version 15 or newer.", secret=True,
        example="postgresql://mailsvc@/mailsvc?host=/run/postgresql",
    )  # fmt: skip
    embedded: Path | None = setting(
        None, "Instead of url, to try mailsvc: the folder of a Postgres server that mailsvc starts.", example="var/postgres"
    )
    cell: str | None = setting(
        None,
        "The cell of a Citus cluster that this process serves. url then names nodes of the cluster.",
        check=checks.cell,
        example="us_1",
    )
    node_regions: Mapping[str, str] = setting(
        {}, "The region of each node of the Citus cluster, by host and port.", example={"10.0.1.5:5432": "us-east-1"}
    )
    restore_marker: Path | None = setting(
        None,
        "A file that records how far the database has advanced, so that a restore from a backup is detected.",
        example="/var/lib/mailsvc/restore_marker",
    )
    pool: int = setting(10, "Connections to Postgres.", check=checks.between(2, 200))
    commit_linger: float = setting(
        0.002,
        "Seconds a commit waits at most for other writes to share it; up to three times as long if the process has no time left.",
        check=checks.between(0, 1),
    )
    compress: bool = setting(
        False, "Store messages of up to 64 kB compressed. Earlier releases cannot read them: first update all processes."
    )
    clock_tolerance: float = setting(
        10,
        "If this machine's clock and Postgres's differ by more than this many seconds, all mail is held.",
        check=checks.between(1, 3600),
    )


@attrs.frozen
class Http:
    """The API."""

    listen: tuple[str, ...] = setting(
        ("tcp:8025:interface=127.0.0.1",),
        'Where to listen, as Twisted endpoints. For TLS, use a reverse proxy or a "tls:" endpoint.',
        check=checks.listen,
    )
    trusted_proxies: tuple[str, ...] = setting((), "Addresses or networks of reverse proxies whose X-Forwarded-For header is trusted.")
    body_limit: int = setting(
        160 * 1024 * 1024, "The largest JSON body in bytes, including attachments in base64.", check=checks.at_least(1024)
    )
    in_flight: int = setting(
        256 * 1024 * 1024,
        "Bytes of memory for all requests and messages in progress. docs/security.md explains how they are shared.",
        check=checks.at_least(1 << 20),
    )
    spool: int = setting(
        2 * 1024**3,
        "Bytes of disk space (in TMPDIR) for large bodies and responses in progress. At least 4 × body_limit, 4 × audience.import_size and "
        "8 × limits.message.", check=checks.at_least(1 << 23),
    )  # fmt: skip
    connections: int = setting(
        4000, "Maximum number of open connections. Those of trusted proxies are counted separately.", check=checks.at_least(10)
    )
    connections_per_address: int = setting(
        250,
        "Maximum number of open connections from one address (IPv6: one /64), or of its concurrent requests behind a trusted proxy.",
        check=checks.at_least(1),
    )
    rate_limit: int = setting(10, "Requests per second for each account that has no limit of its own.", check=checks.at_least(1))
    idle_seconds: float = setting(60.0, "Seconds after which an idle connection is closed.", check=checks.at_least(1))
    log_body: int = setting(
        16384, "Approximate number of bytes of each body kept in the request log. 0: none.", check=checks.between(0, 1024 * 1024)
    )


@attrs.frozen
class Smtp:
    """The SMTP ports: submission by customers, and incoming bounces and complaints."""

    listen: Mapping[str, str] = setting(
        types.MappingProxyType({number: f"tcp:{number}" for number in RELAY_PORTS}),
        'Endpoints by standard port, separated by spaces. The prefix "haproxy:" expects a PROXY header from a load balancer.',
        check=checks.ports,
    )
    trusted_proxies: tuple[str, ...] = setting(
        (), 'Load balancers whose PROXY header is trusted on "haproxy:" endpoints: addresses or networks.'
    )
    trusted_networks: Mapping[str, str] = setting(
        {},
        'Networks whose clients send without TLS and login, each with the ID of the API key to use: { "127.0.0.1/32" = "0198…" }.',
        check=checks.trusted_networks,
    )
    certificate: Path | None = setting(
        None,
        "The certificate with its chain (PEM). A renewed certificate is loaded without a restart.",
        example="/etc/mailsvc/certificate.pem",
    )
    key: Path | None = setting(None, "The certificate's private key (PEM).", example="/etc/mailsvc/key.pem")
    certbot: Path | None = setting(
        None,
        "Instead of certificate and key: a folder with copies of certbot's fullchain.pem and privkey.pem that mailsvc can read.",
        example="/etc/mailsvc/tls",
    )
    self_signed: Path | None = setting(
        None, "Instead of those, to try mailsvc: the folder for a self-signed certificate, created at the first start.", example="var/tls"
    )
    username: str = setting("mailsvc", "The user name that all customers log in with. The password is an API key.", check=checks.word)
    connections: int = setting(5000, "Maximum number of open connections; to port 25, four fifths of it.", check=checks.at_least(1))
    connections_per_address: int = setting(
        100, "Maximum number of open connections from one address (IPv6: one /64).", check=checks.at_least(1)
    )
    connections_per_key: int = setting(20, "Maximum number of open connections logged in with one API key.", check=checks.at_least(1))
    login_failures: int = setting(
        5, "Failed logins per minute from one address. Beyond them, only valid API keys log in.", check=checks.at_least(1)
    )
    recipients: int = setting(1000, "Maximum number of recipients of one message.", check=checks.between(100, 10_000))
    idle_seconds: float = setting(
        300.0, "Seconds to wait for a command, and the period over which a body's speed is measured.", check=checks.at_least(1)
    )
    unauthenticated_seconds: float = setting(
        60.0, "Seconds a client has to log in, or to name a recipient that we accept without login.", check=checks.at_least(1)
    )
    unauthenticated_bytes: int = setting(8192, "Bytes of commands a client may send before that.", check=checks.at_least(1024))
    slowest: int = setting(500, "Minimum speed of an incoming body, in bytes per second.", check=checks.at_least(1))
    errors: int = setting(
        20, "Errors after which a session is closed. Refused recipients of a customer don't count.", check=checks.at_least(1)
    )
    tarpit: float = setting(
        1.0,
        "Seconds of delay before a refused login, and before every reply once a session has made half of its errors. 0: no delay.",
        check=checks.at_least(0),
    )
    null_mx: float = setting(
        0.25,
        "Seconds, for all recipients of a message together, to look up whether their domains accept mail (null MX). 0: don't look.",
        check=checks.at_least(0),
    )
    names: tuple[str, ...] = setting((), "Host names besides delivery.ehlo_name for which mail to postmaster@ and abuse@ is accepted.")
    postmaster: str | None = setting(
        None,
        "Where to forward mail to postmaster@ and abuse@. If not set, such mail is refused.",
        check=checks.address,
        example="operator@example.com",
    )
    postmaster_domain: str | None = setting(
        None, "The sending domain that mail to postmaster is forwarded from. It must belong to one of your accounts.",
        check=checks.host, example="example.com",
    )  # fmt: skip


@attrs.frozen
class Delivery:
    """Delivery to other mail servers. Most settings are passed to delivery/limits under the same name."""

    ehlo_name: str | None = setting(
        None,
        "This machine's public host name, sent in EHLO. The reverse DNS of its address should point back to it.",
        check=checks.host,
        example="out.example.com",
    )
    sources: tuple[str, ...] = setting(
        (),
        'Source addresses: "192.0.2.1 out1.example.com 3 pool=bulk since=2026-11-20", each with an EHLO name, and if needed a weight, '
        "a pool and the first day of its warm-up (docs/sending-sources.md). Empty: the operating system chooses.",
    )
    bulk_pool: str | None = setting(
        None, "The pool of source addresses for bulk mail of accounts and domains without a pool of their own.", example="bulk"
    )
    pool_overflow: Mapping[str, str] = setting(
        {},
        'Pools whose mail may use the addresses of another pool when their own may not send: { "bulk" = "default" }. For others, it waits.',
    )
    block_lists: tuple[str, ...] = setting(
        ("zen.spamhaus.org",),
        "DNS block lists that delivery.sources are looked up in daily. A listed address sends nothing until it is removed. Empty: none.",
    )
    mta_sts: bool = setting(True, "Whether to follow the MTA-STS policies of recipients' domains.")
    tls_reports: bool = setting(
        True, "Whether to send daily reports about TLS to recipients' domains that ask for them. They come from `sender`."
    )
    dane: bool = setting(False, "Whether to follow TLSA records (DANE). Needs a resolver on this machine that validates DNSSEC.")
    chunking: bool = setting(True, "Whether to send messages with BDAT, in one round trip, to servers that support it with pipelining.")
    routes: Mapping[str, str] = setting(
        {}, 'Servers to use instead of the MX records, by recipient domain. "*" means every other domain.', check=checks.routes
    )
    shaping: Path | None = setting(
        None,
        "A file with rules for large providers: their limits and their throttling replies. If not set, the built-in rules apply.",
        example="/etc/mailsvc/shaping.toml",
    )
    port: int = setting(25, "The port of mail servers found by MX records.", check=checks.between(1, 65535))
    nameservers: tuple[str, ...] = setting((), "DNS resolvers to use. Empty: those in /etc/resolv.conf.", check=checks.nameservers)
    dns_seconds: float = setting(10.0, "Timeout in seconds for one DNS lookup, with all retries.", check=checks.at_least(1))
    allowed_networks: tuple[str, ...] = setting(
        (), "Private or loopback networks that may be connected to. Routes need this too.", check=checks.networks
    )

    retry: tuple[float, ...] = setting(
        (60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0),
        "Seconds to wait before each retry. The last value repeats.",
        check=checks.schedule,
    )
    retry_jitter: float = setting(0.2, "Each wait is varied at random by up to this fraction.", check=checks.between(0, 0.9))
    greylist_seconds: float = setting(
        300.0, "Minimum wait in seconds after a server deferred a recipient (greylisting).", check=checks.at_least(0)
    )
    uncertain_seconds: float = setting(
        300.0, "Minimum wait in seconds after a message that was sent completely but not acknowledged.", check=checks.at_least(0)
    )
    hold_first: float = setting(
        60.0, "Seconds to pause a destination that cannot be reached. Doubled after each failure.", check=checks.at_least(1)
    )
    hold_longest: float = setting(1800.0, "Maximum pause in seconds.", check=checks.at_least(1))
    expire: float = setting(432000.0, "Seconds after which an undelivered message bounces (5 days).", check=checks.at_least(60))

    connections: int = setting(500, "Maximum number of open connections.", check=checks.between(1, 20000))
    connections_initial: int = setting(
        2, "Connections to a destination until it has accepted mail reliably.", check=checks.between(1, 1000)
    )
    connections_max: int = setting(
        20, "Maximum number of connections to one destination, from all processes in the region.", check=checks.between(1, 1000)
    )
    messages_per_connection: int = setting(100, "Messages sent over a connection before it is closed.", check=checks.at_least(1))
    recipients_per_message: int = setting(
        100, "Maximum number of recipients in one SMTP transaction. Others get further transactions.", check=checks.at_least(1)
    )
    patience_seconds: float = setting(
        20.0, "Seconds that an unproven connection may take while other destinations wait for one.", check=checks.at_least(1)
    )
    idle_seconds: float = setting(5.0, "Seconds that an idle connection is kept open for the next message.", check=checks.between(0, 300))
    window: int = setting(1000, "Emails of one destination held in memory. Others wait in Postgres.", check=checks.at_least(1))
    emails: int = setting(20_000, "Emails of all destinations held in memory.", check=checks.at_least(1))
    memory: int = setting(
        64 * 1024 * 1024, "Bytes of messages held in memory. Others are read when they are sent.", check=checks.at_least(1024)
    )

    connect_seconds: float = setting(30.0, "Timeout in seconds for connecting to one address.", check=checks.at_least(1))
    connect_addresses: int = setting(5, "Addresses tried for each connection.", check=checks.at_least(1))
    greeting_seconds: float = setting(300.0, "Timeout in seconds for the greeting and the reply to EHLO.", check=checks.at_least(1))
    reply_seconds: float = setting(300.0, "Timeout in seconds for the replies to MAIL and RCPT.", check=checks.at_least(1))
    data_seconds: float = setting(120.0, "Timeout in seconds for the reply to DATA.", check=checks.at_least(1))
    block_seconds: float = setting(
        180.0, "Timeout in seconds for the server to read the next block of a message.", check=checks.at_least(1)
    )
    final_seconds: float = setting(
        600.0, "Timeout in seconds for the reply to the whole message. Shorter values cause duplicates.", check=checks.at_least(1)
    )
    poll_seconds: float = setting(1.0, "How often in seconds the queue is checked, besides notifications.", check=checks.at_least(0.05))
    drain_seconds: float = setting(
        30.0, "Seconds that a shutdown waits for deliveries in progress. Above 90, raise TimeoutStopSec too.", check=checks.between(0, 600)
    )


@attrs.frozen
class Control:
    """The control socket."""

    socket: Path | None = setting(
        None, "The Unix socket for `mailsvc queue`. Only its owner can connect.", example="/run/mailsvc/control.sock"
    )


@attrs.frozen
class Fetch:
    """Requests to URLs from customers: webhook endpoints and attachments by URL."""

    ports: tuple[int, ...] = setting((80, 443, 8080, 8443), "Ports that may be connected to. Empty: any.", check=checks.port_numbers)
    allow_http: bool = setting(False, "Whether to allow http URLs, not only https.")
    allowed_networks: tuple[str, ...] = setting((), "Private or loopback networks that may be connected to.")
    denied_networks: tuple[str, ...] = setting((), "Networks that may never be connected to, such as your own public ones.")


@attrs.frozen
class Limits:
    """Limits for emails."""

    recipients: int = setting(50, "Maximum number of addresses in each of to, cc and bcc.", check=checks.between(1, 1000))
    batch: int = setting(100, "Maximum number of emails in one batch.", check=checks.between(1, 1000))
    message: int = setting(40 * 1024 * 1024, "Maximum size of a message as it is sent, in bytes (40 MB).", check=checks.at_least(1024))
    blocked_endings: tuple[str, ...] = setting(
        BLOCKED_ENDINGS, "File extensions of attachments that the API refuses.", check=checks.endings
    )
    schedule_ahead: int = setting(30, "How many days in the future scheduled_at can be.", check=checks.between(1, 365))


@attrs.frozen
class Secrets:
    """Encryption at rest."""

    key_file: Path = setting(
        Path("/var/lib/mailsvc/secret.key"),
        "The encryption keys of secrets in the database, the same for all processes: one per line, a number and 32 bytes in base64. "
        "See `mailsvc secrets`.",
    )
    body_keys: Path | None = setting(
        None,
        "A folder with one key for each account whose messages are encrypted (`mailsvc account encrypt`), the same for all processes. "
        "Deleting a key makes the account's messages unreadable, also in backups of the database.",
        example=Path("/var/lib/mailsvc/body-keys"),
    )
    key: str | None = setting(
        None, "The lines of key_file, to pass them in the environment (MAILSVC_SECRETS__KEY).", secret=True, example=""
    )


@attrs.frozen
class Log:
    """The daemon's log."""

    format: str = setting("json", '"json": one object per line. "text": for people.', check=checks.one_of("json", "text"))
    level: str = setting(
        "info",
        "debug, info, warn or error. Recipients' addresses are only logged at debug.",
        check=checks.one_of("debug", "info", "warn", "error"),
    )
    file: Path | None = setting(None, "The log file. If not set, standard output.", example="/var/log/mailsvc/mailsvc.json")


@attrs.frozen
class Metrics:
    """Prometheus metrics."""

    listen: tuple[str, ...] = setting(
        (),
        'Where to serve metrics: "unix:/run/mailsvc/metrics.sock", or "tcp:9125:interface=127.0.0.1" with a token. Empty: nowhere.',
        check=checks.watched,
    )
    token: str | None = setting(None, "The bearer token that Prometheus sends. Required for TCP endpoints.", secret=True, example="")


@attrs.frozen
class Sandbox:
    """The development inbox, which receives mail in place of other servers."""

    listen: tuple[str, ...] = setting((), "Where to listen for SMTP. Empty: no inbox.", check=checks.listen)


@attrs.frozen
class Dashboard:
    """The dashboard."""

    session_idle_hours: float = setting(24.0, "Hours without a request after which a session ends.", check=checks.between(0.05, 8760))
    session_days: float = setting(30.0, "Days after which a session ends in any case.", check=checks.between(0.05, 365))
    sign_up: bool = setting(False, "Whether anyone can create an account, without an invitation. Needs sender, or a provider in sign_in.")
    test_sender: str | None = setting(
        None, "The From address of test emails for accounts without a verified domain. Needs the setting sender. Its domain must belong to "
        "one of the accounts, and nothing else can be sent from it. Unset: there are no such test emails.",
        check=checks.address, example="test@try.example.com",
    )  # fmt: skip
    block_lists: tuple[str, ...] = setting(BLOCK_LISTS, "DNS blocklists of addresses. Insights look up the source addresses there.")
    domain_lists: tuple[str, ...] = setting(
        (), "DNS blocklists of domains. Insights look up senders and links there. Most require registration."
    )


@attrs.frozen
class Development:
    """The first start in development."""

    dev_file: Path | None = setting(
        None, "Creates a first account, and writes the API's address and a key to this file for scripts.", example="var/dev.json"
    )
    domain: str = setting("mailsvc.example", "The first account's sending domain, trusted without DNS records.", check=checks.host)
    member: str = setting("you@mailsvc.example", "The first account's admin, who gets a sign-in link.", check=checks.address)


@attrs.frozen
class Settings:
    """All settings."""

    roles: tuple[str, ...] = setting(ROLES, f"The roles of this process: one or more of {', '.join(ROLES)}.", check=checks.roles)
    region: str = setting("us-east-1", "The region that this process delivers mail for.", check=checks.host)
    base_url: str | None = setting(
        None, "The public URL of the API and the dashboard, without a path.", check=checks.base_url, example="https://api.example.com"
    )
    sender: str | None = setting(
        None, "The From address of system mail, such as invitations. Its domain must belong to one of the accounts.",
        check=checks.sender, example="mailsvc <notices@example.com>",
    )  # fmt: skip
    database: Database = section(Database, "The Postgres database.")
    http: Http = section(Http, "The API and the dashboard.")
    smtp: Smtp = section(Smtp, "The SMTP ports: submission by customers, and incoming bounces and complaints.")
    delivery: Delivery = section(Delivery, "Delivery to other mail servers.")
    control: Control = section(Control, "The control socket.")
    domains: Domains = section(Domains, "Sending domains.")
    fetch: Fetch = section(Fetch, "Requests to URLs that customers gave: webhook endpoints and attachments by URL.")
    webhooks: Webhooks = section(Webhooks, "Webhooks.")
    limits: Limits = section(Limits, "Limits for emails.")
    audience: Audience = section(Audience, "Contacts, segments and topics.")
    broadcasts: Broadcasts = section(Broadcasts, "Broadcasts: how fast they are sent, and when they are paused.")
    tracking: Tracking = section(Tracking, "Open and click tracking, which each sending domain can switch on.")
    plans: Plans = section(Plans, "Plans, which set sending quotas.")
    abuse: Abuse = section(Abuse, "Protection against abuse by customers. `mailsvc account trust` exempts an account.")
    content_filter: ContentFilter = section(
        ContentFilter, "A content filter that sees each message before it is accepted: rspamd, or a program with the same HTTP protocol."
    )
    audit: Audit = section(Audit, "The audit log: signed anchors, and where its lines are sent.")
    retention: Retention = section(Retention, "How many days data is kept. Nothing that is still queued is deleted.")
    privacy: Privacy = section(Privacy, "Erasure of personal data.")
    secrets: Secrets = section(Secrets, "Encryption at rest.")
    log: Log = section(Log, "The daemon's log.")
    metrics: Metrics = section(Metrics, "Prometheus metrics.")
    console: Console = section(Console, "The operator's console. `mailsvc operator add` names who can sign in.")
    status: Status = section(Status, "The public status page.")
    tracing: Tracing = section(Tracing, "OpenTelemetry traces.")
    sandbox: Sandbox = section(Sandbox, "The development inbox.")
    dashboard: Dashboard = section(Dashboard, "The dashboard.")
    sign_in: SignIn = section(SignIn, "Signing in to the dashboard with Google, OpenID Connect or GitHub.")
    development: Development = section(Development, "The first start in development.")
    regions: Mapping[str, Region] = named_sections(
        Region, "The regions of an installation that has several, each with its name. Processes of all of them share the database."
    )
