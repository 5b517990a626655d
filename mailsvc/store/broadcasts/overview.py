"""What people see of an account's broadcasts: the list, whom one would reach, and how its recipients split by mail domain.

Statements about contacts and recipients look at a bounded number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import attrs

from mailsvc.store.broadcasts.sending import NIL, TOTAL
from mailsvc.store.broadcasts.values import COLUMNS, MARKS, Broadcast, Status, broadcast
from mailsvc.store.cache import Cache
from mailsvc.store.paging import Page
from mailsvc.store.postgres.pool import Pool

KEPT = 60.0  # seconds
# Of up to EXACT contacts or recipients, all are looked at; of more, the first SAMPLE, so that a page with the answer takes less than 50 ms.
EXACT = 20_000
SAMPLE = 4_000
COUNTED = 50_000  # recipients in the queue

LIST = f"""
SELECT {COLUMNS.of_table("b")}, s.name FROM broadcasts b
LEFT JOIN segments s ON s.account_id = b.account_id AND s.id = b.segment_id AND s.deleted_at IS NULL
WHERE b.account_id = %s AND (%s::text IS NULL OR b.status = %s)
"""
NAMES = """
SELECT (SELECT name FROM segments WHERE account_id = %(account_id)s AND id = %(segment_id)s AND deleted_at IS NULL),
       (SELECT name FROM topics WHERE account_id = %(account_id)s AND id = %(topic_id)s AND deleted_at IS NULL)
"""
# `why` a member gets nothing is decided as in audience/consent, then by the suppression list.
_MEMBERS = """
SELECT c.*, CASE WHEN c.unsubscribed THEN 'unsubscribed' WHEN NOT t.subscribed THEN 'opted_out'
                 WHEN t.subscribed IS NULL AND NOT %(default)s THEN 'no_consent' WHEN s.address IS NOT NULL THEN 'suppressed' END AS why
FROM (SELECT contact_id FROM contact_segments WHERE account_id = %(account_id)s AND segment_id = %(segment_id)s
      ORDER BY contact_id LIMIT %(looked)s) m
JOIN contacts c ON c.account_id = %(account_id)s AND c.id = m.contact_id
LEFT JOIN contact_topics t ON t.account_id = %(account_id)s AND t.contact_id = c.id AND t.topic_id = %(topic_id)s
LEFT JOIN suppressions s ON s.account_id = %(account_id)s AND s.address = c.address
"""
REASONS = ("unsubscribed", "opted_out", "no_consent", "suppressed")
_BY_REASON = ", ".join(f"count(*) FILTER (WHERE why = '{reason}')" for reason in REASONS)
_MARKED = ", ".join(f"count(*) FILTER (WHERE r.marks & {bit} <> 0)" for bit in MARKS.values())
# Each contact by its key: of a join, Postgres expects that reading all contacts is cheaper.
_DOMAIN = "split_part(coalesce(c.address, ''), '@', 2)"
DOMAINS = f"""
SELECT {_DOMAIN}, count(*), {_MARKED} FROM (
    SELECT contact_id, marks FROM broadcast_recipients WHERE account_id = %(account_id)s AND broadcast_id = %(broadcast_id)s
    ORDER BY contact_id LIMIT %(looked)s
) r LEFT JOIN LATERAL (SELECT address FROM contacts WHERE account_id = %(account_id)s AND id = r.contact_id OFFSET 0) c ON true
GROUP BY 1 ORDER BY 2 DESC, 1
"""
WAITING = """
SELECT count(*) FILTER (WHERE attempts = 0), count(*) FILTER (WHERE attempts > 0)
FROM (SELECT attempts FROM queue WHERE account_id = %s AND broadcast_id = %s LIMIT %s) q
"""


@attrs.frozen
class Waiting:
    """Recipients in the queue: those to whom nothing was sent yet, and those who are tried again. Together at most COUNTED."""

    untried: int
    deferred: int


@attrs.frozen
class Listed:
    """`segment`: its name, None if it was deleted or none was chosen."""

    broadcast: Broadcast
    segment: str | None


@attrs.frozen
class Reach:
    """How many contacts a segment has (`total`); of the first `looked` of them, how many would get nothing, by reason, and how many of
    those who would get the email have no value, by key.
    """

    total: int
    looked: int
    reasons: Mapping[str, int]
    missing: Mapping[str, int]

    @property
    def exact(self) -> bool:
        return self.total == self.looked

    @property
    def recipients(self) -> int:
        """How many would get it; if there are more contacts than were looked at, about so many."""
        return self.scaled(self.looked - sum(self.reasons.values()))

    def scaled(self, count: int) -> int:
        return count if self.exact else round(count * self.total / self.looked)


@attrs.frozen
class DomainShare:
    """Recipients with addresses at a mail domain ("" for deleted contacts), and those of them to whom something happened, as in MARKS."""

    name: str
    recipients: int
    marked: Mapping[str, int]


@attrs.define(eq=False)
class Overview:
    """Counting the members of a segment with a million takes a tenth of a second, so the number is kept for a while."""

    pool: Pool
    _totals: Cache[tuple[UUID, UUID | None], int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._totals = Cache(self.pool.reactor, max_age=KEPT)

    async def list(self, account_id: UUID, status: Status | None, page: Page) -> tuple[Sequence[Listed], bool]:
        """Newest first, and whether there are more."""
        where, params = page.where("b.id")
        rows, more = page.cut(await self.pool.rows(LIST + where, (account_id, status, status, *params)))
        return [Listed(broadcast(row[:-1]), row[-1]) for row in rows], more

    async def names(self, of: Broadcast) -> tuple[str | None, str | None]:
        """The names of its segment and topic; None for what was deleted or is not set."""
        named = {"account_id": of.account_id, "segment_id": of.segment_id, "topic_id": of.topic_id}
        return (await self.pool.rows(NAMES, named))[0]

    async def reach(self, of: Broadcast, default: bool | None, numbers: Mapping[str, str], exact: int = EXACT) -> Reach:
        """`default`: of its topic, None if it has none. `numbers`: the keys whose missing values are counted, as in Broadcast.numbers."""
        total = await self._total(of.account_id, of.segment_id)
        looked = exact + 1 if total <= exact else min(SAMPLE, exact)
        named: dict[str, object] = {
            "account_id": of.account_id, "segment_id": of.segment_id, "looked": looked, "default": default is not False,
            "topic_id": NIL if default is None else of.topic_id,
        }  # fmt: skip
        values = []
        for place, (key, number) in enumerate(numbers.items()):
            value = key if number == "" else f"properties ->> %(number{place})s"
            values.append(f", count(*) FILTER (WHERE why IS NULL AND coalesce({value}, '') = '')")
            named[f"number{place}"] = number
        sql = f"SELECT count(*), {_BY_REASON}{''.join(values)} FROM ({_MEMBERS}) x"
        [(seen, *counts)] = await self.pool.rows(sql, named)
        total = seen if seen < looked else max(total, seen)
        return Reach(total, seen, dict(zip(REASONS, counts, strict=False)), dict(zip(numbers, counts[len(REASONS) :], strict=True)))

    async def _total(self, account_id: UUID, segment_id: UUID | None) -> int:
        """Members of a segment; up to KEPT seconds old."""

        async def count() -> int:
            return int((await self.pool.rows(TOTAL, (account_id, segment_id)))[0][0])

        return await self._totals.get((account_id, segment_id), count)

    async def domains(self, of: Broadcast) -> Sequence[DomainShare]:
        """Of its recipients, if there are more than EXACT of its first SAMPLE, the most frequent domain first."""
        looked = SAMPLE if of.queued > EXACT else EXACT
        rows = await self.pool.rows(DOMAINS, {"account_id": of.account_id, "broadcast_id": of.id, "looked": looked})
        return [DomainShare(name, count, dict(zip(MARKS, marked, strict=True))) for name, count, *marked in rows]

    async def waiting(self, of: Broadcast) -> Waiting:
        return Waiting(*(await self.pool.rows(WAITING, (of.account_id, of.id, COUNTED)))[0])
