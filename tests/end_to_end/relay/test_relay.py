"""Mail in over SMTP and out to another server, through a whole daemon."""

from __future__ import annotations

import re
import smtplib

import pytest

from tests.end_to_end.relay_rig import NUMBERS, connect, email_id, relaying
from tests.end_to_end.rig import Daemon, eventually, rows
from tests.end_to_end.sink import Sink

pytestmark = pytest.mark.contract
daemon = pytest.fixture(relaying, scope="module")


@pytest.mark.parametrize("number", NUMBERS)
def test_each_port_accepts_mail_and_the_bytes_stay_the_same(daemon: Daemon, sink: Sink, number: str) -> None:
    me = f"me@{daemon.facts['domain']}"
    head = f"From: Me <{me}>\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?= on port {number}\r\nX-Odd:  two   spaces\r\n folded\r\n"
    body = "\r\n.a dot\r\n..two\r\n \ttrailing \r\nGrüße\r\n"
    with connect(daemon, number) as client:
        client.ehlo()
        assert client.has_extn("smtputf8") and client.esmtp_features["size"] == "41943040"
        client.sendmail(me, ["a@example.net", "b@example.org"], (head + body).encode(), ["BODY=8BITMIME"])
    [mail] = sink.having(f"on port {number}\r\n")
    assert set(mail.recipients) == {"a@example.net", "b@example.org"}
    signed, ours, rest = mail.raw.partition(b"Received: by ")
    assert signed.count(b"DKIM-Signature:") == 2 and b"127.0.0.1" not in mail.raw
    assert re.match(rb"\S+ with ESMTPSA id [0-9a-f-]{36}\s+tls TLS_\w+(\s+group \w+)?; ", rest)  # 8314 §4.3
    assert (ours + rest).endswith(b"@" + daemon.facts["domain"].encode() + b">\r\n" + (head + body).encode())


def test_many_recipients_are_one_email(daemon: Daemon, sink: Sink) -> None:
    me = f"me@{daemon.facts['domain']}"
    everybody = [f"r{n}@example{n % 3}.net" for n in range(150)]
    with connect(daemon) as client:
        client.mail(me)
        assert {client.rcpt(address)[0] for address in everybody} == {250}
        code, reply = client.data(f"From: {me}\r\nTo: nobody@else.example\r\nBcc: hidden@example.net\r\nSubject: to many\r\n\r\nx\r\n")
    assert code == 250
    email = daemon.until(f"/emails/{email_id(reply)}", daemon.facts["api_key"], lambda body: body["last_event"] == "delivered")
    daemon.until(
        f"/emails/{email_id(reply)}", daemon.facts["api_key"], lambda body: all(r["status"] == "delivered" for r in body["recipients"])
    )
    assert [r["address"] for r in email["recipients"]] == everybody
    mails = [mail for mail in sink.received if b"to many" in mail.raw]
    assert sorted(address for mail in mails for address in mail.recipients) == sorted(everybody)
    assert all(b"hidden@" not in mail.raw and mail.message["Bcc"] is None for mail in mails)


def test_an_idempotency_key_returns_the_first_email(daemon: Daemon, sink: Sink) -> None:
    me = f"me@{daemon.facts['domain']}"

    def send(date: str, text: str = "once", to: str = "a@example.net", header: str = "Idempotency-Key") -> tuple[int, bytes]:
        with connect(daemon) as client:
            client.mail(me)
            client.rcpt(to)
            return client.data(
                f"{header}: order/7\r\nDate: {date}\r\nMessage-ID: <{date}@x>\r\nFrom: {me}\r\nSubject: keyed\r\n\r\n{text}\r\n"
            )

    first = send("1")
    assert first[0] == 250 and send("2") == first and send("3", header="Resend-Idempotency-Key") == first
    assert send("1", text="twice")[0] == 550 and send("1", to="b@example.net")[0] == 550
    assert b"Idempotency-Key" not in sink.having("Subject: keyed")[0].raw
    with connect(daemon, "465") as client:
        client.sendmail(me, ["c@example.net"], f"From: {me}\r\nSubject: after the keyed one\r\n\r\nx\r\n")
    sink.having("after the keyed one")
    assert len(sink.having("Subject: keyed")) == 1


def test_refusals_have_the_text_of_the_api(daemon: Daemon) -> None:
    me = f"me@{daemon.facts['domain']}"
    sentence = b"5.7.1 The `elsewhere.example` domain is not verified. Please, add and verify your domain."
    with connect(daemon) as client:
        for head, wanted in (
            ("From: me@elsewhere.example\r\n", (550, sentence)),
            ("Subject: no sender\r\n", (550, b"5.7.1 The message needs a From header.")),
            (f"From: {me}\r\nFrom: {me}\r\n", (550, b"5.7.1 The message has more than one From header.")),
            (f"From: {me}\r\nno field\r\n", (550, b"5.6.0 The header has a line that is not a field.")),
        ):
            client.mail(me)
            client.rcpt("a@example.net")
            assert client.data(head + "\r\nx\r\n") == wanted
        assert client.noop()[0] == 250


def test_the_session_log_has_refusals_and_no_secrets(daemon: Daemon, module_database: str) -> None:
    with connect(daemon) as client:
        client.mail(f"me@{daemon.facts['domain']}")
        assert client.rcpt("someone@[192.0.2.1]")[0] == 550
    sql = "SELECT transcript, mails, refusals FROM receipts WHERE transcript LIKE '%%192.0.2.1%%'"
    [(transcript, mails, refusals)] = eventually(lambda: rows(module_database, sql))
    assert (mails, refusals) == (0, 1)
    assert re.search(r"^C: rcpt TO:<someone@\[192\.0\.2\.1\]>\nS: 550 5\.1\.2 ", transcript, re.IGNORECASE | re.MULTILINE)
    assert "C: AUTH PLAIN\n" in transcript
    assert daemon.facts["api_key"] not in transcript


def test_requested_dsns_are_sent(daemon: Daemon, sink: Sink) -> None:
    me = f"asks@{daemon.facts['domain']}"
    sink.refuse["gone@example.net"] = "550 5.1.1 nobody of that name"
    with connect(daemon) as client:
        client.mail(me, ["RET=HDRS", "ENVID=QQ+2B1"])
        client.rcpt("gone@example.net", ["NOTIFY=FAILURE,DELAY", "ORCPT=rfc822;first+40example.net"])
        client.rcpt("fine@example.net", ["NOTIFY=SUCCESS"])
        client.rcpt("quiet@example.net", ["NOTIFY=NEVER"])
        assert client.data(f"From: {me}\r\nSubject: please tell\r\n\r\nsecret body\r\n")[0] == 250
    [report] = [mail for mail in sink.having("Content-Type: multipart/report", 1) if me in mail.recipients]
    assert report.sender in ("", "<>")
    _text, status, returned = report.message.get_payload()  # type: ignore[misc]
    blocks = [str(block) for block in status.get_payload()]  # type: ignore[union-attr]
    assert "Original-Envelope-Id: QQ+1" in blocks[0]
    fields = {line for block in blocks[1:] for line in block.splitlines()}
    assert {"Final-Recipient: rfc822; gone@example.net", "Action: failed", "Status: 5.1.1", "Action: relayed"} <= fields
    assert "Diagnostic-Code: smtp; 550 5.1.1 nobody of that name" in fields and "Original-Recipient: rfc822; first@example.net" in fields
    assert "quiet@" not in report.raw.decode() and "please tell" in str(returned) and b"secret body" not in report.raw


def test_nothing_is_relayed_without_a_login(daemon: Daemon) -> None:
    with connect(daemon, "25", login=False) as client:
        client.mail("someone@example.org")
        for address in ("a@example.net", f"b@{daemon.facts['domain']}", "postmaster", "b-" + "a" * 48 + "@send.example.net"):
            assert client.rcpt(address)[0] == 550
    with connect(daemon, "587", login=False) as client:
        assert client.mail("someone@example.org")[0] == 530


def test_a_wrong_key_is_refused_on_every_port(daemon: Daemon) -> None:
    for number in ("25", "465"):
        with connect(daemon, number, login=False) as client, pytest.raises(smtplib.SMTPAuthenticationError) as refused:
            client.login("mailsvc", daemon.facts["api_key"].swapcase())
        assert refused.value.smtp_code == 535
