"""Addresses go through every interface, and through failures of each, and are in no log line, metric or error. Debug level excepted."""

from __future__ import annotations

import http.client
import smtplib
from pathlib import Path

import psycopg2
import pytest

from tests.end_to_end.relay_rig import connect, daemon_with_relay
from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.sink import Sink
from tests.end_to_end.test_erasure import REFUSED, ZOE, fill, sink  # noqa: F401
from tests.end_to_end.test_monitoring import TOKEN
from tests.store.privacy.filling import traces

BROKEN = ("emails", "suppressions", "contacts", "queue", "request_log", "links", "consents")  # tables that are away for a while


def metrics(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    return connection.getresponse().read().decode()


def fail(daemon: Daemon, database: str) -> None:
    """Requests with the address while a table is missing: internal errors, with statements and values in their exceptions."""
    sender, key = f"a@{daemon.facts['domain']}", daemon.facts["api_key"]
    for table in BROKEN:
        with psycopg2.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} RENAME TO away")
        try:
            daemon.call("POST", "/emails", {"from": sender, "to": ZOE, "subject": ZOE, "text": ZOE}, key=key)
            daemon.call("POST", "/suppressions", {"email": ZOE}, key=key)
            daemon.call("POST", "/contacts", {"email": ZOE, "first_name": ZOE}, key=key)
            daemon.call("POST", "/privacy/find", {"email": ZOE}, key=key)
            with pytest.raises((smtplib.SMTPException, OSError)):
                client = connect(daemon)
                client.sendmail(sender, [ZOE], f"From: {sender}\r\nTo: {ZOE}\r\nSubject: {ZOE}\r\n\r\n{ZOE}\r\n")
                raise OSError
        finally:
            with psycopg2.connect(database) as connection, connection.cursor() as cursor:
                cursor.execute(f"ALTER TABLE away RENAME TO {table}")


@pytest.mark.slow
def test_no_log_line_metric_or_error_has_an_address(tmp_path: Path, database: str, sink: Sink) -> None:  # noqa: F811
    port = free_port()
    daemon = daemon_with_relay(tmp_path, database, sink.port)
    daemon.changes = {**daemon.changes, "metrics": {"listen": [f"tcp:{port}:interface=127.0.0.1"], "token": TOKEN}}
    daemon.start()
    try:
        fill(daemon, sink, database)
        fail(daemon, database)
        wanted = [trace.decode() for trace in traces(ZOE) + traces(REFUSED) if trace.isascii()]
        shown = metrics(port)
    finally:
        daemon.kill()
    assert "failed" in daemon.log or "Error" in daemon.log  # the failures were logged
    assert [(trace, line) for line in daemon.log.splitlines() for trace in wanted if trace in line] == []
    assert [trace for trace in wanted if trace in shown] == []
