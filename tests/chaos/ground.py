"""The environment of experiments: a separate Postgres, daemons, sinks that record times, Postfix's smtp-sink, and the counts."""

from __future__ import annotations

import os
import shutil
import signal
import smtplib
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from mailsvc.store.postgres.embedded import EmbeddedPostgres
from tests.chaos.citus_nodes import CellServer, RunningServer
from tests.chaos.cluster import Cluster
from tests.end_to_end.rig import Answer, Daemon, check_invariants, free_port, rows
from tests.end_to_end.sink import Envelope, Session, Sink
from tests.end_to_end.sink import Server as SinkServer

SMTP_SINK = shutil.which("smtp-sink", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/lib/postfix/sbin")


@attrs.define
class Figures:
    """The result of an experiment. `lost`: accepted, but neither delivered nor queued nor final."""

    name: str
    accepted: int = 0
    delivered: int = 0
    duplicates: int = 0
    lost: int = 0
    waiting: int = 0
    seconds: float = 0.0
    notes: dict[str, object] = attrs.field(factory=dict)

    def row(self) -> str:
        more = ", ".join(f"{key} {value}" for key, value in self.notes.items())
        counts = (self.accepted, self.delivered, self.duplicates, self.lost, self.waiting)
        return f"| {self.name} | {' | '.join(map(str, counts))} | {self.seconds:.0f} s | {more} |"


class TimedSink(Sink):
    """Records when each email arrived first."""

    def __init__(self, port: int, address: str) -> None:
        super().__init__(port, address)
        self.times: dict[str, float] = {}

    async def handle_DATA(self, server: SinkServer, session: Session, envelope: Envelope) -> str:
        answer = await super().handle_DATA(server, session, envelope)
        with self.arrived:
            self.times.setdefault(_email(self.received[-1].message_id), time.monotonic())
        return answer

    def ids(self) -> set[str]:
        with self.arrived:
            return {_email(mail.message_id) for mail in self.received}

    def duplicates(self) -> int:
        return sum(count - 1 for count in self.counts().values())


def _email(message_id: str) -> str:
    return message_id.strip("<>").partition("@")[0]


@attrs.define
class Ground:
    """The environment of one experiment."""

    folder: Path
    server: EmbeddedPostgres | Cluster | CellServer | RunningServer
    dsn: str
    daemons: list[Daemon] = attrs.field(factory=list)

    def daemon(self, changes: Mapping[str, Mapping[str, object]], variables: Mapping[str, str] | None = None) -> Daemon:
        """Starts another process, which shares the database and the encryption keys."""
        folder = self.folder / f"daemon{len(self.daemons)}"
        folder.mkdir()
        shared = {"secrets": {"key_file": str(self.folder / "secret.key")}}
        daemon = Daemon(folder, self.dsn, {**changes, **shared}, variables=variables or {})
        self.daemons.append(daemon)
        daemon.start()
        return daemon

    def end_postgres(self) -> None:
        """Stops Postgres like `pg_ctl -m immediate`: the next start recovers."""
        assert not isinstance(self.server, (CellServer, RunningServer))
        pid = self.server.pid
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        until(lambda: not self.server.alive, 30)
        self.server.stop_blocking()

    def start_postgres(self) -> None:
        self.server.start_blocking()

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return rows(self.dsn, statement, *values)

    def ended(self, ids: Iterable[str]) -> set[str]:
        """Returns those emails whose recipients are all final and have their last event."""
        ended = self.rows(
            "SELECT DISTINCT email_id::text FROM events"
            " WHERE type IN ('email.delivered', 'email.bounced', 'email.failed', 'email.canceled')"
            " AND email_id NOT IN (SELECT email_id FROM queue)"
        )
        return {row[0] for row in ended} & set(ids)

    def summary(self) -> list[tuple[Any, ...]]:
        """Counts queued recipients by reason."""
        return self.rows("SELECT status, reason, count(*), min(next_at)::text, max(next_at)::text FROM waiting_at(now()) GROUP BY 1, 2")

    def waiting(self) -> int:
        [(count,)] = self.rows("SELECT count(*) FROM queue")
        return int(count)


@contextmanager
def ground(cluster: Cluster | CellServer | RunningServer | None = None, dsn: str | None = None) -> Iterator[Ground]:
    """Creates an environment with a separate Postgres, or on this server. `dsn`: how daemons reach it, if not directly."""
    folder = Path(tempfile.mkdtemp(prefix="mailsvc-chaos-", dir="/tmp"))
    folder.chmod(0o711)
    embedded = {"fsync": "off", "shared_buffers": "64MB", "max_connections": "100"}
    server = cluster or EmbeddedPostgres.at(folder / "postgres", embedded)
    started = server.dsn if isinstance(server, Cluster) and server.alive else server.start_blocking()
    created = Ground(folder, server, dsn or started)
    try:
        yield created
        for daemon in created.daemons:
            if daemon.process is not None:
                daemon.stop()
        check_invariants(created.dsn)
    finally:
        for daemon in created.daemons:
            if daemon.process is not None:
                daemon.process.kill()
                daemon.process.wait()
            for left in (daemon.socket, f"{daemon.socket}.lock"):
                Path(left).unlink(missing_ok=True)
        server.stop_blocking()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def sink(port: int | None = None, address: str = "127.0.0.1") -> Iterator[TimedSink]:
    """Starts on a free port, or on that of an earlier server."""
    created = TimedSink(port or free_port(), address)
    created.start()
    try:
        yield created
    finally:
        created.stop()


@contextmanager
def postfix_sink(*options: str, port: int | None = None, every_address: bool = False) -> Iterator[int]:
    """Starts Postfix's smtp-sink with these options. Yields its port."""
    assert SMTP_SINK is not None
    port = port or free_port()
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    where = f"inet:{'0.0.0.0' if every_address else '127.0.0.1'}:{port}"
    process = subprocess.Popen([SMTP_SINK, *user, *options, where, "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
    try:
        time.sleep(0.3)
        assert process.poll() is None, "smtp-sink ended"
        yield port
    finally:
        process.kill()
        process.wait()


def until(true: Any, seconds: float, what: str | Callable[[], str] = "it") -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what() if callable(what) else what} did not come true in {seconds} s"
        time.sleep(0.05)


@attrs.define
class Client:
    """Sends batches or single emails, each with an idempotency key, and repeats those without a response."""

    daemon: Daemon
    ids: list[str] = attrs.field(factory=list)
    sent_at: dict[str, float] = attrs.field(factory=dict)
    refused: list[Answer] = attrs.field(factory=list)
    key: str = ""
    domain: str = ""
    _number: int = 0

    def __attrs_post_init__(self) -> None:
        """The facts are missing while a daemon starts."""
        self.key, self.domain = str(self.daemon.facts["api_key"]), str(self.daemon.facts["domain"])

    def batch(self, to: Iterable[str], prefix: str = "b") -> list[str]:
        addresses = list(to)
        created: list[str] = []
        for start in range(0, len(addresses), 100):
            body = [self.email(address) for address in addresses[start : start + 100]]
            created += [each["id"] for each in self._insist("/emails/batch", body, prefix)["data"]]
        return created

    def one(self, to: str, prefix: str = "o") -> str:
        began = time.monotonic()
        found = str(self._insist("/emails", self.email(to), prefix)["id"])
        self.sent_at[found] = began
        return found

    def large(self, to: str, size: int, prefix: str = "l") -> str:
        """Sends an email with a text of this length."""
        return str(self._insist("/emails", {**self.email(to), "text": "x " * (size // 2)}, prefix)["id"])

    def post_once(self, to: str, size: int = 10) -> int:
        """Tries to send an email once. Returns the status."""
        answer = self.daemon.call("POST", "/emails", {**self.email(to), "text": "x " * (size // 2)}, key=self.key)
        if answer.status == 200:
            self.ids.append(str(answer.body["id"]))
        elif answer.status == 503:
            assert any(name.lower() == "retry-after" for name in answer.headers), answer
        return answer.status

    def submit(self, session: smtplib.SMTP, to: str, size: int = 10, key: str | None = None) -> tuple[int, bytes]:
        """Sends an email over an open SMTP session, with this idempotency key. Returns the deciding reply."""
        sender = f"shop@{self.domain}"
        session.rset()
        for code, reply in (session.mail(sender), session.rcpt(to)):
            if code != 250:
                return code, reply
        text = "Thanks.  \r\n" * (size // 10)
        once = "" if key is None else f"Idempotency-Key: {key}\r\n"
        code, reply = session.data(f"{once}From: {sender}\r\nTo: {to}\r\nSubject: Order\r\n\r\n{text}")
        if code == 250:
            self.ids.append(reply.decode().rpartition(" ")[2])
        return code, reply

    def email(self, to: str) -> dict[str, object]:
        return {"from": f"shop@{self.domain}", "to": to, "subject": "Order", "text": "Thanks."}

    def _insist(self, path: str, body: object, prefix: str) -> Any:
        self._number += 1
        key = f"{prefix}/{self._number}"
        while True:
            with suppress(OSError, ValueError):
                answer = self.daemon.call("POST", path, body, {"Idempotency-Key": key}, self.key)
                if answer.status == 200:
                    found = answer.body["data"] if isinstance(body, list) else [answer.body]
                    self.ids += [each["id"] for each in found]
                    return answer.body
                self.refused.append(answer)
                self.refuse(answer)
            time.sleep(0.05)

    def refuse(self, answer: Answer) -> None:
        """What to do before a request is repeated."""
        assert answer.status in (409, 429, 503), f"{answer}\n{self.daemon.log[-4000:]}"


def in_background(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1] if len(values) > 1 else values[0]
