"""DMARC and TLS reports by other software, over SMTP on port 25 to the address in the advised record: what the API and the page show."""

from __future__ import annotations

import gzip
import re
import smtplib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mailsvc.mail.reports import attached
from tests.end_to_end.rig import Daemon, free_port
from tests.end_to_end.test_monitoring import Local, answer
from tests.end_to_end.visitor import Visitor
from tests.mail.reports.samples import mail_with, sample

YESTERDAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("reports")
    changes: dict[str, dict[str, object]] = {
        "smtp": {"listen": {"25": f"tcp:{free_port()}:interface=127.0.0.1"}, "self_signed": str(folder / "tls")},
        "metrics": {"listen": [f"unix:{folder}/metrics.sock"]},
        "delivery": {"sources": ["192.0.2.10 out1.example.com"]},
    }
    daemon = Daemon(folder, module_database, changes)
    daemon.start()
    yield daemon
    daemon.stop()


def domain(daemon: Daemon) -> Any:
    [found] = daemon.call("GET", "/domains").body["data"]
    return daemon.call("GET", f"/domains/{found['id']}").body


def address(daemon: Daemon) -> str:
    """As a receiver reads it from the advised record, once that is published."""
    [advised] = [each["value"] for each in domain(daemon)["advice"] if each["record"] == "DMARC"]
    [found] = re.findall(r"rua=mailto:([^;]+)", advised)
    return str(found)


def deliver(daemon: Daemon, to: str, message: bytes) -> tuple[int, str]:
    with smtplib.SMTP("127.0.0.1", daemon.facts["smtp"]["25"]) as client:
        client.ehlo("mx.receiver.example")
        client.mail("reports@receiver.example")
        code, text = client.rcpt(to)
        if code == 250:
            code, text = client.data(message)
        return code, text.decode()


def own(daemon: Daemon, content: bytes) -> bytes:
    """The report with this domain instead of example.com, and about yesterday."""
    text = content.decode().replace(">example.com<", f">{daemon.facts['domain']}<").replace('"example.com"', f'"{daemon.facts["domain"]}"')
    begin = int(YESTERDAY.timestamp())
    text = text.replace("1780272000", str(begin)).replace("1780358399", str(begin + 86399)).replace("2026-06-01", f"{YESTERDAY:%Y-%m-%d}")
    return gzip.compress(text.encode())


def metrics(daemon: Daemon) -> str:
    return answer(Local(daemon.folder / "metrics.sock"))[1]


def test_reports_arrive_and_are_shown(daemon: Daemon) -> None:
    to, path = address(daemon), f"/domains/{domain(daemon)['id']}/reports"
    assert to.endswith(f"@send.{daemon.facts['domain']}")
    assert daemon.call("GET", path).body["dmarc"]["messages"] == 0

    evil = attached.unpacked(sample("mail-dmarc.zip")).replace("Receiver &amp; Söhne".encode(), b"&lt;script&gt;alert(1)&lt;/script&gt;")
    assert deliver(daemon, to, mail_with(own(daemon, evil)))[0] == 250
    assert deliver(daemon, to.upper(), mail_with(own(daemon, sample("python-dmarc.xml"))))[0] == 250
    assert deliver(daemon, to, mail_with(own(daemon, sample("tlsrpt-reporter.json")), "application/tlsrpt+gzip"))[0] == 250
    assert deliver(daemon, to, mail_with(own(daemon, evil)))[0] == 250  # again: nothing changes

    found = daemon.call("GET", path).body
    assert {name: found["dmarc"][name] for name in ("messages", "passed", "failed", "own_failures", "source_count")} == {
        "messages": 152, "passed": 137, "failed": 15, "own_failures": 3, "source_count": 4,
    }  # fmt: skip
    first, second, *_ = found["dmarc"]["sources"]
    assert (first["address"], first["ours"], first["messages"], first["failed"]) == ("192.0.2.10", True, 138, 3)
    assert (second["address"], second["ours"], second["signed_by"]) == ("203.0.113.99", False, ["spam.example"])
    assert (found["tls"]["sessions"], found["tls"]["failures"]) == (5633, 303)
    assert {each["name"] for each in found["reporters"]} == {"<script>alert(1)</script>", "Example Receiver", "Example Sender"}
    assert 'mailsvc_reports_total{result="dmarc"} 2.0' in metrics(daemon)
    assert "mailsvc_reported_own_failures_total 3.0" in metrics(daemon)
    history = [each["message"] for each in domain(daemon)["history"]]
    assert any(message.endswith("reports that 3 emails sent by this service failed DMARC.") for message in history)


def test_the_page_shows_them_without_markup_of_strangers(daemon: Daemon) -> None:
    visitor = Visitor(daemon)
    visitor = Visitor(daemon)
    visitor.sign_in(daemon.facts["sign_in"])
    page = visitor.get(f"/dashboard/domains/{domain(daemon)['id']}").text
    assert "137 of 152 emails passed DMARC" in page and "3 emails sent by this service" in page
    assert "203.0.113.99" in page and "certificate-expired" in page
    assert "<script>alert(1)" not in page and "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize("days", ["0", "91", "x", "-1"])
def test_a_number_of_days_that_is_refused(daemon: Daemon, days: str) -> None:
    assert daemon.call("GET", f"/domains/{domain(daemon)['id']}/reports?days={days}").status == 422


def test_today_alone_has_nothing(daemon: Daemon) -> None:
    assert daemon.call("GET", f"/domains/{domain(daemon)['id']}/reports?days=1").body["tls"]["sessions"] == 0


def test_what_is_no_report_is_refused_in_the_session(daemon: Daemon) -> None:
    to = address(daemon)
    assert deliver(daemon, to, b"Subject: Hello\r\n\r\nIs anybody there?\r\n")[0] == 550
    assert deliver(daemon, to, mail_with(gzip.compress(bytes(attached.UNPACKED + 1))))[0] == 550
    assert deliver(daemon, "r-" + "a" * 40 + f"@send.{daemon.facts['domain']}", b"x")[0] == 550  # nobody made this address
    assert 'mailsvc_reports_total{result="unreadable"} 2.0' in metrics(daemon)
