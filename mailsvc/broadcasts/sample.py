"""The message of a broadcast that the content filter sees before sending starts: as the first contact will get it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import attrs

from mailsvc.broadcasts.links import PATH
from mailsvc.broadcasts.personal import Prepared, message
from mailsvc.mail import merge
from mailsvc.mail.address import parse_mailbox
from mailsvc.mail.merge import Values
from mailsvc.store.broadcasts.personal import PersonalEmail, SentContent
from mailsvc.store.broadcasts.values import Broadcast


@attrs.frozen
class Sample:
    """`sender` and `to` are addresses."""

    sender: str
    to: str
    message: bytes = attrs.field(repr=False)


def sample(of: Broadcast, content: SentContent, to: str, values: Mapping[str, str], domain: str, now: datetime) -> Sample:
    """The message for `to`, with a link that unsubscribes nobody."""
    link = f"{content.base_url}{PATH}"
    subject = merge.parse(of.subject).subject(Values(values, link, content.fallbacks))
    email = PersonalEmail(of.account_id, of.id, of.id, of.id, of.topic_id, now, f"<{of.id}@{domain}>", to, subject, True, values)
    recipient = parse_mailbox(to)
    return Sample(parse_mailbox(of.sender).address, recipient.address, message(Prepared.of(content), email, recipient, link))
