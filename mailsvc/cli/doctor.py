"""`mailsvc doctor`: looks for what keeps mail from going out well, and says what to do about it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import click
from cryptography import x509
from cryptography.x509.oid import ExtensionOID
from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, connectProtocol
from twisted.internet.error import ConnectError
from twisted.internet.protocol import Protocol

from mailsvc import __version__, clock
from mailsvc.cli.runner import run_with_database
from mailsvc.clock import utc
from mailsvc.dashboard import files
from mailsvc.monitoring import installation, sizes
from mailsvc.monitoring.doctor import Certificate, Doctor, Finding
from mailsvc.monitoring.installation import Facts, Process
from mailsvc.net.dns import Resolver
from mailsvc.runtime.database import Database, wrong_keys
from mailsvc.settings import retention
from mailsvc.settings.schema import BLOCK_LISTS, Settings
from mailsvc.smtp.server.certificates import CERTBOT
from mailsvc.store.logs import installation as installed
from mailsvc.store.logs.figures import Vitals
from mailsvc.store.logs.retention import Retention
from mailsvc.store.people.api_keys import Keys
from mailsvc.store.postgres import server_settings
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue import processes
from mailsvc.wiring import sources_of

_SECONDS = 10.0
_SIGNS = {"good": "ok  ", "doubtful": "?   ", "bad": "BAD "}


@click.command()
@click.option("--probe", default="gmail.com", show_default=True, help="A domain whose mail exchangers are knocked at, port 25.")
@click.option("--dnsbl", "dnsbls", multiple=True, default=BLOCK_LISTS, show_default=True, help="Block lists to ask about our addresses.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_obj
def doctor(settings: Settings, /, probe: str, dnsbls: Sequence[str], as_json: bool) -> None:
    """Look at port 25, PTR records, block lists, DNS, clock, certificate, Postgres and sizes. Exit status 1: something is bad."""
    found: list[Finding] = []

    async def work(database: Database, reactor: Any) -> None:
        found.extend(await examining(settings, database.pool, reactor, probe, dnsbls).examine())
        now = utc(reactor)
        found.extend(sizes.findings(await Retention(database.pool).sizes(), retention.days(settings.retention), now))
        found.append(installation.encrypted(await wrong_keys(database.pool, settings, database.encryption.keys)))
        found.extend(await _installation(settings, database.pool, reactor, now))
        if as_json:
            click.echo(json.dumps([attrs.asdict(each) for each in found], indent=2))
        else:
            for each in found:
                click.echo(f"{_SIGNS[each.state]}{each.check}: {each.found}{f' {each.remedy}' if each.remedy else ''}")
        if any(each.state == "bad" for each in found):
            raise SystemExit(1)

    run_with_database(settings, work, checking=False)


def examining(settings: Settings, pool: Pool, reactor: Any, probe: str, dnsbls: Sequence[str]) -> Doctor:
    """A doctor who looks from this process, with these settings."""
    resolver = Resolver(reactor, settings.delivery.nameservers, seconds=settings.delivery.dns_seconds)
    ours = [(source.address, source.ehlo) for source in sources_of(settings.delivery).all]

    async def ahead() -> float:
        vitals = Vitals(pool, reactor)
        await vitals.look()
        return clock.ahead(reactor)

    return Doctor(
        resolver,
        ours or [(None, settings.delivery.ehlo_name or "localhost")],
        knocker(reactor),
        probe,
        dnsbls,
        ahead,
        lambda: server_settings.settings(pool),
        settings.database.pool,
        lambda: _certificate(settings),
        lambda: utc(reactor),
    )


async def _installation(settings: Settings, pool: Pool, reactor: Any, now: datetime) -> list[Finding]:
    """The steps of docs/operations.md."""
    accounts, sending, held = await installed.counts(pool, now)
    running = [Process(f"{each.pid} on {each.machine}", each.version, each.roles) for each in await processes.running(pool)]
    resolver = Resolver(reactor, settings.delivery.nameservers, seconds=settings.delivery.dns_seconds)
    told = installation.findings(settings, Facts(running, held, accounts, sending), __version__)
    told += await installation.trusted(settings, Keys(pool, reactor).find_by_id)
    told += installation.pages(files.missing())
    return told + await installation.outside(settings, resolver.addresses, knocker(reactor))


class _Greeted(Protocol):
    """Waits for the first octets of a server."""

    def __init__(self) -> None:
        self.first: Deferred[bytes] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        if not self.first.called:
            self.first.callback(data)

    def connectionLost(self, reason: Any = None) -> None:
        if not self.first.called:
            self.first.callback(b"")


def knocker(reactor: Any) -> Callable[[str, int], Awaitable[str | None]]:
    """Connects and waits for a greeting, ten seconds each; a phrase why there is none, or None."""

    async def knock(address: str, port: int) -> str | None:
        endpoint = (TCP6ClientEndpoint if ":" in address else TCP4ClientEndpoint)(reactor, address, port, timeout=_SECONDS)
        greeted = _Greeted()
        try:
            await connectProtocol(endpoint, greeted)
        except (ConnectError, OSError) as error:
            return f"cannot be connected to ({error})"
        try:
            first = await greeted.first.addTimeout(_SECONDS, reactor)
        except TimeoutError:
            return "was connected to, but did not greet"
        finally:
            greeted.transport.abortConnection()  # type: ignore[union-attr]
        return None if first.startswith(b"2") else f"greeted with {first[:80].decode('ascii', 'replace').strip()!r}"

    return knock


def _certificate(settings: Settings) -> Certificate | str | None:
    smtp = settings.smtp
    if "smtp" not in settings.roles or not smtp.listen or smtp.self_signed is not None:
        return None
    path = smtp.certbot / CERTBOT[0] if smtp.certbot is not None else smtp.certificate
    if path is None:
        return "There is no certificate for the relay's ports."
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
