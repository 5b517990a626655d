"""The mails of the development inbox: the latest ones, bounded in number and size. Written by sandbox/, read by the API."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.store.ids import uuid7
from mailsvc.store.postgres.adapters import json
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.sql import Columns

MAX_MAILS = 1000
MAX_BYTES = 256 << 20
_SWEEP_EVERY = 20  # mails; the limits may be exceeded by as many
_SUMMARY = Columns.named("id", "account_id", "email_id", "received_at", "sender", "recipients", "tls", "dkim", "size")
_DETAIL = Columns.named(*_SUMMARY.expressions, "message")


@attrs.frozen
class Verdict:
    """The result of verifying one DKIM-Signature field."""

    domain: str
    selector: str
    algorithm: str
    result: Literal["pass", "fail", "nokey", "invalid"]
    reason: str | None = None


@attrs.frozen
class ReceivedMail:
    """A received mail. `account_number` and `email_id` are None if unknown."""

    received_at: datetime
    sender: str  # the return path
    recipients: tuple[str, ...]
    message: bytes = attrs.field(repr=False)
    dkim: tuple[Verdict, ...]
    tls: str | None
    account_number: int | None
    email_id: UUID | None


@attrs.frozen
class SandboxEmail:
    """A stored mail. `message` is None in lists."""

    id: UUID
    account_id: UUID
    email_id: UUID | None
    received_at: datetime
    sender: str
    recipients: tuple[str, ...]
    tls: str | None
    dkim: tuple[Verdict, ...]
    size: int
    message: bytes | None = attrs.field(default=None, repr=False)


class Sandbox:
    """The table sandbox_emails."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._unswept = 0

    async def add(self, mail: ReceivedMail) -> UUID:
        """Store a mail. The oldest ones are deleted."""
        id_ = uuid7(mail.received_at.timestamp())
        # An email that is being delivered has its rows in the queue.
        await self._pool.run(
            "INSERT INTO sandbox_emails (id, account_id, email_id, received_at, sender, recipients, tls, dkim, size, message)"
            " VALUES (%s, coalesce((SELECT id FROM accounts WHERE number = %s),"
            " (SELECT account_id FROM queue WHERE email_id = %s LIMIT 1)), %s, %s, %s, %s::text[], %s, %s, %s, %s)",
            (
                id_,
                mail.account_number,
                mail.email_id,
                mail.email_id,
                mail.received_at,
                mail.sender,
                list(mail.recipients),
                mail.tls,
                json([attrs.asdict(verdict) for verdict in mail.dkim]),
                len(mail.message),
                mail.message,
            ),
        )
        self._unswept += 1
        if self._unswept >= _SWEEP_EVERY:
            self._unswept = 0
            await self._sweep()
        return id_

    async def _sweep(self) -> None:
        await self._pool.run(
            "DELETE FROM sandbox_emails WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER newest AS place, sum(size)"
            " OVER newest AS total FROM sandbox_emails WINDOW newest AS (ORDER BY id DESC)) AS kept WHERE place > %s OR total > %s)",
            (MAX_MAILS, MAX_BYTES),
        )

    async def list(
        self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None
    ) -> tuple[list[SandboxEmail], bool]:
        """Newest first, older than `after` or newer than `before`; and whether there are more in that direction."""
        direction, edge = (">", before) if before is not None else ("<", after)
        order = "ASC" if before is not None else "DESC"
        condition = f" AND id {direction} %s" if edge is not None else ""
        rows = await self._pool.rows(
            f"SELECT {_SUMMARY} FROM sandbox_emails WHERE account_id = %s{condition} ORDER BY id {order} LIMIT %s",  # noqa: S608 - no input in it
            (account_id, *([edge] if edge is not None else []), limit + 1),
        )
        emails = [_email(_SUMMARY.read(row)) for row in rows[:limit]]
        return (emails[::-1] if before is not None else emails), len(rows) > limit

    async def size(self, account_id: UUID, id_: UUID) -> int | None:
        """The size of its message in bytes."""
        rows = await self._pool.rows("SELECT size FROM sandbox_emails WHERE account_id = %s AND id = %s", (account_id, id_))
        return int(rows[0][0]) if rows else None

    async def get(self, account_id: UUID, id_: UUID) -> SandboxEmail | None:
        rows = await self._pool.rows(
            f"SELECT {_DETAIL} FROM sandbox_emails WHERE account_id = %s AND id = %s",  # noqa: S608 - no input in it
            (account_id, id_),
        )
        return _email(_DETAIL.read(rows[0])) if rows else None

    async def published(self, domain: str, selector: str) -> str | None:
        """The DNS record of a DKIM key that signs or recently signed."""
        rows = await self._pool.rows(
            "SELECT k.algorithm, k.public_key FROM dkim_keys k JOIN domains d ON d.id = k.domain_id"
            " WHERE d.name = %s AND k.selector = %s AND k.state <> 'retired'"
            " ORDER BY d.status = 'verified' DESC, d.trusted_at IS NOT NULL DESC, d.id LIMIT 1",
            (domain.lower(), selector),
        )
        return f"v=DKIM1; k={rows[0][0]}; p={rows[0][1]}" if rows else None


def _email(values: dict[str, Any]) -> SandboxEmail:
    verdicts = tuple(Verdict(**verdict) for verdict in values["dkim"])
    return SandboxEmail(**values | {"recipients": tuple(values["recipients"]), "dkim": verdicts})
