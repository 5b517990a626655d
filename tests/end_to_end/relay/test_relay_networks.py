"""Programs in trusted networks send without TLS and login; others that claim to be there cannot."""

from __future__ import annotations

import contextlib
import re
import smtplib
import socket
from collections.abc import Iterator

import attrs
import pytest

from tests.end_to_end.relay_rig import IMPLICIT, connect, context, daemon_with_relay, email_id, keys_before_the_start
from tests.end_to_end.rig import Daemon, eventually, rows
from tests.end_to_end.sink import Sink

pytestmark = pytest.mark.contract
TRUSTED, LEAVING, BALANCER, UNTRUSTED = "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"
FAR = "10.1.2.3"  # behind the balancer
TLS_FIRST = (530, b"5.7.0 Must issue a STARTTLS command first")


@attrs.frozen
class Relay:
    daemon: Daemon
    near: str  # the ids of two keys
    leaving: str


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory, module_database: str, sink: Sink) -> Iterator[Relay]:
    daemon = daemon_with_relay(tmp_path_factory.mktemp("daemon"), module_database, sink.port, trusted_proxies=[BALANCER])
    near, leaving = keys_before_the_start(daemon, "near", "leaving")
    smtp = dict(daemon.changes["smtp"])
    listen = dict(smtp["listen"])  # type: ignore[call-overload]
    listen["2587"] = f"haproxy:{listen['2587']}"
    networks = {"127.0.0.0/30": near, LEAVING: leaving, f"{BALANCER}/32": near, "10.1.2.0/24": near}
    daemon.changes = {**daemon.changes, "smtp": {**smtp, "listen": listen, "trusted_networks": networks}}
    with pytest.raises(AssertionError, match=f"trusted_networks has {BALANCER}/32, inside smtp.trusted_proxies"):
        daemon.start()
    del networks[f"{BALANCER}/32"]
    daemon.start()
    yield Relay(daemon, near, leaving)
    assert daemon.stop() == 0


class Balanced(smtplib.SMTP):
    """By way of the balancer, which sends `header` first."""

    header = f"PROXY TCP4 {FAR} 10.1.2.1 4000 587\r\n".encode()

    def getreply(self) -> tuple[int, bytes]:
        header, self.header = self.header, b""
        if header:
            assert self.sock is not None
            self.sock.sendall(header)
        return super().getreply()


def come(relay: Relay, host: str, number: str = "587") -> smtplib.SMTP:
    """A session from `host`, with no command but EHLO."""
    port = relay.daemon.facts["smtp"][number]
    if number in IMPLICIT:
        client: smtplib.SMTP = smtplib.SMTP_SSL("127.0.0.1", port, context=context(), timeout=30, source_address=(host, 0))
    else:
        client = (Balanced if host == BALANCER else smtplib.SMTP)("127.0.0.1", port, timeout=30, source_address=(host, 0))
    client.ehlo()
    return client


def send(relay: Relay, client: smtplib.SMTP, subject: str) -> str:
    """The id of the email."""
    me = f"me@{relay.daemon.facts['domain']}"
    assert client.mail(me)[0] == client.rcpt(f"{subject.replace(' ', '.')}@example.net")[0] == 250
    code, reply = client.data(f"From: {me}\r\nSubject: {subject}\r\n\r\nx\r\n")
    assert code == 250, reply
    return email_id(reply)


def arrived(sink: Sink, subject: str) -> str:
    """By which protocol its trace says that it came."""
    [mail] = sink.having(f"Subject: {subject}\r\n")
    found = re.search(rb"Received: by \S+ with (\S+) id ", mail.raw)
    assert found is not None and b"127.0.0." not in mail.raw
    return found[1].decode()


def key_of(database: str, email: str) -> str:
    return str(rows(database, "SELECT key_id::text FROM emails WHERE email_id = %s", email)[0][0])


def receipt(database: str, text: str) -> tuple[str, int, str]:
    """Key, mails and transcript of the session that has `text`."""
    sql = "SELECT key_id::text, mails, transcript FROM receipts WHERE transcript LIKE %s"
    [found] = eventually(lambda: rows(database, sql, f"%{text}%"))
    return found[0], found[1], found[2]


def test_clear_text_then_tls_then_another_login(relay: Relay, module_database: str, sink: Sink) -> None:
    with come(relay, TRUSTED) as client:
        assert client.has_extn("starttls") and not client.has_extn("auth")
        clear = send(relay, client, "in clear")
        client.mail(f"me@{relay.daemon.facts['domain']}")
        client.starttls(context=context())
        assert client.rcpt("a@example.net")[0] == 503  # what was begun in clear is over
        client.ehlo()
        secured = send(relay, client, "over TLS")
        with pytest.raises(smtplib.SMTPAuthenticationError):
            client.login("mailsvc", "ms_wrong")
        client.login("mailsvc", relay.daemon.facts["api_key"])
        another = send(relay, client, "logged in")
    assert [arrived(sink, subject) for subject in ("in clear", "over TLS", "logged in")] == ["ESMTP", "ESMTPS", "ESMTPSA"]
    assert key_of(module_database, clear) == key_of(module_database, secured) == relay.near != key_of(module_database, another)
    before, after = receipt(module_database, "in.clear@"), receipt(module_database, "logged.in@")
    assert before[:2] == (relay.near, 2) and "over.TLS@" in before[2] and "logged.in@" not in before[2]
    assert after[:2] == (key_of(module_database, another), 1) and "over.TLS@" not in after[2]


def test_inside_tls_and_through_a_balancer(relay: Relay, module_database: str, sink: Sink) -> None:
    with come(relay, TRUSTED, "465") as client:
        assert key_of(module_database, send(relay, client, "on 465")) == relay.near
    with come(relay, BALANCER, "2587") as client:
        assert key_of(module_database, send(relay, client, "through a balancer")) == relay.near
    assert [arrived(sink, subject) for subject in ("on 465", "through a balancer")] == ["ESMTPS", "ESMTP"]


@pytest.mark.parametrize(
    ("host", "number", "header"),
    [
        (UNTRUSTED, "587", b""),
        (UNTRUSTED, "587", f"PROXY TCP4 {TRUSTED} 127.0.0.1 4000 587\r\n".encode()),
        (UNTRUSTED, "2587", f"PROXY TCP4 {FAR} 127.0.0.1 4000 587\r\n".encode()),
        (UNTRUSTED, "587", f"XCLIENT ADDR={TRUSTED}\r\n".encode()),
        (BALANCER, "2587", b"PROXY UNKNOWN\r\n"),
        (BALANCER, "2587", f"PROXY TCP4 {TRUSTED} 127.0.0.1 4000 587\r\n".encode()),  # of its own machine
        (BALANCER, "2587", b"PROXY TCP4 192.0.2.1 127.0.0.1 4000 587\r\n"),
    ],
)
def test_nobody_else_is_trusted(relay: Relay, host: str, number: str, header: bytes) -> None:
    with socket.create_connection(("127.0.0.1", relay.daemon.facts["smtp"][number]), 30, source_address=(host, 0)) as link:
        link.sendall(header + b"EHLO me\r\nMAIL FROM:<me@mailsvc.example>\r\nQUIT\r\n")
        received = b"".join(iter(lambda: link.recv(65536), b""))
    assert received.endswith(b"250 STARTTLS\r\n530 5.7.0 Must issue a STARTTLS command first\r\n221 2.0.0 Bye\r\n")


def test_trusted_networks_do_not_apply_to_port_25(relay: Relay) -> None:
    with come(relay, TRUSTED, "25") as client:
        client.mail(f"me@{relay.daemon.facts['domain']}")
        assert client.rcpt("a@example.net")[0] == 550


def test_trusted_networks_are_logged_and_end_with_their_key(relay: Relay) -> None:
    daemon = relay.daemon
    assert f"Clients in {LEAVING} can send without TLS and login, with the API key {relay.leaving}" in daemon.log
    with come(relay, LEAVING) as client:
        send(relay, client, "before it is revoked")
        assert daemon.call("DELETE", f"/api-keys/{relay.leaving}").status == 200
        assert client.mail(f"me@{daemon.facts['domain']}") == (530, b"5.7.0 Authentication required")  # the same process: at once
    with come(relay, LEAVING) as client:
        assert client.mail(f"me@{daemon.facts['domain']}") == TLS_FIRST
    with contextlib.closing(connect(daemon)) as client:  # the others are as they were
        send(relay, client, "after it was revoked")
    with come(relay, TRUSTED) as client:
        send(relay, client, "near as ever")
