"""Reading emails back, and the two things that may still be changed about one: when it goes, and that it goes at all."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal
from uuid import UUID

import attrs

Cancellation = Literal["canceled", "not_found", "too_late"]
Rescheduling = Literal["rescheduled", "not_found", "too_late"]


@attrs.frozen
class EmailView:
    """An email as lists and single reads show it. `last_event` is the type of its newest event."""

    account_id: UUID
    email_id: UUID
    created_at: datetime
    source: str
    key_id: UUID | None
    domain_id: UUID
    message_id: str
    sender: str
    to: tuple[str, ...]
    cc: tuple[str, ...]
    bcc: tuple[str, ...]
    reply_to: tuple[str, ...]
    recipients: tuple[str, ...]
    subject: str
    tags: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    envelope: Mapping[str, object] | None
    size: int
    bulk: bool
    scheduled_at: datetime | None
    last_event: str


@attrs.frozen
class RecipientView:
    """Where one recipient is. `reason` and `next_at` are set as long as it waits; `last_reply` once a peer or we gave one."""

    recipient: int
    address: str
    status: str
    reason: str | None
    next_at: datetime | None
    attempts: int
    last_reply: str | None


@attrs.frozen
class AttemptView:
    """One try over SMTP, with what it came to for each of its recipients."""

    attempt_id: UUID
    recipients: tuple[int, ...]
    outcomes: tuple[str, ...]
    replies: tuple[str, ...]
    host: str | None
    address: str | None
    tls: str | None
    started_at: datetime
    seconds: float
    transcript: str
