"""Ten thousand endpoints that take a connection and never answer: few sockets, and no endpoint that is well waits for them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import psycopg2
import pytest
from psycopg2.extras import Json, execute_values, register_uuid

from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.ids import uuid7
from tests.end_to_end.receiver import Receiver
from tests.end_to_end.rig import Daemon, eventually

ENDPOINTS, GOOD = 10_000, 5
CONNECTIONS, FOR_OTHERS = 60, 40  # a third is for those that are well
SETTINGS = {
    "fetch": {"ports": [], "allow_http": True, "allowed_networks": ["127.0.0.0/8"]},
    # Whoever hangs does so for longer than this test takes.
    "webhooks": {"connections": CONNECTIONS, "per_account": CONNECTIONS, "timeout": 60},
}


class Hole:
    """Takes connections at every address of this machine, and says nothing."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("0.0.0.0", 0), backlog=1000)
        self.taken: list[socket.socket] = []
        self.arrived = threading.Semaphore(0)
        self.thread = threading.Thread(target=self.take)
        self.thread.start()

    @property
    def port(self) -> int:
        return int(self.listening.getsockname()[1])

    def take(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:  # it is shut
                return
            self.taken.append(connection)
            self.arrived.release()

    def open(self) -> int:
        """Connections that nobody has given up."""
        return sum(not _ended(connection) for connection in self.taken)


def _ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.fixture
def hole() -> Iterator[Hole]:
    hole = Hole()
    yield hole
    hole.listening.shutdown(socket.SHUT_RDWR)
    hole.thread.join()
    for connection in (*hole.taken, hole.listening):
        connection.close()


@pytest.fixture
def daemon(tmp_path: Path, database: str) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, database, SETTINGS)
    daemon.start()
    yield daemon
    daemon.kill()  # a stop would wait for those that hang


def sockets(daemon: Daemon) -> int:
    """How many the daemon has open."""
    assert daemon.process is not None
    found = 0
    for each in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        try:
            found += os.readlink(each).startswith("socket:")
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


def add(daemon: Daemon, port: int) -> None:
    """Endpoints at as many addresses, each with a message that is due."""
    encryption, now = Encryption.load(daemon.folder / "secret.key"), datetime.now(UTC)
    ids = [uuid7(now.timestamp()) for _ in range(ENDPOINTS)]
    with psycopg2.connect(daemon.database) as link, link.cursor() as cursor:
        register_uuid(conn_or_curs=link)
        cursor.execute("SELECT id FROM accounts ORDER BY number LIMIT 1")
        account: UUID = cursor.fetchone()[0]
        urls = [f"http://127.1.{n >> 8}.{n & 255}:{port}/" for n in range(ENDPOINTS)]
        rows = [(each, account, url, ["email.sent"], encryption.encrypt(b"s" * 32, each), now) for each, url in zip(ids, urls, strict=True)]
        execute_values(cursor, "INSERT INTO webhooks (id, account_id, url, events, secret, created_at) VALUES %s", rows)
        messages = [(account, each, each, each, "email.sent", now, Json({"type": "email.sent"})) for each in ids]
        columns = "account_id, webhook_id, event_id, email_id, type, created_at, payload"
        execute_values(cursor, f"INSERT INTO webhook_messages ({columns}) VALUES %s", messages)
        outgoing = [(each, each, account, each, now) for each in ids]
        execute_values(cursor, "INSERT INTO webhook_outbox (webhook_id, event_id, account_id, email_id, next_at) VALUES %s", outgoing)
    link.close()


def test_ten_thousand_that_hang(daemon: Daemon, hole: Hole) -> None:
    with Receiver() as receiver:
        created = [daemon.call("POST", "/webhooks", {"endpoint": f"{receiver.url}/", "events": ["email.sent"]}) for _ in range(GOOD)]
        good = [each.body["id"] for each in created]
        tests = lambda: [daemon.call("POST", f"/webhooks/{each}/test") for each in good]  # noqa: E731
        tests()
        receiver.wait(lambda found: len(found) >= GOOD)
        with psycopg2.connect(daemon.database) as link, link.cursor() as cursor:
            for each in good:  # once it is written down, it is known to be well
                sql = "SELECT id FROM webhooks WHERE id = %s AND took_at IS NOT NULL"
                eventually(lambda: (link.rollback(), cursor.execute(sql, (each,)), cursor.fetchall())[-1])  # noqa: B023
        link.close()
        before = sockets(daemon)
        add(daemon, hole.port)
        for _ in range(FOR_OTHERS):
            assert hole.arrived.acquire(timeout=30)
        most = sockets(daemon)
        for _ in range(20):
            tests()
            most = max(most, sockets(daemon))
        receiver.wait(lambda found: len(found) >= 21 * GOOD, seconds=40)
        assert most <= before + CONNECTIONS + 20  # the last ones: requests of this test, and connections to Postgres
        assert hole.open() <= FOR_OTHERS
