"""The reports that other servers return: an abuse report (RFC 5965) and delivery status notifications (RFC 3464)."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

_HEAD = """\
From: {author}\r
To: <{to}>\r
Subject: {subject}\r
Date: {date}\r
Message-ID: <{kind}.{stamp}@{host}>\r
Auto-Submitted: auto-generated\r
MIME-Version: 1.0\r
Content-Type: multipart/report; report-type={kind}; boundary="{boundary}"\r
\r
--{boundary}\r
Content-Type: text/plain\r
\r
{text}\r
--{boundary}\r
Content-Type: message/{kind}\r
\r
{status}\r
--{boundary}\r
Content-Type: text/rfc822-headers\r
\r
"""


def complaint(host: str, return_path: str, recipient: str, message: bytes, now: datetime) -> bytes:
    """The recipient marked the mail as spam."""
    status = (
        f"Feedback-Type: abuse\r\nUser-Agent: mailsvc-sandbox/1\r\nVersion: 1\r\nOriginal-Mail-From: <{return_path}>\r\n"
        f"Original-Rcpt-To: <{recipient}>\r\nArrival-Date: {format_datetime(now)}\r\n"
    )
    text = "The recipient marked the email below as spam. The sandbox address `complained` always does."
    return _report("feedback-report", host, f"Feedback <feedback@{host}>", return_path, "Abuse report", text, status, message, now)


def bounce(host: str, return_path: str, recipient: str, message: bytes, now: datetime) -> bytes:
    """A server behind the one that accepted the mail refused it."""
    status = (
        f"Reporting-MTA: dns; {host}\r\n\r\nFinal-Recipient: rfc822; {recipient}\r\nAction: failed\r\nStatus: 5.1.1\r\n"
        f"Remote-MTA: dns; inner.{host}\r\nDiagnostic-Code: smtp; 550 5.1.1 This sandbox address bounces after accepting the mail\r\n"
    )
    text = "The email below could not be delivered. The sandbox address `bounced-later` always bounces after accepting the mail."
    author, subject = f"Mail Delivery System <mailer-daemon@{host}>", "Undelivered mail returned to sender"
    return _report("delivery-status", host, author, return_path, subject, text, status, message, now)


def delivery(host: str, return_path: str, recipient: str, message: bytes, now: datetime) -> bytes:
    """The mail was delivered, and its submitter requested a notification of that."""
    status = f"Reporting-MTA: dns; {host}\r\n\r\nFinal-Recipient: rfc822; {recipient}\r\nAction: delivered\r\nStatus: 2.0.0\r\n"
    text = "The email below was delivered to a sandbox mailbox. Its sender requested this notification (NOTIFY=SUCCESS)."
    author, subject = f"Mail Delivery System <mailer-daemon@{host}>", "Your mail was delivered"
    return _report("delivery-status", host, author, return_path, subject, text, status, message, now)


def _report(
    kind: str, host: str, author: str, return_path: str, subject: str, text: str, status: str, message: bytes, now: datetime
) -> bytes:
    boundary = f"=_sandbox_{int(now.timestamp() * 1000)}"
    head = _HEAD.format(
        author=author, to=return_path, subject=subject, date=format_datetime(now.astimezone(UTC)), kind=kind, host=host,
        stamp=int(now.timestamp() * 1000), boundary=boundary, text=text, status=status,
    )  # fmt: skip
    end = message.find(b"\r\n\r\n")
    fields = message if end < 0 else message[: end + 2]
    return head.encode("utf-8", "replace") + fields + f"\r\n--{boundary}--\r\n".encode()
