"""The log of API requests. http/request_log collects them into batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import orjson

from mailsvc.store.ids import uuid7_seconds
from mailsvc.store.mail.inserts import document
from mailsvc.store.paging import Page
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.sql import Columns

# $1: the requests. $2: their bodies, one after another; where each begins, from 1, and its bytes are in $1. Nothing of an account that has
# moved to another cell before the batch is written: its choices are not known here any more.
INSERT = Prepared(
    "log_requests",
    ("json", "bytea"),
    """
INSERT INTO request_log (account_id, log_id, key_id, method, path, status, user_agent, milliseconds, request_body, response_body)
SELECT x.account_id, log_id, key_id, method, path, status, user_agent, milliseconds,
    CASE WHEN less THEN NULL ELSE convert_from(substr($2, request_at, request_bytes), 'UTF8') END,
    CASE WHEN less THEN NULL ELSE convert_from(substr($2, response_at, response_bytes), 'UTF8') END
FROM json_to_recordset($1) AS x(
    account_id uuid, log_id uuid, key_id uuid, method text, path text, status smallint, user_agent text, milliseconds real,
    request_at integer, request_bytes integer, response_at integer, response_bytes integer
) LEFT JOIN LATERAL (SELECT 'requests' = ANY (a.minimize) OR a.encrypt_bodies AS less FROM accounts a WHERE a.id = x.account_id) a ON true
WHERE NOT EXISTS (SELECT FROM account_moves l WHERE l.account_id = x.account_id AND l.phase = 'left')
""",
)
# At most once a minute for each key, without waiting for other processes that do the same.
USED = """
UPDATE api_keys SET last_used_at = %s WHERE id IN (
    SELECT id FROM api_keys WHERE id = ANY (%s::uuid[]) AND coalesce(last_used_at < %s, true) FOR UPDATE SKIP LOCKED
)
"""
_LISTED = Columns.of(
    id="log_id",
    key_id="key_id",
    method="method",
    path="path",
    status="status",
    user_agent="user_agent",
    milliseconds="milliseconds",
)
_WHOLE = Columns.of(**_LISTED.expressions, request_body="request_body", response_body="response_body")
LIST = f"SELECT {_LISTED} FROM request_log WHERE account_id = %s"
GET = f"SELECT {_WHOLE} FROM request_log WHERE account_id = %s AND log_id = %s"


@attrs.frozen
class NewLog:
    """A completed request. The bodies are JSON without secrets, or None."""

    account_id: UUID
    log_id: UUID
    key_id: UUID | None
    method: str
    path: str
    status: int
    user_agent: str | None
    milliseconds: float
    request_body: bytes | None = attrs.field(repr=False)
    response_body: bytes | None = attrs.field(repr=False)


_PLAIN = tuple(field.name for field in attrs.fields(NewLog) if field.repr)  # not the bodies


@attrs.frozen
class LogView:
    """A logged request. Lists have no bodies."""

    id: UUID
    key_id: UUID | None
    method: str
    path: str
    status: int
    user_agent: str | None
    milliseconds: float
    request_body: Any = None
    response_body: Any = None

    @property
    def created_at(self) -> datetime:
        return _time(self.id)


class RequestLog:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def write(self, logs: Sequence[NewLog]) -> None:
        """Write requests, and when their keys were last used, in one transaction."""
        rows, bodies = _parameters(logs)
        keys = {log.key_id for log in logs if log.key_id is not None}
        at = _time(max(log.log_id for log in logs))

        async def write(tx: Transaction) -> None:
            await tx.run(INSERT, (rows, bodies))
            await tx.run(USED, (at, list(keys), at - timedelta(minutes=1)))

        await self._pool.transact(write)

    async def list(self, account_id: UUID, page: Page, statuses: tuple[int, int] | None = None) -> tuple[list[LogView], bool]:
        """Newest first, optionally with a status in a range, and whether there are more."""
        end, more = page.where("log_id")
        chosen: tuple[object, ...] = (account_id, *(statuses or ()))
        condition = "" if statuses is None else " AND status BETWEEN %s AND %s"
        if statuses is not None and statuses[0] >= 400:
            condition += " AND status >= 400"  # names the index of errors
        rows, has_more = page.cut(await self._pool.rows(LIST + condition + end, (*chosen, *more)))
        return [LogView(**_LISTED.read(row)) for row in rows], has_more

    async def get(self, account_id: UUID, log_id: UUID) -> LogView | None:
        rows = await self._pool.rows(GET, (account_id, log_id))
        return _view(rows[0]) if rows else None


def _parameters(logs: Sequence[NewLog]) -> tuple[str, bytes]:
    """Those of INSERT."""
    rows: list[dict[str, object]] = []
    bodies: list[bytes] = []
    at = 1
    for log in logs:
        row = {name: getattr(log, name) for name in _PLAIN}
        for name, body in (("request", log.request_body), ("response", log.response_body)):
            if body is not None:
                row[f"{name}_at"], row[f"{name}_bytes"] = at, len(body)
                bodies.append(body)
                at += len(body)
        rows.append(row)
    return document(rows), b"".join(bodies)


def _time(log_id: UUID) -> datetime:
    return datetime.fromtimestamp(uuid7_seconds(log_id), UTC)


def _view(row: Row) -> LogView:
    values = _WHOLE.read(row)
    for name in ("request_body", "response_body"):
        values[name] = None if values[name] is None else orjson.loads(values[name])
    return LogView(**values)
