"""A client that vanishes, as if its machine had lost power: the server releases its locks soon. Over TCP, on a server of its own."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any

import psycopg2
import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn

from mailsvc.store.postgres.connection import Connection
from mailsvc.store.postgres.targets import bounded
from tests.chaos.cluster import Cluster, place
from tests.store.postgres.waiting import eventually

TCP_REPAIR = 19  # <linux/tcp.h>: in this mode, closing a socket sends nothing to the peer. It needs CAP_NET_ADMIN.
NAMES = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
SETTINGS = "SELECT " + ", ".join(f"current_setting('{name}')" for name in NAMES)
LOCK = 5321
FREE = f"SELECT pg_try_advisory_xact_lock({LOCK})"
WAITING = "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'tests' AND state = 'active' AND wait_event = 'ClientRead'"


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with place() as folder:
        made = Cluster(folder / "server")
        made.make()
        try:
            made.start_blocking()
            yield made
        finally:
            made.kill()


async def opened(dsn: str) -> Connection:
    from twisted.internet import reactor

    return await Connection.open(reactor, dsn, "tests", lambda connection: None)


@pytest_twisted.ensureDeferred
async def test_the_server_notices_within_fifteen_seconds(server: Cluster) -> None:
    expected = ("10", "5", "1", "15000")
    connection = await opened(server.dsn)
    assert (await connection.execute(SETTINGS)).rows == [expected]
    connection.close()
    with closing(psycopg2.connect(bounded(server.dsn))) as plain, plain.cursor() as cursor:
        cursor.execute(SETTINGS)
        assert cursor.fetchall() == [expected]


@pytest_twisted.ensureDeferred
async def test_locks_are_released_although_the_server_waits_for_the_rest_of_a_pipeline(server: Cluster) -> None:
    """No time limit of the server's applies then. The DSN makes the server ask sooner, and takes precedence."""
    connection = await opened(make_dsn(server.dsn, options="-c tcp_keepalives_idle=1"))
    await connection.execute("BEGIN")
    await connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
    descriptor = connection.fileno()
    query = b"\0SELECT 1\0\0\0"
    os.write(descriptor, b"P" + struct.pack("!i", len(query) + 4) + query)  # Parse, without Sync
    eventually(lambda: ask(server, WAITING) and not ask(server, FREE))
    vanish(connection, descriptor)
    eventually(lambda: ask(server, FREE))


def vanish(connection: Connection, descriptor: int) -> None:
    """Close the connection without telling the peer, once it has acknowledged everything: a later packet would be answered with a reset."""
    eventually(lambda: not struct.unpack("i", ioctl(descriptor, TIOCOUTQ, bytes(4)))[0])
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        try:
            duplicate.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        except PermissionError:
            connection.close()
            pytest.skip("This needs the right to close a connection without telling the peer.")
    connection.close()


def ask(server: Cluster, question: str) -> Any:
    with closing(psycopg2.connect(server.dsn)) as other, other.cursor() as cursor:
        cursor.execute(question)
        [(answer,)] = cursor.fetchall()
        return answer
