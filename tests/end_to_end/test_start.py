"""A start that fails says why in one sentence; a stop in good order leaves nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.rig import PROJECT, Daemon


def refused(daemon: Daemon) -> str:
    """The message of a daemon that cannot start; it must exit with a status."""
    daemon.write()
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(daemon._command(), cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"http": {"rate": 1}}, "The setting http.rate does not exist."),
        ({"http": {"listen": ["tcp:x"]}}, "The setting http.listen contains 'tcp:x', which is not a valid endpoint"),
        ({"delivery": {"allowed_networks": ["here"]}}, "The setting delivery.allowed_networks is a list; expected addresses or networks"),
        ({"database": {"url": "postgresql://u:hunter2@127.0.0.1:1/x"}}, "The database cannot be reached: "),
        ({"secrets": {"key": "nothing"}}, "The setting secrets.key, line 1: expected a number"),
    ],
)
def test_a_start_that_fails_says_one_sentence(tmp_path: Path, database: str, changes: dict[str, dict[str, object]], sentence: str) -> None:
    output = refused(Daemon(tmp_path, database, changes))
    assert output.startswith("mailsvc cannot start. ") and sentence in output
    assert "hunter2" not in output


def test_a_port_that_is_taken_is_named(tmp_path: Path, database: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        sentence = refused(Daemon(tmp_path, database, port=port))
        assert f"Cannot listen on 127.0.0.1, port {port} (Address already in use): stop the program that uses it" in sentence
        assert sentence.endswith("or choose another port in http.listen.")
    assert not (tmp_path / "dev.json").exists()


def test_a_stop_leaves_nothing_behind(tmp_path: Path, database: str) -> None:
    daemon = Daemon(tmp_path, database)
    daemon.start()
    assert daemon.call("GET", "/readyz").status == 200
    assert daemon.stop() == 0
    assert not (tmp_path / "dev.json").exists()
