"""The official Python client against a daemon, and the mail that reaches another server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dkim
import pytest
import resend

from tests.whole.rig import Daemon, free_port
from tests.whole.sink import Sink

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    sink = Sink(free_port())
    sink.start()
    yield sink
    sink.stop()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str, sink: Sink) -> Iterator[Daemon]:
    routes = {"*": f"smtp://127.0.0.1:{sink.port}"}
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), module_database, {"delivery": {"routes": routes}})
    daemon.start()
    yield daemon
    assert daemon.stop() == 0


@pytest.fixture(autouse=True)
def client(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resend, "api_url", f"http://127.0.0.1:{daemon.port}")
    monkeypatch.setattr(resend, "api_key", daemon.facts["api_key"])


@pytest.fixture
def sender(daemon: Daemon) -> str:
    return f"Acme <hello@{daemon.facts['domain']}>"


def arrived(sink: Sink, email_id: str) -> Any:
    """The one delivery of an email."""
    sink.wait_for(email_id)
    found = [m for m in sink.received if email_id in m.message_id]
    assert len(found) == 1
    return found[0]


def test_one_email_arrives_as_it_was_written(sink: Sink, sender: str) -> None:
    sent = resend.Emails.send(
        {
            "from": sender,
            "to": ["Zoë <zoe@example.net>"],
            "cc": "carbon@example.net",
            "bcc": ["blind@example.net"],
            "reply_to": "answers@example.net",
            "subject": "Grüße 👋",
            "html": "<p>Hello <b>you</b></p>",
            "headers": {"X-Entity-Ref-ID": "42"},
            "tags": [{"name": "category", "value": "welcome"}],
            "attachments": [{"filename": "Rechnung €.txt", "content": list("Zwölf Euro".encode())}],
        }
    )
    mail = arrived(sink, sent["id"])
    assert set(mail.recipients) == {"zoe@example.net", "carbon@example.net", "blind@example.net"}
    message = mail.message
    assert message["Subject"] == "Grüße 👋"
    assert message["Reply-To"] == "answers@example.net"
    assert message["X-Entity-Ref-ID"] == "42"
    assert message["Bcc"] is None and b"blind@" not in mail.raw
    html, text = message.get_body(("html",)), message.get_body(("plain",))
    assert html is not None and "<b>you</b>" in html.get_content()
    assert text is not None and "Hello you" in text.get_content()
    (attachment,) = message.iter_attachments()
    assert attachment.get_filename() == "Rechnung €.txt"
    assert attachment.get_content().strip() == "Zwölf Euro"


def test_the_email_can_be_read_back(daemon: Daemon, sink: Sink, sender: str) -> None:
    sent = resend.Emails.send({"from": sender, "to": "reader@example.net", "subject": "Read me", "html": "<p>Hi</p>"})
    arrived(sink, sent["id"])
    email = daemon.until("GET", f"/emails/{sent['id']}", lambda body: body["last_event"] == "delivered")
    assert email["object"] == "email"
    assert email["to"] == ["reader@example.net"]
    assert email["html"].strip() == "<p>Hi</p>"
    assert email["recipients"][0]["status"] == "delivered"
    assert resend.Emails.get(sent["id"])["subject"] == "Read me"


def test_a_batch_keeps_its_order_and_its_attachments(sink: Sink, sender: str) -> None:
    emails: list[Any] = [
        {
            "from": sender,
            "to": [f"batch{n}@example.net"],
            "subject": f"Batch {n}",
            "text": "One of three.",
            "attachments": [{"filename": "n.bin", "content": [n]}],
        }
        for n in range(3)
    ]
    sent = resend.Batch.send(emails)
    mails = [arrived(sink, item["id"]) for item in sent["data"]]
    assert [m.message["Subject"] for m in mails] == ["Batch 0", "Batch 1", "Batch 2"]
    assert [next(m.message.iter_attachments()).get_content() for m in mails] == [b"\0", b"\1", b"\2"]


def test_a_hundred_clients_with_one_key_send_one_email(sink: Sink, sender: str) -> None:
    email: Any = {"from": sender, "to": "once@example.net", "subject": "Once", "text": "Only once."}

    def send(_: int) -> str | None:
        try:
            return str(resend.Emails.send(email, {"idempotency_key": "welcome-user/100"})["id"])
        except resend.exceptions.ResendError as error:
            assert error.error_type == "concurrent_idempotent_requests", error
            return None

    with ThreadPoolExecutor(32) as pool:
        ids = set(pool.map(send, range(100))) - {None}
    assert len(ids) == 1
    arrived(sink, str(ids.pop()))
    again = resend.Emails.send(email, {"idempotency_key": "welcome-user/100"})
    assert again["id"] in {m.message_id.strip("<>").partition("@")[0] for m in sink.received}
    with pytest.raises(resend.exceptions.ResendError) as other:
        resend.Emails.send({**email, "subject": "Twice"}, {"idempotency_key": "welcome-user/100"})
    assert other.value.error_type == "invalid_idempotent_request"


def test_a_foreign_domain_is_refused_by_name(sender: str) -> None:
    with pytest.raises(resend.exceptions.ResendError) as refused:
        resend.Emails.send({"from": "me@elsewhere.example", "to": "a@example.net", "subject": "No", "text": "No"})
    assert "elsewhere.example" in str(refused.value)


def test_signatures_verify(daemon: Daemon, sink: Sink, sender: str) -> None:
    sent = resend.Emails.send({"from": sender, "to": "dkim@example.net", "subject": "Signed", "html": "<p>By two keys</p>"})
    raw = arrived(sink, sent["id"]).raw
    records = daemon.dkim_records()
    assert raw.count(b"DKIM-Signature:") == 2

    def dns(name: bytes, timeout: int = 5) -> bytes | None:
        return records.get(name.decode().rstrip("."), "").encode() or None

    verifier = dkim.DKIM(raw)
    assert verifier.verify(0, dnsfunc=dns) and verifier.verify(1, dnsfunc=dns)
    assert {s[1] for s in map(_algorithm, (0, 1), [raw] * 2)} == {b"rsa-sha256", b"ed25519-sha256"}


def _algorithm(index: int, raw: bytes) -> tuple[int, bytes]:
    field = [v for k, v in dkim.rfc822_parse(raw)[0] if k.lower() == b"dkim-signature"][index]
    return index, dkim.util.parse_tag_value(field)[b"a"]
