"""kill -9 of the daemon at random moments: what was acknowledged arrives, and what arrives twice is bounded."""

from __future__ import annotations

import itertools
import random
import threading
import time
from pathlib import Path

import psycopg2
import pytest

from tests.end_to_end.rig import Daemon, eventually, free_port, rows
from tests.end_to_end.sink import Sink

EMAILS = 300  # at least; for as long as it is killed, there are more
KILLS = 6
CONNECTIONS = 5
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.mark.slow
def test_no_acknowledged_email_is_lost(tmp_path: Path, database: str) -> None:
    sink = Sink(free_port())
    sink.start()
    routes = {"*": f"smtp://127.0.0.1:{sink.port}"}
    daemon = Daemon(tmp_path, database, {"delivery": {"routes": routes, "connections_max": CONNECTIONS}})
    daemon.start()
    facts = daemon.facts
    try:
        acknowledged = _send_while_killing(daemon, str(facts["api_key"]), str(facts["domain"]))
        assert len(set(acknowledged)) == len(acknowledged) >= EMAILS
        missing = _wait_for(sink, acknowledged, seconds=120)
        assert not missing, f"{len(missing)} acknowledged emails never arrived"
        counts = sink.counts()
        twice = sum(n - 1 for n in counts.values())
        assert twice <= KILLS * CONNECTIONS, f"{twice} duplicates from {KILLS} kills and {CONNECTIONS} connections"
        assert {m.strip("<>").partition("@")[0] for m in counts} >= set(acknowledged)
    finally:
        daemon.stop()
        sink.stop()


@pytest.mark.slow
def test_it_starts_while_mail_in_the_queue_keeps_all_connections_to_the_database_in_use(tmp_path: Path, database: str) -> None:
    sink = Sink(free_port())
    sink.start()
    routes = {"*": f"smtp://127.0.0.1:{sink.port}"}
    daemon = Daemon(tmp_path, database, {"delivery": {"routes": routes}, "database": {"pool": 2}})
    daemon.start()
    daemon.command("queue", "hold", "--reason", "Held.")
    body = {"from": f"shop@{daemon.facts['domain']}", "to": "c@example.net", "subject": "Order", "text": "Thanks."}
    sent = [daemon.call("POST", "/emails", body).body["id"] for _ in range(10)]
    daemon.kill()
    daemon.command("queue", "release")
    connection = psycopg2.connect(database)
    connection.cursor().execute("LOCK TABLE messages, webhook_outbox")  # delivery and webhooks wait for it

    def free() -> None:
        eventually(lambda: [each for each in rows(database, WAITING) if each >= (2,)], 60)
        time.sleep(7)  # longer than a caller waits for a connection
        connection.close()

    freed = threading.Thread(target=free)
    freed.start()
    try:
        daemon.start()
        assert not _wait_for(sink, sent, seconds=30)
    finally:
        freed.join()
        daemon.stop()
        sink.stop()


def _send_while_killing(daemon: Daemon, key: str, domain: str) -> list[str]:
    """One client sends with idempotency keys and repeats what got no answer; the daemon dies KILLS times meanwhile."""
    ids: list[str] = []
    killed = threading.Event()

    def client() -> None:
        for n in itertools.count():
            if n >= EMAILS and killed.is_set():
                return
            body = {"from": f"shop@{domain}", "to": f"c{n}@example.net", "subject": f"Order {n}", "text": "Thanks."}
            while True:
                try:
                    answer = daemon.call("POST", "/emails", body, {"Idempotency-Key": f"order/{n}"}, key)
                except (OSError, ValueError):
                    time.sleep(0.05)  # the daemon is down: a client waits before it repeats
                    continue
                if answer.status == 200:
                    ids.append(answer.body["id"])
                    break
                assert answer.status in (409, 503), answer
                time.sleep(0.05)

    sending = threading.Thread(target=client)
    sending.start()
    moments = random.Random(5321)
    for _ in range(KILLS):
        time.sleep(moments.uniform(0.1, 0.9))
        daemon.kill()
        daemon.start()
    killed.set()
    sending.join(120)
    assert not sending.is_alive()
    return ids


def _wait_for(sink: Sink, ids: list[str], seconds: float) -> set[str]:
    deadline = time.monotonic() + seconds
    missing = set(ids)
    while missing and time.monotonic() < deadline:
        time.sleep(0.2)
        missing -= {m.strip("<>").partition("@")[0] for m in sink.counts()}
    return missing
