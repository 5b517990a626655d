"""The encrypted columns: check whether a set of keys decrypts them, and encrypt them again with the current key.

Rows are encrypted again in batches of a few hundred, each in its own transaction. What cannot be decrypted stays as it is: one damaged row
must not prevent a rotation. DKIM keys themselves are replaced in domains/rotation; of one that is retired, the secret is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.store.encryption.secrets import Encryption, EncryptionError, Keys
from mailsvc.store.postgres.pool import Pool, Transaction

log = Logger()

# Table, column of the ID that a secret is bound to, column of the secret.
COLUMNS = (
    ("dkim_keys", "id", "sealed_key"),
    ("webhooks", "id", "secret"),
    ("webhooks", "id", "former"),
    ("users", "id", "totp"),
    ("operators", "id", "totp"),
    ("audience_keys", "account_id", "secret"),
    ("erasures", "id", "address"),
    ("body_keys", "account_id", "key"),
    ("single_sign_on", "account_id", "secret"),
)
KINDS = {
    "dkim_keys": "DKIM keys",
    "webhooks": "webhook signing secrets",
    "users": "authenticator secrets",
    "operators": "authenticator secrets of operators",
    "audience_keys": "keys of unsubscribes",
    "erasures": "addresses that are being erased",
    "body_keys": "keys of encrypted messages",
    "single_sign_on": "client secrets of single sign-on",
}
BATCH = 200

_FIRST = UUID(int=0)
# get_byte fails for an empty value. Postgres chooses the order of conditions, so one that leaves out empty values would not prevent that.
_FIND = """
SELECT {id}, {column} FROM {table} WHERE get_byte({column} || '\\x00', 0) NOT IN (0, %s) AND {id} > %s ORDER BY {id} LIMIT %s FOR UPDATE
"""
_WRITE = """
UPDATE {table} t SET {column} = n.encrypted FROM unnest(%s::uuid[], %s::bytea[]) AS n(id, encrypted) WHERE t.{id} = n.id
"""
_HASHES = "SELECT key, count(*) FROM erased_suppressions GROUP BY 1"
_COUNT = "SELECT get_byte({column}, 0), count(*) FROM {table} WHERE {column} <> '' GROUP BY 1"
# The oldest and the newest row of each key number.
_SAMPLE = """
WITH sampled AS (
    SELECT min({id}::text)::uuid AS first, max({id}::text)::uuid AS last FROM {table}
    WHERE {column} <> '' GROUP BY substr({column}, 1, 1)
)
SELECT t.{id}, t.{column} FROM sampled s JOIN {table} t ON t.{id} IN (s.first, s.last)
"""


@attrs.frozen
class Unreadable:
    """A kind of secret that the keys do not decrypt. `known`: there is a key with that number, but it is a different key."""

    kind: str
    number: int
    known: bool

    def __str__(self) -> str:
        return (
            f"its key {self.number} does not decrypt the {self.kind}" if self.known else f"it has no key {self.number} for the {self.kind}"
        )


async def unreadable(pool: Pool, keys: Keys) -> list[Unreadable]:
    """What these keys do not decrypt, checked on a sample of each kind and key number.

    A key counts as wrong only if it decrypts none of the rows sampled: a single row may be damaged.
    """
    encryption, found = Encryption(keys), list[Unreadable]()
    for table, id_, column in COLUMNS:
        decrypted: dict[int, list[bool]] = {}
        for row, secret in await pool.rows(_SAMPLE.format(table=table, id=id_, column=column)):
            decrypted.setdefault(bytes(secret)[0] if secret else 0, []).append(_decrypted(encryption, bytes(secret), row) is not None)
        found += [Unreadable(KINDS[table], number, number in keys.by_number) for number, each in decrypted.items() if not any(each)]
        if damaged := sum(any(each) and not all(each) for each in decrypted.values()):
            log.error("{count} of the sampled {kind} cannot be decrypted: they are damaged", count=damaged, kind=KINDS[table])
    return list(dict.fromkeys(found))


def _decrypted(encryption: Encryption, secret: bytes, row: UUID) -> bytes | None:
    """None: none of the keys decrypts it."""
    try:
        return encryption.decrypt(secret, row)
    except EncryptionError:
        return None


@attrs.frozen
class Reencrypted:
    """How many secrets were encrypted again, and how many could not be decrypted, by kind."""

    done: int
    damaged: Mapping[str, int]


async def reencrypt(pool: Pool, encryption: Encryption, batch: int = BATCH) -> Reencrypted:
    """Encrypt everything again that another key encrypted."""
    done, damaged = 0, Counter[str]()
    for table, id_, column in COLUMNS:
        names = {"table": table, "id": id_, "column": column}
        after: UUID | None = _FIRST
        while after is not None:
            after, many, unreadable = await pool.transact(partial(_batch, encryption=encryption, names=names, after=after, size=batch))
            done += many
            damaged[KINDS[table]] += unreadable
    return Reencrypted(done, +damaged)


async def _batch(
    tx: Transaction, encryption: Encryption, names: Mapping[str, str], after: UUID, size: int, *, write: bool = True
) -> tuple[UUID | None, int, int]:  # fmt: skip
    """Where the next batch begins, how many secrets of this one were encrypted again, and how many cannot be decrypted."""
    rows: list[tuple[UUID, bytes]] = await tx.rows(_FIND.format_map(names), (encryption.current, after, size))
    readable = [(row, text) for row, secret in rows if (text := _decrypted(encryption, bytes(secret), row)) is not None]
    if readable and write:
        encrypted = [encryption.encrypt(text, row) for row, text in readable]
        await tx.run(_WRITE.format_map(names), ([row for row, _ in readable], encrypted))
    return rows[-1][0] if len(rows) == size else None, len(readable), len(rows) - len(readable)


async def unfinished(pool: Pool, encryption: Encryption) -> bool:
    """Whether `reencrypt` would encrypt something again."""
    for table, id_, column in COLUMNS:
        names = {"table": table, "id": id_, "column": column}
        after: UUID | None = _FIRST
        while after is not None:
            look = partial(_batch, encryption=encryption, names=names, after=after, size=BATCH, write=False)
            after, readable, _ = await pool.transact(look)
            if readable:
                return True
    return False


async def count(pool: Pool) -> Mapping[int, int]:
    """The number of secrets encrypted with each key."""
    found: dict[int, int] = {}
    for table, id_, column in COLUMNS:
        for number, many in await pool.rows(_COUNT.format(table=table, id=id_, column=column)):
            found[number] = found.get(number, 0) + many
    return found


async def hashes(pool: Pool) -> Mapping[int, int]:
    """The number of suppressions that are known by a hash made with each key: it cannot be made again with another."""
    return dict(await pool.rows(_HASHES))
