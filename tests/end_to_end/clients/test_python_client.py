"""The official Python library against a daemon, and the mail that reaches another server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dkim
import dns.resolver
import pytest
import resend

from tests.end_to_end.clients.shop import key_of, running
from tests.end_to_end.names import Names
from tests.end_to_end.rig import Daemon
from tests.end_to_end.sink import Received, Sink

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("library")]

DOMAIN = "shop.example.org"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str, sink: Sink, names: Names) -> Iterator[Daemon]:
    yield from running(tmp_path_factory.mktemp("daemon"), module_database, sink, names)


@pytest.fixture(scope="module")
def key(daemon: Daemon, names: Names) -> str:
    return key_of(daemon, names, DOMAIN)


@pytest.fixture
def sender() -> str:
    return f"Acme <hello@{DOMAIN}>"


def arrived(sink: Sink, email_id: str) -> Received:
    """The one delivery of an email."""
    sink.wait_until(lambda mails: any(email_id in mail.message_id for mail in mails), 30)
    (found,) = [mail for mail in sink.received if email_id in mail.message_id]
    return found


def test_email_arrives_as_written(sink: Sink, sender: str) -> None:
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
    assert attachment.get_payload(decode=True) == "Zwölf Euro".encode()


def test_email_can_be_read_back(daemon: Daemon, key: str, sink: Sink, sender: str) -> None:
    sent = resend.Emails.send({"from": sender, "to": "reader@example.net", "subject": "Read me", "html": "<p>Hi</p>"})
    arrived(sink, sent["id"])
    email = daemon.until(f"/emails/{sent['id']}", key, lambda body: body["last_event"] == "delivered")
    assert email["object"] == "email"
    assert email["to"] == ["reader@example.net"]
    assert email["html"].strip() == "<p>Hi</p>"
    assert email["recipients"][0]["status"] == "delivered"
    assert resend.Emails.get(sent["id"])["subject"] == "Read me"


def test_batch_keeps_order_and_attachments(sink: Sink, sender: str) -> None:
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


def test_hundred_clients_with_one_idempotency_key_send_one_email(sink: Sink, sender: str) -> None:
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


def test_foreign_domain_is_refused_by_name(sender: str) -> None:
    with pytest.raises(resend.exceptions.ResendError) as refused:
        resend.Emails.send({"from": "me@elsewhere.example", "to": "a@example.net", "subject": "No", "text": "No"})
    assert "elsewhere.example" in str(refused.value)


def test_signatures_verify_with_the_keys_in_dns(names: Names, sink: Sink, sender: str) -> None:
    sent = resend.Emails.send({"from": sender, "to": "dkim@example.net", "subject": "Signed", "html": "<p>By two keys</p>"})
    raw = arrived(sink, sent["id"]).raw
    resolver = dns.resolver.Resolver(configure=False)
    resolver.nameservers, resolver.port = ["127.0.0.1"], names.port

    def look_up(name: bytes, timeout: int = 5) -> bytes:
        (record,) = resolver.resolve(name.decode(), "TXT")
        return b"".join(record.strings)

    algorithms = set()
    for number in (0, 1):
        verifier = dkim.DKIM(raw)
        assert verifier.verify(number, dnsfunc=look_up)
        assert verifier.domain == DOMAIN.encode()
        algorithms.add(verifier.signature_fields[b"a"])
    assert algorithms == {b"rsa-sha256", b"ed25519-sha256"}
    with pytest.raises(dkim.ValidationError):
        dkim.DKIM(raw.replace(b"two keys", b"no key at all"), minkey=1024).verify(0, dnsfunc=look_up) or _fail()


def _fail() -> None:
    raise dkim.ValidationError("the signature does not hold")
