"""Delivery status notifications, parsed as receivers parse them."""

from __future__ import annotations

from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import attrs
import pytest

from mailsvc.mail import seven_bit
from mailsvc.mail.address import Mailbox
from mailsvc.mail.reports import dsn, dsn_reader, report
from mailsvc.mail.reports.dsn import NoticeRecipient, Notification

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
MAIL = "Received: by us\r\nFrom: me@example.com\r\nSubject: Grüße\r\n\r\nthe body\r\n".encode()
NOTICE = Notification(
    host="mx.example.com",
    sender=Mailbox("Mail Delivery System", "mailer-daemon", "example.com"),
    to="me@example.com",
    message_id="<1@example.com>",
    date=NOW,
    about="<0@example.com>",
    envid="QQ+1",
    arrived=NOW,
    recipients=(NoticeRecipient("a@b.example", "failed", "550 5.1.1 no such\r\nuser", NOW, "rfc822;first@b.example"),),
    message=MAIL,
)


def parsed(notice: Notification) -> Any:
    data = dsn.compose(notice)
    assert data.count(b"\r\n") == data.count(b"\n") == data.count(b"\r")
    message = message_from_bytes(data, policy=policy.default)
    assert isinstance(message, EmailMessage)
    return message


def test_a_report_has_the_standard_structure() -> None:
    message = parsed(NOTICE)
    assert message["Content-Type"].params["report-type"] == "delivery-status" and message["Auto-Submitted"] == "auto-replied"
    assert (message["From"], message["To"]) == ("Mail Delivery System <mailer-daemon@example.com>", "me@example.com")
    assert message["In-Reply-To"] == "<0@example.com>"
    assert [part.get_content_type() for part in message.get_payload()] == ["text/plain", "message/delivery-status", "text/rfc822-headers"]


def test_each_recipient_has_its_status() -> None:
    recipients = (
        *NOTICE.recipients,
        NoticeRecipient("ü@b.example", "delayed", "mx.b.example answered 451 4.7.1 later.", NOW),
        NoticeRecipient("c@b.example", "relayed", "250 ok", NOW),
    )
    about, *blocks = parsed(attrs.evolve(NOTICE, recipients=recipients)).get_payload()[1].get_payload()
    assert (about["Reporting-MTA"], about["Original-Envelope-Id"]) == ("dns; mx.example.com", "QQ+1")
    assert [block["Action"] for block in blocks] == ["failed", "delayed", "relayed"]
    assert [block["Status"] for block in blocks] == ["5.1.1", "4.7.1", "2.0.0"]
    assert blocks[0]["Original-Recipient"] == "rfc822; first@b.example"
    assert blocks[0]["Diagnostic-Code"] == "smtp; 550 5.1.1 no such user"
    assert blocks[1]["Diagnostic-Code"] is None and blocks[1]["Final-Recipient"] == "utf-8; \\x{FC}@b.example"


def test_the_status_is_in_ascii_whatever_the_remote_server_replied() -> None:
    data = dsn.compose(attrs.evolve(NOTICE, recipients=(NoticeRecipient("a@b.example", "failed", "550 5.1.1 用户 é", NOW),)))
    text, _, status = data.partition(b"Content-Type: message/delivery-status\r\n\r\n")
    assert "550 5.1.1 用户 é" in text.decode()
    assert message_from_bytes(data)["Content-Transfer-Encoding"] == "8bit"
    in_ascii = dsn.compose(attrs.evolve(NOTICE, message=b"Subject: Hi\r\n\r\n"))
    assert in_ascii.isascii() and message_from_bytes(in_ascii)["Content-Transfer-Encoding"] is None
    assert b"Diagnostic-Code: smtp; 550 5.1.1 ?? ?\r\n" in status


def test_the_reply_of_the_remote_server_is_included() -> None:
    recipients = (
        NoticeRecipient("a@b.example", "delivered", "", NOW, None, "mx.b.example"),
        NoticeRecipient("l@b.example", "expanded", "250 ok", NOW),
    )
    message = parsed(attrs.evolve(NOTICE, recipients=recipients))
    _, *blocks = message.get_payload()[1].get_payload()
    assert [(block["Action"], block["Status"], block["Remote-MTA"]) for block in blocks] == [
        ("delivered", "2.0.0", "dns; mx.b.example"),
        ("expanded", "2.0.0", None),
    ]
    assert message["Subject"] == "Your mail was delivered"


def test_addresses_are_readable_in_reports_about_smtputf8_mail() -> None:
    recipients = (
        NoticeRecipient("ü@b.example", "failed", "550 5.1.1 no", NOW, "utf-8;ö+1@b.example"),
        NoticeRecipient("a@b.example", "failed", "550 no", NOW),
    )
    notice = attrs.evolve(NOTICE, recipients=recipients, smtputf8=True, to="mé@example.com")
    data = dsn.compose(notice)
    assert "\r\nTo: <mé@example.com>\r\n".encode() in data
    assert b"Content-Type: multipart/report; report-type=global-delivery-status;" in data
    status = data.partition(b"Content-Type: message/global-delivery-status\r\nContent-Transfer-Encoding: 8bit\r\n")[2].decode()
    assert "Original-Recipient: utf-8; ö+1@b.example\r\nFinal-Recipient: utf-8; ü@b.example\r\n" in status
    assert "Final-Recipient: rfc822; a@b.example\r\n" in status
    assert b"Content-Type: message/global-headers\r\n" in data
    assert b"Content-Type: message/global\r\n" in dsn.compose(attrs.evolve(notice, full=True))
    assert b"Content-Type: text/rfc822-headers\r\n" in dsn.compose(attrs.evolve(notice, message=b"Subject: x\r\n\r\n"))
    read = dsn_reader.read(report.read(data))
    assert read is not None and [recipient.final for recipient in read.recipients] == ["ü@b.example", "a@b.example"]
    assert read.recipients[0].original == "ö+1@b.example"
    seven = dsn_reader.read(report.read(seven_bit.convert(data)))
    assert seven is not None and [(recipient.final, recipient.status) for recipient in seven.recipients] == [
        ("ü@b.example", "5.1.1"),
        ("a@b.example", "5.0.0"),
    ]


def test_only_the_requested_part_of_the_message_is_returned() -> None:
    assert b"the body" not in dsn.compose(NOTICE)
    assert "Subject: Grüße".encode() in dsn.compose(NOTICE)
    full = parsed(attrs.evolve(NOTICE, full=True)).get_payload()[2]
    assert full.get_content_type() == "message/rfc822" and full.get_payload()[0]["From"] == "me@example.com"
    relayed = attrs.evolve(NOTICE, full=True, recipients=(NoticeRecipient("c@b.example", "relayed", "250 ok", NOW),))
    assert b"the body" not in dsn.compose(relayed)


@pytest.mark.parametrize(
    ("diagnostic", "action", "status"),
    [
        ("550 no", "failed", "5.0.0"),
        ("421 4.3.2 bye", "failed", "5.0.0"),
        ("Given up.", "failed", "5.0.0"),
        ("250 2.1.5 ok", "relayed", "2.1.5"),
    ],
)
def test_status_and_action_agree(diagnostic: str, action: Any, status: str) -> None:
    assert NoticeRecipient("a@b.example", action, diagnostic, NOW).status == status


@pytest.mark.parametrize("text", ["a", "é", "邮", "😀"])
def test_long_replies_are_cut_to_the_length_of_a_line(text: str) -> None:
    recipients = (attrs.evolve(NOTICE.recipients[0], diagnostic="550 5.1.1 " + text * 2000, reporter=text * 2000),)
    data = dsn.compose(attrs.evolve(NOTICE, recipients=recipients))
    assert max(map(len, data.split(b"\r\n"))) <= 998 and (text * 200).encode() in data


def test_foreign_text_cannot_inject_lines() -> None:
    data = dsn.compose(
        attrs.evolve(
            NOTICE, about="<a>\r\nX-Evil: 1", recipients=(NoticeRecipient("a@b.example", "failed", "550 x\r\nAction: relayed", NOW),)
        )
    )
    assert b"X-Evil" not in data and b"\r\nAction: relayed" not in data
