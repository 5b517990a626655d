"""Mail that the content filter sees before it is accepted, over the API and over SMTP, with a stand-in that speaks rspamd's protocol.

With MAILSVC_TEST_RSPAMD, the URL of a real rspamd, that one is asked about the first two messages instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.end_to_end.relay_rig import connect, daemon_with_relay
from tests.end_to_end.rig import Answer, Daemon, free_port, rows
from tests.end_to_end.sink import Sink
from tests.fake_rspamd import GTUBE, FakeRspamd

REAL = os.environ.get("MAILSVC_TEST_RSPAMD")


@pytest.fixture
def fake() -> Iterator[FakeRspamd]:
    with FakeRspamd() as fake:
        yield fake


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink(free_port())
    sink.start()
    yield sink
    sink.stop()


@pytest.fixture
def daemon(tmp_path: Path, database: str, sink: Sink, fake: FakeRspamd) -> Iterator[Daemon]:
    daemon = daemon_with_relay(tmp_path, database, sink.port)
    changes = {**daemon.changes, "content_filter": {"url": REAL or fake.url, "seconds": 5}}
    daemon = attrs.evolve(daemon, changes=changes)
    daemon.start()
    yield daemon
    assert daemon.stop() == 0


def post(daemon: Daemon, text: str, **more: object) -> Answer:
    mail = {"from": f"shop@{daemon.facts['domain']}", "to": "a@example.net", "subject": "Hi", "text": text, **more}
    return daemon.call("POST", "/emails", mail)


def over_smtp(daemon: Daemon, text: str) -> tuple[int, bytes]:
    """The reply to the message."""
    client = connect(daemon)
    try:
        sender = f"shop@{daemon.facts['domain']}"
        client.mail(sender)
        client.rcpt("b@example.net")
        return client.data(f"From: {sender}\r\nTo: b@example.net\r\nSubject: Hi\r\n\r\n{text}\r\n")
    finally:
        client.close()


def test_what_the_filter_refuses_is_never_accepted(daemon: Daemon, sink: Sink, fake: FakeRspamd, database: str) -> None:
    good = post(daemon, "Your order has shipped.")
    assert good.status == 200, good
    refused = post(daemon, GTUBE)
    assert (refused.status, refused.body["name"]) == (422, "validation_error")
    assert refused.body["message"].startswith("The content filter refused this email. Gtube pattern. Its score is 15 of 15")
    code, text = over_smtp(daemon, GTUBE)
    assert code == 550 and text.startswith(b"5.7.1 The content filter refused this email. Gtube pattern."), text
    assert over_smtp(daemon, "Your order has shipped.")[0] == 250
    assert rows(database, "SELECT count(*) FROM emails") == [(2,)]
    sink.wait_until(lambda received: len(received) == 2, 10)
    if REAL:
        return
    first, _, third, _ = [headers for headers, _ in fake.asked]
    assert (first["Queue-Id"], first["Rcpt"], first["Ip"]) == ([good.body["id"]], ["<a@example.net>"], ["127.0.0.1"])
    assert first["User"] == third["User"] == [daemon.facts["account_id"]]
    assert (third["Rcpt"], third["Ip"]) == (["<b@example.net>"], ["127.0.0.1"])

    later = post(daemon, "x", headers={"X-Test-Action": "soft reject"})
    assert (later.status, later.body["name"], later.headers["Retry-After"]) == (503, "service_unavailable", "60")
    marked = post(daemon, "x", headers={"X-Test-Action": "add header"})
    assert marked.status == 200
    fake.stop()
    away = post(daemon, "Your order has shipped.")
    assert (away.status, away.body["message"]) == (503, "The content filter is not available. Send the email again later.")
    code, text = over_smtp(daemon, "Your order has shipped.")
    assert (code, text[:5]) == (451, b"4.7.1")
    assert daemon.log.count("The content filter is not available") == 1


def test_what_the_filter_refuses_is_not_sent_as_a_broadcast(daemon: Daemon, sink: Sink, fake: FakeRspamd, database: str) -> None:
    segment = daemon.call("POST", "/segments", {"name": "All"}).body["id"]
    daemon.call("POST", "/contacts", {"email": "ada@example.net", "first_name": "Ada", "segments": [segment]})
    content = {"segment_id": segment, "from": f"news@{daemon.facts['domain']}", "subject": "Hi {{{FIRST_NAME}}}", "send": True}
    refused = daemon.call("POST", "/broadcasts", {**content, "text": GTUBE}).body["id"]
    found = daemon.until(f"/broadcasts/{refused}", daemon.facts["api_key"], lambda body: body["status"] == "failed")
    assert found["progress"]["reason"].startswith("The content filter refused this email. Gtube pattern. Its score is 15 of 15")
    good = daemon.call("POST", "/broadcasts", {**content, "text": "Your order has shipped."}).body["id"]
    daemon.until(f"/broadcasts/{good}", daemon.facts["api_key"], lambda body: body["status"] == "sent")
    sink.wait_until(lambda received: len(received) == 1, 10)
    assert rows(database, "SELECT count(*) FROM emails") == [(1,)]
    if not REAL:
        assert [headers["Rcpt"] for headers, _ in fake.asked] == [["<ada@example.net>"]] * 2
        assert b"Subject: Hi Ada" in fake.asked[0][1]
