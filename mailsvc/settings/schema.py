"""Every setting of mailsvc, with its default and what it is for; read once at the start, then frozen.

How a file becomes these classes: reader.py. etc/mailsvc.toml is printed from them: example.py.
"""

from __future__ import annotations

import os
import types
from collections.abc import Mapping
from pathlib import Path

import attrs

from mailsvc.policy import BLOCKED_ENDINGS
from mailsvc.settings import checks, reader
from mailsvc.settings.checks import RELAY_PORTS, ROLES
from mailsvc.settings.identity_providers import SignIn
from mailsvc.settings.plans import Plans
from mailsvc.settings.reader import SettingsError, section, setting
from mailsvc.settings.retention import Retention

BLOCK_LISTS = ("zen.spamhaus.org", "bl.spamcop.net")
MOVED = {"http.log_days": "retention.requests", "smtp.receipts": "retention.receipts"}


@attrs.frozen
class Database:
    """Where everything is kept."""

    url: str | None = setting(
        None, "A Postgres of 15 or newer: a libpq URL.", secret=True, example="postgresql://mailsvc@/mailsvc?host=/run/postgresql"
    )
    embedded: Path | None = setting(None, "Instead of url: the folder of a Postgres of its own, to try mailsvc.", example="var/postgres")
    witness: Path | None = setting(
        None, "A file that remembers how far it had come: a database that is behind it was restored.", example="/var/lib/mailsvc/witness"
    )
    pool: int = setting(10, "Connections to it.", check=checks.between(2, 200))
    commit_linger: float = setting(
        0.002, "Seconds that a commit waits for others to share it, while there are any.", check=checks.between(0, 1)
    )
    clock_tolerance: float = setting(
        10, "Seconds between this machine's clock and Postgres's, above which all mail is held.", check=checks.between(1, 3600)
    )


@attrs.frozen
class Http:
    """The API."""

    listen: tuple[str, ...] = setting(
        ("tcp:8025:interface=127.0.0.1",),
        'Endpoints, as Twisted writes them; TLS is ended in front of them or by "tls:".',
        check=checks.listen,
    )
    trusted_proxies: tuple[str, ...] = setting((), "Addresses or networks whose X-Forwarded-For is believed.")
    body_limit: int = setting(160 * 1024 * 1024, "Octets of a JSON body, attachments in their longest form.", check=checks.at_least(1024))
    in_flight: int = setting(
        256 * 1024 * 1024,
        "Bytes of memory for all requests and mails in progress; docs/security.md has the shares.",
        check=checks.at_least(1 << 20),
    )
    spool: int = setting(
        2 * 1024**3,
        "Bytes of disk (in TMPDIR) for large bodies and responses in progress; at least 8 × body_limit.",
        check=checks.at_least(1 << 23),
    )
    connections: int = setting(4000, "Connections at once, in all; those of trusted proxies are counted apart.", check=checks.at_least(10))
    connections_per_address: int = setting(
        250, "Connections at once from one address (of IPv6, one /64); behind trusted proxies, requests at once.", check=checks.at_least(1)
    )
    rate_limit: int = setting(10, "Requests a second of an account that has no limit of its own.", check=checks.at_least(1))
    idle_seconds: float = setting(60.0, "Seconds after which a silent connection is closed.", check=checks.at_least(1))
    log_body: int = setting(16384, "About the octets of a body that the request log keeps; 0: none.", check=checks.between(0, 1024 * 1024))


@attrs.frozen
class Smtp:
    """The relay."""

    listen: Mapping[str, str] = setting(
        types.MappingProxyType({number: f"tcp:{number}" for number in RELAY_PORTS}),
        'Endpoints by standard port, several separated by spaces; "haproxy:" before one: a load balancer tells who connected.',
        check=checks.ports,
    )
    trusted_proxies: tuple[str, ...] = setting((), 'Addresses or networks whose PROXY header is believed, at endpoints with "haproxy:".')
    trusted_networks: Mapping[str, str] = setting(
        {},
        'Networks that need neither TLS nor login on customers\' ports, each with the id of an API key: { "127.0.0.1/32" = "0198…" }.',
        check=checks.trusted_networks,
    )
    certificate: Path | None = setting(
        None, "The certificate and its chain, PEM; a renewed one is used without a restart.", example="/etc/mailsvc/certificate.pem"
    )
    key: Path | None = setting(None, "The private key of the certificate, PEM.", example="/etc/mailsvc/key.pem")
    certbot: Path | None = setting(
        None, "Instead of both: certbot's folder of live certificates for one name.", example="/etc/letsencrypt/live/smtp.example.com"
    )
    self_signed: Path | None = setting(
        None, "Instead, to try mailsvc: a folder for a certificate that is made at the first start.", example="var/tls"
    )
    username: str = setting("mailsvc", "The user name of every customer; the password is an API key.")
    connections: int = setting(5000, "Connections at once, in all.", check=checks.at_least(1))
    connections_per_address: int = setting(100, "Connections at once from one address; of IPv6, from one /64.", check=checks.at_least(1))
    connections_per_key: int = setting(20, "Connections at once that logged in with one API key.", check=checks.at_least(1))
    login_failures: int = setting(5, "Failed logins a minute from one address; further ones are not looked at.", check=checks.at_least(1))
    recipients: int = setting(1000, "Recipients of one mail.", check=checks.between(100, 10_000))
    idle_seconds: float = setting(300.0, "Seconds for a command to come, or for a body to show its pace.", check=checks.at_least(1))
    stranger_seconds: float = setting(60.0, "Seconds for logging in, or for a first recipient of ours.", check=checks.at_least(1))
    stranger_octets: int = setting(8192, "Octets of commands before that.", check=checks.at_least(1024))
    slowest: int = setting(500, "Octets a second that a body must make.", check=checks.at_least(1))
    errors: int = setting(
        20, "Refused commands after which a session is ended; refused recipients of a customer are none.", check=checks.at_least(1)
    )
    tarpit: float = setting(
        1.0,
        "Seconds before a login is refused, and each command of a session that has half of its errors; 0: at once.",
        check=checks.at_least(0),
    )
    null_mx: float = setting(
        0.25,
        "Seconds that the recipients of a mail wait in all for DNS to say that a domain takes no mail; 0: none.",
        check=checks.at_least(0),
    )
    names: tuple[str, ...] = setting((), "Names of ours besides delivery.ehlo_name, for which postmaster@ and abuse@ are taken.")
    postmaster: str | None = setting(
        None,
        "Who gets the mail to postmaster@ and abuse@; left out: it is not taken.",
        check=checks.address,
        example="operator@example.com",
    )
    postmaster_domain: str | None = setting(
        None, "The sending domain, of an account of the operator's, under which it is forwarded.", check=checks.host, example="example.com"
    )


@attrs.frozen
class Delivery:
    """The way out. What has the same name in delivery/limits is the same there."""

    ehlo_name: str | None = setting(
        None, "Our name towards other mail servers; its address should point back to it.", check=checks.host, example="out.example.com"
    )
    sources: tuple[str, ...] = setting(
        (), 'Our addresses, each with its EHLO name and its weight: "192.0.2.1 out1.example.com 3"; empty: the system chooses.'
    )
    mta_sts: bool = setting(True, "Whether the MTA-STS policies of recipients' domains are kept to.")
    dane: bool = setting(False, "Whether TLSA records are; the resolver has to validate DNSSEC and to be on this machine.")
    chunking: bool = setting(True, "Whether messages go by BDAT, in one round trip, to servers that offer it with pipelining.")
    routes: Mapping[str, str] = setting(
        {}, 'Domains with a fixed next host instead of their MX; "*" is every other domain.', check=checks.routes
    )
    shaping: Path | None = setting(
        None,
        "Rules for providers, what they take and what they say when it was too much; left out: those in etc/shaping.toml.",
        example="/etc/mailsvc/shaping.toml",
    )
    port: int = setting(25, "The port of mail exchangers found in DNS.", check=checks.between(1, 65535))
    nameservers: tuple[str, ...] = setting((), "Resolvers to ask; empty: those of /etc/resolv.conf.")
    dns_seconds: float = setting(10.0, "Seconds for one look-up, all resolvers and repetitions together.", check=checks.at_least(1))
    allowed_networks: tuple[str, ...] = setting(
        (), "Networks to connect to although they are private or loopback; routes need them too.", check=checks.networks
    )

    retry: tuple[float, ...] = setting(
        (60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0),
        "Seconds before each further attempt; the last one repeats.",
        check=checks.schedule,
    )
    retry_jitter: float = setting(0.2, "Each of these is stretched or shortened by up to this share.", check=checks.between(0, 0.9))
    greylist_seconds: float = setting(300.0, 'The least seconds after a server said "later" to a recipient.', check=checks.at_least(0))
    uncertain_seconds: float = setting(300.0, "The least seconds after a whole message that got no reply.", check=checks.at_least(0))
    hold_first: float = setting(
        60.0, "Seconds that a destination rests when it cannot be reached; doubled each time.", check=checks.at_least(1)
    )
    hold_longest: float = setting(1800.0, "The longest of these rests.", check=checks.at_least(1))
    expire: float = setting(432000.0, "Seconds after which a mail that nobody accepted bounces (5 days).", check=checks.at_least(60))

    connections: int = setting(500, "Connections open at once, in all.", check=checks.between(1, 20000))
    connections_initial: int = setting(2, "Connections to a destination that has not shown itself well.", check=checks.between(1, 1000))
    connections_max: int = setting(
        20, "Connections to one destination at most, of all processes in the region.", check=checks.between(1, 1000)
    )
    messages_per_connection: int = setting(100, "Messages after which a connection is closed.", check=checks.at_least(1))
    recipients_per_message: int = setting(100, "Recipients of one transaction; more become further ones.", check=checks.at_least(1))
    patience_seconds: float = setting(
        20.0, "While others wait for a connection: seconds for a destination to show that it works.", check=checks.at_least(1)
    )
    idle_seconds: float = setting(5.0, "Seconds that a connection without mail is kept for the next.", check=checks.between(0, 300))
    window: int = setting(1000, "Emails of one destination in memory; the others wait in Postgres.", check=checks.at_least(1))
    emails: int = setting(20_000, "Emails of all destinations in memory.", check=checks.at_least(1))
    memory: int = setting(
        64 * 1024 * 1024, "Octets of their messages in memory; the others are read when it is their turn.", check=checks.at_least(1024)
    )

    connect_seconds: float = setting(30.0, "Seconds to connect to one address.", check=checks.at_least(1))
    connect_addresses: int = setting(5, "Addresses tried for one connection.", check=checks.at_least(1))
    greeting_seconds: float = setting(300.0, "Seconds for the greeting, and for the reply to EHLO.", check=checks.at_least(1))
    reply_seconds: float = setting(300.0, "Seconds for the replies to MAIL and RCPT.", check=checks.at_least(1))
    data_seconds: float = setting(120.0, "Seconds for the reply to DATA.", check=checks.at_least(1))
    block_seconds: float = setting(180.0, "Seconds for a slice of a message to be taken.", check=checks.at_least(1))
    final_seconds: float = setting(600.0, "Seconds for the reply to the final dot; shorter ones make duplicates.", check=checks.at_least(1))
    poll_seconds: float = setting(1.0, "The queue is looked at this often, also when nobody rings.", check=checks.at_least(0.05))
    drain_seconds: float = setting(30.0, "Seconds that a shutdown waits for what is in flight.", check=checks.between(0, 600))


@attrs.frozen
class Control:
    """The operator's socket."""

    socket: Path | None = setting(
        None, "Where `mailsvc queue` reaches the daemon; only its owner may open it.", example="/run/mailsvc/control.sock"
    )


@attrs.frozen
class Fetch:
    """Web addresses that customers give: webhook endpoints and linked attachments."""

    ports: tuple[int, ...] = setting((80, 443, 8080, 8443), "Ports that may be connected to; empty: any.")
    allow_http: bool = setting(False, "Whether http is good enough, not only https.")
    allowed_networks: tuple[str, ...] = setting((), "Networks to connect to although they are private or loopback.")
    denied_networks: tuple[str, ...] = setting((), "Networks never to connect to, such as this service's own public ones.")


@attrs.frozen
class Webhooks:
    """Telling customers' endpoints. What has the same name in webhooks/sender is the same there."""

    endpoints: int = setting(100, "Endpoints of one account.", check=checks.between(1, 1000))
    connections: int = setting(200, "Connections open at once, in all.", check=checks.between(1, 20000))
    per_endpoint: int = setting(5, "Connections to one endpoint; one that fails gets a single one.", check=checks.between(1, 1000))
    per_endpoint_most: int = setting(50, "The same for one that answers well and has more waiting.", check=checks.between(1, 1000))
    per_host: int = setting(50, "Connections to the endpoints of one host and port.", check=checks.between(1, 1000))
    per_account: int = setting(50, "Connections to the endpoints of one account.", check=checks.between(1, 1000))
    timeout: float = setting(15.0, "Seconds for a whole attempt.", check=checks.between(1, 60))
    schedule: tuple[float, ...] = setting(
        (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 36000.0), "Seconds from each failure to the next attempt.", check=checks.schedule
    )
    warn_after: float = setting(1800.0, "Seconds of nothing but failures after which the account is told.", check=checks.at_least(1))
    disable_after: float = setting(432000.0, "The same, after which it is disabled (5 days).", check=checks.at_least(1))


@attrs.frozen
class Domains:
    """Sending domains."""

    allow_trust: bool = setting(False, "Whether `mailsvc domain trust` may take the place of DNS records.")
    hosts: Mapping[str, str] = setting(
        {}, "The host of each region: takes bounces, its addresses send. Empty: `region` with delivery.ehlo_name.", check=checks.hosts
    )
    spf_include: str | None = setting(
        None,
        "A name whose SPF record lists the sending addresses, when they are more than the hosts'.",
        check=checks.host,
        example="spf.example.com",
    )
    dkim_zone: str | None = setting(
        None, "A zone of yours that serves new domains' DKIM keys (`mailsvc domain zone`); customers publish CNAMEs into it.",
        check=checks.host, example="dkim.example.com",
    )  # fmt: skip
    rotate_days: int = setting(
        180, "Days after which a DKIM key is replaced; 0: only by `mailsvc domain rotate`.", check=checks.between(0, 3650)
    )
    nameserver_port: int = setting(53, "The port of customers' nameservers.", check=checks.between(1, 65535))
    per_account: int = setting(1000, "Domains of one account.", check=checks.between(1, 1_000_000))
    unverified: int = setting(100, "Domains of one account that are not verified.", check=checks.between(1, 1_000_000))
    adds_per_hour: int = setting(100, "Domains that one account may add in an hour.", check=checks.between(1, 1_000_000))


@attrs.frozen
class Limits:
    """How much is too much."""

    recipients: int = setting(50, "Addresses in each of to, cc and bcc.", check=checks.between(1, 1000))
    batch: int = setting(100, "Emails in one batch.", check=checks.between(1, 1000))
    message: int = setting(40 * 1024 * 1024, "Octets of a message as it goes out (40 MB).", check=checks.at_least(1024))
    blocked_endings: tuple[str, ...] = setting(
        BLOCKED_ENDINGS, "Endings of file names with which an attachment is refused by the API.", check=checks.endings
    )
    schedule_ahead: int = setting(30, "Days that scheduled_at may lie ahead.", check=checks.between(1, 365))


@attrs.frozen
class Secrets:
    """What keeps secrets at rest."""

    key_file: Path = setting(
        Path("/var/lib/mailsvc/secret.key"),
        "Encrypts secrets in the database, for all processes; see `mailsvc secrets`. A line: a number, and 32 octets in base64.",
    )
    key: str | None = setting(None, "The lines themselves, for the environment: MAILSVC_SECRETS__KEY.", secret=True, example="")


@attrs.frozen
class Log:
    """What is written about the running."""

    format: str = setting("json", '"json": one object a line; "text": for reading.', check=checks.one_of("json", "text"))
    level: str = setting(
        "info",
        "debug, info, warn or error; addresses of recipients appear at debug alone.",
        check=checks.one_of("debug", "info", "warn", "error"),
    )
    file: Path | None = setting(None, "Where to; left out: standard output.", example="/var/log/mailsvc.json")


@attrs.frozen
class Metrics:
    """What a monitor reads."""

    listen: tuple[str, ...] = setting(
        (),
        'Endpoints for Prometheus, "unix:/run/mailsvc/metrics.sock" (0600) or "tcp:9125:interface=127.0.0.1" with a token; empty: none.',
        check=checks.watched,
    )
    token: str | None = setting(None, "The bearer token that has to be shown at each of them; a TCP one needs it.", secret=True, example="")


@attrs.frozen
class Sandbox:
    """The development inbox: receives mail as other servers would."""

    listen: tuple[str, ...] = setting((), "Endpoints; empty: there is no inbox.", check=checks.listen)


@attrs.frozen
class Dashboard:
    """The pages for people."""

    sign_up: bool = setting(False, "Whether anybody may open an account, which takes a sender. Else members are invited.")
    block_lists: tuple[str, ...] = setting(BLOCK_LISTS, "Lists of addresses that insights look our own up in.")
    domain_lists: tuple[str, ...] = setting((), "Lists of domains that they look up From and links in; most want to be asked first.")


@attrs.frozen
class Development:
    """The first run."""

    dev_file: Path | None = setting(
        None, "Where the address and the first key are written for scripts; also makes the first account.", example="var/dev.json"
    )
    domain: str = setting("mailsvc.example", "The first account's sending domain, trusted without DNS records.", check=checks.host)
    member: str = setting("you@mailsvc.example", "The first account's admin, who gets a link to sign in with.", check=checks.address)


@attrs.frozen
class Settings:
    """The whole of it."""

    roles: tuple[str, ...] = setting(ROLES, f"What this process does: {', '.join(ROLES)}.", check=checks.roles)
    region: str = setting("us-east-1", "The region whose mail this process delivers.", check=checks.host)
    base_url: str | None = setting(
        None, "The address of the API as customers see it.", check=checks.base_url, example="https://api.example.com"
    )
    sender: str | None = setting(
        None,
        "From of what mailsvc itself writes to customers; in a domain of any account here.",
        check=checks.sender,
        example="mailsvc <notices@example.com>",
    )
    database: Database = section(Database, "Where everything is kept.")
    http: Http = section(Http, "The API.")
    smtp: Smtp = section(Smtp, "The relay.")
    delivery: Delivery = section(Delivery, "The way out.")
    control: Control = section(Control, "The operator's socket.")
    domains: Domains = section(Domains, "Sending domains.")
    fetch: Fetch = section(Fetch, "Web addresses that customers give: webhook endpoints and linked attachments.")
    webhooks: Webhooks = section(Webhooks, "Telling customers' endpoints.")
    limits: Limits = section(Limits, "How much is too much.")
    plans: Plans = section(Plans, "How much accounts may send.")
    retention: Retention = section(Retention, "How many days things are kept; what still waits stays, with all that it needs.")
    secrets: Secrets = section(Secrets, "What keeps secrets at rest.")
    log: Log = section(Log, "What is written about the running.")
    metrics: Metrics = section(Metrics, "What a monitor reads.")
    sandbox: Sandbox = section(Sandbox, "The development inbox.")
    dashboard: Dashboard = section(Dashboard, "The pages for people.")
    sign_in: SignIn = section(SignIn, "Signing in to the dashboard at other services, beside a password.")
    development: Development = section(Development, "The first run.")


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a file and the environment, or SettingsError."""
    settings = reader.build(Settings, reader.read(path), environ, MOVED)
    _agree(settings)
    return settings


def _agree(settings: Settings) -> None:
    """What no setting can tell alone."""
    database, delivery = settings.database, settings.delivery
    if (database.url is None) == (database.embedded is None):
        given = "both are set" if database.url else "neither is set"
        raise SettingsError(f"One of the settings database.url and database.embedded is needed; {given}.")
    if settings.base_url is None and "http" in settings.roles:
        raise SettingsError("The setting base_url is missing; expected the address of the API, such as https://api.example.com.")
    if "http" in settings.roles and not settings.http.listen:
        raise SettingsError("The setting http.listen is empty; the role http needs an endpoint.")
    if settings.metrics.token is None and any(not text.startswith("unix:") for text in settings.metrics.listen):
        raise SettingsError("The setting metrics.token is missing; a TCP endpoint in metrics.listen needs one.")
    if delivery.ehlo_name is None and {"delivery", "smtp"} & set(settings.roles):
        raise SettingsError("The setting delivery.ehlo_name is missing; expected this machine's name in DNS, such as out.example.com.")
    if "smtp" in settings.roles and settings.smtp.listen:
        _agree_on_certificate(settings.smtp)
    if (settings.smtp.postmaster is None) != (settings.smtp.postmaster_domain is None):
        raise SettingsError("The settings smtp.postmaster and smtp.postmaster_domain belong together; one of them is missing.")
    if not delivery.connections_initial <= delivery.connections_max <= delivery.connections:
        raise SettingsError("The settings delivery.connections_initial, connections_max and connections have to grow in this order.")
    if settings.domains.hosts and settings.region not in settings.domains.hosts:
        raise SettingsError(f"The setting domains.hosts has no host for the region {settings.region}.")
    if settings.development.dev_file is not None and not settings.domains.allow_trust:
        raise SettingsError("The setting development.dev_file needs domains.allow_trust = true.")


def _agree_on_certificate(smtp: Smtp) -> None:
    if (smtp.certificate is None) != (smtp.key is None):
        raise SettingsError("The settings smtp.certificate and smtp.key belong together; one of them is missing.")
    given = [name for name in ("certificate", "certbot", "self_signed") if getattr(smtp, name) is not None]
    if len(given) != 1:
        what = "missing" if not given else f"several: {', '.join(given)}"
        raise SettingsError(
            f"The certificate of the SMTP ports is {what}; expected one of smtp.certificate with smtp.key, smtp.certbot and "
            "smtp.self_signed, or smtp.listen = {}."
        )
