"""Settling: what became of the recipients of one email in one attempt, written down in one transaction."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.outcome import Outcome


@attrs.frozen
class RecipientOutcome:
    """What became of one recipient, by its number in the email."""

    recipient: int
    outcome: Outcome


@attrs.frozen
class AttemptRecord:
    """One try over SMTP. `address` is host:port that answered; `tls` version and cipher, None: in clear."""

    attempt_id: UUID
    host: str | None
    address: str | None
    tls: str | None
    started_at: datetime
    seconds: float
    transcript: str = attrs.field(repr=False)


@attrs.frozen
class Settlement:
    """The outcomes of some recipients of one email, all leased under `lease`.

    `attempt` is None when none of them reached SMTP. `signature` is the DKIM header block of the first attempt,
    given when a recipient still waits and none is stored yet: later attempts send the same bytes.
    """

    account_id: UUID
    email_id: UUID
    domain_id: UUID
    lease: int
    at: datetime
    outcomes: tuple[RecipientOutcome, ...]
    attempt: AttemptRecord | None
    signature: bytes | None = attrs.field(default=None, repr=False)
