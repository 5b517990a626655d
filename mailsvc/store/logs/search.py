"""Searches API requests and SMTP sessions as one list, newest first.

Each page examines a limited number of entries and reports how far it searched; the next page continues from there.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

import attrs

from mailsvc.store import newer
from mailsvc.store.ids import uuid7_floor, uuid7_seconds
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.sql import Columns

Source = Literal["", "api", "smtp"]
EXAMINED = 10_000


@attrs.frozen
class Filters:
    """None and "" match everything. `refused`: whether it failed. `status`: of a request. `text`: a part of its path."""

    source: Source = ""
    refused: bool | None = None
    status: int | None = None
    since: datetime | None = None
    key_id: UUID | None = None
    text: str = ""

    @property
    def empty(self) -> bool:
        return self == Filters()


@attrs.frozen
class Entry:
    """A request or a session. A session has its port and TLS as its path, and no `user_agent`."""

    id: UUID
    source: Source
    key_id: UUID | None
    method: str
    path: str
    status: int
    user_agent: str | None
    milliseconds: float
    mails: int
    refusals: int

    @property
    def created_at(self) -> datetime:
        return datetime.fromtimestamp(uuid7_seconds(self.id), UTC)


@attrs.frozen
class Page:
    """`after`: the start of the next page, None if there is none. `looked_until`: set if the search stopped before the page was full."""

    entries: tuple[Entry, ...]
    after: UUID | None
    looked_until: datetime | None = None


_EDGE = """ AND (%(after)s::uuid IS NULL OR {id} < %(after)s) AND (%(lower)s::uuid IS NULL OR {id} >= %(lower)s)
    ORDER BY {id} DESC LIMIT %(looked)s"""
_REQUESTS = """(
    SELECT log_id AS id, 'api' AS source, key_id, method, path, status::int, user_agent, milliseconds::float8, 0 AS mails, 0 AS refusals
    FROM request_log WHERE account_id = %(account)s{wanted}""" + _EDGE.format(id="log_id") + ")"  # fmt: skip
_SESSIONS = """(
    SELECT receipt_id AS id, 'smtp' AS source, key_id, 'SMTP' AS method, 'port ' || port || ', ' || tls AS path,
           CASE WHEN refusals > 0 THEN 550 ELSE 250 END AS status, NULL AS user_agent,
           1000 * extract(epoch FROM closed_at - opened_at)::float8 AS milliseconds, mails, refusals
    FROM receipts WHERE account_id = %(account)s{wanted}""" + _EDGE.format(id="receipt_id") + ")"  # fmt: skip
_ENTRY = Columns.named("id", "source", "key_id", "method", "path", "status", "user_agent", "milliseconds", "mails", "refusals")
_SEARCH = """
WITH both_kinds AS ({parts}), looked AS MATERIALIZED (
    SELECT b.*, {hit} AS hit FROM both_kinds b ORDER BY id DESC LIMIT %(looked)s
), edge AS (
    SELECT count(*) AS n, (array_agg(id ORDER BY id))[1] AS last_id FROM looked
), hits AS (
    SELECT * FROM looked WHERE hit ORDER BY id DESC LIMIT %(limit)s
)
SELECT n, last_id, {entry} FROM edge LEFT JOIN hits ON true ORDER BY id DESC
"""


_NEWER = """
SELECT FROM (
    (SELECT FROM request_log WHERE account_id = %(account)s AND log_id > %(than)s LIMIT {most})
    UNION ALL (SELECT FROM receipts WHERE account_id = %(account)s AND receipt_id > %(than)s LIMIT {most})
) both_kinds
"""


class LogSearch:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def newer(self, account_id: UUID, than: UUID) -> int | None:
        """How many requests and sessions are newer (store/newer)."""
        return await newer.count(self._pool, _NEWER.format(most=newer.MOST), {"account": account_id, "than": than})

    async def page(self, account_id: UUID, filters: Filters, limit: int, after: UUID | None = None) -> Page:
        errors = filters.refused is True
        hits = ["true"]
        if filters.key_id is not None:
            hits.append("key_id = %(key)s")
        if filters.text:
            hits.append("strpos(lower(method || ' ' || path), %(text)s) > 0")
        if filters.refused is False:
            hits.append("status < 400")
        if filters.status is not None:
            hits.append("status = %(status)s")
        parts = []
        if filters.source != "smtp":
            parts.append(_REQUESTS.format(wanted=" AND status >= 400" if errors else ""))  # by the index of errors
        if filters.source != "api":
            parts.append(_SESSIONS.format(wanted=" AND refusals > 0" if errors else ""))
        looked = limit + 1 if len(hits) == 1 else EXAMINED
        named = {
            "account": account_id, "after": after, "lower": uuid7_floor(filters.since) if filters.since else None, "looked": looked,
            "limit": limit + 1, "key": filters.key_id, "text": filters.text.strip().lower(), "status": filters.status,
        }  # fmt: skip
        rows = await self._pool.rows(_SEARCH.format(parts=" UNION ALL ".join(parts), hit=" AND ".join(hits), entry=_ENTRY), named)
        found = [Entry(**_ENTRY.read(row[2:])) for row in rows if row[2] is not None]
        count, last_id = rows[0][:2]
        if len(found) > limit:
            return Page(tuple(found[:limit]), found[limit - 1].id)
        if count < looked or len(hits) == 1:
            return Page(tuple(found), None)
        return Page(tuple(found), last_id, datetime.fromtimestamp(uuid7_seconds(last_id), UTC))
