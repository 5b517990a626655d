"""Reads what is known about a person's consent to an email, by the hash of the address, and whether the address is suppressed.

The rule: audience/consent.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.postgres.shared_commits import SharedCommits
from mailsvc.store.queue.claims_sql import PLAN_BY_INDEX

NONE = UUID(int=0)  # no topic, no broadcast
TOGETHER = 100  # questions in one statement

# Of a topic that was deleted, only explicit choices count.
_READ = f"""
SELECT g.n, CASE WHEN c.id IS NULL THEN a.at IS NOT NULL ELSE c.unsubscribed END,
       CASE WHEN g.topic_id <> '{NONE}' THEN coalesce(t.subscribed, false) END,
       CASE WHEN c.id IS NULL THEN CASE WHEN o.at IS NOT NULL THEN false END ELSE ct.subscribed END,
       b.status, b.paused_at IS NOT NULL, b.reason, s.address IS NOT NULL, g.topic_id <> '{NONE}' AND t.id IS NULL
FROM (SELECT account_id, decode(hex, 'hex') AS hash, topic_id, broadcast_id, lower(address) AS address, n
      FROM unnest($1, $2, $3, $4, $5) WITH ORDINALITY AS u(account_id, hex, topic_id, broadcast_id, address, n)) g
LEFT JOIN contacts c ON c.account_id = g.account_id AND c.hash = g.hash
LEFT JOIN unsubscribes a ON a.account_id = g.account_id AND a.hash = g.hash AND a.topic_id = '{NONE}'
LEFT JOIN unsubscribes o ON o.account_id = g.account_id AND o.hash = g.hash AND o.topic_id = g.topic_id
LEFT JOIN topics t ON t.account_id = g.account_id AND t.id = g.topic_id AND t.deleted_at IS NULL
LEFT JOIN contact_topics ct ON ct.account_id = g.account_id AND ct.contact_id = c.id AND ct.topic_id = g.topic_id
LEFT JOIN broadcasts b ON b.account_id = g.account_id AND b.id = g.broadcast_id
LEFT JOIN suppressions s ON s.account_id = g.account_id AND s.address = g.address
"""
READ = Prepared("consent", ("uuid[]", "text[]", "uuid[]", "uuid[]", "text[]"), _READ, PLAN_BY_INDEX)


@attrs.frozen
class Question:
    """About one address, with its hash (store/audience/keys), and an email with this topic or of this broadcast."""

    account_id: UUID
    hash: bytes
    address: str
    topic_id: UUID = NONE
    broadcast_id: UUID = NONE


@attrs.frozen
class Facts:
    """`default` and `choice` are about the topic (audience/consent); `status`, `paused` and `reason` about the broadcast.

    `suppressed`: the address is on the account's suppression list now. `topic_deleted`: the topic no longer exists.
    """

    unsubscribed: bool
    default: bool | None
    choice: bool | None
    status: str | None
    paused: bool
    reason: str | None
    suppressed: bool
    topic_deleted: bool


class Consents:
    """Questions that are asked in one turn of the reactor are answered together."""

    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._asked: SharedCommits[Question, Facts] = SharedCommits(self._read, clock, max_items=TOGETHER, linger=0.0, writes=2)

    async def facts(self, question: Question) -> Facts:
        return await self._asked.submit(question)

    async def _read(self, questions: list[Question]) -> list[Facts]:
        columns = (
            [each.account_id for each in questions],
            [each.hash.hex() for each in questions],
            [each.topic_id for each in questions],
            [each.broadcast_id for each in questions],
            [each.address for each in questions],
        )
        # By position, because this runs for each email.
        found = {row[0]: Facts(*row[1:]) for row in await self._pool.rows(READ, columns)}
        return [found[n] for n in range(1, len(questions) + 1)]
