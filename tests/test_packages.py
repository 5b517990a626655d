"""The Debian package and the container image, as far as they can be checked without building them: `make try-deb`, `make try-image`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from mailsvc.settings import loading

ROOT = Path(__file__).parents[1]
SCRIPTS = [*(ROOT / "etc/deb").iterdir(), ROOT / "etc/container/start", ROOT / "etc/guide/systemctl", ROOT / "etc/guide/certbot"]
FILE = {"base_url": "https://a.example", "smtp": {"certbot": "/etc/mailsvc/tls"}, "delivery": {"ehlo_name": "out.example.com"}}


@pytest.mark.parametrize("script", [each for each in SCRIPTS if each.name != "control"], ids=lambda path: path.name)
def test_scripts_can_be_read_by_sh_and_run(script: Path) -> None:
    assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
    assert os.access(script, os.X_OK) and script.read_text().startswith("#!/bin/sh\n")


@pytest.mark.parametrize("program", ["deb/try", "container/try", "guide/try", "guide/try-readme"])
def test_what_is_mounted_in_a_root_is_not_seen_outside(program: str) -> None:
    assert re.search(r"^[^#\n]*unshare\W+--mount|^#!/usr/bin/env -S unshare --mount ", (ROOT / "etc" / program).read_text(), re.M)


def test_the_package_has_all_units_with_their_programs() -> None:
    build = (ROOT / "etc/deb/build").read_text()
    for unit in [*(ROOT / "etc").glob("*.service"), *(ROOT / "etc").glob("*.socket")]:
        assert f" {unit.name}" in build
        assert unit.suffix == ".socket" or re.search(r"^After=", unit.read_text(), re.M)  # where the condition is put
    placeholders = set(re.findall(r"@\w+@", (ROOT / "etc/deb/control").read_text()))
    assert placeholders == set(re.findall(r"s\|(@\w+@)\|", build))


def test_commands_of_root_run_as_the_user_except_setup(tmp_path: Path) -> None:
    for name, text in {"id": "echo 0", "runuser": 'echo "runuser $*"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    wrapper = (ROOT / "etc/deb/mailsvc").read_text().replace("exec /usr/lib", "echo /usr/lib")

    def run(*words: str) -> str:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        return subprocess.run(["sh", "-s", "--", *words], input=wrapper, env=environment, capture_output=True, text=True, check=True).stdout

    assert run("queue", "list") == "runuser -u mailsvc -- /usr/lib/mailsvc/bin/mailsvc queue list\n"
    assert run("--config", "setup", "queue") == "runuser -u mailsvc -- /usr/lib/mailsvc/bin/mailsvc --config setup queue\n"
    assert run() == "runuser -u mailsvc -- /usr/lib/mailsvc/bin/mailsvc\n"
    for words in ("setup --yes", "--config x.toml setup", "--config=x.toml setup --help"):
        assert run(*words.split()) == f"/usr/lib/mailsvc/bin/mailsvc {words}\n"


def test_the_compose_file_has_settings_that_exist_and_starts_without_privileges() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    ours = services["mailsvc"]
    given = {name: str(value) for name, value in ours["environment"].items() if name.startswith("MAILSVC_")}
    settings = loading.check(FILE, given)
    assert settings.http.listen == ("tcp:8025",) and settings.smtp.certbot == Path(ours["environment"]["WAIT_FOR_CERTIFICATE"]).parent
    assert ours["read_only"] is True and ours["cap_drop"] == ["ALL"] and ours["security_opt"] == ["no-new-privileges:true"]
    assert {int(port.split(":")[0]) for port in ours["ports"]} == {int(port) for port in settings.smtp.listen}
    assert {name for name, service in services.items() if "ports" in service} == {"mailsvc", "caddy"}
    # With on-failure, Docker would not start it after the machine was restarted: it ends with 0 when the machine stops.
    assert {service["restart"] for service in services.values()} == {"unless-stopped"}
    assert not re.search(r"fsync|full_page_writes|synchronous_commit", services["postgres"]["command"])


def test_the_image_has_the_users_and_folders_that_the_compose_file_names() -> None:
    dockerfile, compose = (ROOT / "Dockerfile").read_text(), yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert "--uid 10001 " in dockerfile and "\nUSER 10001\n" in dockerfile
    mailsvc = compose["services"]["mailsvc"]
    for mounted in [each.split(":")[1] for each in mailsvc["volumes"]] + [each.split(":")[0] for each in mailsvc["tmpfs"]]:
        assert mounted == "/tmp" or re.search(rf"install -d [^&\n]*{mounted}\b", dockerfile), mounted
    command = " ".join(compose["services"]["certificate"]["command"])
    assert command.count("install -o 10001 -g 10001 -m 600") == 2


@pytest.fixture
def status() -> Iterator[list[int]]:
    """What /readyz on port 8025 of the health check answers with; the port is another one here."""
    answers = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers[0] if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    answers.append(server.server_port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield answers
    server.shutdown()
    server.server_close()


def healthy(port: int, roles: str, control: Path) -> int:
    script = (ROOT / "etc/container/health").read_text().replace("PORT = 8025", f"PORT = {port}")
    environment = {"MAILSVC_ROLES": roles, "MAILSVC_CONTROL__SOCKET": str(control)}
    return subprocess.run([sys.executable, "-"], input=script, text=True, env=environment, capture_output=True, check=False).returncode


def test_the_health_check_follows_readyz_or_the_control_socket(status: list[int], tmp_path: Path) -> None:
    port, nowhere = status[1], tmp_path / "nowhere"
    assert healthy(port, '["http"]', nowhere) == 0
    status[0] = 503
    assert healthy(port, '["http", "delivery"]', nowhere) == 1
    assert healthy(port, '["delivery"]', nowhere) == 1
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(tmp_path / "control"))
        control.listen()
        assert healthy(port, "['delivery',]", tmp_path / "control") == 0  # written as in TOML


def test_the_container_waits_for_settings_and_certificate(tmp_path: Path) -> None:
    (tmp_path / "twistd").write_text('#!/bin/sh\necho "twistd $*"\n')
    (tmp_path / "twistd").chmod(0o755)
    config, certificate = tmp_path / "mailsvc.toml", tmp_path / "fullchain.pem"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MAILSVC_CONFIG": str(config), "WAIT_FOR_CERTIFICATE": str(certificate)}
    start = ROOT / "etc/container/start"
    unset = subprocess.Popen([start], env=environment, stderr=subprocess.PIPE, text=True)
    assert unset.stderr is not None and "mailsvc is not set up. Run: docker compose run" in unset.stderr.readline()
    assert unset.poll() is None  # it waits, so that it need not end with 0 and be left alone by Docker
    unset.send_signal(signal.SIGTERM)
    assert unset.wait(10) == 143
    unset.stderr.close()
    config.touch()
    waiting = subprocess.Popen([start], env=environment, stderr=subprocess.PIPE, text=True)
    assert waiting.stderr is not None and "waiting for the certificate" in waiting.stderr.readline()
    began = time.monotonic()
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(10) == 143 and time.monotonic() - began < 1.5
    waiting.stderr.close()
    certificate.touch()
    done = subprocess.run([start], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"twistd --nodaemon --pidfile= mailsvc --config {config}\n"
