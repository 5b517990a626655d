"""The outbox of webhooks: finds endpoints with due messages, claims messages, and records attempts.

The event ledger fills it. Claims expire a few seconds after the timeout of an attempt, so a crashed process leaves nothing to clean up; a
message may then be sent twice with the same ID. Claims are by endpoint, so the backlog of a dead endpoint does not affect others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.store.encryption.secrets import Encryption, EncryptionError
from mailsvc.store.events import outbox_sql
from mailsvc.store.events.event_log import Fact, fact
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.inserts import document
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.shared_commits import SharedCommits

WALK = 5000  # endpoints that one query of the outbox visits
BATCH = 1000  # messages discarded in one transaction
FIRST = UUID(int=0)
RECENT = timedelta(days=1)  # an endpoint that accepted a message within this time works

Outcome = Literal["success", "failed", "retry"]


@attrs.frozen
class Ready:
    """An endpoint with due messages. `live`: it exists and is enabled; otherwise its messages are discarded.

    `well`: it accepted a message recently and has not failed since.
    """

    webhook_id: UUID
    account_id: UUID | None
    url: str | None
    failing: bool | None
    live: bool
    well: bool = False


@attrs.frozen
class Due:
    """A message to send now. `tries`: previous attempts; `former`: the previous secret, within a day of a rotation.

    Its content is `fact`, or the `payload` of a test; neither if it was deleted or cannot be read. `trace`: that of the email's acceptance.
    """

    webhook_id: UUID
    event_id: UUID
    account_id: UUID
    tries: int
    url: str
    secret: bytes = attrs.field(repr=False)
    former: bytes | None = attrs.field(repr=False)
    payload: Mapping[str, Any] | None
    fact: Fact | None
    trace: str | None = None


@attrs.frozen
class Posted:
    """An attempt and its outcome. `status`: the HTTP status, or 0 without a response. `why`: the reason to disable the endpoint.

    An endpoint that has only failed since `failing_before` is disabled too. `request_sent`: whether a request was sent; if not, the attempt
    does not affect the endpoint's health.
    """

    due: Due
    status: int
    response: str
    started_at: datetime
    seconds: float
    at: datetime
    outcome: Outcome
    failing_before: datetime
    next_at: datetime | None = None
    hold_until: datetime | None = None
    why: str | None = None
    request_sent: bool = True


class Outbox:
    """One per process: remembers how far it has searched."""

    log = Logger()

    def __init__(self, pool: Pool, clock: Any, encryption: Encryption, walk: int = WALK) -> None:
        self._pool = pool
        self._encryption = encryption
        self._walk = walk
        self._stopped = FIRST
        self.batch: SharedCommits[Posted, bool] = SharedCommits(self._write, clock)

    async def ready(self, now: datetime, skip: Collection[UUID] = (), *, failing: bool = True, limit: int = 1000) -> list[Ready]:
        """Endpoints with due messages, except those in `skip`: working ones first, failing ones last, or not at all if `failing`
        is false.

        If there are very many, each call continues where the previous one stopped.
        """
        named = {"now": now, "skip": [*skip], "failing": failing, "limit": limit, "walk": self._walk, "start": self._stopped}
        named["lately"] = now - RECENT
        *found, (last, *_) = await self._pool.rows(outbox_sql.READY, named)
        self._stopped = last or FIRST
        return [Ready(*row) for row in found]

    async def claim(self, numbers: Mapping[UUID, int], now: datetime, until: datetime) -> list[Due]:
        """Claim messages until `until`: at most the given number for each endpoint, the longest due first.

        Messages whose endpoint's secret cannot be decrypted are not returned.
        """
        named = {"ids": [*numbers], "numbers": [*numbers.values()], "now": now, "until": until}
        found, unsigned = list[Due](), set[UUID]()
        for row in await self._pool.rows(outbox_sql.CLAIM, named):
            try:
                found.append(self._due(row))
            except EncryptionError:
                unsigned.add(row[0])
        for webhook_id in unsigned:
            self.log.error(
                "the signing secret of webhook {webhook_id} cannot be decrypted, its messages are delayed", webhook_id=webhook_id
            )
        return found

    async def release(self, dues: Sequence[Due], now: datetime, until: datetime) -> None:
        """Release messages that were claimed until `until` and not sent."""
        if dues:
            dues = sorted(dues, key=lambda due: (due.webhook_id, due.event_id))
            ids, events = [due.webhook_id for due in dues], [due.event_id for due in dues]
            named = {"ids": ids, "events": events, "tries": [due.tries for due in dues], "now": now, "until": until}
            await self._pool.run(outbox_sql.RELEASE, named)

    async def settle(self, posted: Posted) -> bool:
        """Record an attempt; whether the endpoint is now disabled."""
        return await self.batch.submit(posted, len(posted.response) + 256)

    async def clear(self, webhook_id: UUID) -> bool:
        """Discard a batch of messages of a disabled or deleted endpoint; whether there are more."""
        return await _clear_batch(self._pool, webhook_id)

    async def _write(self, posted: list[Posted]) -> list[bool]:
        rows = await self._pool.rows(outbox_sql.SETTLE, (document([_row(n, each) for n, each in enumerate(posted)]),))
        disabled = {webhook_id for (webhook_id,) in rows}
        return [each.due.webhook_id in disabled for each in posted]

    def _due(self, row: Row) -> Due:
        """By position, because this runs for each message. The columns are in outbox_claim.sql."""
        webhook_id, event_id, account_id, tries, url, secret, former, payload, trace, *columns = row
        decrypt = self._encryption.decrypt
        opened = None if former is None else decrypt(former, webhook_id)
        return Due(webhook_id, event_id, account_id, tries, url, decrypt(secret, webhook_id), opened, payload, fact(columns), trace)


async def clear(pool: Pool, webhook_id: UUID) -> None:
    """Discard all messages of a disabled or deleted endpoint."""
    while await _clear_batch(pool, webhook_id):
        pass


async def _clear_batch(pool: Pool, webhook_id: UUID) -> bool:
    [(count,)] = await pool.rows(outbox_sql.CLEAR, {"id": webhook_id, "limit": BATCH})
    return bool(count >= BATCH)


def claim_until(now: datetime, seconds: float) -> datetime:
    """When a claim expires, for attempts that take at most `seconds`."""
    return now + timedelta(seconds=2 * seconds + 10)


def _row(n: int, posted: Posted) -> dict[str, object]:
    due = posted.due
    row = attrs.asdict(posted, filter=attrs.filters.exclude("due"))
    row["response"] = posted.response.replace("\0", "\ufffd")
    ids = {"account_id": due.account_id, "webhook_id": due.webhook_id, "event_id": due.event_id, "tries": due.tries, "url": due.url}
    return row | ids | {"n": n, "attempt_id": uuid7(posted.started_at.timestamp())}
