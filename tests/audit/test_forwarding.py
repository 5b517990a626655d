"""Sending the audit log to a SIEM: syslog over TLS and HTTPS, over real sockets. Nothing is lost, and an account's lines stay in order."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import attrs
import pytest
import pytest_twisted
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import PrivateCertificate
from twisted.web.http_headers import Headers

from mailsvc.audit.forwarding import BATCH, Forwarding, by_https, by_syslog
from mailsvc.audit.syslog import NotSent, SyslogServer, frame, message
from mailsvc.clock import utc
from mailsvc.net.fetch import FetchError, Reply
from mailsvc.store.audit import anchors
from mailsvc.store.audit.targets import Target
from mailsvc.store.people.audit import by_operator, write
from mailsvc.store.postgres.pool import Pool
from tests.smtp.listener import Certificate

ACCOUNT, OTHER = UUID(int=1), UUID(int=2)


class Collector(Protocol):
    """A syslog server: collects what arrives, and can be silent or drop the connection."""

    factory: Any

    def connectionMade(self) -> None:
        self.factory.open.append(self)
        if self.factory.drop:
            self.transport.abortConnection()

    def dataReceived(self, data: bytes) -> None:
        self.factory.got += data

    def connectionLost(self, reason: Any = None) -> None:
        self.factory.open.remove(self)


@attrs.define(eq=False)
class Siem:
    factory: Any
    port: int
    trust: bytes

    def server(self, reactor: Any, host: str, seconds: float = 5.0, trust: bytes | None = None) -> SyslogServer:
        return SyslogServer(reactor, host, self.port, seconds, trust or self.trust)

    def messages(self) -> list[bytes]:
        """Reads the frames (5425 §4.3)."""
        data, found = self.factory.got, []
        while data:
            length, _, rest = data.partition(b" ")
            assert len(rest) >= int(length)
            found.append(rest[: int(length)])
            data = rest[int(length) :]
        return found


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: Any) -> Certificate:
    return Certificate.make(tmp_path_factory.mktemp("tls"), "localhost")


@pytest_twisted.async_yield_fixture
async def siem(certificate: Certificate) -> AsyncIterator[Siem]:
    from twisted.internet import reactor

    factory: Any = Factory.forProtocol(Collector)
    factory.noisy, factory.got, factory.open, factory.drop = False, b"", [], False
    options = PrivateCertificate.loadPEM(certificate.key.read_bytes() + certificate.certificate.read_bytes()).options()
    port = reactor.listenSSL(0, factory, options, interface="127.0.0.1")
    yield Siem(factory, port.getHost().port, certificate.certificate.read_bytes())
    await port.stopListening()


async def act(pool: Pool, count: int, *accounts: UUID) -> None:
    lines = [by_operator(account, f"action {number}", "Größe") for number in range(count) for account in accounts]
    await pool.transact(lambda tx: write(tx, lines, 1_700_000_000.5))


def forwarding(pool: Pool, send: Any, name: str = "syslog") -> Forwarding:
    from twisted.internet import reactor

    return Forwarding(Target(pool, name, uuid4()), send, reactor)


@pytest_twisted.ensureDeferred
async def test_lines_and_anchors_arrive_by_syslog_over_tls(pool: Pool, siem: Siem) -> None:
    from twisted.internet import reactor

    await act(pool, 3, ACCOUNT, OTHER)
    await anchors.make(pool, utc(reactor), timedelta(hours=1), lambda data: b"signed")
    sending = forwarding(pool, by_syslog(siem.server(reactor, "localhost"), "out.example.com"))
    await sending.forward()
    found = siem.messages()
    header = re.compile(rb"<109>1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00 out\.example\.com mailsvc - (line|anchor) - ({.*})")
    parsed = [header.fullmatch(each) for each in found]
    assert [each[1] for each in parsed if each] == [b"line"] * 6 + [b"anchor"]
    documents = [json.loads(each[2]) for each in parsed if each]
    assert [(each["account_id"], each["seq"], each["subject"]) for each in documents[:6]] == [
        (str(account), seq, "Größe") for account in (ACCOUNT, OTHER) for seq in (1, 2, 3)
    ]
    await sending.forward()
    assert len(siem.messages()) == 7  # nothing twice
    await act(pool, 1, ACCOUNT)
    await sending.forward()
    assert json.loads(siem.messages()[-1].partition(b" - line - ")[2])["seq"] == 4
    assert await sending.target.unsent() == 0


@pytest_twisted.ensureDeferred
async def test_failures_of_the_syslog_server_lose_nothing(pool: Pool, siem: Siem, tmp_path: Path) -> None:
    from twisted.internet import reactor

    await act(pool, 2, ACCOUNT)
    foreign = Certificate.make(tmp_path, "other.example").certificate.read_bytes()
    servers = [
        siem.server(reactor, "localhost", trust=foreign),
        siem.server(reactor, "127.0.0.1"),  # another name than that in the certificate
        SyslogServer(reactor, "localhost", 1, 5.0, siem.trust),
        siem.server(reactor, "localhost"),
    ]
    siem.factory.drop = True
    for server in servers:
        sending = forwarding(pool, by_syslog(server, ""))
        with pytest.raises(NotSent):
            await sending.forward()
        assert await sending.target.unsent() == 2
        await pool.run("UPDATE audit_targets SET until = now() - interval '1 hour'")
    assert siem.factory.got == b""
    siem.factory.drop = False
    await forwarding(pool, by_syslog(servers[-1], "")).forward()
    assert len(siem.messages()) == 2


@pytest_twisted.ensureDeferred
async def test_a_silent_syslog_server_costs_a_timeout() -> None:
    from twisted.internet import reactor

    silent = Factory.forProtocol(Protocol)
    silent.noisy = False
    port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(silent)
    with pytest.raises(NotSent, match=r"within 0\.1 s"):
        await SyslogServer(reactor, "localhost", port.getHost().port, 0.1).send([b"x"])
    await port.stopListening()


@attrs.define
class Https:
    """An HTTP client that answers with `statuses` in turn, the last one again."""

    statuses: list[int]
    got: list[tuple[dict[str, Any], list[dict[str, Any]]]] = attrs.field(factory=list)

    async def fetch(self, method: str, url: str, **options: Any) -> Reply:
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if status == 0:
            raise FetchError("There was no complete response within 10 s.")
        if status == 200:
            self.got.append((options["headers"], [json.loads(line) for line in options["body"].splitlines()]))
        return Reply(status, Headers(), b"", True)


@pytest_twisted.ensureDeferred
async def test_https_gets_batches_in_order_and_again_after_failures(pool: Pool) -> None:
    await act(pool, BATCH + 5, ACCOUNT)
    client = Https([0, 503, 302, 200])
    sending = forwarding(pool, by_https(client, "https://siem.example/in", "Bearer x", 10), "https")
    for _ in range(3):
        with pytest.raises(NotSent):
            await sending.forward()
    assert await sending.target.unsent() == BATCH + 5
    await sending.forward()
    assert [len(lines) for _, lines in client.got] == [BATCH, 5]
    assert [line["seq"] for _, lines in client.got for line in lines] == list(range(1, BATCH + 6))
    assert client.got[0][0]["Authorization"] == "Bearer x"


@pytest_twisted.ensureDeferred
async def test_one_process_sends_until_it_is_gone(pool: Pool) -> None:
    await act(pool, 1, ACCOUNT)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    first, second = Target(pool, "https", uuid4()), Target(pool, "https", uuid4())
    until = now + timedelta(minutes=5)
    assert await first.take(now, until) == 0
    assert await second.take(now, until) is None
    assert await first.take(now, until) == 0
    assert await second.take(until + timedelta(seconds=1), until + timedelta(minutes=5)) == 0
    assert await first.take(until + timedelta(seconds=2), until + timedelta(minutes=5)) is None
    assert await Target(pool, "syslog", uuid4()).take(now, until) == 0  # another destination


def test_host_names_and_frames_follow_the_rfcs() -> None:
    at = "2026-01-01T00:00:00.000000+00:00"
    assert message("", at, "line", {"a": "ü"}) == b'<109>1 2026-01-01T00:00:00.000000+00:00 - mailsvc - line - {"a": "\\u00fc"}'
    assert b" hostname mailsvc " in message("host name\n", at, "line", {})
    assert frame([b"abc", b"d" * 12]) == b"3 abc12 dddddddddddd"
