"""Delivery status notifications (RFC 3464, inside RFC 6522 reports): the outcome of an email, reported to its sender.

A notification about an SMTPUTF8 email uses the forms of RFC 6533: addresses are in UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Literal

import attrs

from mailsvc.mail import header
from mailsvc.mail.address import Mailbox
from mailsvc.mail.compose import rfc5322_date
from mailsvc.mail.xtext import UTF8, escaped

Action = Literal["failed", "delayed", "relayed", "delivered", "expanded"]

_SUBJECTS: dict[Action, str] = {
    "failed": "Your mail could not be delivered",
    "delayed": "Your mail is delayed",
    "relayed": "Your mail was accepted by the recipient's server",
    "delivered": "Your mail was delivered",
    "expanded": "Your mail was delivered to a mailing list",
}
_SENTENCES: dict[Action, str] = {
    "failed": "It could not be delivered to the following recipients, and delivery will not be retried:",
    "delayed": "It could not be delivered to the following recipients yet. Delivery will be retried, and you don't need to send it again:",
    "relayed": "It was accepted by the servers of the following recipients, which may not send any further notification:",
    "delivered": "It was delivered to the following recipients:",
    "expanded": "It was delivered to the following mailing lists, which forward it to their members:",
}
_CLASSES: dict[Action, str] = {"failed": "5", "delayed": "4", "relayed": "2", "delivered": "2", "expanded": "2"}
_ENHANCED = re.compile(r"(?:\d{3}[ -])?([245]\.\d{1,3}\.\d{1,3})(?:\s|$)")


@attrs.frozen
class NoticeRecipient:
    """The outcome for one recipient. `diagnostic` is a reply or our own explanation. `original` is the ORCPT: a type and an address.

    `reporter` is the server that replied or reported the outcome, "" if this one decided it.
    """

    address: str
    action: Action
    diagnostic: str
    at: datetime
    original: str | None = None
    reporter: str = ""

    @property
    def status(self) -> str:
        """The status code (3463): that of the reply if it agrees with the outcome, otherwise only the class."""
        first = _CLASSES[self.action]
        found = _ENHANCED.match(self.diagnostic) or re.search(r"answered \d{3} ([245]\.\d{1,3}\.\d{1,3})\s", self.diagnostic)
        return found[1] if found and found[1][0] == first else f"{first}.0.0"


@attrs.frozen
class Notification:
    """A notification about a mail. `full`: return all of `message`, not only its header (RET).

    `smtputf8`: the mail was submitted with SMTPUTF8, so its sender understands the formats for non-ASCII addresses.
    """

    host: str  # reports
    sender: Mailbox
    to: str
    message_id: str
    date: datetime
    about: str  # the Message-ID of the mail
    envid: str | None
    arrived: datetime
    recipients: tuple[NoticeRecipient, ...]
    message: bytes = attrs.field(repr=False)
    full: bool = False
    smtputf8: bool = False


def is_reply(diagnostic: str) -> bool:
    """Whether it is a reply of a server, and not our own explanation."""
    return re.match(r"[245]\d\d[ -]", diagnostic) is not None


def compose(notice: Notification) -> bytes:
    """Composes the message. It is 8-bit if the returned mail is."""
    boundary = "=_d" + blake2b(notice.message_id.encode(), digest_size=12).hexdigest()
    returned_type, returned = _returned(notice)
    parts = (
        ("text/plain; charset=utf-8", _explanation(notice)),
        (f"message/{_kind(notice)}", _status(notice)),
        (returned_type, returned),
    )
    pieces = [_head(notice, boundary), _encoding(*(body for _, body in parts))]
    for content_type, body in parts:
        pieces += [f"\r\n--{boundary}\r\nContent-Type: {content_type}\r\n".encode("ascii"), _encoding(body), b"\r\n", body]
    pieces.append(f"\r\n--{boundary}--\r\n".encode("ascii"))
    return b"".join(pieces)


def _encoding(*bodies: bytes) -> bytes:
    """A part is 8-bit if one of those that it contains is (2045 §6.4)."""
    return b"" if all(body.isascii() for body in bodies) else b"Content-Transfer-Encoding: 8bit\r\n"


def _worst(recipients: Sequence[NoticeRecipient]) -> Action:
    return next(action for action in _CLASSES if any(recipient.action == action for recipient in recipients))


def _kind(notice: Notification) -> str:
    return "global-delivery-status" if notice.smtputf8 else "delivery-status"  # 6533 §4


def _head(notice: Notification, boundary: str) -> bytes:
    fields = [
        header.mailboxes("From", (notice.sender,)),
        f"To: <{notice.to}>\r\n",
        f"Subject: {_SUBJECTS[_worst(notice.recipients)]}\r\n",
        f"Date: {rfc5322_date(notice.date)}\r\n",
        header.fold("Message-ID", (" " + notice.message_id,)),
        "Auto-Submitted: auto-replied\r\n",  # 3834 §5
        "MIME-Version: 1.0\r\n",
        f'Content-Type: multipart/report; report-type={_kind(notice)};\r\n boundary="{boundary}"\r\n',
    ]
    if re.fullmatch(r"<[!-;=?-~]{1,900}>", notice.about):
        fields[5:5] = [f"In-Reply-To: {notice.about}\r\n", f"References: {notice.about}\r\n"]
    return "".join(fields).encode("utf-8")


def _explanation(notice: Notification) -> bytes:
    lines = [f"This is the mail service at {notice.host}, about the mail below.", ""]
    for action in _CLASSES:
        recipients = [recipient for recipient in notice.recipients if recipient.action == action]
        if recipients:
            lines += [_SENTENCES[recipients[0].action], ""]
            lines += [f"  {recipient.address}\n    {_one_line(recipient.diagnostic)}" for recipient in recipients]
            lines.append("")
    return "\n".join(lines).replace("\n", "\r\n").encode("utf-8")


def _status(notice: Notification) -> bytes:
    """Returns the fields about the mail, and those about each recipient (3464 §2)."""
    lines = [f"Reporting-MTA: dns; {notice.host}"]
    if notice.envid:
        lines.append(f"Original-Envelope-Id: {notice.envid}")
    lines.append(f"Arrival-Date: {rfc5322_date(notice.arrived)}")
    for recipient in notice.recipients:
        lines.append("")
        if recipient.original:
            lines.append(f"Original-Recipient: {_typed(*recipient.original.split(';', 1), smtputf8=notice.smtputf8)}")
        final = _typed("rfc822" if recipient.address.isascii() else UTF8, recipient.address, smtputf8=notice.smtputf8)
        lines += [f"Final-Recipient: {final}", f"Action: {recipient.action}", f"Status: {recipient.status}"]
        if recipient.reporter:
            lines.append(f"Remote-MTA: dns; {_one_line(recipient.reporter)}")
        if is_reply(recipient.diagnostic):
            lines.append(f"Diagnostic-Code: smtp; {_one_line(recipient.diagnostic)}")
        lines.append(f"Last-Attempt-Date: {rfc5322_date(recipient.at)}")
    text = "\r\n".join(lines) + "\r\n"
    # 3464 §2: always 7 bits. Other replies are in the text for people, or in the form of 6533.
    return text.encode("utf-8") if notice.smtputf8 else text.encode("ascii", "replace")


def _returned(notice: Notification) -> tuple[str, bytes]:
    """Returns the type and content of the part with the mail: all of it if requested and delivery failed (3461 §4.3), else its header."""
    block = header.split_message(notice.message)[0]
    non_ascii = notice.smtputf8 and not block.isascii()
    if notice.full and _worst(notice.recipients) == "failed":
        return "message/global" if non_ascii else "message/rfc822", notice.message
    return "message/global-headers" if non_ascii else "text/rfc822-headers", block  # 6533 §5


def _typed(kind: str, address: str, *, smtputf8: bool) -> str:
    """Returns an address with its type. A utf-8 address is escaped unless UTF-8 is allowed (6533 §3); all others are ASCII."""
    if kind.lower() == UTF8:
        return f"{UTF8}; {address if smtputf8 else escaped(address)}"
    return f"{kind}; {address}"


def _one_line(text: str) -> str:
    """At most 900 bytes, so that a line has at most 998 (5322 §2.1.1)."""
    return " ".join(text.split()).encode()[:900].decode("utf-8", "ignore")
