"""Finding emails for people: lists with filters, newest first, that look through a bounded number of rows at a time.

No index serves these searches but the primary key, so they cost the way of an email nothing. A page that was not filled
says how far it has looked, and the next one goes on from there.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.store.ids import uuid7_floor
from mailsvc.store.postgres.pool import Pool

LOOKED = 10_000  # emails that one page of a search looks through
LOOKED_FOR_STATUS = 4_000  # where each has to be asked for its newest event


@attrs.frozen
class Filters:
    """What is looked for; None and "" leave it open. `text`: a recipient, a part of the subject, or an id."""

    text: str = ""
    status: str = ""  # the type of the newest event
    since: datetime | None = None
    until: datetime | None = None
    domain_id: UUID | None = None
    key_id: UUID | None = None

    @property
    def empty(self) -> bool:
        return self == Filters()


@attrs.frozen
class Found:
    """An email in a list."""

    email_id: UUID
    created_at: datetime
    source: str
    sender: str
    recipients: tuple[str, ...]
    subject: str
    size: int
    last_event: str
    domain_id: UUID
    key_id: UUID | None


@attrs.frozen
class Page:
    """`after`: where the next page begins, None when there is none. `looked_until`: set when it stopped before it was full."""

    emails: tuple[Found, ...]
    after: UUID | None
    looked_until: datetime | None = None


_LAST = "(SELECT v.type FROM events v WHERE v.account_id = e.account_id AND v.email_id = e.email_id ORDER BY v.event_id DESC LIMIT 1)"

# `looked` walks back along the primary key; only what matches is asked for its newest event, unless that is what has to match.
_SEARCH = """
WITH looked AS MATERIALIZED (
    SELECT e.account_id, e.email_id, e.created_at, e.source, e.sender, e.recipients, e.subject, e.size, e.domain_id, e.key_id, {hit} AS hit
    FROM emails e
    WHERE e.account_id = %(account)s AND (%(after)s::uuid IS NULL OR e.email_id < %(after)s)
      AND (%(upper)s::uuid IS NULL OR e.email_id < %(upper)s) AND (%(lower)s::uuid IS NULL OR e.email_id >= %(lower)s)
    ORDER BY e.email_id DESC LIMIT %(looked)s
), edge AS (
    SELECT count(*) AS n, (array_agg(email_id ORDER BY email_id))[1] AS last_id, min(created_at) AS last_at FROM looked
), hits AS (
    SELECT e.*, {last} AS last_event FROM looked e WHERE hit ORDER BY email_id DESC LIMIT %(limit)s
)
SELECT email_id, created_at, source, sender, recipients, subject, size, last_event, domain_id, key_id, n, last_id, last_at
FROM edge LEFT JOIN hits ON true ORDER BY email_id DESC
"""


class Search:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def emails(self, account_id: UUID, filters: Filters, limit: int, after: UUID | None = None) -> Page:
        looked = limit + 1 if filters.empty else LOOKED_FOR_STATUS if filters.status else LOOKED
        hits = ["true"]
        named: dict[str, object] = {
            "account": account_id,
            "after": after,
            "upper": uuid7_floor(filters.until) if filters.until else None,
            "lower": uuid7_floor(filters.since) if filters.since else None,
            "limit": limit + 1,
            "looked": looked,
        }
        if filters.text:
            hits.append(_TEXT)
            named |= _text(filters.text)
        if filters.domain_id is not None:
            hits.append("e.domain_id = %(domain)s")
            named["domain"] = filters.domain_id
        if filters.key_id is not None:
            hits.append("e.key_id = %(key)s")
            named["key"] = filters.key_id
        if filters.status:
            hits.append(f"{_LAST} = %(status)s")
            named["status"] = filters.status
        rows = await self._pool.rows(_SEARCH.format(hit=" AND ".join(hits), last=_LAST), named)
        found = [
            Found(row[0], row[1], row[2], row[3], tuple(row[4]), row[5], row[6], row[7] or "", row[8], row[9])
            for row in rows
            if row[0] is not None
        ]
        count, last_id, last_at = rows[0][10:]
        if len(found) > limit:
            return Page(tuple(found[:limit]), found[limit - 1].email_id)
        if count < looked or filters.empty:
            return Page(tuple(found), None)
        return Page(tuple(found), last_id, last_at)


_TEXT = """(
    e.email_id::text = %(exact)s OR strpos(lower(e.subject), %(plain)s) > 0
    OR EXISTS (SELECT FROM unnest(e.recipients) AS r(address) WHERE strpos(lower(r.address), %(plain)s) > 0)
)"""


def _text(text: str) -> dict[str, object]:
    plain = text.strip().lower()
    return {"plain": plain, "exact": plain}
