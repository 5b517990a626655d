"""The first `make run`: a missing network, a read-only folder and a second start each get one sentence that says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.end_to_end.rig import PROJECT, Daemon, free_port

NOBODY = 65534


def sentences(*command: str, cwd: Path = PROJECT, environment: Mapping[str, str] | None = None, user: int | None = None) -> list[str]:
    """What a command that fails prints, except lines about its progress and those of make itself."""
    switched = {} if user is None or os.geteuid() != 0 else {"user": user, "group": user, "extra_groups": []}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "NPM_", "npm_", "MAKE"))}
    done = subprocess.run(
        command, cwd=cwd, env={**inherited, **(environment or {})}, capture_output=True, text=True, timeout=120, check=False, **switched
    )  # type: ignore[call-overload]
    assert done.returncode != 0, done
    printed = (done.stdout + done.stderr).splitlines()
    return [line for line in printed if not line.startswith(("mailsvc: installing", "make"))]


@pytest.fixture
def environment_folder(tmp_path: Path) -> Path:
    """The programs of a virtual environment, whose pip installs nothing."""
    programs = tmp_path / "venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nPIP_DRY_RUN=1 exec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    return programs.parent


def test_python_packages_that_cannot_be_downloaded(environment_folder: Path) -> None:
    unreachable = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"http://127.0.0.1:{free_port()}/simple", "PIP_RETRIES": "1"}
    [sentence] = sentences("etc/install", str(environment_folder), "embedded", environment=unreachable)
    assert sentence.startswith("mailsvc: Python packages could not be downloaded: connect this machine to the internet")
    assert "run the same command again; the network is needed only once." in sentence


@pytest.mark.skipif(shutil.which(str(Path(sys.executable).with_name("npm"))) is None, reason="npm is not in the tests' environment")
def test_npm_packages_that_cannot_be_downloaded(environment_folder: Path) -> None:
    for name in ("npm", "node"):
        (environment_folder / "bin" / name).symlink_to(Path(sys.executable).with_name(name))
    unreachable = {"NPM_CONFIG_REGISTRY": f"http://127.0.0.1:{free_port()}", "NPM_CONFIG_FETCH_RETRIES": "0"}
    [sentence] = sentences("etc/packages", str(environment_folder), environment=unreachable)
    assert sentence.startswith("mailsvc: the npm packages of the dashboard could not be downloaded: connect this machine")


def test_other_failures_show_what_happened(tmp_path: Path) -> None:
    output = sentences("etc/download", "packages", "sh", "-c", "echo it broke; exit 3")
    assert output == ["it broke", "mailsvc: packages could not be installed; see the error above. Run the same command again to retry."]


@pytest.fixture
def read_only() -> Iterator[Path]:
    """What `make run` begins with, in a folder that only its owner may change."""
    folder = Path(tempfile.mkdtemp(prefix="mailsvc-"))
    try:
        for name in (
            "Makefile",
            "setup.cfg",
            "requirements-dev.lock",
            "etc",
            "mailsvc/dashboard/package.json",
            "mailsvc/dashboard/package-lock.json",
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (PROJECT / name).is_dir() else shutil.copy)(PROJECT / name, folder / name)
        folder.chmod(0o555)
        yield folder
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_read_only_folder(read_only: Path) -> None:
    [sentence] = sentences("make", "run", cwd=read_only, user=NOBODY)
    assert sentence.startswith(f"mailsvc: the folder {read_only} is read-only for the user ")
    assert sentence.endswith(": copy the project to a folder of your own, and run make there.")


def test_a_second_start_says_where_the_first_one_listens(tmp_path: Path, database: str) -> None:
    daemon = Daemon(tmp_path, database)
    daemon.start()
    try:
        assert daemon.process is not None
        expected = f"mailsvc is already running at http://127.0.0.1:{daemon.port}. To stop it: kill {daemon.process.pid}"
        done = subprocess.run(
            daemon._command(), cwd=PROJECT, env=daemon.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{expected}\n")
        assert daemon.call("GET", "/readyz").status == 200
        daemon.kill()
        daemon.start()  # a killed one leaves nothing that would keep it from starting
    finally:
        assert daemon.stop() == 0


def test_the_fastest_python_is_used(tmp_path: Path) -> None:
    """Three programs stand for builds of different speed: what the loop takes is given, the rest is the Python of the tests.

    The machine is slow the first time that the fastest one is measured.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    slow_once = 'if [ -e "$0.slow" ]; then echo 100; else touch "$0.slow"; echo 1000; fi'
    for name, measured in (("python3.13", "echo 200"), ("python3.12", slow_once), ("python3.11", "echo 95")):
        answers = f'*perf_counter*) {measured} ;; *realpath*) echo "$0" ;; *) exec "{sys.executable}" "$@" ;;'
        (programs / name).write_text(f'#!/bin/sh\ncase "$*" in {answers} esac\n')
        (programs / name).chmod(0o755)
    folder, search = tmp_path / "venv", f"{programs}:/usr/bin:/bin"
    done = subprocess.run(
        ["etc/environment", str(folder)], cwd=PROJECT, env={"PATH": search}, capture_output=True, text=True, timeout=120, check=True
    )
    assert f"({programs}/python3.12), the fastest of " in done.stderr
    assert (folder / "bin/python").exists()
