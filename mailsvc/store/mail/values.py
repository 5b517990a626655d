"""Values passed to and returned by accepting; shared by the API, the SMTP relay and delivery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Protocol
from uuid import UUID

import attrs

from mailsvc.store.encryption.body_cipher import BodyCipher
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.people.audit import Line

IN_FILE = 16  # a message in a file counts as this part of its size


class Pieces(Protocol):
    """A message that is not in memory as a whole: its size, and its content in pieces."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[bytes]: ...


def in_memory(message: bytes | Pieces) -> int:
    """What a message counts against memory budgets, in bytes. `in_file`: a part of its size, so that files have a limit too."""
    return len(message) // IN_FILE if getattr(message, "in_file", False) else len(message)


@attrs.frozen
class NewRecipient:
    """An envelope address. `leased`: inserted with a lease of the process `lease` of the email, which sends it without a claim."""

    address: str
    destination: str
    leased: bool = False


@attrs.frozen
class Personal:
    """What makes an email of a broadcast personal. It has no message, which is composed from the broadcast and these values when needed.

    `size` is about what the message has; `untracked`: the recipient must not be tracked, even if the broadcast is.
    """

    broadcast_id: UUID
    contact_id: UUID
    values: Mapping[str, str]
    size: int
    untracked: bool = False


@attrs.frozen
class NewEmail:
    """An email to be stored. `source` is api, smtp or system; `sender`, `to`, `cc`, `bcc` and `reply_to` stay as given.

    `lease` is the accepting process, for recipients that are inserted with a lease. `encrypted`: its message must be stored encrypted;
    store/mail/accept sets the `cipher`.
    """

    email_id: UUID
    account_id: UUID
    domain_id: UUID
    key_id: UUID | None
    region: str
    source: str
    created_at: datetime
    message_id: str
    sender: str
    to: tuple[str, ...]
    cc: tuple[str, ...]
    bcc: tuple[str, ...]
    reply_to: tuple[str, ...]
    recipients: tuple[NewRecipient, ...]
    subject: str
    tags: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    envelope: StoredEnvelope
    message: bytes | Pieces = attrs.field(repr=False)
    scheduled_at: datetime | None
    expires_at: datetime
    bulk: bool = False
    lease: int | None = None
    topic_id: UUID | None = None
    personal: Personal | None = None
    encrypted: bool = False
    cipher: BodyCipher | None = attrs.field(default=None, repr=False)


@attrs.frozen
class Idempotency:
    """The idempotency key of a request, a fingerprint of its body, and the response that repetitions get until it expires."""

    endpoint: str
    key: str
    fingerprint: bytes
    answer: object
    expires_at: datetime


@attrs.frozen
class Submission:
    """The emails of one request, committed together, and `lines` for the account's audit log."""

    account_id: UUID
    emails: tuple[NewEmail, ...]
    idempotency: Idempotency | None = None
    lines: tuple[Line, ...] = ()


@attrs.frozen
class Accepted:
    """The transaction is committed: from now on the service is responsible for the emails.

    `suppressed` has the recipients on the account's suppression list, by email ID.
    """

    suppressed: Mapping[UUID, frozenset[int]] = attrs.field(factory=dict)

    def left(self, email: NewEmail) -> NewEmail:
        """The email without leases for suppressed recipients."""
        gone = self.suppressed.get(email.email_id)
        if not gone:
            return email
        kept = (attrs.evolve(each, leased=False) if n in gone else each for n, each in enumerate(email.recipients))
        return attrs.evolve(email, recipients=tuple(kept))


@attrs.frozen
class Replayed:
    """The same request was accepted before; `answer` is the response it got."""

    answer: object


@attrs.frozen
class InProgress:
    """A request with the same key is in progress."""


@attrs.frozen
class Mismatch:
    """The key was used before for a request with another body."""


AcceptResult = Accepted | Replayed | InProgress | Mismatch
