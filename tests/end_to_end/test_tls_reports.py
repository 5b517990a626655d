"""A TLS report on its whole way: from our counts of yesterday over SMTP to the address that a domain's record names.

The address is one of our own, so that the report comes back to the same daemon, which reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.end_to_end.names import Names
from tests.end_to_end.rig import Daemon, free_port, rows
from tests.end_to_end.test_reports import address, domain

DAY = (datetime.now(UTC) - timedelta(minutes=10)).date() - timedelta(days=1)


@pytest.fixture
def names(tmp_path: Path) -> Iterator[Names]:
    names = Names(tmp_path / "zones.json")
    names.start()
    yield names
    names.stop()


def test_a_report_that_we_send_is_one_that_we_read(tmp_path: Path, database: str, names: Names) -> None:
    port = free_port()
    changes: dict[str, dict[str, object]] = {
        "": {"sender": "tls-reports@mailsvc.example"},
        "smtp": {"listen": {"25": f"tcp:{port}:interface=127.0.0.1"}, "self_signed": str(tmp_path / "tls")},
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{port}"}, "nameservers": [names.address]},
    }
    daemon = Daemon(tmp_path, database, changes)
    daemon.start()
    try:
        name = daemon.facts["domain"]
        assert name == "mailsvc.example"
        to, path = address(daemon), f"/domains/{domain(daemon)['id']}/reports"
        names.serve({f"_smtp._tls.{name}": {"TXT": [f'"v=TLSRPTv1; rua=mailto:{to}"']}})
        for host, result, sessions in (("mx1.mailsvc.example", "success", 40), ("mx2.mailsvc.example", "certificate-expired", 2)):
            rows(database, "INSERT INTO tls_results VALUES (%s, %s, 'sts', %s, %s, %s) RETURNING 1", DAY, name, host, result, sessions)
        daemon.stop()
        daemon.start()
        found = daemon.until(path, daemon.facts["api_key"], lambda body: body["tls"]["sessions"] > 0)
        assert {each["result"]: each["sessions"] for each in found["tls"]["results"]} == {"success": 40, "certificate-expired": 2}
        assert [each["host"] for each in found["tls"]["results"] if each["result"] != "success"] == ["mx2.mailsvc.example"]
        assert [each["name"] for each in found["reporters"]] == ["mailsvc.example"]
        assert rows(database, "SELECT tries, next_at FROM tls_reports WHERE day = %s AND domain = %s", DAY, name) == [(1, None)]
        [email] = [each for each in daemon.call("GET", "/emails").body["data"] if to in each["to"]]
        assert email["subject"] == f"Report Domain: {name}"
    finally:
        if daemon.process is not None:
            daemon.stop()
