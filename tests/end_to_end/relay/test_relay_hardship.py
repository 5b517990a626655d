"""The relay under stress, as a whole daemon: many clients, large mails, a renewed certificate, an unavailable database, a shutdown."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from mailsvc.smtp.server.certificates import self_signed
from tests.end_to_end.names import Names
from tests.end_to_end.relay_rig import connect, context, daemon_with_relay
from tests.end_to_end.rig import Daemon
from tests.end_to_end.sink import Sink


def certbot(folder: Path, name: str) -> None:
    """A pair as certbot leaves it."""
    created = self_signed(folder / name, name)
    for old, new in zip(created, ("fullchain.pem", "privkey.pem"), strict=True):
        os.replace(old, folder / new)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Names]:
    names = Names(tmp_path_factory.mktemp("names") / "zones.json")
    names.start()
    names.serve({"none.example": {"MX": ["0 ."]}})
    yield names
    names.stop()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str, sink: Sink, names: Names) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "live").mkdir()
    certbot(folder / "live", "old.example")
    daemon = daemon_with_relay(folder, module_database, sink.port, certbot=str(folder / "live"), connections_per_address=3000)
    smtp = dict(daemon.changes["smtp"])
    del smtp["self_signed"]
    listen = dict(smtp["listen"])  # type: ignore[call-overload]
    listen["2465"] = f"haproxy:{listen['2465']}"
    hop = f"smtp://127.0.0.1:{sink.port}"
    daemon.changes = {
        **daemon.changes,
        "delivery": {"nameservers": [names.address], "routes": {"example.net": hop, "example.org": hop}},
        "smtp": {
            **smtp,
            "null_mx": 10,
            "listen": listen,
            "trusted_proxies": ["127.0.0.1"],
            "postmaster": "ops@example.org",
            "postmaster_domain": "mailsvc.example",
        },
    }
    daemon.start()
    yield daemon
    if daemon.process is not None:
        assert daemon.stop() == 0


def memory(daemon: Daemon, what: str) -> int:
    """Megabytes, of VmRSS or VmHWM."""
    assert daemon.process is not None
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{daemon.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def send(daemon: Daemon, subject: str, number: str = "587") -> tuple[int, bytes]:
    me = f"me@{daemon.facts['domain']}"
    with connect(daemon, number) as client:
        client.mail(me)
        client.rcpt("a@example.net")
        return client.data(f"From: {me}\r\nSubject: {subject}\r\n\r\nx\r\n")


def arrived(sink: Sink, text: str) -> bytes:
    with sink.arrived:
        assert sink.arrived.wait_for(lambda: any(text.encode() in mail.raw[:4000] for mail in sink.received), 60), text
        return next(mail.raw for mail in sink.received if text.encode() in mail.raw[:4000])


def subject_of(daemon: Daemon, number: str = "465", *, before: bytes = b"") -> str:
    """The name in the certificate that a port shows."""
    with socket.create_connection(("127.0.0.1", daemon.facts["smtp"][number]), 10) as wire:
        wire.sendall(before)
        with context().wrap_socket(wire) as secure:
            der = secure.getpeercert(binary_form=True)
            assert secure.recv(4).startswith(b"220")
    assert der is not None
    return re.findall(r"[a-z]+\.example", der.decode("latin-1"))[0]


def test_a_renewed_certificate_is_used_without_a_restart(daemon: Daemon) -> None:
    assert subject_of(daemon) == "old.example"
    certbot(daemon.folder / "live", "new.example")
    deadline = time.monotonic() + 20
    while subject_of(daemon) != "new.example":
        assert time.monotonic() < deadline
        time.sleep(0.2)  # another process looks at its files when it likes


def test_a_port_behind_a_load_balancer(daemon: Daemon) -> None:
    assert subject_of(daemon, "2465", before=b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2465\r\n") == "new.example"
    with (
        socket.create_connection(("127.0.0.1", daemon.facts["smtp"]["2465"]), 10) as wire,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context().wrap_socket(wire)


def test_a_null_mx_domain_is_refused(daemon: Daemon) -> None:
    with connect(daemon) as client:
        client.mail(f"me@{daemon.facts['domain']}")
        assert client.rcpt("a@none.example") == (556, b"5.1.10 The recipient's domain does not accept mail (null MX)")
        assert [client.rcpt(address)[0] for address in ("a@unheard.example", "a@example.net")] == [250, 250]


def test_postmaster_mail_from_outside_is_forwarded(daemon: Daemon, sink: Sink) -> None:
    with connect(daemon, "25", login=False) as client:
        client.mail("someone@example.org")
        assert client.rcpt("postmaster")[0] == 250
        assert client.data("From: someone@example.org\r\nSubject: to whom it may concern\r\n\r\nhelp\r\n")[0] == 250
    raw = arrived(sink, "Subject: Mail for postmaster")
    assert re.search(rb"Received: from \S+ \(\[127\.0\.0\.1\]\) by [^;]*;[^;]*2\d{3}", raw)
    assert b"\r\nSubject: to whom it may concern\r\n\r\nhelp\r\n" in raw and raw.count(b"DKIM-Signature:") == 2


def test_an_unavailable_database_causes_temporary_refusals_only(daemon: Daemon, sink: Sink, module_database: str) -> None:
    name = re.search(r"dbname=(\S+)", module_database)
    assert name is not None
    with contextlib.closing(psycopg2.connect(re.sub(r"dbname=\S+ user=\S+|dbname=\S+", "dbname=postgres", module_database))) as operator:
        operator.autocommit = True
        cursor = operator.cursor()
        me = f"me@{daemon.facts['domain']}"
        with connect(daemon) as client:
            cursor.execute(f"ALTER DATABASE {name[1]} WITH ALLOW_CONNECTIONS false")
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name[1],))
            try:
                replies = [client.mail(me), client.rcpt("a@example.net")]
                code, reply = client.data(f"From: {me}\r\nSubject: while away\r\n\r\nx\r\n") if replies[-1][0] == 250 else replies[0]
                assert (code, reply[:6]) == (451, b"4.3.0 ")
                assert client.noop()[0] == 250
            finally:
                cursor.execute(f"ALTER DATABASE {name[1]} WITH ALLOW_CONNECTIONS true")
    deadline = time.monotonic() + 30
    while send(daemon, "back again")[0] != 250:
        assert time.monotonic() < deadline
        time.sleep(0.2)  # the pool renews its connections when it likes
    arrived(sink, "Subject: back again")
    assert not any(b"while away" in mail.raw for mail in sink.received)


@pytest.mark.slow
def test_two_thousand_idle_connections(daemon: Daemon, sink: Sink) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if min(hard, 4096) < 4096:
        pytest.skip("a process may not have 4096 files open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    before = memory(daemon, "VmRSS")
    with contextlib.ExitStack() as stack:
        for _ in range(2000):
            wire = stack.enter_context(socket.create_connection(("127.0.0.1", daemon.facts["smtp"]["25"]), 10))
            assert wire.recv(4) == b"220 "
        assert send(daemon, "among the idle")[0] == 250
        arrived(sink, "Subject: among the idle")
        assert memory(daemon, "VmRSS") - before < 60
    assert send(daemon, "when they have gone")[0] == 250


@pytest.mark.slow
def test_forty_megabytes_to_fifty_recipients_are_in_memory_once(daemon: Daemon, sink: Sink) -> None:
    me = f"me@{daemon.facts['domain']}"
    head = f"From: {me}\r\nSubject: the large one\r\n\r\n".encode()
    message = (head + (b"x" * 76 + b"\r\n") * (41_943_040 // 78))[: 41_943_040 - 2] + b"\r\n"
    before = memory(daemon, "VmRSS")
    with connect(daemon, "25") as client:
        client.mail(me, [f"SIZE={len(message)}"])
        for n in range(50):
            assert client.rcpt(f"r{n}@example.net")[0] == 250
        assert client.data(message)[0] == 250
    assert arrived(sink, "Subject: the large one").endswith(message)
    assert memory(daemon, "VmHWM") - before < 300
    with connect(daemon, "25") as client:
        assert client.mail(me, [f"SIZE={41_943_041}"])[0] == 552


def test_a_shutdown_lets_mail_finish(daemon: Daemon) -> None:
    me = f"me@{daemon.facts['domain']}"
    with connect(daemon) as client:
        client.mail(me)
        client.rcpt("a@example.net")
        client.putcmd("data")
        assert client.getreply()[0] == 354
        client.send(f"From: {me}\r\nSubject: the last one\r\n\r\n".encode())
        process = daemon.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        with pytest.raises(OSError):
            for _ in range(200):
                socket.create_connection(("127.0.0.1", daemon.facts["smtp"]["587"]), 1).close()
                time.sleep(0.05)  # until the port is closed
        client.send(b"x\r\n.\r\n")
        code, reply = client.getreply()
        assert code == 250 and reply.startswith(b"2.0.0 Ok: queued as ")
        assert client.getreply() == (421, b"4.3.2 Server is shutting down")
    assert process.wait(60) == 0
    daemon.process = None
