"""Source addresses on real ports: a new one sends what it may on its first day, the rest waits, and an account has a pool of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP as Server
from aiosmtpd.smtp import Envelope, Session

from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.sink import Sink


class SourceSink(Sink):
    """Also remembers where mail came from: the address, and the name in EHLO."""

    def __init__(self, port: int) -> None:
        self.origins: list[tuple[str, str | None]] = []
        super().__init__(port)

    async def handle_DATA(self, server: Server, session: Session, envelope: Envelope) -> str:
        assert isinstance(session.peer, tuple)
        self.origins.append((session.peer[0], session.host_name))
        return await super().handle_DATA(server, session, envelope)


@pytest.fixture
def sink() -> Iterator[SourceSink]:
    sink = SourceSink(free_port())
    sink.start()
    yield sink
    sink.stop()


@pytest.fixture
def daemon(tmp_path: Path, database: str, sink: Sink) -> Iterator[Daemon]:
    (tmp_path / "shaping.toml").write_text("warm_up = [5, 10]\n")
    delivery = {
        "routes": {"*": f"smtp://127.0.0.1:{sink.port}"},
        "shaping": str(tmp_path / "shaping.toml"),
        "sources": [f"127.0.0.2 new.example 1 since={datetime.now(UTC).date()}", "127.0.0.3 shop.example 1 pool=shop"],
    }
    daemon = Daemon(tmp_path, database, {"delivery": delivery})
    daemon.start()
    yield daemon
    daemon.stop()


def send(daemon: Daemon) -> str:
    email = {"from": f"shop@{daemon.facts['domain']}", "to": "x@example.net", "subject": "Hi", "text": "Hi"}
    answer = daemon.call("POST", "/emails", email)
    assert answer.status == 200, answer
    return str(answer.body["id"])


def waiting(daemon: Daemon, count: int) -> dict[str, Any]:
    """The destination that so many emails wait for."""
    deadline = time.monotonic() + 20
    while True:
        found = json.loads(daemon.command("queue", "list", "--json"))["destinations"]
        if found and found[0]["queued"] == count and found[0]["state"] is not None:
            return dict(found[0])
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_a_new_source_sends_what_it_may_and_the_rest_waits_with_a_reason(daemon: Daemon, sink: SourceSink) -> None:
    emails = [send(daemon) for _ in range(7)]
    sink.wait_until(lambda received: len(received) == 5, 20)
    found = waiting(daemon, 2)
    assert found["state"] == "source" and found["until"].endswith("T00:00:00+00:00")
    assert found["reason"].startswith("Source warm-up: the source addresses have sent as many emails to other providers as they may today.")
    assert set(sink.origins) == {("127.0.0.2", "new.example")}
    [late] = [each for each in (daemon.call("GET", f"/emails/{email}").body for email in emails) if each["last_event"] != "delivered"][-1:]
    assert late["recipients"][0]["reason"] == found["reason"]

    daemon.command("sources", "assign", "shop", "--account", "1")
    daemon.stop()
    daemon.start()
    send(daemon)
    sink.wait_until(lambda received: len(received) == 6, 20)
    assert sink.origins[5] == ("127.0.0.3", "shop.example")
    assert len(sink.received) == 6, "a restart adds nothing to the day"
    [new, shop] = json.loads(daemon.command("sources", "list", "--json"))["sources"]
    assert (new["address"], new["day"], new["today"]) == ("127.0.0.2", 1, [{"provider": "other", "emails": 5, "limit": 5}])
    assert (shop["pool"], shop["day"], shop["running"]) == ("shop", None, True)
