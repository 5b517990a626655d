"""One email on its way into intake: the values that the API, the relay and the service itself make, and intake reads."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import attrs

from mailsvc.mail import bulk, compose
from mailsvc.mail.address import Mailbox
from mailsvc.store.mail.envelope import EMPTY, StoredEnvelope, for_header
from mailsvc.store.mail.values import Pieces

SHARED_TEST = "shared-test"  # the `source` of test emails from the service's own domain; no protocol sets it


@attrs.frozen
class Content:
    """The content of an email to compose. `text` None: make it from `html`; "": leave it out. `tracked`: the HTML with tracked links."""

    html: str | None = None
    text: str | None = None
    attachments: tuple[compose.Attachment, ...] = ()
    tracked: str | None = attrs.field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.tracked or self.html or "") + len(self.text or "") + sum(len(a.content) for a in self.attachments)


@attrs.frozen
class AsReceived:
    """A complete message and its envelope, as the relay received them: CRLF lines, changed only by prepended lines."""

    message: bytes | Pieces
    recipients: tuple[str, ...]
    message_id: str
    envelope: StoredEnvelope = EMPTY
    email_id: UUID | None = None  # the ID if the message already contains one; otherwise a new one is generated


@attrs.frozen
class Incoming:
    """One email to submit. Its addresses are valid, its size is not checked yet."""

    sender: Mailbox
    to: tuple[Mailbox, ...]
    subject: str
    content: Content | AsReceived
    cc: tuple[Mailbox, ...] = ()
    bcc: tuple[Mailbox, ...] = ()
    reply_to: tuple[Mailbox, ...] = ()
    headers: Mapping[str, str] = attrs.field(factory=dict)
    tags: tuple[tuple[str, str], ...] = ()
    scheduled_at: datetime | None = None
    source: str = "api"
    bulk: bool = False  # known to the caller; intake recognises other bulk mail
    topic_id: UUID | None = None
    lifetime: timedelta | None = None  # how long delivery is tried; None: as long as for all mail
    client: str | None = attrs.field(default=None, eq=False)  # the IP address that it came from, for the content filter
    trace: str | None = attrs.field(default=None, eq=False)  # the traceparent of the step that it came from, if that is traced


def attachments_of(email: Incoming) -> tuple[compose.Attachment, ...]:
    """Those of an email to compose; a message that is already composed has its own inside."""
    return email.content.attachments if isinstance(email.content, Content) else ()


def sender_of(email: Incoming) -> str:
    """The envelope sender as the customer gave it."""
    return email.content.envelope.sender if isinstance(email.content, AsReceived) else email.sender.address


def envelope_of(email: Incoming) -> StoredEnvelope:
    """What is stored of the envelope: the parameters of a submission, what the header needs, and the trace."""
    if isinstance(email.content, AsReceived):
        envelope = email.content.envelope
    else:
        envelope = for_header(email.sender, (*email.to, *email.cc, *email.reply_to))
    return envelope if email.trace is None else attrs.evolve(envelope, trace=email.trace)


def recipients_of(email: Incoming) -> tuple[str, ...]:
    """The envelope recipients: every address once, in the order to, cc, bcc; for the relay, as the client sent them."""
    if isinstance(email.content, AsReceived):
        return email.content.recipients
    return tuple(dict.fromkeys(m.address for m in (*email.to, *email.cc, *email.bcc)))


def bulk_of(emails: Sequence[Incoming]) -> set[int]:
    """Which are bulk mail: it is known, the header declares it, or many recipients of the batch get the same subject, text and HTML."""
    contents = [(_shown(email), len(recipients_of(email))) for email in emails]
    many = bulk.shared(contents)
    found = {i for i, email in enumerate(emails) if email.bulk or bulk.is_declared(email.headers)}
    return found | {i for i, (content, _) in enumerate(contents) if content in many} if many else found


def _shown(email: Incoming) -> Hashable:
    content = email.content
    return (email.subject, content.html, content.text) if isinstance(content, Content) else id(content)
