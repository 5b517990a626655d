"""Two processes on the same listening sockets, as systemd hands them over: each is restarted in turn under load, and no request fails.

The clients make a new connection for each mail. A 421 between mails would be a reason to come again; here not even that is allowed.
"""

from __future__ import annotations

import http.client
import json
import signal
import smtplib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.end_to_end import shared_sockets
from tests.end_to_end.rig import check_invariants
from tests.end_to_end.shared_sockets import Shared
from tests.end_to_end.sink import Sink

API, RELAY = "API", "SMTP"


@attrs.define
class Load:
    """One client after the other, until it is stopped. `sent`: what was acknowledged; `failed`: everything else."""

    key: str
    domain: str
    ports: dict[str, int]
    sent: list[str] = attrs.field(factory=list)
    failed: list[str] = attrs.field(factory=list)
    stopped: threading.Event = attrs.field(factory=threading.Event)
    threads: list[threading.Thread] = attrs.field(factory=list)

    def start(self) -> None:
        for name, client in (("a", self.api), ("b", self.api), ("c", self.smtp), ("d", self.smtp)):
            thread = threading.Thread(target=self._loop, args=(name, client))
            thread.start()
            self.threads.append(thread)

    def stop(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(60)

    def _loop(self, name: str, client: Any) -> None:
        number = 0
        while not self.stopped.is_set():
            number += 1
            try:
                client(f"{name}{number}")
            except Exception as error:
                self.failed.append(f"{name}{number}: {error!r}")
            else:
                self.sent.append(f"{name}{number}")
            self.stopped.wait(0.01)

    def api(self, subject: str) -> None:
        link = http.client.HTTPConnection("127.0.0.1", self.ports[API], timeout=30)
        try:
            body = {"from": f"a@{self.domain}", "to": "b@example.net", "subject": subject, "text": "x"}
            headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", "User-Agent": "tests"}
            link.request("POST", "/emails", json.dumps(body), headers)
            answer = link.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
        finally:
            link.close()

    def smtp(self, subject: str) -> None:
        link = smtplib.SMTP("127.0.0.1", self.ports[RELAY], timeout=30)
        link.starttls()
        link.login("mailsvc", self.key)
        text = f"From: a@{self.domain}\r\nTo: b@example.net\r\nSubject: {subject}\r\n\r\nx\r\n"
        link.sendmail(f"a@{self.domain}", ["b@example.net"], text)
        link.close()


@pytest.fixture
def listeners() -> Iterator[list[socket.socket]]:
    opened = [socket.create_server(("127.0.0.1", 0), backlog=128) for _ in range(2)]
    yield opened
    for listener in opened:
        listener.close()


@pytest.mark.slow
def test_a_rolling_restart_under_load_fails_no_request(tmp_path: Path, database: str, listeners: list[socket.socket], sink: Sink) -> None:
    api, relay = (listener.getsockname()[1] for listener in listeners)
    changes = {
        "http": {"listen": [shared_sockets.API], "rate_limit": 100_000},
        "smtp": {"listen": {"587": shared_sockets.RELAY}, "self_signed": str(tmp_path / "tls"), "connections_per_key": 1000},
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}, "drain_seconds": 10},
        "secrets": {"key_file": str(tmp_path / "secret.key")},
    }
    pair = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        pair.append(Shared(tmp_path / name, database, changes, port=api, sockets=tuple(listener.fileno() for listener in listeners)))
    load = None
    try:
        for daemon in pair:
            daemon.start()
        load = Load(pair[0].facts["api_key"], pair[0].facts["domain"], {API: api, RELAY: relay})
        load.start()
        for daemon in pair:
            before = len(load.sent)
            wait(lambda before=before: len(load.sent) >= before + 15 or load.failed)  # type: ignore[misc,union-attr]
            assert daemon._end(signal.SIGTERM) == 0
            middle = len(load.sent)
            wait(lambda middle=middle: len(load.sent) >= middle + 10 or load.failed)  # type: ignore[misc,union-attr]  # by the other one alone
            daemon.start()
        load.stop()
        assert load.failed == []
        assert {name[0] for name in load.sent} == set("abcd")
        sink.wait_until(lambda received: len(received) >= len(load.sent), 60)
    finally:
        if load is not None:
            load.stop()
        for daemon in pair:
            if daemon.process is not None:
                assert daemon._end(signal.SIGTERM) == 0
    subjects = sorted(str(mail.message["Subject"]) for mail in sink.received)
    assert subjects == sorted(load.sent)  # nothing is lost, nothing came twice
    check_invariants(database)


def wait(done: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"not in {seconds} s"
        time.sleep(0.02)  # other processes: they have to be watched
