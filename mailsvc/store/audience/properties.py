"""Custom properties of contacts: their definitions, and which values fit them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.audience import definitions
from mailsvc.store.audience.definitions import Restore
from mailsvc.store.audience.values import Full, Property, PropertyValue, Taken, WrongProperty
from mailsvc.store.ids import uuid7
from mailsvc.store.paging import Page
from mailsvc.store.people.account_lock import LOCK
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.adapters import json
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction

_LONGEST_NUMBER = 40

COLUMNS = "id, number, key, type, fallback, created_at"
COUNT = "SELECT count(*) FROM contact_properties WHERE account_id = %s AND deleted_at IS NULL"
ADD = f"""
INSERT INTO contact_properties (account_id, id, key, type, fallback, created_at) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (account_id, key) WHERE deleted_at IS NULL DO NOTHING RETURNING {COLUMNS}
"""
LIST = f"SELECT {COLUMNS} FROM contact_properties WHERE account_id = %s AND deleted_at IS NULL"
GET = f"{LIST} AND id = %s"
CHANGE = f"""
UPDATE contact_properties SET fallback = %s WHERE account_id = %s AND id = %s AND deleted_at IS NULL RETURNING {COLUMNS}
"""
REMOVE = f"""
UPDATE contact_properties SET deleted_at = %s WHERE account_id = %s AND id = %s AND deleted_at IS NULL RETURNING {COLUMNS}
"""
RESTORE = f"UPDATE contact_properties SET deleted_at = NULL WHERE account_id = %s AND id = %s AND deleted_at > %s RETURNING {COLUMNS}"
# Whoever writes values locks the definitions, so that none is removed meanwhile.
NAMED = f"{LIST} AND key = ANY (%s::text[]) ORDER BY id FOR KEY SHARE"


def property_of(row: Row) -> Property:
    return Property(*row)


def converted(kind: Literal["string", "number"], value: Any, longest: int) -> PropertyValue:
    """A value of this type, or ValueError with the end of a sentence that begins with the field. `longest`: characters of a string."""
    if isinstance(value, bool):
        value = "true" if value else "false"
    if kind == "string":
        if not isinstance(value, str):
            raise ValueError("must be a string")
        if len(value) > longest:
            raise ValueError(f"can have at most {longest} characters")
        if "\0" in value:
            raise ValueError("must not contain a null character")
        return value
    if isinstance(value, str):
        value = _number(value)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("must be a number")
    return value


def _number(text: str) -> int | float | None:
    """Some libraries can only send strings."""
    text = text.strip()
    if len(text) > _LONGEST_NUMBER or not text.isascii() or "_" in text:
        return None
    for read in (int, float):
        try:
            found: int | float = read(text)
        except ValueError:
            continue
        return found if abs(found) < 2**63 or isinstance(found, float) else float(found)
    return None


async def by_key(tx: Transaction, account_id: UUID, keys: Iterable[str]) -> dict[str, Property]:
    """The definitions with these keys, locked until the end of the transaction."""
    rows = await tx.rows(NAMED, (account_id, [key for key in keys if "\0" not in key]))  # no key has one, and Postgres refuses it
    return {found.key: found for found in map(property_of, rows)}


def values(definitions: Mapping[str, Property], given: Mapping[str, Any], longest: int) -> dict[str, PropertyValue | None]:
    """Given values by the number of their property. None clears one. `longest`: characters of a string."""
    found: dict[str, PropertyValue | None] = {}
    for key, value in given.items():
        if key not in definitions:
            raise WrongProperty(key, "is not a contact property; create it first")
        try:
            definition = definitions[key]
            found[str(definition.number)] = None if value is None else converted(definition.type, value, longest)
        except ValueError as wrong:
            raise WrongProperty(key, str(wrong)) from None
    return found


@attrs.define(eq=False)
class Properties:
    """At most `most` properties of an account."""

    pool: Pool
    clock: Any
    most: int = 100

    async def add(
        self, account_id: UUID, key: str, kind: Literal["string", "number"], fallback: PropertyValue | None, lines: Sequence[Line] = ()
    ) -> Property:
        """Raises Taken or Full."""
        now = utc(self.clock)

        async def put(tx: Transaction) -> Property:
            await tx.rows(LOCK, (account_id,))
            if (await tx.rows(COUNT, (account_id,)))[0][0] >= self.most:
                raise Full("contact properties", self.most)
            rows = await tx.rows(ADD, (account_id, uuid7(now.timestamp()), key, kind, _stored(fallback), now))
            if not rows:
                raise Taken(key)
            await write(tx, lines, now.timestamp())
            return property_of(rows[0])

        return await self.pool.transact(put)

    async def list(self, account_id: UUID, page: Page) -> tuple[list[Property], bool]:
        return await definitions.listed(self.pool, LIST, property_of, account_id, page)

    async def get(self, account_id: UUID, id_: UUID) -> Property | None:
        return await definitions.one(self.pool, GET, property_of, account_id, id_)

    async def change(self, account_id: UUID, id_: UUID, fallback: PropertyValue | None, lines: Sequence[Line] = ()) -> Property | None:
        return await definitions.changed(self.pool, self.clock, CHANGE, (_stored(fallback), account_id, id_), property_of, lines)

    async def remove(self, account_id: UUID, id_: UUID, lines: Sequence[Line] = ()) -> Property | None:
        """Its values disappear at once, and are removed later (cleanup)."""
        return await definitions.changed(self.pool, self.clock, REMOVE, (utc(self.clock), account_id, id_), property_of, lines)

    async def restore(self, account_id: UUID, id_: UUID, lines: Sequence[Line] = ()) -> Property | None:
        """Undo a deletion: with the values of contacts (definitions.restored)."""
        how = Restore("contact properties", COUNT, RESTORE, property_of)
        return await definitions.restored(self.pool, self.clock, how, account_id, id_, self.most, lines)


def _stored(value: PropertyValue | None) -> object:
    return None if value is None else json(value)
