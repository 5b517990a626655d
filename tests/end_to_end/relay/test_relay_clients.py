"""Common mail programs, each through every port that it supports: swaks, nodemailer, and a Postfix with mailsvc as its smarthost."""

from __future__ import annotations

import json
import os
import shutil
import smtplib
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.clients.node import LIBRARIES, WHY_NOT, environment
from tests.end_to_end.postfix import Postfix, missing
from tests.end_to_end.relay_rig import IMPLICIT, NUMBERS, relaying
from tests.end_to_end.rig import Daemon
from tests.end_to_end.sink import Sink

daemon = pytest.fixture(relaying, scope="module")
REQUIRED = os.environ.get("MAILSVC_TEST_CLIENTS") == "required"  # then what is missing is a failure


def needs(what: str | None) -> None:
    if what is not None:
        assert not REQUIRED, what
        pytest.skip(f"{what}; .ci/run installs it")


@pytest.mark.parametrize("number", NUMBERS)
def test_swaks(daemon: Daemon, sink: Sink, number: str) -> None:
    needs(None if shutil.which("swaks") else "swaks is not installed")
    facts = daemon.facts
    done = subprocess.run(
        [
            "swaks", "--server", "127.0.0.1", "--port", str(facts["smtp"][number]),
            "--tls-on-connect" if number in IMPLICIT else "--tls",
            "--auth", "LOGIN" if number == "587" else "PLAIN", "--auth-user", facts["smtp_username"], "--auth-password", facts["api_key"],
            "--from", f"me@{facts['domain']}", "--to", "a@example.net,b@example.net", "--header", f"Subject: swaks on {number}.",
        ],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [mail] = sink.having(f"Subject: swaks on {number}.")
    assert set(mail.recipients) == {"a@example.net", "b@example.net"}


def test_nodemailer(daemon: Daemon, sink: Sink) -> None:
    needs(None if (LIBRARIES / "node_modules/nodemailer").exists() else WHY_NOT)
    facts = daemon.facts
    given = {
        "modules": str(LIBRARIES / "node_modules"), "ports": facts["smtp"], "user": facts["smtp_username"], "password": facts["api_key"],
        "from": f"me@{facts['domain']}",
    }  # fmt: skip
    script = Path(__file__).with_name("nodemailer.mjs")
    done = subprocess.run(["node", str(script), json.dumps(given)], capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("250 2.0.0 Ok: queued as ") == len(NUMBERS)
    with sink.arrived:
        assert sink.arrived.wait_for(lambda: sum("nodemailer on" in str(m.message["Subject"]) for m in sink.received) >= len(NUMBERS), 60)
    mails = [mail for mail in sink.received if "nodemailer on" in str(mail.message["Subject"])]
    assert {str(mail.message["Subject"]) for mail in mails} == {f"nodemailer on {number} ✓" for number in NUMBERS}
    assert all(set(mail.recipients) == {"one@example.net", "two@example.net", "three@example.net"} for mail in mails)
    assert all(next(mail.message.iter_attachments()).get_content() == b"\7" * 100_000 for mail in mails)


def test_postfix_with_mailsvc_as_smarthost(daemon: Daemon, sink: Sink) -> None:
    needs(missing())
    facts = daemon.facts
    me = f"me@{facts['domain']}"
    postfix = Postfix(facts["smtp"], facts["smtp_username"], facts["api_key"])
    postfix.start()
    try:
        with smtplib.SMTP("127.0.0.1", postfix.port, timeout=30) as client:
            for number in NUMBERS:
                for n in range(3):
                    head = f"From: {me}\r\nSubject: postfix {n} by {number}.\r\nMessage-ID: <{n}.{number}@client.example>\r\n"
                    body = "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\nGrüße\r\n.\r\n.dot\r\n"
                    to = [f"one@p{number}.example", f"two@p{number}.example"]
                    client.sendmail(me, to, (head + body).encode(), ["BODY=8BITMIME"])
        for number in NUMBERS:
            mails = sink.having(f" by {number}.\r\n", 3)
            assert all(set(mail.recipients) == {f"one@p{number}.example", f"two@p{number}.example"} for mail in mails)
            assert all(mail.raw.endswith("\r\n\r\nGrüße\r\n.\r\n.dot\r\n".encode()) for mail in mails)
        assert postfix.logged("status=sent (250 2.0.0 Ok: queued as ", 2 * 3 * len(NUMBERS))
        assert "Untrusted TLS connection" in postfix.log or "TLS connection established" in postfix.log
    finally:
        postfix.stop()
