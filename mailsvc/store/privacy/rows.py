"""Looks through tables in batches, in the order of their primary keys: finds the rows that have an address, and blanks them.

Each batch is one short transaction. Reading all rows takes linear time, since almost no column has an index by address.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from uuid import UUID

import attrs

from mailsvc.mail.address_search import Address
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.privacy import statements
from mailsvc.store.privacy.erasures import Progress
from mailsvc.store.privacy.inventory import BY_STEPS
from mailsvc.store.privacy.statements import Shape

BATCH = 500

# Where the recipient opened the email, before the recipient's address is gone.
_VISITS = """
UPDATE events v SET data = v.data || '{"address": "", "agent": ""}' FROM emails e
WHERE e.account_id = %(account_id)s AND e.email_id = %(email_id)s AND v.account_id = %(account_id)s AND v.email_id = %(email_id)s
AND v.type IN ('email.opened', 'email.clicked') AND (v.recipient IS NULL OR e.recipients[v.recipient + 1] ~* %(expression)s)
"""
_MESSAGES = """
DELETE FROM messages m WHERE m.account_id = %(account_id)s AND m.email_id = %(email_id)s
AND NOT EXISTS (SELECT FROM queue q WHERE q.email_id = %(email_id)s)
"""


@attrs.frozen
class Hit:
    """A row that has the address. `busy`: it must not be changed now."""

    key: Mapping[str, str]
    busy: bool
    columns: tuple[str, ...]


@attrs.frozen
class Rows:
    """The rows of one account, or of all."""

    address: Address
    account: UUID | None
    batch: int = BATCH

    async def find(self, pool: Pool, shape: Shape) -> AsyncIterator[Hit]:
        after: Mapping[str, str] | None = None
        while True:
            found, after = await pool.transact(lambda tx, after=after: self._batch(tx, shape, after))  # type: ignore[misc]
            for hit in found:
                yield hit
            if after is None:
                return

    async def erase(self, tx: Transaction, progress: Progress, shape: Shape) -> None:
        """One batch. `progress` then has the last key, or is at the next step."""
        found, after = await self._batch(tx, shape, progress.after)
        sql = statements.blank(shape)
        for hit in found:
            await self._erase(tx, progress, shape, hit, sql)
        if after is None:
            progress.next_step()
        else:
            progress.after = dict(after)

    async def _erase(self, tx: Transaction, progress: Progress, shape: Shape, hit: Hit, sql: str | None) -> None:
        rules = {column.name: column.erase for column in shape.columns if column.name in hit.columns}
        # What is in the queue now is being sent, or was accepted since the step that stops it.
        waits = hit.busy or (shape.name == "queue" and "row" in rules.values())
        for name, rule in rules.items():
            if rule not in BY_STEPS:
                progress.add("kept" if rule == "keep" else "waiting" if waits else "erased", f"{shape.name}.{name}")
        if waits:
            return
        if "row" in rules.values():
            await tx.run(statements.delete(shape), hit.key)
            return
        if sql is not None and set(rules.values()) - BY_STEPS - {"keep"}:
            values = {**statements.parameters(self.address), **hit.key}
            if shape.name == "emails":
                await tx.run(_VISITS, values)
            await tx.run(sql, values)
            if shape.name == "emails":
                progress.add("erased", "messages.bytes", int(await tx.run(_MESSAGES, hit.key) > 0))

    async def _batch(
        self, tx: Transaction, shape: Shape, after: Mapping[str, str] | None
    ) -> tuple[Sequence[Hit], Mapping[str, str] | None]:
        """The rows with the address among the next ones, and the last key of the batch; None if it was the last batch."""
        account = self.account is not None
        where = [statements.scope(shape, account)]
        values: dict[str, object] = {"account": self.account, "batch": self.batch, **statements.parameters(self.address)}
        if after is not None:
            where.append(statements.after(shape, account))
            values |= {f"after_{key}": value for key, value in after.items()}
        last = await tx.rows(statements.bound(shape, " AND ".join(where)), values)
        end = dict(zip(shape.keys, last[0], strict=True)) if last else None
        if end is not None:
            where.append(statements.after(shape, account, beyond=True))
            values |= {f"last_{key}": value for key, value in end.items()}
        found = await tx.rows(statements.hits(shape, " AND ".join(where)), values)
        return [_hit(shape, row) for row in found], end


def _hit(shape: Shape, row: Row) -> Hit:
    count = len(shape.keys)
    names = [column.name for column, has in zip(shape.columns, row[count + 1 :], strict=True) if has]
    return Hit(dict(zip(shape.keys, row[:count], strict=True)), row[count], tuple(names))
