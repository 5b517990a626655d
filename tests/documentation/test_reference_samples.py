"""The samples of the API reference: those for curl, Python and Node.js are run, others are read by their compilers where there are any."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mailsvc.http.reference.api_pages import ALIASES, call_of
from mailsvc.http.reference.samples import LANGUAGES, Call
from tests.end_to_end.clients.node import environment
from tests.http.rig import Rig

CALLS = [
    call_of(method.upper(), path, one)
    for path, methods in Rig().api.document()["paths"].items()
    for method, one in methods.items()
    if path not in ALIASES and "multipart/form-data" not in one.get("requestBody", {}).get("content", {})
]
AWKWARD = Call(
    "POST", "/emails", True, {"html": "<a href='x'>`$&\"#\\ \u20ac \U0001f44b</a>", "none": None, "yes": True, "list": [], "map": {}}
)


class Recorder(BaseHTTPRequestHandler):
    """Answers every request with 200, and keeps it."""

    received: ClassVar[list[tuple[str, str, str | None, Any]]] = []

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if body:
            assert self.headers["content-type"] == "application/json"
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


def with_curl(folder: Path, programs: list[str]) -> list[str]:
    (folder / "all.sh").write_text("set -e\n" + "\n".join(programs))
    return ["sh", str(folder / "all.sh")]


def with_python(folder: Path, programs: list[str]) -> list[str]:
    (folder / "all.py").write_text(f"for program in {programs!r}:\n    exec(program, {{}})\n")
    return [sys.executable, str(folder / "all.py")]


def with_node(folder: Path, programs: list[str]) -> list[str]:
    for number, program in enumerate(programs):
        (folder / f"{number}.mjs").write_text(program)
    (folder / "all.mjs").write_text("".join(f'await import("./{number}.mjs");\n' for number in range(len(programs))))
    return ["node", str(folder / "all.mjs")]


@pytest.mark.parametrize(("language", "runner"), [("curl", with_curl), ("Python", with_python), ("Node.js", with_node)])
def test_the_samples_send_what_is_described(
    language: str, runner: Callable[[Path, list[str]], list[str]], url: str, tmp_path: Path
) -> None:
    calls = [*CALLS, AWKWARD]
    command = runner(tmp_path, [LANGUAGES[language][1](call) for call in calls])
    variables = {**environment(), "BASE_URL": url, "API_KEY": "ms_key"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert Recorder.received == [(each.method, each.path, "Bearer ms_key" if each.key else None, each.body) for each in calls]


# How the compiler or interpreter of a language reads a program without running it, and the name of the file.
READERS = {
    "Go": (["gofmt", "-e", "-l"], "go"),
    "PHP": (["php", "-l"], "php"),
    "Ruby": (["ruby", "-c"], "rb"),
    "Rust": (["rustfmt", "--check", "--edition", "2021", "--emit", "stdout"], "rs"),
}


@pytest.mark.parametrize("language", READERS)
def test_the_other_samples_can_be_read(language: str, tmp_path: Path) -> None:
    command, suffix = READERS[language]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed.")
    for number, call in enumerate([*{(each.method, each.key, each.body is None): each for each in CALLS}.values(), AWKWARD]):
        file = tmp_path / f"sample{number}.{suffix}"
        file.write_text(LANGUAGES[language][1](call) + "\n")
        done = subprocess.run([*command, str(file)], env=dict(os.environ), capture_output=True, text=True, timeout=60, check=False)
        assert "error" not in done.stderr.lower() and (done.returncode == 0 or language == "Rust"), done.stderr
