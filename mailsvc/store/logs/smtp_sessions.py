"""The log of SMTP sessions, for the account that logged in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.logs.requests import USED
from mailsvc.store.mail.inserts import document
from mailsvc.store.paging import ALL, Page
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.postgres.shared_commits import SharedCommits
from mailsvc.store.sql import Columns

LINGER = 0.2  # seconds; nothing waits for these writes
COLUMNS = Columns.named("receipt_id", "key_id", "opened_at", "closed_at", "port", "tls", "mails", "refusals")

# Without sessions of an account that has moved to another cell meanwhile.
ADD = """
INSERT INTO receipts (account_id, receipt_id, key_id, opened_at, closed_at, port, tls, mails, refusals, transcript)
SELECT * FROM json_to_recordset(%s) AS r(
    account_id uuid, receipt_id uuid, key_id uuid, opened_at timestamptz, closed_at timestamptz, port integer, tls text,
    mails integer, refusals integer, transcript text)
WHERE NOT EXISTS (SELECT FROM account_moves l WHERE l.account_id = r.account_id AND l.phase = 'left')
"""
_WHOLE = Columns.of(**COLUMNS.expressions, transcript="transcript")
LIST = f"SELECT {COLUMNS} FROM receipts WHERE account_id = %s"
GET = f"SELECT {_WHOLE} FROM receipts WHERE account_id = %s AND receipt_id = %s"


@attrs.frozen
class SmtpSession:
    """A session. `refusals`: the number of 4yz and 5yz replies; `transcript`: None in lists."""

    receipt_id: UUID
    key_id: UUID | None
    opened_at: datetime
    closed_at: datetime
    port: int
    tls: str
    mails: int
    refusals: int
    transcript: str | None = attrs.field(default=None, repr=False)


class SmtpSessions:
    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._batch: SharedCommits[tuple[UUID, SmtpSession], None] = SharedCommits(
            self._write, clock, linger=LINGER, prompt=False, writes=1, queue_weight=32 << 20
        )

    async def add(self, account_id: UUID, receipt: SmtpSession) -> None:
        await self._batch.submit((account_id, receipt), len(receipt.transcript or "") + 256)

    async def get(self, account_id: UUID, receipt_id: UUID) -> SmtpSession | None:
        rows = await self._pool.rows(GET, (account_id, receipt_id))
        return SmtpSession(**_WHOLE.read(rows[0])) if rows else None

    async def _write(self, items: list[tuple[UUID, SmtpSession]]) -> list[None]:
        rows = [{"account_id": account_id} | attrs.asdict(receipt) for account_id, receipt in items]
        keys = {receipt.key_id for _, receipt in items if receipt.key_id is not None}
        at = max(receipt.closed_at for _, receipt in items)

        async def write(tx: Transaction) -> None:
            await tx.run(ADD, (document(rows),))
            await tx.run(USED, (at, list(keys), at - timedelta(minutes=1)))

        await self._pool.transact(write)
        return [None] * len(items)

    async def list(self, account_id: UUID, page: Page = ALL) -> tuple[Sequence[SmtpSession], bool]:
        """Newest first, without transcripts, and whether there are more."""
        end, edge = page.where("receipt_id")
        rows, has_more = page.cut(await self._pool.rows(LIST + end, (account_id, *edge)))
        return [SmtpSession(**COLUMNS.read(row)) for row in rows], has_more
