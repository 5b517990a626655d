"""`python -m tests.bench.webhooks`: what it costs one process to tell endpoints of events, signed, and how fast it does.

Emails are accepted first by another process, and their events wait at held endpoints; then the endpoints are let go. So the process that
is measured does nothing else. The receiving side is a process of its own that reads a request and answers 204.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import ssl
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import attrs
import psycopg2

from mailsvc.store.postgres.embedded import EmbeddedPostgres
from tests.bench import machine
from tests.end_to_end.rig import Daemon, eventually
from tests.smtp.listener import Certificate

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
BATCH = 100
FETCH: dict[str, object] = {"ports": [], "allow_http": True, "allowed_networks": ["127.0.0.0/8"]}


class Endpoint(asyncio.Protocol):
    """Answers each request of a connection and records the time."""

    def __init__(self, received_at: list[float]) -> None:
        self.received_at, self.read = received_at, bytearray()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.read += data
        while (end := self.read.find(b"\r\n\r\n")) >= 0:
            head = self.read[:end].lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            if len(self.read) < end + 4 + length:
                return
            del self.read[: end + 4 + length]
            self.received_at.append(time.monotonic())
            self.transport.write(ANSWER)
            if b"connection: close" in head:
                self.transport.close()


def receive(port: Connection, certificate: Certificate | None) -> None:
    """A process that prints its port, then, for each number it reads, the times of that many requests."""
    received_at: list[float] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.certificate, certificate.key)
        server = await loop.create_server(lambda: Endpoint(received_at), "127.0.0.1", 0, ssl=context, backlog=1000)
        port.send(server.sockets[0].getsockname()[1])
        while (wanted := await loop.run_in_executor(None, port.recv)) is not None:
            while len(received_at) < wanted:
                await asyncio.sleep(0.05)
            port.send(received_at[:wanted])
            received_at.clear()

    asyncio.run(serve())


@attrs.frozen
class Figures:
    """Returns requests per second from the first to the last, and CPU milliseconds per request of the daemon and of Postgres."""

    rate: float
    daemon: float
    postgres: float


@attrs.define
class Bench:
    """Two daemons on one Postgres: one accepts mail and counts events, the other sends webhooks."""

    folder: Path
    dsn: str
    postgres: int
    emails: int
    endpoints: int

    def run(self, secure: bool) -> Figures:
        certificate = Certificate.make(self.folder, "127.0.0.1") if secure else None
        if certificate is not None:
            os.environ["SSL_CERT_FILE"] = str(certificate.certificate)  # what the daemon trusts
        ours, theirs = multiprocessing.Pipe()
        receiver = multiprocessing.get_context("spawn").Process(target=receive, args=(theirs, certificate))
        receiver.start()
        base = f"{'https' if secure else 'http'}://127.0.0.1:{ours.recv()}/"
        taking, posting = self.daemon("taking", "http", "ledger"), self.daemon("posting", "webhooks")
        try:
            self.fill(taking, base)
            taking.stop()
            posting.start()
            assert posting.process is not None
            return self.measure(posting.process.pid, ours)
        finally:
            ours.send(None)
            receiver.join()
            for each in (taking, posting):
                if each.process is not None:
                    each.stop()

    def daemon(self, name: str, *roles: str) -> Daemon:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        changes = {"": {"roles": list(roles)}, "fetch": FETCH, "secrets": {"key_file": str(self.folder / "secret.key")}}
        return Daemon(folder, self.dsn, changes)

    def fill(self, daemon: Daemon, base: str) -> None:
        daemon.start()
        self.query("DELETE FROM webhooks")
        for number in range(self.endpoints):
            daemon.call("POST", "/webhooks", {"endpoint": f"{base}{number}", "events": ["email.sent"]})
        self.query("UPDATE webhooks SET hold_until = now() + interval '1 day'")
        email = {"from": f"bench@{daemon.facts['domain']}", "to": "zoe@example.net", "subject": "An order", "text": "Thank you."}
        for _ in range(self.emails // BATCH):
            daemon.call("POST", "/emails/batch", [email | {"tags": [{"name": "kind", "value": "bench"}]}] * BATCH)
        wanted = self.emails * self.endpoints
        eventually(lambda: [1] * (self.query("SELECT count(*) FROM webhook_outbox")[0][0] >= wanted), 120)
        self.query("VACUUM ANALYZE")

    def measure(self, daemon: int, receiver: Connection) -> Figures:
        roots = [(daemon,), (self.postgres,)]
        before = [machine.cpu(each) for each in roots]
        self.query("UPDATE webhooks SET hold_until = NULL")
        wanted = self.emails * self.endpoints
        receiver.send(wanted)
        times = receiver.recv()
        eventually(lambda: [1] * (not self.query("SELECT count(*) FROM webhook_outbox")[0][0]), 120)
        spent = [(machine.cpu(each) - was) * 1000 / wanted for each, was in zip(roots, before, strict=True)]
        return Figures(len(times) / (times[-1] - times[0]), *spent)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        link = psycopg2.connect(self.dsn)
        link.autocommit = True
        with link.cursor() as cursor:
            cursor.execute(sql)
            found = cursor.fetchall() if cursor.description else []
        link.close()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emails", type=int, default=500, help="each goes to every endpoint")
    parser.add_argument("--endpoints", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="http,https")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mailsvc-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = EmbeddedPostgres.at(folder / "postgres")
        dsn = server.start_blocking()
        assert server.pid is not None
        try:
            bench = Bench(folder, dsn, server.pid, chosen.emails, chosen.endpoints)
            print(f"{'way':6} {'POSTs/s':>8} {'CPU ms: daemon':>15} {'Postgres':>9}   medians of {chosen.rounds}")
            for way in chosen.ways.split(","):
                found = [bench.run(way == "https") for _ in range(chosen.rounds)]
                rate, daemon, postgres = (statistics.median(each) for each in zip(*map(attrs.astuple, found), strict=True))
                print(f"{way:6} {rate:8.0f} {daemon:15.3f} {postgres:9.3f}", flush=True)
        finally:
            server.stop_blocking()


if __name__ == "__main__":
    main()
