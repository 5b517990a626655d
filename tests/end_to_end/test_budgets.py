"""Clients that announce much and send little, or ask for much and read nothing: everybody else's mail is accepted meanwhile."""

from __future__ import annotations

import base64
import os
import re
import smtplib
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.test_bounces import return_path, send
from tests.end_to_end.test_monitoring import Local, answer

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
        time.sleep(0.05)  # another process: it has to be polled


def test_forms_that_do_not_arrive_delay_nobody(daemon: Daemon, hands: ExitStack) -> None:
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


def test_mail_to_return_paths_that_does_not_arrive_delays_nobody(daemon: Daemon, hands: ExitStack) -> None:
    path = return_path(daemon, send(daemon, "c@example.net"))
    for place in range(12):
        client = connect(hands, daemon.facts["smtp"]["25"], place)
        replies = client.makefile("rb")
        hands.callback(replies.close)
        replies.readline()
        for line in ("HELO mx.example", "MAIL FROM:<>", f"RCPT TO:<{path}>", "DATA"):
            if line.startswith("MAIL"):
                client.sendall(b"EHLO mx.example\r\n")
                while replies.readline()[3:4] != b" ":
                    pass
                line += f" SIZE={40 * MIB}"
            client.sendall(line.encode() + b"\r\n")
            assert replies.readline()[:1] in b"23"
        client.sendall(b"Subject: x\r\n\r\n" + b"x" * 70 + b"\r\n")
    send(daemon, "d@example.net")
    assert in_work(daemon) < MIB
    hands.close()
    until(lambda: in_work(daemon) == 0)


def attached(daemon: Daemon, size: int) -> dict[str, object]:
    """An email with a file, which waits until tomorrow."""
    file = {"filename": "large.bin", "content": base64.b64encode(os.urandom(size)).decode()}
    email = {"from": f"a@{daemon.facts['domain']}", "to": ["e@example.net"], "subject": "Large", "text": "See the file."}
    return {**email, "attachments": [file], "scheduled_at": "in 1 day"}


def link(daemon: Daemon, email: dict[str, object]) -> str:
    """Where the file of a new email is downloaded."""
    sent = daemon.call("POST", "/emails", email)
    assert sent.status == 200, sent.body
    return str(daemon.call("GET", f"/emails/{sent.body['id']}/attachments").body["data"][0]["download_url"])


def download_unread(hands: ExitStack, daemon: Daemon, place: int, url: str) -> None:
    parts, client = urlsplit(url), socket.socket()
    hands.callback(client.close)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.bind((f"127.0.0.{2 + place % 8}", 0))
    client.connect(("127.0.0.1", daemon.port))
    client.sendall(f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


class Peak:
    """The most memory that the daemon used since `begin`."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon, self._over = daemon, threading.Event()
        self.bytes = 0
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.bytes = max(self.bytes, resident(self._daemon))

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.slow
def test_downloads_that_nobody_reads_stay_out_of_memory(daemon: Daemon, hands: ExitStack) -> None:
    size, clients = 10 * MIB, 24
    url = link(daemon, attached(daemon, size))
    with urllib.request.urlopen(url) as response:
        assert len(response.read()) == size
    until(lambda: in_work(daemon) == 0)
    before = resident(daemon)
    with Peak(daemon) as peak:
        for place in range(clients):
            download_unread(hands, daemon, place, url)
        until(lambda: in_work(daemon) >= clients * size * 0.8, 60)
    send(daemon, "g@example.net")
    assert peak.bytes - before < clients * size / 2
    hands.close()
    until(lambda: in_work(daemon) == 0)
    until(lambda: resident(daemon) - before < 30 * MIB)


@pytest.mark.slow
def test_the_fifteenth_time_takes_no_more_memory_than_the_fifth(daemon: Daemon) -> None:
    """Large requests, downloads that nobody reads, and large mail to port 25, together.

    How much malloc keeps after the first few differs.
    """
    email, path = attached(daemon, 12 * MIB), return_path(daemon, send(daemon, "h@example.net"))
    mail = b"Subject: large\r\n\r\n" + (b"x" * 76 + b"\r\n") * (12 * MIB // 78)

    def post(_: int) -> object:
        return daemon.call("POST", "/emails", email).status

    def come_back(_: int) -> object:
        with smtplib.SMTP("127.0.0.1", daemon.facts["smtp"]["25"], timeout=120) as client:
            client.sendmail("", path, mail)

    until(lambda: in_work(daemon) == 0)
    resting, after = resident(daemon), list[int]()
    for _ in range(15):
        with Peak(daemon) as peak, ExitStack() as hands, ThreadPoolExecutor(2) as pool:
            url = link(daemon, email)
            for place in range(4):
                download_unread(hands, daemon, place, url)
            statuses = [*pool.map(lambda what: what(0), [post, come_back])]
            assert statuses[0] == 200
        assert peak.bytes - resting < 2 * 256 * MIB
        until(lambda: in_work(daemon) == 0 and resident(daemon) - resting < 64 * MIB)
        after.append(resident(daemon))
        print(f"peak {(peak.bytes - resting) // MIB} MiB, then {(after[-1] - resting) // MIB} MiB above resting")
    assert min(after[10:]) - min(after[4:9]) <= 30 * MIB  # half of one body that is kept each time would be more
