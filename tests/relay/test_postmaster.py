"""The trace of mail that is forwarded to the operator."""

from __future__ import annotations

from datetime import UTC, datetime
from email import message_from_bytes

import pytest

from mailsvc.mail.address import Mailbox
from mailsvc.relay.inbound import PostmasterMail
from mailsvc.relay.postmaster import received, wrapped

DATE = datetime(2026, 11, 28, 13, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("client", "name", "origin"),
    [
        ("192.0.2.1", "mx.other.example", "mx.other.example ([192.0.2.1])"),
        ("2001:db8::1", "[IPv6:2001:db8::1]", "[IPv6:2001:db8::1] ([IPv6:2001:db8::1])"),
        ("192.0.2.1", "x(;by", "unknown ([192.0.2.1])"),  # would be read as syntax of the field
        ("192.0.2.1", "", "unknown ([192.0.2.1])"),
        ("192.0.2.1", "a" * 255, "a" * 255 + " ([192.0.2.1])"),
    ],
)
def test_forwarded_mail_says_where_it_came_from(client: str, name: str, origin: str) -> None:
    mail = PostmasterMail("who@example.org", ("abuse@mx.test",), client, name, "ESMTPS", b"Subject: help\r\n\r\nx\r\n")
    boxes = Mailbox("", "postmaster", "example.com"), Mailbox("", "ops", "example.com")
    message = wrapped(mail, received(mail, "mx.test", DATE), *boxes, "<1@example.com>", DATE)
    parsed = message_from_bytes(message)
    assert parsed["Content-Transfer-Encoding"] == "8bit"
    _note, attached = parsed.get_payload()
    [inner] = attached.get_payload()  # type: ignore[union-attr]
    assert " ".join(inner["Received"].split()) == f"from {origin} by mx.test with ESMTPS; Sat, 28 Nov 2026 13:00:00 +0000"
    assert inner["Subject"] == "help"
