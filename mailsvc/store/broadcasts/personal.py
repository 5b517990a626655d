"""What an email of a broadcast is composed from: the broadcast's content, and the email's own values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.postgres.shared_commits import SharedCommits
from mailsvc.store.queue.claims_sql import PLAN_BY_INDEX
from mailsvc.store.sql import Columns

TOGETHER = 50  # emails read in one statement

_VALUES = """
SELECT e.account_id, e.email_id, e.broadcast_id, e.contact_id, e.topic_id, e.created_at, e.message_id, e.to_[1], e.subject,
       coalesce(e.untracked, false), e.merge
FROM unnest($1, $2) AS g(account_id, email_id)
JOIN emails e ON e.account_id = g.account_id AND e.email_id = g.email_id WHERE e.broadcast_id IS NOT NULL
"""
VALUES = Prepared("personal", ("uuid[]", "uuid[]"), _VALUES, PLAN_BY_INDEX)
_CONTENT = Columns.named("sender", "reply_to", "preview_text", "html", "text", "fallbacks", "base_url", "tracking")
CONTENT = f"SELECT {_CONTENT} FROM broadcasts WHERE account_id = %s AND id = %s"


@attrs.frozen
class PersonalEmail:
    """`subject` is already the recipient's own."""

    account_id: UUID
    email_id: UUID
    broadcast_id: UUID
    contact_id: UUID
    topic_id: UUID | None
    created_at: datetime
    message_id: str
    to: str
    subject: str
    untracked: bool
    values: Mapping[str, str]


@attrs.frozen
class FixedTracking:
    """What is tracked of a broadcast, from the start of sending. `key`: the number of the encryption key that its links are made with."""

    host: str
    opens: bool
    clicks: bool
    key: int


@attrs.frozen
class SentContent:
    """The content of a broadcast that is being sent or was. It does not change any more."""

    sender: str
    reply_to: tuple[str, ...]
    preview_text: str
    html: str | None = attrs.field(repr=False)
    text: str | None = attrs.field(repr=False)
    fallbacks: Mapping[str, str | None]
    base_url: str
    tracking: FixedTracking | None = None

    def __len__(self) -> int:
        return len(self.html or "") + len(self.text or "")


class PersonalEmails:
    """Those that are read in one turn of the reactor are read together."""

    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._read_at: SharedCommits[tuple[UUID, UUID], PersonalEmail | None] = SharedCommits(
            self._read, clock, max_items=TOGETHER, linger=0.0, writes=2
        )

    async def get(self, account_id: UUID, email_id: UUID) -> PersonalEmail | None:
        return await self._read_at.submit((account_id, email_id))

    async def content(self, account_id: UUID, broadcast_id: UUID) -> SentContent | None:
        rows = await self._pool.rows(CONTENT, (account_id, broadcast_id))
        if not rows:
            return None
        values = _CONTENT.read(rows[0])
        values["reply_to"] = tuple(values["reply_to"])
        values["tracking"] = FixedTracking(**values["tracking"]) if values["tracking"] else None
        return SentContent(**values | {"fallbacks": values["fallbacks"] or {}, "base_url": values["base_url"] or ""})

    async def _read(self, keys: list[tuple[UUID, UUID]]) -> list[PersonalEmail | None]:
        found = {email.email_id: email for email in await read_personal(self._pool, keys)}
        return [found.get(email_id) for _, email_id in keys]


async def read_personal(pool: Pool, keys: Sequence[tuple[UUID, UUID]]) -> list[PersonalEmail]:
    """Emails of broadcasts by account and ID; those that no longer exist are left out."""
    accounts, emails = zip(*keys, strict=True)
    # By position, because this runs for each email.
    return [PersonalEmail(*[*row[:-1], row[-1] or {}]) for row in await pool.rows(VALUES, (list(accounts), list(emails)))]
