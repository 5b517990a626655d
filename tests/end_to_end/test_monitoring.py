"""What an operator sees of a running daemon: its figures, and whether it is ready."""

from __future__ import annotations

import base64
import http.client
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end import metrics_page
from tests.end_to_end.rig import PROJECT, Daemon, eventually, free_port

TOKEN = "a-token-for-the-monitor"


class Local(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str, port: int) -> Iterator[Daemon]:
    folder, inbox = tmp_path_factory.mktemp("watch"), free_port()
    listen = [f"unix:{folder}/metrics.sock", f"tcp:{port}:interface=127.0.0.1"]
    changes: dict[str, dict[str, object]] = {
        "metrics": {"listen": listen, "token": TOKEN},
        "smtp": {"listen": {"587": f"tcp:{free_port()}:interface=127.0.0.1"}, "self_signed": str(folder / "tls")},
        "sandbox": {"listen": [f"tcp:{inbox}:interface=127.0.0.1"]},
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{inbox}"}},
    }
    daemon = Daemon(folder, module_database, changes)
    daemon.start()
    yield daemon
    assert daemon.stop() == 0
    assert not (folder / "metrics.sock").exists()


def answer(connection: http.client.HTTPConnection, token: str | None = TOKEN) -> tuple[int, str]:
    connection.request("GET", "/metrics", headers={} if token is None else {"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    found = response.status, response.read().decode()
    connection.close()
    return found


def figures(daemon: Daemon) -> dict[str, float]:
    status, text = answer(Local(daemon.folder / "metrics.sock"))
    assert status == 200
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))}


def test_only_its_owner_opens_the_socket_and_tcp_needs_the_token(daemon: Daemon, port: int) -> None:
    assert stat.S_IMODE((daemon.folder / "metrics.sock").stat().st_mode) == 0o600
    assert answer(http.client.HTTPConnection("127.0.0.1", port))[0] == 200
    for token in (None, "another"):
        status, text = answer(http.client.HTTPConnection("127.0.0.1", port), token)
        assert status == 401 and "mailsvc_" not in text


def test_a_mail_is_counted_from_its_acceptance_to_its_delivery(daemon: Daemon) -> None:
    mail = {"from": f"a@{daemon.facts['domain']}", "to": ["ok@example.net", "bounced@example.net"], "subject": "Hi", "text": "x"}
    before = figures(daemon)
    assert daemon.call("POST", "/emails", mail).status == 200
    delivered, bounced = (f'mailsvc_deliveries_total{{outcome="{each}"}}' for each in ("delivered", "bounced"))
    deadline = time.monotonic() + 20
    while (now := figures(daemon))[delivered] + now[bounced] < before[delivered] + before[bounced] + 2:
        assert time.monotonic() < deadline, now
        time.sleep(0.05)  # another process: it has to be polled
    assert now['mailsvc_accepted_total{source="api"}'] == before['mailsvc_accepted_total{source="api"}'] + 1
    assert now[delivered] == before[delivered] + 1 and now[bounced] == before[bounced] + 1
    assert now["mailsvc_queue_unexplained"] == 0 and now["mailsvc_leases"] == 0
    assert now['mailsvc_commit_items_total{batch="accept"}'] >= 1
    assert now["mailsvc_pool_statements_total"] > before["mailsvc_pool_statements_total"]
    assert now['mailsvc_processes{role="delivery"}'] == 1


@pytest.mark.parametrize("file", ["alerts.yml", "monitoring/alerts_test.yml", "monitoring/growth_test.yml", "monitoring/grafana.json"])
def test_alerts_and_the_dashboard_ask_for_figures_that_exist(daemon: Daemon, file: str) -> None:
    rules = (PROJECT / "etc" / file).read_text("utf-8")
    used = set(re.findall(r"mailsvc_\w+", rules))
    _, text = answer(Local(daemon.folder / "metrics.sock"))
    typed = set(re.findall(r"^# TYPE (mailsvc_\w+) (?:gauge|counter)$", text, re.MULTILINE))
    typed |= {f"{name}_bucket" for name in re.findall(r"^# TYPE (mailsvc_\w+) histogram$", text, re.MULTILINE)}
    assert used and not used - typed


def test_the_reference_lists_every_metric(daemon: Daemon) -> None:
    """To write the page again: WRITE=1 in the environment."""
    page, text = PROJECT / "docs/metrics.md", answer(Local(daemon.folder / "metrics.sock"))[1]
    if os.environ.get("WRITE"):
        page.write_text(metrics_page.page(text), "utf-8")
    assert page.read_text("utf-8") == metrics_page.page(text)


def test_the_page_shows_figures_that_exist(daemon: Daemon) -> None:
    source = (PROJECT / "mailsvc/monitoring/overview.py").read_text("utf-8")
    used = {f"mailsvc_{name}" for name in re.findall(r"""\b(?:of|each|total|of_each)\((?:values, )?["'](\w+)""", source)}
    _, text = answer(Local(daemon.folder / "metrics.sock"))
    assert len(used) > 20 and not used - set(re.findall(r"^# TYPE (mailsvc_\w+)", text, re.MULTILINE))


def test_the_endpoint_serves_metrics_alone(daemon: Daemon, port: int) -> None:
    """The figures for people are in the console."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    shown = base64.b64encode(f"operator:{TOKEN}".encode()).decode()
    connection.request("GET", "/", headers={"Authorization": f"Basic {shown}"})
    response = connection.getresponse()
    assert (response.status, response.read()) == (404, b"The metrics are at /metrics.\n")
    connection.close()


def test_the_log_names_emails_and_no_addresses(daemon: Daemon) -> None:
    mail = {"from": f"a@{daemon.facts['domain']}", "to": ["bounced@named.example"], "subject": "Hi", "text": "x"}
    email_id = daemon.call("POST", "/emails", mail).body["id"]
    eventually(lambda: re.findall(rf"{email_id}: 1 bounced at (\S+)", daemon.log))
    assert "bounced@" not in daemon.log


def test_readiness_reports_each_check(daemon: Daemon) -> None:
    ready = daemon.call("GET", "/readyz")
    assert ready.body == {
        "status": "ready",
        "checks": dict.fromkeys(("start", "database", "heartbeat", "clock", "ledger", "connections", "keys", "regions"), "ok"),
    }
