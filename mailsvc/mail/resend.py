"""Makes a new message with the content of an earlier one, to send it a second time."""

from __future__ import annotations

from datetime import datetime

import attrs

from mailsvc.mail import header, submission
from mailsvc.mail.compose import rfc5322_date
from mailsvc.mail.submission import Submitted

# Fields that identify, date or trace the earlier message, and signatures that would no longer be valid.
_OLD = frozenset({"date", "message-id", "received", "return-path", "dkim-signature", "authentication-results"})


@attrs.frozen
class NewMessage:
    """The new message. `mail` is the parsed header of the earlier one."""

    mail: Submitted
    message_id: str
    message: bytes = attrs.field(repr=False)


def compose(message: bytes, identity: str, date: datetime) -> NewMessage:
    """Replaces the date and the Message-ID (5322 §3.6.4), which is made from `identity`. The body is unchanged. Raises submission.Unfit."""
    head, _ = header.split_message(message)
    mail = submission.read(head)
    kept = b"".join(line for name, line in submission.lines(head) if name not in _OLD)
    message_id = f"<{identity}@{mail.sender.domain}>"
    new = header.fold("Message-ID", (" " + message_id,)) + f"Date: {rfc5322_date(date)}\r\n"
    return NewMessage(mail, message_id, new.encode("ascii") + kept + message[len(head) :])
