"""What an operator installs: a wheel that holds everything, in an environment that has nothing else, sends a mail."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mailsvc.dashboard.files import PACKAGES
from tests.end_to_end.rig import PROJECT, Daemon, free_port
from tests.end_to_end.visitor import Visitor


def run(*command: str | Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=280, check=False, env=environment, cwd=PROJECT
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def wheel(folder: Path) -> Path:
    """As `make wheel` does it."""
    run(PROJECT / "etc/wheel", sys.executable, folder)
    [built] = folder.glob("*.whl")
    return built


def files(folder: Path) -> set[str]:
    found = {path.relative_to(PROJECT) for path in folder.rglob("*") if path.is_file()}
    return {str(path) for path in found if "__pycache__" not in path.parts and path.name != "dropin.cache"}


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment_sends_a_mail(tmp_path: Path, database: str) -> None:
    built = wheel(tmp_path)
    packed = zipfile.ZipFile(built).namelist()
    missing = (files(PROJECT / "mailsvc") | files(PROJECT / "twisted")) - set(packed)
    assert not missing
    assert any(name.endswith("/share/man/man1/mailsvc.1") for name in packed)

    python = tmp_path / "venv/bin/python"
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--require-hashes", "--requirement", PROJECT / "requirements.lock")
    run(*pip, "--no-deps", built)
    run(python, "-m", "pip", "check")
    assert run(python.with_name("mailsvc"), "--version").startswith("mailsvc, version ")

    home, inbox = tmp_path / "home", free_port()
    home.mkdir()
    changes: dict[str, dict[str, object]] = {
        "sandbox": {"listen": [f"tcp:{inbox}:interface=127.0.0.1"]},
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{inbox}"}},
    }
    daemon = Daemon(tmp_path, database, changes, python=python, home=home, source=None)
    daemon.start()
    try:
        mail = {"from": f"a@{daemon.facts['domain']}", "to": ["ok@example.net"], "subject": "From a wheel", "text": "x"}
        sent = daemon.call("POST", "/emails", mail)
        assert sent.status == 200
        daemon.until(f"/emails/{sent.body['id']}", daemon.facts["api_key"], lambda email: email["last_event"] == "delivered")
        assert daemon.command("account", "create", "Example Ltd").strip()
        examined = json.loads(daemon._run(("doctor", "--json", "--probe", "localhost", "--dnsbl", "list.invalid")).stdout)
        well = {each["check"] for each in examined if each["state"] == "ok"}
        assert {"encryption key", "processes", "customers", "clock", "control socket", "dashboard"} <= well
        page = Visitor(daemon).get("/dashboard/sign-in").text
        found = re.search(r'src="([^"]+/htmx\.min\.js)"', page)
        assert found is not None and Visitor(daemon).get(found[1]).text == (PACKAGES / "htmx.min.js").read_text()
    finally:
        assert daemon.stop() == 0


@pytest.mark.slow
def test_the_same_commit_gives_the_same_wheel(tmp_path: Path) -> None:
    first = wheel(tmp_path / "first")
    (copy := tmp_path / "copy").mkdir()
    for name in ("mailsvc", "twisted", "etc"):
        shutil.copytree(PROJECT / name, copy / name)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "requirements.lock"):
        shutil.copyfile(PROJECT / name, copy / name)
    (copy / "setup.cfg").chmod(0o600)
    commit = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=PROJECT, capture_output=True, text=True, check=False)
    date = commit.stdout.strip() or "315532800"  # as in etc/wheel
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"SOURCE_DATE_EPOCH": date}
    done = subprocess.run([copy / "etc/wheel", sys.executable, tmp_path / "second"], cwd=copy, env=environment, check=False, umask=0o077)
    assert done.returncode == 0
    for path in first.parent.iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name
    [bill] = first.parent.glob("*.cdx.json")
    components = {each["name"]: each for each in json.loads(bill.read_text())["components"]}
    assert {"twisted", "htmx.org", "uplot"} <= components.keys() and len(components["twisted"]["hashes"]) >= 2


def test_the_unit_runs_what_the_wheel_installs_without_privileges() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names as they stand
    unit.read(PROJECT / "etc/mailsvc.service")
    service = unit["Service"]
    assert service["ExecStart"].split()[0].endswith("/bin/twistd") and " mailsvc --config " in service["ExecStart"]
    assert service["User"] not in ("", "root")
    assert service["AmbientCapabilities"] == service["CapabilityBoundingSet"] == "CAP_NET_BIND_SERVICE"
    assert {service[name] for name in ("NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectHome")} == {"yes"}
    assert service["ProtectSystem"] == "strict"
