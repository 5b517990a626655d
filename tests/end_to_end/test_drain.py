"""A shutdown lets the requests in work finish, and writes the request log."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import psycopg2

from tests.end_to_end.rig import Daemon


def test_a_request_that_is_half_here_is_answered_and_logged(tmp_path: Path, database: str) -> None:
    daemon = Daemon(tmp_path, database)
    daemon.start()
    facts = daemon.facts
    email = {"from": f"a@{facts['domain']}", "to": "b@example.net", "subject": "s", "text": "t", "scheduled_at": "in 1 day"}
    body = json.dumps(email).encode()
    head = f"POST /emails HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {facts['api_key']}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", daemon.port), 30) as busy, socket.create_connection(("127.0.0.1", daemon.port), 30) as idle:
        busy.sendall(head.encode() + body[:10])
        assert daemon.call("GET", "/usage").status == 200  # what was sent before is read by now
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGTERM)
        assert idle.recv(1) == b""  # the idle one is closed at once
        busy.sendall(body[10:])
        answer = b""
        while piece := busy.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200 ") and b"\r\nconnection: close\r\n" in answer.lower()
    assert daemon.process.wait(60) == 0
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT method, path, status FROM request_log ORDER BY log_id")
        assert ("POST", "/emails", 200) in cursor.fetchall()
        cursor.execute("SELECT last_used_at IS NOT NULL FROM api_keys")
        assert cursor.fetchall() == [(True,)]
    connection.close()
