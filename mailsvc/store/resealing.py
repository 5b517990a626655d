"""Seals again, with the key that seals now, what other keys sealed: a few hundred rows at a time, each lot in a transaction of its own."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from mailsvc.store.pool import Pool, Transaction
from mailsvc.store.seal import Seal

# Every column that holds sealed secrets, and the column with the id that they are bound to.
SEALED = (("dkim_keys", "id", "sealed_key"), ("webhooks", "id", "secret"), ("webhooks", "id", "former"), ("users", "id", "totp"))
LOT = 200

_FIND = "SELECT {id}, {column} FROM {table} WHERE get_byte({column}, 0) <> %s ORDER BY {id} LIMIT %s FOR UPDATE"
_WRITE = """
UPDATE {table} t SET {column} = n.sealed FROM unnest(%s::uuid[], %s::bytea[]) AS n(id, sealed) WHERE t.{id} = n.id
"""
_COUNT = "SELECT get_byte({column}, 0), count(*) FROM {table} WHERE {column} IS NOT NULL GROUP BY 1"


async def reseal(pool: Pool, seal: Seal, lot: int = LOT) -> int:
    """Until nothing is left that another key sealed; how much it was."""
    done = 0
    for table, id_, column in SEALED:
        names = {"table": table, "id": id_, "column": column}
        while True:

            async def some(tx: Transaction, names: Mapping[str, str] = names) -> int:
                rows: list[tuple[UUID, bytes]] = await tx.rows(_FIND.format_map(names), (seal.current, lot))
                sealed = [seal.seal(seal.open(bytes(octets), row), row) for row, octets in rows]
                if rows:
                    await tx.run(_WRITE.format_map(names), ([row for row, _ in rows], sealed))
                return len(rows)

            count = await pool.transact(some)
            done += count
            if count < lot:
                break
    return done


async def count(pool: Pool) -> Mapping[int, int]:
    """How many secrets each key has sealed."""
    found: dict[int, int] = {}
    for table, id_, column in SEALED:
        for number, many in await pool.rows(_COUNT.format(table=table, id=id_, column=column)):
            found[number] = found.get(number, 0) + many
    return found
