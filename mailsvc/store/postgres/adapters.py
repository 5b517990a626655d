"""Conversion between Python values and SQL: uuid, bytes, jsonb. Importing this module registers it.

| Python | Postgres |
|---|---|
| `uuid.UUID` | uuid |
| `bytes` | bytea |
| `dict`, `json(value)` | jsonb |
| aware `datetime` | timestamptz; sessions run in UTC |
| `list` | an array (write `%s::uuid[]` when it may be empty) |
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson
import psycopg2.extras
from psycopg2 import extensions

BYTEA, BYTEA_ARRAY, UUIDS, UUID_ARRAY = 17, 1001, 2950, 2951


class _Jsonb(psycopg2.extras.Json):
    def getquoted(self) -> bytes:
        return bytes(super().getquoted()) + b"::jsonb"


def json(value: object) -> _Jsonb:
    """A parameter to be stored as jsonb, whatever its Python type."""
    return _Jsonb(value, dumps=_dumps)


def _dumps(value: object) -> str:
    return orjson.dumps(value).decode()


def _uuid(value: UUID) -> extensions.AsIs:
    return extensions.AsIs(f"'{value}'::uuid")


def _bytes_out(value: str | None, _cursor: object) -> bytes | None:
    return None if value is None else bytes.fromhex(value[2:])  # bytea_output is hex: \x…


def _uuid_out(value: str | None, _cursor: object) -> UUID | None:
    return None if value is None else UUID(value)


def _register() -> None:
    casts: tuple[tuple[int, int, str, Any], ...] = ((BYTEA, BYTEA_ARRAY, "BYTEA", _bytes_out), (UUIDS, UUID_ARRAY, "UUID", _uuid_out))
    extensions.register_adapter(UUID, _uuid)
    extensions.register_adapter(dict, json)
    for oid, array, name, cast in casts:
        one = extensions.new_type((oid,), name, cast)
        extensions.register_type(one)
        extensions.register_type(extensions.new_array_type((array,), f"{name}[]", one))
    psycopg2.extras.register_default_json(globally=True, loads=orjson.loads)
    psycopg2.extras.register_default_jsonb(globally=True, loads=orjson.loads)


_register()
