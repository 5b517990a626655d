"""Searching emails for the dashboard: filtered lists, newest first, that scan a bounded number of rows at a time.

They use only the primary key, so that accepting mail maintains no further index; an index of problems, which are rare, finds emails that
bounced or were reported as spam. A page that is not full says how far it has searched, and the next one continues from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.store import newer
from mailsvc.store.ids import uuid7_floor
from mailsvc.store.mail.emails import LAST_EVENT, LAST_EVENT_OF_PAGE, OF_EMAIL, OF_PAGE, of_page
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.sql import Columns

MAX_SCANNED = 6_000  # emails scanned for one page
MAX_SCANNED_FOR_STATUS = 4_000  # if the events of each must be read
PROBLEMS = ("email.bounced", "email.complained", "email.failed", "email.suppressed")  # in the index events_problems; all are final
# Sources of the service's own emails, such as password resets. They are the business of nobody here.
SERVICE = ("system", "dashboard", "shared-test")
ENGAGED = ("email.opened", "email.clicked")


@attrs.frozen
class Filters:
    """Filters; None and "" match everything. `text`: part of a recipient, the subject or a tag (name:value), or a whole ID or Message-ID.

    `status`: the type of the latest event of any recipient; or email.opened or email.clicked, if that has happened to the email.
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
    """An email in a list. `outcomes`: how many recipients have each type as their latest event, opens and clicks aside."""

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


_FOUND = Columns.named("email_id", "created_at", "source", "sender", "recipients", "subject", "size", "domain_id", "key_id")
# The latest event of each recipient: the email's latest event can be a delivery after a complaint.
_OF_RECIPIENTS = """
    SELECT DISTINCT ON (v.recipient) v.type FROM events v
    WHERE {of_email} AND v.recipient IS NOT NULL AND v.type NOT IN ('email.opened', 'email.clicked')
    ORDER BY v.recipient, v.event_id DESC
"""
_OF_EACH = _OF_RECIPIENTS.format(of_email="v.account_id = e.account_id AND v.email_id = e.email_id")
_IS_STATUS = f"coalesce((SELECT bool_or(r.type = %(status)s) FROM ({_OF_EACH}) r), {LAST_EVENT} = %(status)s)"
_HAS_EVENT = """coalesce((
    SELECT true FROM events v WHERE v.account_id = e.account_id AND v.email_id = e.email_id AND v.type = %(status)s LIMIT 1
), false)"""  # as EXISTS, it would be joined with all events

_EMAIL = """e.account_id, e.created_at, e.source, e.sender, e.recipients, e.subject, e.size, e.domain_id, e.key_id, e.broadcast_id,
    {hit} AS hit"""
_WITHIN = """{0}.account_id = %(account)s AND (%(after)s::uuid IS NULL OR {0}.email_id < %(after)s)
      AND (%(upper)s::uuid IS NULL OR {0}.email_id < %(upper)s) AND (%(lower)s::uuid IS NULL OR {0}.email_id >= %(lower)s)"""
# Back along the primary key.
_SCANNED = f"""
    SELECT e.email_id, {_EMAIL} FROM emails e
    WHERE {_WITHIN.format("e")} AND {{customers}}
    ORDER BY e.email_id DESC LIMIT %(looked)s"""
# Back along the index of problems. `problem` is in the text of the statement, so that the index can be used.
_WITH_PROBLEM = f"""
    SELECT p.email_id, {_EMAIL} FROM (
        SELECT DISTINCT v.email_id FROM events v
        WHERE {_WITHIN.format("v")} AND v.type = '{{problem}}'
        ORDER BY v.email_id DESC LIMIT %(looked)s
    ) p LEFT JOIN LATERAL (
        SELECT * FROM emails WHERE account_id = %(account)s AND email_id = p.email_id OFFSET 0
    ) e ON true"""
_SEARCH = """
WITH looked AS MATERIALIZED ({looked}
), edge AS (
    SELECT count(*) AS n, (array_agg(email_id ORDER BY email_id))[1] AS last_id, min(created_at) AS last_at FROM looked
), hits AS (
    SELECT * FROM looked WHERE hit ORDER BY email_id DESC LIMIT %(limit)s
)
SELECT {columns}, n, last_id, last_at FROM edge LEFT JOIN hits ON true ORDER BY email_id DESC
"""
# What happened to the matches.
STATES = f"""
SELECT e.email_id, {LAST_EVENT_OF_PAGE}, (
    SELECT jsonb_object_agg(type, n) FROM (SELECT type, count(*) AS n FROM ({_OF_RECIPIENTS.format(of_email=OF_EMAIL)}) r GROUP BY type) c
)
FROM emails e WHERE {OF_PAGE}
"""

_NEWER = f"SELECT * FROM emails WHERE account_id = %(account)s AND email_id > %(than)s ORDER BY email_id LIMIT {newer.LOOKED}"


class Search:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def emails(self, account_id: UUID, filters: Filters, limit: int, after: UUID | None = None) -> Page:
        problem = filters.status in PROBLEMS
        alone = filters.empty or (problem and attrs.evolve(filters, status="", since=None, until=None).empty)
        looked = limit + 1 if alone else MAX_SCANNED_FOR_STATUS if filters.status else MAX_SCANNED
        hits, named = _conditions(filters)
        named |= {
            "account": account_id,
            "after": after,
            "upper": uuid7_floor(filters.until) if filters.until else None,
            "lower": uuid7_floor(filters.since) if filters.since else None,
            "limit": limit + 1,
            "looked": looked,
        }
        found_by = (_WITH_PROBLEM if problem else _SCANNED).format(hit=" AND ".join(hits), problem=filters.status, customers=_CUSTOMERS)
        rows = await self._pool.rows(_SEARCH.format(looked=found_by, columns=_FOUND), named)
        count, last_id, last_at = rows[0][-3:]
        matches = [row[:-3] for row in rows if row[0] is not None]
        found = await self._found(account_id, matches[:limit])
        if len(matches) > limit:
            return Page(tuple(found), found[-1].email_id)
        if count < looked:
            return Page(tuple(found), None)
        return Page(tuple(found), last_id, last_at)

    async def _found(self, account_id: UUID, matches: Sequence[Row]) -> list[Found]:
        if not matches:
            return []
        ids = [email_id for email_id, *_ in matches]
        states = {id_: state for id_, *state in await self._pool.rows(STATES, of_page(account_id, ids))}
        return [_found(row, *states.get(id_, ("", {}))) for id_, row in zip(ids, matches, strict=True)]

    async def newer(self, account_id: UUID, filters: Filters, than: UUID) -> int | None:
        """How many emails that match are newer (store/newer). The status does not count: it can change at any time."""
        hits, named = _conditions(attrs.evolve(filters, status=""))
        rows = f"SELECT FROM ({_NEWER}) e WHERE {' AND '.join(hits)}"
        return await newer.count(self._pool, rows, {**named, "account": account_id, "than": than})


def _conditions(filters: Filters) -> tuple[list[str], dict[str, object]]:
    """What an email has to fulfill besides its time, and the parameters of it."""
    hits, named = [f"e.email_id IS NOT NULL AND {_CUSTOMERS}"], dict[str, object]()
    if filters.text:
        hits.append(_TEXT)
        text = filters.text.strip().lower()
        named |= {"text": text, "tag": text.replace(": ", ":"), "message_id": f"<{text.strip('<>')}>"}
    if filters.domain_id is not None:
        hits.append("e.domain_id = %(domain)s")
        named["domain"] = filters.domain_id
    if filters.key_id is not None:
        hits.append("e.key_id = %(key)s")
        named["key"] = filters.key_id
    if filters.status and filters.status not in PROBLEMS:
        hits.append(_HAS_EVENT if filters.status in ENGAGED else _IS_STATUS)
        named["status"] = filters.status
    return hits, named


_CUSTOMERS = f"e.source NOT IN {SERVICE}"
_TEXT = """(
    e.email_id::text = %(text)s OR lower(e.message_id) = %(message_id)s OR strpos(lower(e.subject), %(text)s) > 0
    OR EXISTS (SELECT FROM unnest(e.recipients) AS r(address) WHERE strpos(lower(r.address), %(text)s) > 0)
    OR EXISTS (
        SELECT FROM jsonb_array_elements(e.tags) AS t(tag) WHERE strpos(lower((tag ->> 'name') || ':' || (tag ->> 'value')), %(tag)s) > 0
    )
)"""


def _found(row: Row, last_event: str | None, outcomes: Mapping[str, int] | None) -> Found:
    values = _FOUND.read(row)
    return Found(**values | {"recipients": tuple(values["recipients"])}, last_event=last_event or "", outcomes=outcomes or {})
