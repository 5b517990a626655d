"""What an operator installs: a wheel that holds everything, in an environment that has nothing else, sends a mail."""

from __future__ import annotations

import configparser
import json
import os
import re
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
    missing = (files(PROJECT / "mailsvc") | files(PROJECT / "twisted")) - set(zipfile.ZipFile(built).namelist())
    assert not missing

    python = tmp_path / "venv/bin/python"
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", PROJECT / "requirements-dev.lock", built)
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
