"""The outbox of webhooks: which endpoints have something due, who may send it now, and what became of it.

The ledger fills it. A claim lasts a few seconds longer than an attempt may: a process that dies leaves nothing to free, and a
message may be sent twice, under the same id. A claim goes by endpoint, so the backlog of a dead one costs nobody anything.
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

WALK = 5000  # endpoints that one look at the outbox passes
BITE = 1000  # messages given up in one transaction
FIRST = UUID(int=0)
LATELY = timedelta(days=1)  # who took a message since then is well

Outcome = Literal["success", "failed", "retry"]


@attrs.frozen
class Ready:
    """An endpoint with something due. `live`: it is there and enabled; else what waits for it is to be cleared.

    `well`: it took a message lately, and has not failed since.
    """

    webhook_id: UUID
    account_id: UUID | None
    url: str | None
    failing: bool | None
    live: bool
    well: bool = False


@attrs.frozen
class Due:
    """A message to be sent now. `tries`: how many there were; `former` signs too, in the day after a rotation.

    It tells of `fact`, or is a test and tells `payload`; neither when what it told of is no longer kept.
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


@attrs.frozen
class Posted:
    """One attempt and what it comes to. `status`: of HTTP, 0: no answer. `why`: the endpoint is to be disabled, and this is the reason.

    An endpoint that has done nothing but fail since `failing_before` is disabled too. `asked`: whether it was asked at all; when it was
    not, this says nothing of it.
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
    asked: bool = True


class Outbox:
    """One for a process: it remembers how far it has looked."""

    log = Logger()

    def __init__(self, pool: Pool, clock: Any, encryption: Encryption, walk: int = WALK) -> None:
        self._pool = pool
        self._encryption = encryption
        self._walk = walk
        self._stopped = FIRST
        self.batch: SharedCommits[Posted, bool] = SharedCommits(self._write, clock)

    async def ready(self, now: datetime, skip: Collection[UUID] = (), *, failing: bool = True, limit: int = 1000) -> list[Ready]:
        """Endpoints with something due, without those in `skip`; those that are well come first, those that fail last, or with
        `failing` off not at all.

        With very many, each call goes on where the one before stopped.
        """
        named = {"now": now, "skip": [*skip], "failing": failing, "limit": limit, "walk": self._walk, "start": self._stopped}
        named["lately"] = now - LATELY
        *found, (last, *_) = await self._pool.rows(outbox_sql.READY, named)
        self._stopped = last or FIRST
        return [Ready(*row) for row in found]

    async def claim(self, numbers: Mapping[UUID, int], now: datetime, until: datetime) -> list[Due]:
        """Of each endpoint at most so many messages, the longest due first; nobody else gets them before `until`.

        Messages that cannot be signed, because the secret of their endpoint cannot be decrypted, are left until then.
        """
        named = {"ids": [*numbers], "numbers": [*numbers.values()], "now": now, "until": until}
        found, unsigned = list[Due](), set[UUID]()
        for row in await self._pool.rows(outbox_sql.CLAIM, named):
            try:
                found.append(self._due(row))
            except EncryptionError:
                unsigned.add(row[0])
        for webhook_id in unsigned:
            self.log.error("the signing secret of the webhook {webhook_id} cannot be decrypted, its messages wait", webhook_id=webhook_id)
        return found

    async def release(self, dues: Sequence[Due], now: datetime, until: datetime) -> None:
        """Give back what was claimed `until` then and is not sent now."""
        if dues:
            ids, events = [due.webhook_id for due in dues], [due.event_id for due in dues]
            named = {"ids": ids, "events": events, "tries": [due.tries for due in dues], "now": now, "until": until}
            await self._pool.run(outbox_sql.RELEASE, named)

    async def settle(self, posted: Posted) -> bool:
        """Write an attempt down; whether the endpoint is disabled now."""
        return await self.batch.submit(posted, len(posted.response) + 256)

    async def clear(self, webhook_id: UUID) -> None:
        """Give up all that waits for an endpoint that is disabled or gone."""
        await clear(self._pool, webhook_id)

    async def _write(self, posted: list[Posted]) -> list[bool]:
        rows = await self._pool.rows(outbox_sql.SETTLE, (document([_row(n, each) for n, each in enumerate(posted)]),))
        disabled = {webhook_id for (webhook_id,) in rows}
        return [each.due.webhook_id in disabled for each in posted]

    def _due(self, row: Row) -> Due:
        webhook_id, event_id, account_id, tries, url, secret, former, payload, *columns = row
        decrypt = self._encryption.decrypt
        opened = None if former is None else decrypt(former, webhook_id)
        return Due(webhook_id, event_id, account_id, tries, url, decrypt(secret, webhook_id), opened, payload, fact(columns))


async def clear(pool: Pool, webhook_id: UUID) -> None:
    """The same for whoever disables or removes it."""
    while True:
        [(count,)] = await pool.rows(outbox_sql.CLEAR, {"id": webhook_id, "limit": BITE})
        if count < BITE:
            return


def claim_until(now: datetime, seconds: float) -> datetime:
    """The end of a claim for an attempt that takes at most `seconds`."""
    return now + timedelta(seconds=2 * seconds + 10)


def _row(n: int, posted: Posted) -> dict[str, object]:
    due = posted.due
    row = attrs.asdict(posted, filter=attrs.filters.exclude("due"))
    row["response"] = posted.response.replace("\0", "\ufffd")
    ids = {"account_id": due.account_id, "webhook_id": due.webhook_id, "event_id": due.event_id, "tries": due.tries}
    return row | ids | {"n": n, "attempt_id": uuid7(posted.started_at.timestamp())}
