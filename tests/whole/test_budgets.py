"""Clients that announce much and send little, or ask for much and read nothing: everybody else's mail is accepted meanwhile."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.whole.rig import Daemon, free_port
from tests.whole.test_returns import return_path, send
from tests.whole.test_watch import Local, answer

MIB = 1 << 20


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    port, folder = free_port(), tmp_path_factory.mktemp("budgets")
    changes = {
        "smtp": {"listen": {"25": f"tcp:{free_port()}:interface=127.0.0.1"}, "self_signed": str(folder / "tls")},
        "sandbox": {"listen": [f"tcp:{port}:interface=127.0.0.1"]},
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{port}"}},
        "metrics": {"listen": [f"unix:{folder}/metrics.sock"]},
    }
    daemon = Daemon(folder, module_database, changes)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture
def hands() -> Iterator[ExitStack]:
    """Connections that are open until the end of the test."""
    with ExitStack() as stack:
        yield stack


def connect(hands: ExitStack, port: int, place: int) -> socket.socket:
    """From one of a few addresses other than that of the well-behaved client."""
    client = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(f"127.0.0.{2 + place % 8}", 0))
    hands.callback(client.close)
    return client


def announce(hands: ExitStack, daemon: Daemon, place: int, path: str, length: int, *lines: str) -> socket.socket:
    """A request whose body does not come: 4 kB of it."""
    client = connect(hands, daemon.port, place)
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *lines, "", ""]
    client.sendall("\r\n".join(head).encode() + b" " * 4096)
    return client


def in_work(daemon: Daemon) -> float:
    """Bytes in all budgets, as the monitor reads them."""
    text = answer(Local(daemon.folder / "metrics.sock"))[1]
    return sum(float(value) for value in re.findall(r"mailsvc_budget_used_bytes\{[^}]*\} ([0-9.e+]+)", text))


def resident(daemon: Daemon) -> int:
    assert daemon.process is not None
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024


def until(good: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not good():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # another process: it has to be asked


def test_forms_that_do_not_come_hold_up_nobody(daemon: Daemon, hands: ExitStack) -> None:
    for length in (MIB, 60_000):
        for place in range(256):
            announce(hands, daemon, place, "/dashboard/sign-in", length, "Content-Type: application/x-www-form-urlencoded")
        send(daemon, "a@example.net")
    hands.close()
    until(lambda: in_work(daemon) == 0)


def test_bodies_that_do_not_come_do_not_even_hold_up_their_own_account(daemon: Daemon, hands: ExitStack) -> None:
    for place in range(4):
        announce(hands, daemon, place, "/emails", 128 * MIB, f"Authorization: Bearer {daemon.facts['api_key']}")
    send(daemon, "b@example.net")
    hands.close()
    until(lambda: in_work(daemon) == 0)


def test_mail_to_return_paths_that_does_not_come_holds_up_nobody(daemon: Daemon, hands: ExitStack) -> None:
    path = return_path(daemon, send(daemon, "c@example.net"))
    for place in range(12):
        client = connect(hands, daemon.facts["smtp"]["25"], place)
        heard = client.makefile("rb")
        hands.callback(heard.close)
        heard.readline()
        for line in ("HELO mx.example", "MAIL FROM:<>", f"RCPT TO:<{path}>", "DATA"):
            if line.startswith("MAIL"):
                client.sendall(b"EHLO mx.example\r\n")
                while heard.readline()[3:4] != b" ":
                    pass
                line += f" SIZE={40 * MIB}"
            client.sendall(line.encode() + b"\r\n")
            assert heard.readline()[:1] in b"23"
        client.sendall(b"Subject: x\r\n\r\n" + b"x" * 70 + b"\r\n")
    send(daemon, "d@example.net")
    assert in_work(daemon) < MIB
    hands.close()
    until(lambda: in_work(daemon) == 0)


@pytest.mark.slow
def test_downloads_that_nobody_reads_stay_out_of_memory(daemon: Daemon, hands: ExitStack) -> None:
    size, clients = 10 * MIB, 24
    facts, content = daemon.facts, os.urandom(size)
    email = {"from": f"a@{facts['domain']}", "to": ["e@example.net"], "subject": "Large", "text": "See the file."}
    file = {"filename": "large.bin", "content": base64.b64encode(content).decode()}
    sent = daemon.call("POST", "/emails", {**email, "attachments": [file]})
    assert sent.status == 200, sent.body
    listed = daemon.call("GET", f"/emails/{sent.body['id']}/attachments").body
    url = listed["data"][0]["download_url"]
    with urllib.request.urlopen(url) as response:
        assert response.read() == content
    until(lambda: in_work(daemon) == 0)
    send(daemon, "f@example.net")
    before = peak = resident(daemon)
    parts = urlsplit(url)
    for place in range(clients):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.bind((f"127.0.0.{2 + place % 8}", 0))
        client.connect(("127.0.0.1", daemon.port))
        hands.callback(client.close)
        client.sendall(f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    waited = time.monotonic() + 6
    while time.monotonic() < waited:
        peak = max(peak, resident(daemon))
        time.sleep(0.02)  # another process: it has to be asked
    assert send(daemon, "g@example.net")
    print(json.dumps({"before": before // MIB, "peak": peak // MIB, "after": resident(daemon) // MIB}))
    assert peak - before < clients * size / 2
    hands.close()
    until(lambda: in_work(daemon) == 0)
    assert resident(daemon) - before < 30 * MIB
