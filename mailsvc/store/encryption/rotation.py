"""The encrypted columns: whether a set of keys decrypts them, and encrypting them again with the current key.

They are encrypted again a few hundred rows at a time, each lot in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.store.encryption.secrets import Encryption, EncryptionError, Keys
from mailsvc.store.postgres.pool import Pool, Transaction

log = Logger()

# Every column that holds encrypted secrets, and the column with the id that they are bound to.
ENCRYPTED = (("dkim_keys", "id", "sealed_key"), ("webhooks", "id", "secret"), ("webhooks", "id", "former"), ("users", "id", "totp"))
KINDS = {"dkim_keys": "DKIM keys", "webhooks": "signing secrets of webhooks", "users": "secrets of authenticator apps"}
LOT = 200

_FIND = "SELECT {id}, {column} FROM {table} WHERE get_byte({column}, 0) <> %s ORDER BY {id} LIMIT %s FOR UPDATE"
_WRITE = """
UPDATE {table} t SET {column} = n.encrypted FROM unnest(%s::uuid[], %s::bytea[]) AS n(id, encrypted) WHERE t.{id} = n.id
"""
_COUNT = "SELECT get_byte({column}, 0), count(*) FROM {table} WHERE {column} IS NOT NULL GROUP BY 1"
# The oldest and the newest row of each key.
_SAMPLE = """
WITH sampled AS (
    SELECT min({id}::text)::uuid AS first, max({id}::text)::uuid AS last FROM {table}
    WHERE {column} IS NOT NULL GROUP BY substr({column}, 1, 1)
)
SELECT t.{id}, t.{column} FROM sampled s JOIN {table} t ON t.{id} IN (s.first, s.last)
"""


@attrs.frozen
class Unreadable:
    """Secrets of one kind that the keys do not decrypt. `known`: there is a key of that number, but it is another one."""

    kind: str
    number: int
    known: bool

    def __str__(self) -> str:
        return f"its key {self.number} does not open the {self.kind}" if self.known else f"it has no key {self.number} for the {self.kind}"


async def unreadable(pool: Pool, keys: Keys) -> list[Unreadable]:
    """What these keys do not decrypt, from a sample of each kind and key number.

    A damaged row is not a wrong key: it only counts if no other row of the sample can be decrypted.
    """
    encryption, found = Encryption(keys), list[Unreadable]()
    for table, id_, column in ENCRYPTED:
        opened: dict[int, list[bool]] = {}
        for row, octets in await pool.rows(_SAMPLE.format(table=table, id=id_, column=column)):
            opened.setdefault(bytes(octets)[0] if octets else 0, []).append(_opens(encryption, bytes(octets), row))
        found += [Unreadable(KINDS[table], number, number in keys.by_number) for number, each in opened.items() if not any(each)]
        if damaged := sum(any(each) and not all(each) for each in opened.values()):
            log.error("{count} sampled {kind} are damaged: they cannot be decrypted", count=damaged, kind=KINDS[table])
    return list(dict.fromkeys(found))


def _opens(encryption: Encryption, octets: bytes, row: UUID) -> bool:
    try:
        encryption.decrypt(octets, row)
    except EncryptionError:
        return False
    return True


async def reencrypt(pool: Pool, encryption: Encryption, lot: int = LOT) -> int:
    """Until nothing is left that another key encrypted; how much it was."""
    done = 0
    for table, id_, column in ENCRYPTED:
        names = {"table": table, "id": id_, "column": column}
        while True:

            async def some(tx: Transaction, names: Mapping[str, str] = names) -> int:
                rows: list[tuple[UUID, bytes]] = await tx.rows(_FIND.format_map(names), (encryption.current, lot))
                encrypted = [encryption.encrypt(encryption.decrypt(bytes(octets), row), row) for row, octets in rows]
                if rows:
                    await tx.run(_WRITE.format_map(names), ([row for row, _ in rows], encrypted))
                return len(rows)

            count = await pool.transact(some)
            done += count
            if count < lot:
                break
    return done


async def count(pool: Pool) -> Mapping[int, int]:
    """How many secrets each key has encrypted."""
    found: dict[int, int] = {}
    for table, id_, column in ENCRYPTED:
        for number, many in await pool.rows(_COUNT.format(table=table, id=id_, column=column)):
            found[number] = found.get(number, 0) + many
    return found
