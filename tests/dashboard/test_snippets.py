"""Code samples: the values of the account are in them, quoted for each language, and each sends an email."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted

from mailsvc.dashboard.relay_access import RelayAccess
from mailsvc.dashboard.samples import Samples
from mailsvc.dashboard.snippets import all_of
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig
from tests.documentation import programs

TO = "o'brien\\$x`#{y}@b.example"  # every sign that could end or change a literal, except a quotation mark
NAMES = ["curl", "Node.js", "Python", "Go", "PHP", "Ruby", "Rust", ".NET"]


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The URL of an API, and the emails that it got with the right key."""
    bodies: list[dict[str, Any]] = []

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # noqa: N802  called by its name
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/emails" and self.headers["Authorization"] == "Bearer ms_key":
                bodies.append(body)
            answer = b'{"id": "1"}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *given: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", programs.NAMES)
def test_a_sample_sends_the_email(name: str, received: tuple[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    url, bodies = received
    programs.run(name, [dict(all_of(url, "ms_key", "hello@a.example", TO))[name]], tmp_path, {"BASE_URL": url, "API_KEY": "ms_key"})
    [body] = bodies
    assert (body["from"], body["to"], body["html"]) == ("hello@a.example", TO, "<p>It works.</p>")


def test_each_language_has_a_sample_with_the_address_quoted_for_it() -> None:
    code = dict(all_of("https://mail.example", "ms_key", "hello@a.example", TO))
    assert list(code) == NAMES
    for name in NAMES:
        assert "https://mail.example" in code[name], name
        assert "ms_key" in code[name] and "hello@a.example" in code[name]


def test_smtp_is_left_out_where_it_is_turned_off() -> None:
    given = ((), "ann@example.com", "ms_key")
    with_it = dict(Samples("https://mail.example", RelayAccess("mx.example", "mailsvc", {"465": 4465})).of(*given))
    assert "swaks --server mx.example:4465 --tls-on-connect" in with_it["SMTP"] and "hello@your-domain.example" in with_it["SMTP"]
    assert "SMTP" not in dict(Samples("https://mail.example", RelayAccess("mx.example", "mailsvc", {})).of(*given))


@pytest_twisted.ensureDeferred
async def test_a_key_is_in_the_samples_only_right_after_it_was_created(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person("ann@example.com")
    ann = await rig.inside("ann@example.com")
    assert "Bearer ms_…" in (await ann.get("/dashboard/keys")).text
    form = {"name": "Shop", "permission": "sending_access", "domain": "", "lifetime": ""}
    page = await ann.post("/dashboard/keys", form)
    key = page.found(r'id="key">(ms_[^<]+)<')
    assert page.text.count(key) > len(NAMES) and "Bearer ms_…" not in page.text
    assert key not in (await ann.get("/dashboard/keys")).text
