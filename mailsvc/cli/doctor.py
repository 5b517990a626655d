"""`mailsvc doctor`: finds what would keep mail from being delivered, and says how to fix it. The checks: monitoring/doctor."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from socket import gethostname
from typing import Any, get_args
from uuid import uuid4

import attrs
import click
from cryptography import x509
from cryptography.x509.oid import ExtensionOID
from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, connectProtocol
from twisted.internet.error import ConnectError
from twisted.internet.protocol import Protocol

from mailsvc import __version__, clock
from mailsvc.cli.runner import start, with_database
from mailsvc.clock import utc
from mailsvc.dashboard import files
from mailsvc.mail.address import parse_mailbox
from mailsvc.monitoring import control_socket, coordinator, installation, machine, sizes, standbys
from mailsvc.monitoring import regions as regional
from mailsvc.monitoring.doctor import Certificate, Doctor, Finding, State
from mailsvc.monitoring.failures import explain
from mailsvc.monitoring.installation import Facts, Process
from mailsvc.net.dns import Resolver
from mailsvc.runtime.database import Database, wrong_keys
from mailsvc.settings import regions, retention
from mailsvc.settings.schema import BLOCK_LISTS, Settings
from mailsvc.smtp.server.certificates import CERTBOT
from mailsvc.store.audit import protection
from mailsvc.store.audit.targets import Target
from mailsvc.store.cells.coordinator import unreachable
from mailsvc.store.domains.domains import Domain, Domains
from mailsvc.store.logs import installation as installed
from mailsvc.store.logs.figures import Vitals
from mailsvc.store.logs.retention import Retention
from mailsvc.store.mail import write_check
from mailsvc.store.people.api_keys import Keys
from mailsvc.store.postgres import server_settings, upgrade_check
from mailsvc.store.postgres.errors import Contention, Unavailable
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue import processes

PROBE = "gmail.com"
_NO_DATABASE = "Make sure that Postgres runs and has disk space (its log says), and check database.url."
_TIMEOUT = 10.0
_WIDTH = max(map(len, get_args(State)))


@click.command()
@click.option(
    "--probe",
    show_default=f"{PROBE}; none if delivery.routes has a server for all domains",
    help="A domain whose mail servers to connect to on port 25.",
)
@click.option(
    "--dnsbl", "dnsbls", multiple=True, default=BLOCK_LISTS, show_default=True, help="DNS blocklists to look up the source addresses in."
)
@click.option(
    "--no-probe", is_flag=True, help="For closed networks: do not look up or connect to servers on the internet (--probe, --dnsbl)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def doctor(settings: Settings, /, probe: str | None, dnsbls: Sequence[str], no_probe: bool, as_json: bool) -> None:
    """Check port 25, reverse DNS, blocklists, DNS, clock, certificate, Postgres and storage. Exits with 1 if there is an error."""
    found: list[Finding] = []
    if no_probe and probe is not None:
        raise click.UsageError("--probe and --no-probe cannot be used together.")
    if probe is None and not no_probe:
        probe = default_probe(settings)

    async def examine(database: Database, reactor: Any) -> None:
        found.extend(await inside(doctor_for(settings, database.pool, reactor, probe, dnsbls), settings, database, reactor))

    async def look(database: Database, _reactor: Any) -> None:
        found.extend(await _obstacles(database.pool))

    async def work(reactor: Any) -> None:
        found.extend(await doctor_for(settings, None, reactor, probe, dnsbls).outside())
        found.extend(machine.findings(machine.measure(settings.secrets.key_file.parent), settings))
        try:
            if settings.database.embedded is None:
                await with_database(reactor, settings, look, migrating=False)
            if not any(each.check == "database" for each in found):
                await with_database(reactor, settings, examine, checking=False)
        except Exception as error:
            why = explain(error)
            if why is None:
                raise
            found.append(Finding("database", "error", f"{why.rstrip('.')}.", f"{_remedy(error)} {installation.ALONE}"))
        if as_json:
            click.echo(json.dumps([attrs.asdict(each) for each in found], indent=2))
        else:
            show(found)
        if any(each.state == "error" for each in found):
            raise SystemExit(1)

    start(settings, work)


async def _obstacles(pool: Pool) -> list[Finding]:
    """Why nothing else can be checked in the database, if so."""
    present = await server_settings.standbys(pool)
    lacking = present.synchronous and not present.connected
    if lacking or await server_settings.commits_wait(pool, write_check.PATIENCE):  # they keep their locks, which other checks need
        return [standbys.waiting(present)]
    return installation.migrations(await upgrade_check.plan(pool))


def _remedy(error: Exception) -> str:
    if isinstance(error, Contention):
        return installation.UNLOCK
    return _NO_DATABASE if isinstance(error, Unavailable) else "Fix the reported error."


def default_probe(settings: Settings) -> str | None:
    """The domain whose mail servers are connected to. None if all mail goes elsewhere."""
    return None if "*" in settings.delivery.routes else PROBE


def show(found: Sequence[Finding]) -> None:
    """Prints a line for each finding."""
    for each in found:
        click.echo(f"{each.state:{_WIDTH}} {each.check}: {each.found}{f' {each.remedy}' if each.remedy else ''}")


async def inside(examined: Doctor, settings: Settings, database: Database, reactor: Any) -> list[Finding]:
    """What can be checked with the database."""
    now = utc(reactor)
    if (problem := await write_check.locked(database.pool, now)) is not None:
        return [installation.locked(problem)]  # other checks would wait for the same lock
    found = await examined.inside()
    found.append(installation.writes(await server_settings.write_problem(database.pool)))
    found += sizes.findings(await Retention(database.pool).sizes(), retention.days(settings.retention), now)
    found.append(installation.encrypted(await wrong_keys(database.pool, settings, database.encryption.keys)))
    found += installation.body_keys(*await database.bodies.problems())
    hosts = server_settings.hosts(database.dsn) if database.hold is None else None
    found.append(standbys.finding(await server_settings.standbys(database.pool), hosts))
    if database.hold is not None:
        found.append(coordinator.finding(await unreachable(database.pool)))
    found.append(installation.audit_log(await protection.weaknesses(database.pool)))
    for name, given in (("syslog", settings.audit.syslog), ("https", settings.audit.url)):
        if given is not None:
            found.append(installation.audit_sent(name, await Target(database.pool, name, uuid4()).unsent()))
    return found + await _installation(settings, database, reactor, now)


def doctor_for(settings: Settings, pool: Pool | None, reactor: Any, probe: str | None, dnsbls: Sequence[str]) -> Doctor:
    """Returns a doctor with these settings that checks from this process. Without `probe`, it leaves the internet out.

    Without `pool`, it can only run the checks that need no database.
    """
    from mailsvc.wiring import source_addresses  # imported late: it takes as long as all the rest of any other command

    resolver = Resolver(reactor, settings.delivery.nameservers, seconds=settings.delivery.dns_seconds)
    sources = [(source.address, source.ehlo) for source in source_addresses(settings.delivery).all]

    async def ahead() -> float:
        vitals = Vitals(_open(pool), reactor)
        await vitals.look()
        return clock.ahead(reactor)

    return Doctor(
        resolver,
        sources or [(None, settings.delivery.ehlo_name or "localhost")],
        smtp_greeter(reactor),
        probe,
        dnsbls,
        ahead,
        lambda: server_settings.settings(_open(pool)),
        settings.database.pool,
        lambda: _certificate(settings),
        lambda: utc(reactor),
    )


def _open(pool: Pool | None) -> Pool:
    assert pool is not None
    return pool


async def _installation(settings: Settings, database: Database, reactor: Any, now: datetime) -> list[Finding]:
    """Checks the installation steps of docs/operations.md."""
    pool = database.pool
    accounts, sending, held = await installed.counts(pool, now)
    live = await processes.running(pool)
    running = [Process(f"{each.pid} on {each.machine}", each.version, each.roles, each.silent) for each in live]
    path = settings.control.socket
    control = control_socket.problem(path) if path is not None and gethostname() in [each.machine for each in live] else None
    resolver = Resolver(reactor, settings.delivery.nameservers, seconds=settings.delivery.dns_seconds)
    found = installation.findings(settings, Facts(running, held, accounts, sending, control), __version__)
    served = [] if not running else await processes.delivering(pool)
    found += regional.findings(regions.all_regions(settings), settings.region, await installed.regions(pool), served)
    found.append(installation.sender(settings.sender, await _sender_domain(settings, database, reactor)))
    found += await installation.trusted(settings, Keys(pool, reactor).find_by_id)
    found += installation.pages(files.missing())
    return found + await installation.outside(settings, resolver.addresses, smtp_greeter(reactor))


async def _sender_domain(settings: Settings, database: Database, reactor: Any) -> Domain | None:
    """The domain that the service's own emails are sent from."""
    if settings.sender is None:
        return None
    domains = Domains(database.pool, reactor, database.encryption, trusting=settings.domains.allow_trust)
    return await domains.called(parse_mailbox(settings.sender).domain)


class _Greeted(Protocol):
    """Waits for a server's first bytes."""

    def __init__(self) -> None:
        self.first: Deferred[bytes] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        if not self.first.called:
            self.first.callback(data)

    def connectionLost(self, reason: Any = None) -> None:
        if not self.first.called:
            self.first.callback(b"")


def smtp_greeter(reactor: Any) -> Callable[[str, int], Awaitable[str | None]]:
    """Returns a function that connects and waits for a greeting, up to ten seconds each. It returns the problem, or None."""

    banner = smtp_banner(reactor)

    async def greet(address: str, port: int) -> str | None:
        return (await banner(address, port))[0]

    return greet


def smtp_banner(reactor: Any) -> Callable[[str, int], Awaitable[tuple[str | None, str]]]:
    """As smtp_greeter; the function also returns the greeting."""

    async def read(address: str, port: int) -> tuple[str | None, str]:
        endpoint = (TCP6ClientEndpoint if ":" in address else TCP4ClientEndpoint)(reactor, address, port, timeout=_TIMEOUT)
        greeted = _Greeted()
        try:
            await connectProtocol(endpoint, greeted)
        except (ConnectError, OSError) as error:
            return f"refused the connection or cannot be reached ({error})", ""
        try:
            first = await greeted.first.addTimeout(_TIMEOUT, reactor)
        except TimeoutError:
            return "accepted the connection, but sent no greeting", ""
        finally:
            greeted.transport.abortConnection()  # type: ignore[union-attr]
        text = first[:80].decode("ascii", "replace").strip()
        return (None if first.startswith(b"2") else f"answered with {text!r}"), text

    return read


def _certificate(settings: Settings) -> Certificate | str | None:
    smtp = settings.smtp
    if "smtp" not in settings.roles or not smtp.listen or smtp.self_signed is not None:
        return None
    path = smtp.certbot / CERTBOT[0] if smtp.certbot is not None else smtp.certificate
    if path is None:
        return "No certificate is set for the SMTP ports."
    return _read(path)


def _read(path: Path) -> Certificate | str:
    try:
        [certificate, *_] = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        return f"The certificate {path} cannot be read: {error}."
    try:
        names = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except x509.ExtensionNotFound:
        return Certificate(certificate.not_valid_after_utc, ())
    return Certificate(certificate.not_valid_after_utc, tuple(names.get_values_for_type(x509.DNSName)))  # type: ignore[attr-defined]
