"""The values of broadcasts that the store returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.store.sql import Columns

Status = Literal["draft", "scheduled", "queued", "sent", "canceled", "failed"]
# What happened to recipients, by their bit in broadcast_recipients.marks.
MARKS: Mapping[str, int] = {"bounced": 1, "complained": 2, "suppressed": 4, "unsubscribed": 8, "opened": 16, "clicked": 32}


@attrs.frozen(kw_only=True)
class Content:
    """What a customer writes. `sender` and `reply_to` as they were given. `text` None: made from `html`; "": none."""

    name: str
    segment_id: UUID | None
    topic_id: UUID | None = None
    sender: str
    reply_to: tuple[str, ...] = ()
    subject: str
    preview_text: str = ""
    html: str | None = attrs.field(default=None, repr=False)
    text: str | None = attrs.field(default=None, repr=False)
    hourly_rate: int | None = None


@attrs.frozen(kw_only=True)
class Broadcast:
    """A broadcast without its content in full, which can be large.

    `total` is the number of the segment's contacts when sending started; `passed` of them were looked at, `queued` got an email.
    """

    account_id: UUID
    id: UUID
    name: str
    segment_id: UUID | None
    topic_id: UUID | None
    sender: str
    reply_to: Sequence[str]
    subject: str
    preview_text: str
    status: Status
    hourly_rate: int | None
    created_at: datetime
    scheduled_at: datetime | None
    sent_at: datetime | None
    key_id: UUID | None
    reason: str | None
    started_at: datetime | None
    domain_id: UUID | None
    region: str | None
    numbers: Mapping[str, str] | None
    fallbacks: Mapping[str, str | None] | None
    total: int | None
    position: UUID | None
    passed: int
    queued: int
    ended_at: datetime | None
    paused_at: datetime | None
    baseline: Mapping[str, int] | None
    next_at: datetime | None


COLUMNS = Columns.named(*(field.name for field in attrs.fields(Broadcast)))


def broadcast(row: Sequence[Any]) -> Broadcast:
    return Broadcast(**COLUMNS.read(row))
