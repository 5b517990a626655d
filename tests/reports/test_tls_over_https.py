"""TLS reports over real HTTPS: the real fetcher and DNS, a third-party web server on loopback, and certificates of our own authority."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

import attrs
import pytest
import pytest_twisted

from mailsvc.mail.address import parse_mailbox
from mailsvc.mail.reports import tls_report
from mailsvc.mail.reports.tls_report import TlsRow
from mailsvc.net.address_guard import networks
from mailsvc.net.dns import Resolver
from mailsvc.net.fetch import Fetcher
from mailsvc.net.urls import Rules
from mailsvc.reports.tls_sending import PAUSES, TlsReportSender
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.tls import TlsRecords
from tests.dnsserver import DnsServer
from tests.https_server import Authority, Diverted, Web, serving
from tests.reports.test_tls_sending import COUNTS, NOW
from tests.reports.test_tls_sending import Rig as Mail

HOST = "reports.example.com"
ZONES = {"_smtp._tls.example.com": {"TXT": [f'"v=TLSRPTv1; rua=https://{HOST}/v1/tls?of=example.com"']}, HOST: {"A": ["127.0.0.1"]}}
TRIES = [timedelta(), *accumulate(PAUSES)]  # after the first


@attrs.define(eq=False)
class Rig:
    """`mail` stands in for intake; nothing may be mailed here."""

    web: Web
    dns: DnsServer
    sender: TlsReportSender
    mail: Mail
    pool: Pool
    now: datetime = NOW

    async def send_after(self, later: timedelta) -> int:
        """Send what is due at that time. Returns the number of requests that reached the server."""
        self.now = NOW + later
        before = len(self.web.posts)
        await self.sender.send_due()
        assert not self.mail.mails
        return len(self.web.posts) - before

    async def next_try(self) -> datetime | None:
        [(at,)] = await self.pool.rows("SELECT next_at FROM tls_reports WHERE domain = 'example.com'")
        return at  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Web]:
    with serving(tmp_path_factory.mktemp("web"), authority, HOST) as web:
        yield web


@pytest_twisted.async_yield_fixture
async def rig(web: Web, authority: Authority, pool: Pool) -> AsyncIterator[Rig]:
    from twisted.internet import reactor

    web.proof, web.status, web.headers, web.posts = "good", 201, {}, []
    dns = DnsServer(ZONES)
    await dns.start(reactor)
    diverted: Any = Diverted(reactor, web.server.server_address[1])
    resolver = Resolver(diverted, [dns.address], seconds=2)
    fetcher = Fetcher(diverted, resolver, Rules(frozenset({443}), False, networks(["127.0.0.1"])), authority.trust)
    store, mail = TlsRecords(pool), Mail()
    await store.add(COUNTS)
    sender = TlsReportSender(store, resolver, fetcher, mail, mail, parse_mailbox("tls@out.example.net"), lambda: created.now.timestamp())
    created = Rig(web, dns, sender, mail, pool)
    yield created
    await dns.stop()


@pytest_twisted.ensureDeferred
async def test_a_report_is_posted_once_as_gzipped_json(rig: Rig) -> None:
    assert [await rig.send_after(timedelta(hours=hours)) for hours in (0, 1, 5)] == [1, 0, 0]
    [(path, headers, body)] = rig.web.posts
    assert path == "/v1/tls?of=example.com"
    assert headers["Host"] == HOST
    assert headers.get_all("Content-Type") == ["application/tlsrpt+gzip"]  # 8460 §5.4
    assert headers["Content-Encoding"] is None  # the type says it
    assert int(headers["Content-Length"]) == len(body)
    report = tls_report.read(gzip.decompress(body))
    assert (report.organization, report.report_id) == ("out.example.net", "2026-06-01.example.com@out.example.net")
    assert report.rows[TlsRow("example.com", "sts", "", "success")] == 5326


@pytest_twisted.ensureDeferred
async def test_a_report_is_not_given_to_a_server_without_a_valid_certificate(rig: Rig) -> None:
    for proof, at, pause in zip(("of another name", "expired", "of an unknown authority"), TRIES, PAUSES, strict=False):
        rig.web.proof = proof
        assert await rig.send_after(at) == 0, proof
        assert await rig.next_try() == NOW + at + pause
    rig.web.proof = "good"
    assert await rig.send_after(TRIES[3]) == 1
    assert await rig.next_try() is None


@pytest_twisted.ensureDeferred
async def test_a_report_that_fails_is_posted_again_unchanged(rig: Rig) -> None:
    for status, at, pause in zip((500, 503, 429, 301), TRIES, PAUSES, strict=False):
        rig.web.status, rig.web.headers = status, {"Location": f"https://{HOST}/elsewhere"} if status == 301 else {}
        assert await rig.send_after(at) == 1, status
        assert await rig.send_after(at + pause - timedelta(seconds=1)) == 0
    rig.web.status = 200
    assert await rig.send_after(TRIES[4]) == 1
    assert await rig.next_try() is None
    assert len({(path, body) for path, _, body in rig.web.posts}) == 1


@pytest.mark.parametrize("status", [400, 410])
@pytest_twisted.ensureDeferred
async def test_a_refused_report_is_not_posted_again(rig: Rig, status: int) -> None:
    rig.web.status = status
    assert await rig.send_after(timedelta()) == 1
    assert await rig.next_try() is None
    assert await rig.send_after(timedelta(hours=3)) == 0


@pytest_twisted.ensureDeferred
async def test_a_host_in_our_own_network_gets_none(rig: Rig) -> None:
    rig.dns.zones[HOST] = {"A": ["127.0.0.2"]}
    assert await rig.send_after(timedelta()) == 0
    assert await rig.next_try() == NOW + PAUSES[0]
