"""The samples of the API reference are run, in each language that this machine has a compiler or interpreter for."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mailsvc.http.reference.api_pages import ALIASES, call_of
from mailsvc.http.reference.samples import LANGUAGES, Call
from tests.documentation.programs import NAMES, RUNNERS, run
from tests.http.rig import Rig

CALLS = [
    call_of(method.upper(), path, one)
    for path, methods in Rig().api.document()["paths"].items()
    for method, one in methods.items()
    if path not in ALIASES and "multipart/form-data" not in one.get("requestBody", {}).get("content", {})
]
AWKWARD = Call(
    "POST",
    "/emails",
    True,
    {
        "html": "<a href='x'>`$&\"#\\ \u20ac \U0001f44b</a>",
        "text": 'first\nsecond\tthird \b\f\x01\x7f \\u0041 "## """ #{x} {} //',
        "none": None,
        "yes": True,
        "list": [],
        "map": {},
        "number": -1.5,
    },
)


class Recorder(BaseHTTPRequestHandler):
    """Answers every request with 200, and keeps it."""

    received: ClassVar[list[tuple[str, str, str | None, Any]]] = []

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if body:
            assert self.headers.get_content_type() == "application/json"
        self.received.append((self.command, self.path, self.headers["authorization"], json.loads(body) if body else None))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST = do_PATCH = do_DELETE = answer

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Recorder.received.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("language", NAMES)
def test_the_samples_send_what_is_described(language: str, url: str, tmp_path: Path) -> None:
    calls = [*CALLS, AWKWARD]
    run(language, [LANGUAGES[language][1](call) for call in calls], tmp_path, {"BASE_URL": url, "API_KEY": "ms_key"})
    assert Recorder.received == [(each.method, each.path, "Bearer ms_key" if each.key else None, each.body) for each in calls]


def test_every_language_is_run() -> None:
    assert {*LANGUAGES} == {*RUNNERS}


def test_the_samples_for_rust_can_be_read(tmp_path: Path) -> None:
    """rustfmt is often there when the crates that the samples need are not."""
    if shutil.which("rustfmt") is None:
        pytest.skip("rustfmt is not installed.")
    for number, call in enumerate([*{(each.method, each.key, each.body is None): each for each in CALLS}.values(), AWKWARD]):
        (tmp_path / f"{number}.rs").write_text(LANGUAGES["Rust"][1](call) + "\n")
    command = ["rustfmt", "--edition", "2021", *sorted(map(str, tmp_path.glob("*.rs")))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
