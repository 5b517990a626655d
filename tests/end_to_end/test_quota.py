"""Fifty clients of two processes share one plan, over the API and SMTP; nothing above it is accepted, and little of it is left."""

from __future__ import annotations

import json
import smtplib
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.rig import Daemon, eventually, rows

LIMIT, CLIENTS = 300, 50
BLOCK = LIMIT // 16


@pytest.fixture
def daemons(tmp_path: Path, database: str) -> Iterator[list[Daemon]]:
    """Two processes on one Postgres that let mail in."""
    plans = tmp_path / "plans.toml"
    plans.write_text(f"[shop]\nemails = {LIMIT}\n")
    created = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        changes = {
            "": {"roles": ["http", "smtp", "ledger"], "sender": "mailsvc <notices@mailsvc.example>"},
            "plans": {"file": str(plans)},
            "smtp": {"listen": {"587": "tcp:0:interface=127.0.0.1"}, "self_signed": str(folder / "tls")},
            "secrets": {"key_file": str(tmp_path / "secret.key")},
        }
        created.append(Daemon(folder, database, changes))
        created[-1].start()
    yield created
    for daemon in created[::-1]:
        if daemon.process is not None:
            assert daemon.stop() == 0


def test_two_processes_keep_to_one_plan(daemons: list[Daemon], database: str) -> None:
    first, second = daemons
    key, domain = first.facts["api_key"], first.facts["domain"]
    [(account,)] = rows(database, "SELECT id::text FROM accounts ORDER BY number LIMIT 1")
    assert first.command("account", "plan", account, "shop").splitlines()[1] == f"month  0 of {LIMIT} recipients"
    eventually(lambda: [(1,)] if all(d.call("GET", "/usage").body["emails"]["monthly"]["limit"] == LIMIT for d in daemons) else [])
    body = json.dumps({"from": f"a@{domain}", "to": ["a@example.net", "b@example.net"], "subject": "x", "text": "x"})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "User-Agent": "tests"}
    results: Counter[str] = Counter()
    counting = threading.Lock()

    def client(number: int) -> None:
        connection = HTTPConnection("127.0.0.1", daemons[number % 2].port, timeout=60)
        while True:
            connection.request("POST", "/emails", body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            with counting:
                results[answer.get("name", "sent")] += 1
            if response.status != 200:
                break
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [(accepted,)] = rows(database, "SELECT sum(cardinality(recipients)) FROM emails WHERE source = 'api'")
    assert accepted == 2 * results["sent"] and results == {"sent": results["sent"], "monthly_quota_exceeded": CLIENTS}
    assert 0 <= LIMIT - accepted <= 2 * BLOCK

    assert second.stop() == 0  # what it had leased and not used goes back
    port = first.facts["smtp"]["587"]
    with smtplib.SMTP("127.0.0.1", port, timeout=30) as relay:
        relay.starttls(context=ssl._create_unverified_context())
        relay.login("mailsvc", key)
        message = f"From: a@{domain}\r\nSubject: x\r\n\r\nx\r\n"

        def takes() -> list[tuple[Any, ...]]:
            try:
                return [(relay.sendmail(f"a@{domain}", ["a@example.net"], message),)]
            except smtplib.SMTPDataError:
                return []  # it uses the last answer for a moment

        for _ in range(LIMIT - accepted):
            eventually(takes)
        with pytest.raises(smtplib.SMTPDataError) as refused:
            relay.sendmail(f"a@{domain}", ["a@example.net"], message)
    assert refused.value.smtp_code == 550 and refused.value.smtp_error.startswith(b"5.7.1 You have exceeded your monthly")
    usage = first.call("GET", "/usage").body["emails"]["monthly"]
    assert (usage["used"], usage["limit"]) == (LIMIT, LIMIT)
    assert rows(database, "SELECT taken FROM quota WHERE period = 'month'") == [(LIMIT,)]
