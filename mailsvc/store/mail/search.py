"""Searching emails for the dashboard: filtered lists, newest first, that scan a bounded number of rows at a time.

They use only the primary key, so that accepting mail maintains no further index. A page that is not full says how far it has searched,
and the next one continues from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.store.ids import uuid7_floor
from mailsvc.store.mail.emails import LAST_EVENT
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.sql import Columns

MAX_SCANNED = 10_000  # emails scanned for one page
MAX_SCANNED_FOR_STATUS = 4_000  # if the latest event of each must be read


@attrs.frozen
class Filters:
    """Filters; None and "" match everything. `text`: part of a recipient or of the subject, or an ID.

    `status`: the type of the latest event; of several recipients, of the latest event of any of them.
    """

    text: str = ""
    status: str = ""
    since: datetime | None = None
    until: datetime | None = None
    domain_id: UUID | None = None
    key_id: UUID | None = None

    @property
    def empty(self) -> bool:
        return self == Filters()


@attrs.frozen
class Found:
    """An email in a list. `outcomes`: of several recipients, how many have each type as their latest event."""

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
    outcomes: Mapping[str, int] = attrs.field(factory=dict)


@attrs.frozen
class Page:
    """`after`: where the next page begins, if there is one. `looked_until`: set if the search stopped before the page was full."""

    emails: tuple[Found, ...]
    after: UUID | None
    looked_until: datetime | None = None


_FOUND = Columns.named(
    "email_id", "created_at", "source", "sender", "recipients", "subject", "size", "last_event", "domain_id", "key_id", "outcomes"
)  # fmt: skip
# The latest event of each recipient: the email's latest event can be a delivery after a complaint.
_OF_RECIPIENTS = """
    SELECT DISTINCT ON (v.recipient) v.type FROM events v
    WHERE v.account_id = e.account_id AND v.email_id = e.email_id AND v.recipient IS NOT NULL
      AND v.type NOT IN ('email.opened', 'email.clicked')
    ORDER BY v.recipient, v.event_id DESC
"""
_OUTCOMES = f"""
    CASE WHEN cardinality(e.recipients) > 1 THEN
        (SELECT jsonb_object_agg(type, n) FROM (SELECT type, count(*) AS n FROM ({_OF_RECIPIENTS}) r GROUP BY type) c) END
"""
_HAS_STATUS = f"""(
    CASE WHEN cardinality(e.recipients) > 1 AND EXISTS (SELECT FROM ({_OF_RECIPIENTS}) r) THEN %(status)s IN ({_OF_RECIPIENTS})
    ELSE {LAST_EVENT} = %(status)s END
)"""

# `looked` scans back along the primary key. The latest event is read for matches only, unless it is filtered by.
_SEARCH = """
WITH looked AS MATERIALIZED (
    SELECT e.account_id, e.email_id, e.created_at, e.source, e.sender, e.recipients, e.subject, e.size, e.domain_id, e.key_id,
           e.broadcast_id, {hit} AS hit
    FROM emails e
    WHERE e.account_id = %(account)s AND (%(after)s::uuid IS NULL OR e.email_id < %(after)s)
      AND (%(upper)s::uuid IS NULL OR e.email_id < %(upper)s) AND (%(lower)s::uuid IS NULL OR e.email_id >= %(lower)s)
    ORDER BY e.email_id DESC LIMIT %(looked)s
), edge AS (
    SELECT count(*) AS n, (array_agg(email_id ORDER BY email_id))[1] AS last_id, min(created_at) AS last_at FROM looked
), hits AS (
    SELECT e.*, {last} AS last_event, {outcomes} AS outcomes FROM looked e WHERE hit ORDER BY email_id DESC LIMIT %(limit)s
)
SELECT {columns}, n, last_id, last_at FROM edge LEFT JOIN hits ON true ORDER BY email_id DESC
"""


class Search:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def emails(self, account_id: UUID, filters: Filters, limit: int, after: UUID | None = None) -> Page:
        looked = limit + 1 if filters.empty else MAX_SCANNED_FOR_STATUS if filters.status else MAX_SCANNED
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
            hits.append(_HAS_STATUS)
            named["status"] = filters.status
        search = _SEARCH.format(hit=" AND ".join(hits), last=LAST_EVENT, outcomes=_OUTCOMES, columns=_FOUND)
        rows = await self._pool.rows(search, named)
        found = [_found(row[:-3]) for row in rows if row[0] is not None]
        count, last_id, last_at = rows[0][-3:]
        if len(found) > limit:
            return Page(tuple(found[:limit]), found[limit - 1].email_id)
        if count < looked or filters.empty:
            return Page(tuple(found), None)
        return Page(tuple(found), last_id, last_at)


_TEXT = """(
    e.email_id::text = %(exact)s OR strpos(lower(e.subject), %(plain)s) > 0
    OR EXISTS (SELECT FROM unnest(e.recipients) AS r(address) WHERE strpos(lower(r.address), %(plain)s) > 0)
)"""


def _found(row: Row) -> Found:
    values = _FOUND.read(row)
    values |= {"recipients": tuple(values["recipients"]), "last_event": values["last_event"] or "", "outcomes": values["outcomes"] or {}}
    return Found(**values)


def _text(text: str) -> dict[str, object]:
    plain = text.strip().lower()
    return {"plain": plain, "exact": plain}
