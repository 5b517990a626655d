"""A message that is sent a second time: what it says is the same, what makes it one message and no other is new."""

from __future__ import annotations

from datetime import datetime

import attrs

from mailsvc.mail import header, submission
from mailsvc.mail.compose import rfc5322_date
from mailsvc.mail.submission import Submitted

# What names or dates the first one, what its way left in it, and signatures that would not hold any more.
_OLD = frozenset({"date", "message-id", "received", "return-path", "dkim-signature", "authentication-results"})


@attrs.frozen
class Again:
    """`mail` is what the header said."""

    mail: Submitted
    message_id: str
    message: bytes = attrs.field(repr=False)


def again(message: bytes, identity: str, date: datetime) -> Again:
    """5322 §3.6.4: another message has another Message-ID, made of `identity`. The body stays octet by octet. Raises submitted.Unfit."""
    head, _ = header.split_message(message)
    mail = submission.read(head)
    stays = b"".join(line for name, line in submission.lines(head) if name not in _OLD)
    message_id = f"<{identity}@{mail.sender.domain}>"
    new = header.fold("Message-ID", (" " + message_id,)) + f"Date: {rfc5322_date(date)}\r\n"
    return Again(mail, message_id, new.encode("ascii") + stays + message[len(head) :])
