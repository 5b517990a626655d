"""One SMTP name for all cells: the documented settings of nginx, with nginx itself in front of two daemons."""

from __future__ import annotations

import base64
import re
import smtplib
import socket
import ssl
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from mailsvc.smtp.server.certificates import self_signed
from mailsvc.store.people.api_keys import digest, new_token
from tests.end_to_end.proxies import indented, nginx_with, program, replaced, started
from tests.end_to_end.relay_rig import IMPLICIT, NUMBERS, email_id
from tests.end_to_end.rig import Daemon, eventually, free_port, rows
from tests.end_to_end.sink import Sink

HOST = "smtp.example.com"
ANNOUNCED = "198.51.100.7"  # the client, where a load balancer in front of nginx announces it
MODULES = [Path(f"/usr/lib/nginx/modules/ngx_{kind}_module.so") for kind in ("mail", "stream")]
INSTALLED = program("nginx") is not None and all(module.exists() for module in MODULES)
pytestmark = pytest.mark.skipif(not INSTALLED, reason="nginx is not installed, or not its modules for mail and streams")


@attrs.frozen
class Cell:
    daemon: Daemon
    name: str
    key: str

    def has(self, email: str) -> bool:
        return rows(self.daemon.database, "SELECT 1 FROM emails WHERE email_id = %s", email) == [(1,)]

    def new_key(self, *networks: str, cell: str | None = None) -> str:
        """A key that begins with the name of the cell, or of `cell`, as if the daemon had the setting database.cell, which needs Citus."""
        made, token = self.daemon.call("POST", "/api-keys", {"name": "of a cell", "networks": list(networks)}), new_token(cell or self.name)
        assert made.status == 201, made
        assert rows(self.daemon.database, "UPDATE api_keys SET hash = %s WHERE id = %s RETURNING 1", digest(token), made.body["id"])
        return token


@attrs.frozen
class Proxied:
    """nginx on `ports`, by their standard numbers, and the cells behind it. On `announcing`, a load balancer announces clients to it."""

    us: Cell
    eu: Cell
    ports: dict[str, int]
    announcing: int
    certificate: Path

    def cell(self, name: str) -> Cell:
        return self.us if name == "us" else self.eu

    def connect(self, number: str = "587") -> smtplib.SMTP:
        """A session inside TLS."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        client: smtplib.SMTP
        if number in IMPLICIT:
            client = Implicit(HOST, self.ports[number], timeout=30, context=context)
        else:
            client = StartTls(HOST, self.ports[number], timeout=30)
            assert client.starttls(context=context)[0] == 220
        client.ehlo()
        return client


class StartTls(smtplib.SMTP):
    """At 127.0.0.1, whatever the name in the certificate is."""

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), timeout)


class Implicit(smtplib.SMTP_SSL):
    """The same with TLS from the start."""

    header = b""

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        connected = socket.create_connection(("127.0.0.1", port), timeout)
        connected.sendall(self.header)
        return self.context.wrap_socket(connected, server_hostname=host)


class Announced(Implicit):
    """By way of a load balancer in front of nginx."""

    header = f"PROXY TCP4 {ANNOUNCED} 192.0.2.10 4000 465\r\n".encode()


def cell(folder: Path, database: str, name: str, sink: Sink) -> Cell:
    """A daemon with the documented settings, and a certificate for the name that nginx expects."""
    documented = tomllib.loads(indented("reverse-proxy.md", "[smtp]", "- "))["smtp"]
    assert documented["trusted_proxies"] == ["192.0.2.10"]
    listen = {number: re.sub(r"tcp:\d+$", f"tcp:{free_port()}:interface=127.0.0.1", end) for number, end in documented["listen"].items()}
    certificate, key = self_signed(folder / "tls", f"{name[:2]}.smtp.example.com")
    smtp = {
        "listen": listen,
        "trusted_proxies": ["127.0.0.1"],
        "certificate": str(certificate),
        "key": str(key),
        "tarpit": 0,
        "login_failures": 100,
    }
    daemon = Daemon(folder, database, {"smtp": smtp, "delivery": {"routes": {"*": f"smtp://127.0.0.1:{sink.port}"}}})
    daemon.start()
    made = Cell(daemon, name, "")
    return attrs.evolve(made, key=made.new_key())


def settings(
    folder: Path, us: Cell, eu: Cell, ports: dict[str, int], announcing: int, pem: tuple[Path, Path], api: int | None = None
) -> list[str]:
    """The documented settings with other ports and certificates. The cell in Europe has two machines, of which the first is away.

    `api`: the port of the API of the other cell.
    """
    routing = indented("reverse-proxy.md", "map $http_auth_pass $smtp_cell {", "Write")
    apis = indented("reverse-proxy.md", "upstream us_1 {", "    map $http_authorization")
    ports_of_apis = {"127.0.0.1:8025": f"127.0.0.1:{api or us.daemon.port}", "127.0.0.1:8026": f"127.0.0.1:{eu.daemon.port}"}
    routing = f"{replaced(apis, **ports_of_apis)}\n{routing}"
    proxy = indented("reverse-proxy.md", "mail {", "The processes")
    cells = folder / "cells.pem"
    cells.write_text("".join((each.daemon.folder / "tls" / "certificate.pem").read_text() for each in (us, eu)))
    for number, port in [(number, str(free_port())) for number in ("9400", "9465", "9466")]:
        proxy, routing = re.sub(rf"\b{number}\b", port, proxy), re.sub(rf"\b{number}\b", port, routing)
    for number in NUMBERS:
        proxy = re.sub(rf"listen {number}\b", f"listen 127.0.0.1:{ports[number]}", proxy)
    near, far = (f"127.0.0.1:{each.daemon.facts['smtp']['465']}" for each in (us, eu))
    certbot, last = f"/etc/letsencrypt/live/{HOST}", f"listen 127.0.0.1:{ports['2465']} ssl;"
    values = {
        f"{certbot}/fullchain.pem": str(pem[0]),
        f"{certbot}/privkey.pem": str(pem[1]),
        "/etc/ssl/certs/ca-certificates.crt": str(cells),
        "us.smtp.example.com:465": near,
        "eu.smtp.example.com:465": "eu_1",
        "stream {\n": f"stream {{\nupstream eu_1 {{ server 127.0.0.1:{free_port()}; server {far}; }}\n",
        last: f"{last} listen 127.0.0.1:{announcing} ssl proxy_protocol;",
        "mail {\n": "mail {\nset_real_ip_from 127.0.0.1;\n",
    }
    return nginx_with(folder, routing, replaced(proxy, **values), MODULES)


@pytest.fixture(scope="module")
def proxied(
    tmp_path_factory: pytest.TempPathFactory,
    module_database: str,
    postgres: str,
    template: str,
    administer: Callable[..., None],
    sink: Sink,
) -> Iterator[Proxied]:
    other = f"{parse_dsn(module_database)['dbname']}_other_cell"
    administer(postgres, f"CREATE DATABASE {other} TEMPLATE {template}")
    us = cell(tmp_path_factory.mktemp("us"), module_database, "us_1", sink)
    eu = cell(tmp_path_factory.mktemp("eu"), make_dsn(module_database, dbname=other), "eu_1", sink)
    folder, ports, announcing = tmp_path_factory.mktemp("nginx"), {number: free_port() for number in NUMBERS}, free_port()
    pem = self_signed(folder / "tls", HOST)
    with started("nginx", settings(folder, us, eu, ports, announcing, pem), folder, ports["465"]):
        yield Proxied(us, eu, ports, announcing, pem[0])
    assert us.daemon.stop() == eu.daemon.stop() == 0
    administer(postgres, f"DROP DATABASE {other} WITH (FORCE)")


def send(client: smtplib.SMTP, sender: str, subject: str) -> str:
    """The ID of the email."""
    assert client.mail(sender)[0] == client.rcpt("a@example.net")[0] == 250
    code, reply = client.data(f"From: {sender}\r\nSubject: {subject}\r\n\r\nx\r\n")
    assert code == 250, reply
    return email_id(reply)


def sender_of(cell: Cell) -> str:
    return f"me@{cell.daemon.facts['domain']}"


def plain(user: str, password: str) -> str:
    return "PLAIN " + base64.b64encode(f"\0{user}\0{password}".encode()).decode()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", ["us", "eu"])
def test_mail_is_accepted_by_the_cell_of_its_key(proxied: Proxied, sink: Sink, name: str, number: str) -> None:
    cell, subject = proxied.cell(name), f"to {name} on {number}"
    other = proxied.eu if cell is proxied.us else proxied.us
    with proxied.connect(number) as client:
        assert client.login("mailsvc", cell.key)[0] == 235
        email = send(client, sender_of(cell), subject)
        assert cell.has(email) and not other.has(email)
    [mail] = sink.having(f"Subject: {subject}\r\n")
    assert b" with ESMTPSA id " in mail.raw and b"127.0.0.1" not in mail.raw
    [(port, tls)] = eventually(lambda: rows(cell.daemon.database, "SELECT port, tls FROM receipts WHERE transcript LIKE %s", f"%{email}%"))
    assert port == cell.daemon.facts["smtp"]["465"] and tls.startswith("TLSv1.3")


def has_moved(cell: Cell, key: str, to: str) -> None:
    """The key is of an account that has left this cell, as after `mailsvc cell account-move`, which needs Citus."""
    values = (digest(key), "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002", to)
    rows(
        cell.daemon.database, "INSERT INTO account_move_keys (hash, key_id, account_id, cell) VALUES (%s, %s, %s, %s) RETURNING 1", *values
    )


@pytest.mark.parametrize("number", ["587", "465"])
def test_mail_with_a_key_of_an_account_that_has_moved_is_accepted_by_its_new_cell(proxied: Proxied, number: str) -> None:
    key = proxied.eu.new_key(cell="us_1")
    has_moved(proxied.us, key, "eu_1")
    for _ in range(12):  # it does not count as a failed login
        with proxied.connect(number) as client:
            assert client.login("mailsvc", key)[0] == 235
            email = send(client, sender_of(proxied.eu), "after a move")
            assert proxied.eu.has(email) and not proxied.us.has(email)
    client = proxied.connect(number)
    assert client.docmd("AUTH", plain("someone", key)) == (535, b"5.7.8 Authentication credentials invalid")
    client.close()


def test_cells_that_point_at_each_other_or_nowhere_are_a_temporary_error(proxied: Proxied) -> None:
    for to in ("eu_1", "no_1", "us_1"):
        key = new_token("us_1")
        has_moved(proxied.us, key, to)
        has_moved(proxied.eu, key, "us_1")
        client = proxied.connect()
        assert client.docmd("AUTH", plain("mailsvc", key))[0] == 454
        client.close()


def test_an_api_that_does_not_answer_stops_no_mail(proxied: Proxied, tmp_path: Path) -> None:
    ports = {number: free_port() for number in NUMBERS}
    silent = socket.create_server(("127.0.0.1", 0))  # accepts no connection
    pem = (proxied.certificate, proxied.certificate.with_name("key.pem"))
    arguments = settings(tmp_path, proxied.us, proxied.eu, ports, free_port(), pem, silent.getsockname()[1])
    with silent, started("nginx", arguments, tmp_path, ports["465"]), attrs.evolve(proxied, ports=ports).connect() as client:
        assert client.login("mailsvc", proxied.us.key)[0] == 235
        assert proxied.us.has(send(client, sender_of(proxied.us), "without the API"))


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN"])
def test_both_mechanisms_log_in(proxied: Proxied, mechanism: str, at_once: bool) -> None:
    with proxied.connect("465") as client:
        client.user, client.password = "mailsvc", proxied.eu.key
        answer = client.auth_plain if mechanism == "PLAIN" else client.auth_login
        assert client.auth(mechanism, answer, initial_response_ok=at_once)[0] == 235


def test_nginx_announces_what_the_cells_offer(proxied: Proxied) -> None:
    with proxied.connect() as client:
        before = client.ehlo()[1].split(b"\n")
        client.login("mailsvc", proxied.eu.key)
        after = client.ehlo()[1].split(b"\n")
    assert before[0] == HOST.encode() and before[1:] == after[1:]


@pytest.mark.parametrize("number", ["25", "587", "2587"])
def test_nobody_logs_in_without_tls(proxied: Proxied, number: str) -> None:
    with StartTls(HOST, proxied.ports[number], timeout=30) as client:
        client.ehlo()
        assert client.has_extn("starttls") and not client.has_extn("auth")
        assert client.docmd("AUTH", plain("mailsvc", proxied.us.key))[0] == 500


@pytest.mark.parametrize("number", ["587", "465"])
def test_a_wrong_login_gets_the_reply_of_a_cell(proxied: Proxied, number: str) -> None:
    wrong = [
        ("mailsvc", new_token("eu_1")),
        ("someone", proxied.us.key),
        ("mailsvc", new_token("no_1")),
        ("mailsvc", "a b%c\r\nAuth-Port: 1ä"),
    ]
    for user, key in wrong:
        client = proxied.connect(number)
        assert client.docmd("AUTH", plain(user, key)) == (535, b"5.7.8 Authentication credentials invalid")
        client.close()


def test_mail_without_a_login_is_refused(proxied: Proxied) -> None:
    with proxied.connect() as client:
        assert client.mail(sender_of(proxied.us))[0] == 530


def test_pipelined_and_chunked_mail_of_some_megabytes_is_unchanged(proxied: Proxied, sink: Sink) -> None:
    cell = proxied.eu
    head = f"From: {sender_of(cell)}\r\nSubject: many lines\r\n\r\n"
    body = "".join(f"{number} Grüße\r\n..\r\n.\u00e9 \t\r\n" for number in range(200_000))
    text = (head + body).encode()
    stuffed = text.replace(b"\r\n.", b"\r\n..")
    begin = f"MAIL FROM:<{sender_of(cell)}> SIZE={len(text)} BODY=8BITMIME SMTPUTF8 RET=HDRS ENVID=x\r\n".encode()
    begin += "RCPT TO:<grüße@example.net> NOTIFY=NEVER\r\n".encode()
    with proxied.connect() as client:
        client.login("mailsvc", cell.key)
        client.send(begin + b"DATA\r\n")
        assert [client.getreply()[0] for _ in range(3)] == [250, 250, 354]
        client.send(stuffed + b".\r\n" + begin + b"BDAT %d\r\n%bBDAT 0 LAST\r\nNOOP\r\n" % (len(text), text))
        assert [client.getreply()[0] for _ in range(6)] == [250] * 6
    for mail in sink.having("Subject: many lines\r\n", 2):
        assert mail.raw.endswith(text) and mail.recipients == ("grüße@example.net",)


def test_the_cell_learns_the_clients_address(proxied: Proxied) -> None:
    near, far = proxied.eu.new_key("198.51.100.0/24"), proxied.eu.new_key("203.0.113.0/24")
    context = ssl.create_default_context(cafile=str(proxied.certificate))
    for key, code in ((near, 235), (far, 535)):
        client = Announced(HOST, proxied.announcing, timeout=30, context=context)
        client.ehlo()
        reply = client.docmd("AUTH", plain("mailsvc", key))
        assert reply[0] == code and (b"cannot be used from your network" in reply[1]) == (code == 535)
        client.close()


def test_a_cell_that_is_away_is_a_temporary_error_of_its_own(proxied: Proxied) -> None:
    proxied.eu.daemon.stop()
    try:
        client = proxied.connect()
        assert client.docmd("AUTH", plain("mailsvc", proxied.eu.key))[0] == 451
        client.close()
        with proxied.connect() as client:
            client.login("mailsvc", proxied.us.key)
            assert proxied.us.has(send(client, sender_of(proxied.us), "while the other is away"))
    finally:
        proxied.eu.daemon.start()
