"""The official Ruby, PHP and Go libraries against a daemon, if their sources and interpreters are there.

MAILSVC_TEST_CLIENT_SOURCES is a folder with checkouts of resend-ruby, resend-php and resend-go. Ruby needs httparty (Debian:
ruby-httparty), PHP needs Guzzle (php-guzzlehttp-guzzle, php-curl). docs/clients.md says with which versions they were run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.end_to_end.rig import Daemon

DRIVES = Path(__file__).parent / "other"
SOURCES = os.environ.get("MAILSVC_TEST_CLIENT_SOURCES")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), module_database, {"sandbox": {"listen": ["tcp:0:interface=127.0.0.1"]}})
    daemon.start()
    yield daemon
    assert daemon.stop() == 0


def library(name: str, program: str) -> Path:
    """Its folder."""
    folder = Path(SOURCES or "/nonexistent") / name
    if not folder.is_dir() or shutil.which(program) is None:
        pytest.skip(f"There is no {program}, or no {name} in MAILSVC_TEST_CLIENT_SOURCES.")
    return folder


def drive(daemon: Daemon, command: Sequence[str | Path], slash: str, folder: Path | None = None, **more: str) -> None:
    """`slash`: what the library wants at the end of the address."""
    values: Mapping[str, str] = {
        "API_KEY": daemon.facts["api_key"], "SENDER": f"news@{daemon.facts['domain']}", "RESEND_BASE_URL": f"http://127.0.0.1:{daemon.port}{slash}",
    }  # fmt: skip
    done = subprocess.run(command, env={**os.environ, **values, **more}, cwd=folder, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout[-5:]) == (0, "done\n"), done.stdout + done.stderr


def test_ruby(daemon: Daemon) -> None:
    drive(daemon, ["ruby", "-I", library("resend-ruby", "ruby") / "lib", DRIVES / "drive.rb"], "/")


def test_php(daemon: Daemon) -> None:
    drive(daemon, ["php", DRIVES / "drive.php", library("resend-php", "php")], "")


def test_go(daemon: Daemon, tmp_path: Path) -> None:
    """The program becomes a part of the library's module, so that nothing has to be downloaded."""
    module = tmp_path / "module"
    shutil.copytree(library("resend-go", "go"), module)
    (module / "drive").mkdir()
    shutil.copy(DRIVES / "drive.go", module / "drive" / "main.go")
    quiet = {"GOPROXY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOCACHE": str(tmp_path / "cache")}
    drive(daemon, ["go", "run", "./drive"], "/", module, **quiet)
