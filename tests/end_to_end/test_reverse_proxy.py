"""The documented settings of nginx, Caddy and HAProxy, with the programs themselves in front of a daemon."""

from __future__ import annotations

import datetime
import hashlib
import http.client
import http.server
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mailsvc.settings.schema import Http
from mailsvc.store.people.api_keys import digest, new_token
from tests.end_to_end.proxies import CELLS, PROXIES, Counter, Wanted, program, running
from tests.end_to_end.rig import Daemon, free_port, rows

HOST = "api.example.com"
CLIENT = "127.0.0.2"  # not the address of the proxy, which is trusted
FORGED = "203.0.113.9"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    inbox = free_port()
    changes: dict[str, dict[str, object]] = {
        "http": {"trusted_proxies": ["127.0.0.1"]},
        "sandbox": {"listen": [f"tcp:{inbox}:interface=127.0.0.1"]},
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{inbox}"}},
    }
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), module_database, changes)
    daemon.start()
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that signs itself, and its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now, names = datetime.datetime.now(datetime.UTC), x509.SubjectAlternativeName([x509.DNSName(HOST)])
    builder = x509.CertificateBuilder().issuer_name(name).subject_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).add_extension(names, critical=False)
    day = datetime.timedelta(days=1)
    certificate = builder.not_valid_before(now - day).not_valid_after(now + day).sign(key, hashes.SHA256())
    file = tmp_path_factory.mktemp("tls") / "api.pem"
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
    return file


class Client(http.client.HTTPSConnection):
    """One connection through the proxy, from an address of its own. Its certificate is checked."""

    def __init__(self, daemon: Daemon, proxy: Wanted) -> None:
        super().__init__(HOST, proxy.port, timeout=60, context=ssl.create_default_context(cafile=str(proxy.pem)))
        self._create_connection = lambda *_, **__: _connected(proxy.port)
        self._key = daemon.facts["api_key"]

    def call(self, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body)
        given = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json", "User-Agent": "tests", **headers}
        self.request("GET" if data is None else "POST", path, data, given)
        answer = self.getresponse()
        return answer.status, json.loads(answer.read())


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(CLIENT, 0))


@pytest.fixture(scope="module", params=list(PROXIES))
def proxy(
    request: pytest.FixtureRequest, daemon: Daemon, pem: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Wanted, Counter]]:
    if program(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    counter = Counter(daemon.port)
    wanted = Wanted(request.param, tmp_path_factory.mktemp(request.param) / "run", free_port(), f"127.0.0.1:{counter.port}", pem)
    with running(wanted):
        yield wanted, counter
    counter.close()


def mail(daemon: Daemon, text: str) -> dict[str, str]:
    return {"from": f"a@{daemon.facts['domain']}", "to": "ok@example.net", "subject": "Hello", "text": text}


def test_a_client_keeps_its_connection_and_so_does_the_proxy(daemon: Daemon, proxy: tuple[Wanted, Counter]) -> None:
    wanted, counter = proxy
    before, client = counter.connections, Client(daemon, wanted)
    connections = set()
    for number in range(5):
        status, answer = client.call("/emails", mail(daemon, str(number)))
        assert status == 200 and answer["id"]
        connections.add(client.sock)  # http.client opens another one if the proxy closed it
    assert len(connections) == 1 and None not in connections
    client.close()
    assert counter.connections - before <= 2


def test_the_clients_address_is_the_proxys_and_not_the_clients_word(daemon: Daemon, proxy: tuple[Wanted, Counter]) -> None:
    client = Client(daemon, proxy[0])
    status, answer = client.call("/api-keys", {"name": f"by {proxy[0].port}"}, **{"X-Forwarded-For": FORGED})
    client.close()
    assert status == 201, answer
    found = rows(daemon.database, "SELECT address FROM audit_entries WHERE action LIKE '%%key%%' ORDER BY at DESC LIMIT 1")
    assert found == [(CLIENT,)]


def test_large_bodies_pass(daemon: Daemon, proxy: tuple[Wanted, Counter]) -> None:
    client = Client(daemon, proxy[0])
    status, answer = client.call("/emails", mail(daemon, "x" * 78 + "\n") | {"html": "<p>x</p>\n" * 400_000})
    assert status == 200, answer
    client.close()


def test_a_larger_body_is_refused_without_being_read(daemon: Daemon, proxy: tuple[Wanted, Counter]) -> None:
    if proxy[0].name == "caddy":
        pytest.skip("Caddy does not pass on an answer before it has read the body, and 160 MB take too long here")
    client = Client(daemon, proxy[0])
    client.putrequest("POST", "/emails")
    for name, value in {"Authorization": f"Bearer {daemon.facts['api_key']}", "Content-Type": "application/json"}.items():
        client.putheader(name, value)
    client.putheader("Content-Length", str(Http().body_limit + 1))
    client.endheaders()
    assert client.getresponse().status == 413  # although the body never comes
    client.close()


class Named(http.server.BaseHTTPRequestHandler):
    """Answers with the name of its server, and the hash of the body; with 421, for keys of accounts that have moved to `moved`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server: Any = self.server
        server.seen.append(f"{self.command} {self.path}")
        moved = self.headers.get("Authorization", "").split("_")[-1] in server.moved_keys
        self.send_response(421 if moved else server.status)
        if moved:
            self.send_header("Mailsvc-Cell", server.moved_to)
        answer = server.name.encode() + (b" " + hashlib.sha256(body).hexdigest().encode() if body else b"")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_PATCH = do_GET

    def log_message(self, *_: object) -> None:
        """Nowhere."""


@contextmanager
def named(name: str, moved_to: str = "", *moved: str, status: int = 200) -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Named)
    server.name, server.status, server.seen = name, status, []
    server.moved_to, server.moved_keys = moved_to, [key.split("_")[-1] for key in moved]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def through(proxy: Wanted, key: str, method: str = "GET", path: str = "/emails", body: bytes | None = None) -> tuple[int, str]:
    """The status and body of one response. `key` with its scheme."""
    connection = http.client.HTTPSConnection(HOST, proxy.port, timeout=60, context=ssl.create_default_context(cafile=str(proxy.pem)))
    connection._create_connection = lambda *_, **__: _connected(proxy.port)  # type: ignore[attr-defined]
    connection.request(method, path, body, {"Authorization": key, "Content-Type": "application/json"} if key else {})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


@pytest.mark.parametrize("name", list(CELLS))
def test_a_request_goes_to_the_cell_of_its_key(tmp_path: Path, pem: Path, name: str) -> None:
    if program(name.split()[0]) is None:
        pytest.skip(f"{name.split()[0]} is not installed")
    with named("us") as us, named("eu") as eu:
        proxy = Wanted(name, tmp_path / "proxy", free_port(), f"127.0.0.1:{us.server_port} 127.0.0.1:{eu.server_port}", pem)
        with running(proxy):
            headers = {
                f"Bearer {new_token('eu_1')}": "eu", f"bearer   {new_token('eu_1')}": "eu", f"Bearer {new_token('us_1')}": "us",
                f"Bearer {new_token()}": "us", "Basic eA==": "us", "": "us",
            }  # fmt: skip
            for given, expected in headers.items():
                assert through(proxy, given) == (200, expected), given


nginx_alone = pytest.mark.skipif(program("nginx") is None, reason="nginx is not installed")


@nginx_alone
def test_a_request_of_an_account_that_has_moved_reaches_its_new_cell(daemon: Daemon, tmp_path: Path, pem: Path) -> None:
    """The old cell is a daemon. A body of 30 MB arrives as it was sent."""
    moved, body = new_token("us_1"), os.urandom(15_000_000).hex().encode()
    values = (digest(moved), "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002", "eu_1")
    rows(daemon.database, "INSERT INTO account_move_keys (hash, key_id, account_id, cell) VALUES (%s, %s, %s, %s) RETURNING 1", *values)
    with named("eu") as eu:
        proxy = Wanted("nginx of cells", tmp_path / "proxy", free_port(), f"127.0.0.1:{daemon.port} 127.0.0.1:{eu.server_port}", pem)
        with running(proxy):
            assert through(proxy, f"Bearer {moved}", "POST", "/emails", body) == (200, f"eu {hashlib.sha256(body).hexdigest()}")
            assert through(proxy, f"Bearer {moved}", "PATCH", "/emails/1?a=b", b"{}")[0] == 200
            for _ in range(30):
                assert through(proxy, f"Bearer {moved}") == (200, "eu")
            assert eu.seen == ["POST /emails", "PATCH /emails/1?a=b", *["GET /emails"] * 30]
            assert through(proxy, f"Bearer {daemon.facts['api_key']}")[0] == 200
            status, text = through(proxy, f"Bearer {new_token('us_1')}")
            assert (status, json.loads(text)["name"]) == (403, "invalid_api_key")


@nginx_alone
def test_no_request_is_passed_on_twice_or_to_anywhere_else(tmp_path: Path, pem: Path) -> None:
    both, nowhere = new_token("us_1"), new_token("eu_1")
    with named("us", "eu_1", both) as us, named("eu", "us_1", both) as eu, named("other", "127.0.0.1:1", nowhere, status=503) as other:
        proxy = Wanted("nginx of cells", tmp_path / "loop", free_port(), f"127.0.0.1:{us.server_port} 127.0.0.1:{eu.server_port}", pem)
        with running(proxy):
            assert through(proxy, f"Bearer {both}") == (421, "eu")
            assert (us.seen, eu.seen) == (["GET /emails"], ["GET /emails"])
        proxy = Wanted("nginx of cells", tmp_path / "other", free_port(), f"127.0.0.1:{us.server_port} 127.0.0.1:{other.server_port}", pem)
        with running(proxy):
            assert through(proxy, f"Bearer {nowhere}") == (421, "other")
            assert through(proxy, f"Bearer {new_token('eu_1')}") == (503, "other"), "other errors are not touched"
        assert us.seen == ["GET /emails"]
