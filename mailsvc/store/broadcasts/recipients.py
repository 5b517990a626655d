"""The recipients of a broadcast, and what happened to their emails; what its content needs of them before it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import attrs

from mailsvc.store.audience.keys import folded
from mailsvc.store.broadcasts.values import MARKS
from mailsvc.store.mail.emails import LAST_EVENT
from mailsvc.store.paging import Page
from mailsvc.store.postgres.pool import Pool, Transaction

Kind = Literal["sent", "delivered", "opened", "clicked", "bounced", "complained", "unsubscribed", "suppressed"]
COUNTED = ("opened", "clicked")  # kinds that can happen to an email more than once

LOOKED = 200  # broadcasts that are looked at for one contact

_EVENTS = "SELECT FROM events v WHERE v.account_id = r.account_id AND v.email_id = r.email_id AND v.type = %(event)s"
_BOUNCE = """(
    SELECT v.data ->> 'type' FROM events v WHERE v.account_id = r.account_id AND v.email_id = r.email_id AND v.type = 'email.bounced'
    ORDER BY v.event_id DESC LIMIT 1
)"""
_ADDRESS = "(SELECT e.to_[1] FROM emails e WHERE e.account_id = r.account_id AND e.email_id = r.email_id)"  # of deleted contacts only
_HITS = "FROM hits h WHERE h.account_id = r.account_id AND h.email_id = r.email_id"
_LINKS = f"""coalesce((
    SELECT jsonb_agg(jsonb_build_object('url', l.url, 'clicks', l.count) ORDER BY l.count DESC, l.url)
    FROM (SELECT h.url, h.count {_HITS} AND h.kind = 'link' ORDER BY h.count DESC LIMIT 100) l
), '[]')"""
_EMAIL = f"coalesce(c.email, {_ADDRESS}, '')"
_ROW = f"""r.contact_id, c.id AS present, {_EMAIL} AS email,
       CASE WHEN %(counted)s THEN coalesce((SELECT h.count {_HITS} AND h.kind = %(kind)s), 0) END AS count,
       CASE WHEN %(kind)s = 'bounced' THEN lower({_BOUNCE}) END AS bounce_type,
       CASE WHEN %(kind)s = 'clicked' THEN {_LINKS} END AS clicked_links, r.email_id"""
# By the key: of a join, Postgres expects that reading all contacts is cheaper.
_CONTACT = "LEFT JOIN LATERAL (SELECT id, email FROM contacts WHERE account_id = r.account_id AND id = r.contact_id OFFSET 0) c ON true"
_OF_BROADCAST = "r.account_id = %(account_id)s AND r.broadcast_id = %(broadcast_id)s"
_OF_TYPE = "(%(bounce_type)s::text IS NULL OR bounce_type = %(bounce_type)s)"
# The contact with exactly this address, if it got the broadcast.
_WHOLE = """
SELECT c.id FROM contacts c JOIN broadcast_recipients r ON r.account_id = c.account_id AND r.broadcast_id = %s AND r.contact_id = c.id
WHERE c.account_id = %s AND c.address = %s
"""
_CONTAINS = f"strpos(lower({_EMAIL}), lower(%(email)s)) > 0"
# It ends with the page, or after so many recipients, whatever matches. `last`: the last of those, if the page is not full.
_CANDIDATES = f"FROM broadcast_recipients r WHERE {_OF_BROADCAST} AND {{candidates}} AND {{edge}} ORDER BY contact_id {{order}}"
_LIST = f"""
WITH hits AS MATERIALIZED (
    SELECT * FROM (
        SELECT {_ROW} FROM (SELECT account_id, contact_id, email_id, marks {_CANDIDATES} LIMIT %(most)s) r {_CONTACT} WHERE {{which}}
    ) x
    WHERE {_OF_TYPE} ORDER BY contact_id {{order}} LIMIT %(limit)s
)
SELECT hits.*, searched.last FROM (
    SELECT CASE WHEN (SELECT count(*) FROM hits) < %(limit)s THEN (SELECT contact_id {_CANDIDATES} OFFSET %(most)s - 1 LIMIT 1) END AS last
) searched
LEFT JOIN hits ON true ORDER BY contact_id {{order}}
"""
# Once for each recipient.
UNSUBSCRIBED = f"""
WITH marked AS (
    UPDATE broadcast_recipients r SET marks = marks | {MARKS["unsubscribed"]}
    FROM contacts c
    WHERE c.account_id = %(account_id)s AND c.hash = %(hash)s AND r.account_id = c.account_id AND r.broadcast_id = %(broadcast_id)s
    AND r.contact_id = c.id AND marks & {MARKS["unsubscribed"]} = 0
    RETURNING 1
)
INSERT INTO broadcast_counts AS b (account_id, broadcast_id, hour, type, count)
SELECT %(account_id)s, %(broadcast_id)s, date_trunc('hour', %(now)s::timestamptz, 'UTC'), 'email.unsubscribed', count(*)
FROM marked HAVING count(*) > 0
ON CONFLICT (account_id, broadcast_id, hour, type) DO UPDATE SET count = b.count + excluded.count
"""
MISSING = """
SELECT count(*), {columns} FROM contact_segments s JOIN contacts c ON c.account_id = s.account_id AND c.id = s.contact_id
WHERE s.account_id = %s AND s.segment_id = %s
"""

# Of the newest broadcasts. For each, the contact is looked up in the primary key: of a join, Postgres expects that reading the recipients
# of all broadcasts is cheaper.
OF_CONTACT = f"""
SELECT b.id, b.name, r.email_id, coalesce(b.sent_at, b.started_at, b.created_at), r.marks & {MARKS["unsubscribed"]} <> 0, {LAST_EVENT}
FROM (SELECT * FROM broadcasts WHERE account_id = %s AND status <> 'draft' ORDER BY id DESC LIMIT {LOOKED}) b
CROSS JOIN LATERAL (
    SELECT email_id, marks FROM broadcast_recipients WHERE account_id = b.account_id AND broadcast_id = b.id AND contact_id = %s OFFSET 0
) r
CROSS JOIN LATERAL (SELECT * FROM emails WHERE account_id = b.account_id AND email_id = r.email_id OFFSET 0) e
ORDER BY b.id DESC LIMIT %s
"""


# Pages shift when links are followed in between.
_CLICKED = """
SELECT target, url, clicks, unique_clicks, clicks - people_clicks FROM broadcast_links
WHERE account_id = %(account_id)s AND broadcast_id = %(broadcast_id)s AND {edge} ORDER BY clicks {order}, target {order} LIMIT %(limit)s
"""
_CLICKED_EDGE = """(clicks, target) {than} (
    SELECT clicks, target FROM broadcast_links
    WHERE account_id = %(account_id)s AND broadcast_id = %(broadcast_id)s AND target = %(edge)s
)"""


@attrs.frozen
class ClickedLink:
    """`target` identifies the URL. `unique_clicks`: recipients. `machine_clicks`: those of `clicks` that programs made."""

    target: UUID
    url: str
    clicks: int
    unique_clicks: int
    machine_clicks: int


@attrs.frozen
class Recipient:
    """`present`: the contact's ID, None if it was deleted."""

    contact_id: UUID
    present: UUID | None
    email: str
    count: int | None
    bounce_type: str | None
    clicked_links: Sequence[Mapping[str, object]] | None
    email_id: UUID


@attrs.frozen
class Received:
    """A broadcast that a contact got, and what happened to its email. `unsubscribed`: with a link of this broadcast."""

    broadcast_id: UUID
    name: str
    email_id: UUID
    at: datetime
    unsubscribed: bool
    last_event: str


@attrs.define(eq=False)
class Recipients:
    """How many recipients are read for one page: `marked` if their row is enough, `searched` if their address is compared as well,
    `looked_up` if an event of each is.
    """

    pool: Pool
    marked: int = 100_000
    searched: int = 20_000
    looked_up: int = 4_000

    async def of_contact(self, account_id: UUID, contact_id: UUID, limit: int) -> Sequence[Received]:
        """The newest broadcasts that a contact got, among the account's LOOKED newest."""
        return [Received(*row) for row in await self.pool.rows(OF_CONTACT, (account_id, contact_id, limit))]

    async def list(
        self, account_id: UUID, broadcast_id: UUID, kind: Kind, page: Page, bounce_type: str | None = None, email: str = ""
    ) -> tuple[Sequence[Recipient], UUID | None]:
        """Those to whom that happened, in the order of their contacts' IDs, newest first; and where the next page begins, or None.

        A page that is not full can have a next one. `email`: a part of the address; the whole address of a recipient finds only this one.
        """
        candidates, which, more = "marks <> 0" if kind in MARKS else "true", _which(kind), dict[str, object]()
        if email and (whole := await self.pool.rows(_WHOLE, (broadcast_id, account_id, folded(email)))):
            candidates, more["whole"] = f"{candidates} AND r.contact_id = %(whole)s", whole[0][0]
        elif email:
            which, more["email"] = f"{_CONTAINS} AND {which}", email
        events = bounce_type is not None or kind == "delivered"
        named = _named(account_id, broadcast_id, kind, page, bounce_type) | more
        named["most"] = self.looked_up if events else self.searched if email else self.marked
        rows = await self.pool.rows(_LIST.format(which=which, candidates=candidates, **_direction(page)), named)
        found, follow = page.cut([row[:-1] for row in rows if row[0] is not None])
        return [Recipient(*row) for row in found], (found[0 if page.before else -1][0] if follow else rows[0][-1])

    async def clicked_links(self, account_id: UUID, broadcast_id: UUID, page: Page) -> tuple[Sequence[ClickedLink], bool]:
        """A page of the links that were followed, the most frequent first, and whether there are more."""
        back, edge = page.before is not None, page.before or page.after
        condition = "true" if edge is None else _CLICKED_EDGE.format(than=">" if back else "<")
        sql = _CLICKED.format(edge=condition, order="ASC" if back else "DESC")
        named = {"account_id": account_id, "broadcast_id": broadcast_id, "edge": edge, "limit": (page.limit or 0) + 1}
        found, more = page.cut(await self.pool.rows(sql, named))
        return [ClickedLink(*row) for row in found], more

    async def unsubscribed(self, tx: Transaction, account_id: UUID, broadcast_id: UUID, hash: bytes, now: datetime) -> None:
        """Remember that a recipient unsubscribed with a link of this broadcast."""
        await tx.run(UNSUBSCRIBED, {"account_id": account_id, "broadcast_id": broadcast_id, "hash": hash, "now": now})

    async def missing(self, account_id: UUID, segment_id: UUID, numbers: Mapping[str, str]) -> tuple[int, Mapping[str, int]]:
        """How many contacts a segment has, and how many of them have no value, by key.

        `numbers`: the keys, with the number of a property or "" for a field of every contact.
        """
        keys = list(numbers)
        columns = [f"count(*) FILTER (WHERE c.{key} IS NULL OR c.{key} = '')" for key in keys if numbers[key] == ""]
        properties = [key for key in keys if numbers[key] != ""]
        columns += ["count(*) FILTER (WHERE coalesce(c.properties ->> %s, '') = '')" for _ in properties]
        sql = MISSING.format(columns=", ".join(columns) or "0")
        [(total, *counts)] = await self.pool.rows(sql, (*(numbers[key] for key in properties), account_id, segment_id))
        return total, dict(zip([key for key in keys if numbers[key] == ""] + properties, counts, strict=False))


def _which(kind: Kind) -> str:
    if kind == "sent":
        return f"marks & {MARKS['suppressed']} = 0"
    return f"marks & {MARKS[kind]} <> 0" if kind in MARKS else f"EXISTS ({_EVENTS})"


def _direction(page: Page) -> dict[str, str]:
    newer = page.before is not None
    edge = "true" if page.before is page.after is None else f"contact_id {'>' if newer else '<'} %(edge)s"
    return {"edge": edge, "order": "ASC" if newer else "DESC"}


def _named(account_id: UUID, broadcast_id: UUID, kind: Kind, page: Page, bounce_type: str | None) -> dict[str, object]:
    return {
        "account_id": account_id, "broadcast_id": broadcast_id, "kind": kind, "counted": kind in COUNTED, "event": f"email.{kind}",
        "bounce_type": bounce_type, "edge": page.before or page.after, "limit": (page.limit or 0) + 1,
    }  # fmt: skip
