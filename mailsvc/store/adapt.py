"""How Python values become SQL literals and come back: uuid, bytes, jsonb. Importing this is what registers them.

| Python | Postgres |
|---|---|
| `uuid.UUID` | uuid |
| `bytes` | bytea |
| `dict`, `json(value)` | jsonb |
| aware `datetime` | timestamptz; sessions run in UTC |
| `list` | an array (write `%s::uuid[]` when it may be empty) |
"""

from __future__ import annotations

from uuid import UUID

import orjson
import psycopg2.extras
from psycopg2 import extensions

BYTEA, BYTEA_ARRAY, UUIDS, UUID_ARRAY = 17, 1001, 2950, 2951


def json(value: object) -> psycopg2.extras.Json:
    """A parameter that is stored as jsonb, whatever its Python type."""
    return psycopg2.extras.Json(value, dumps=_dumps)


def _dumps(value: object) -> str:
    return orjson.dumps(value).decode()


def _uuid(value: UUID) -> extensions.AsIs:
    return extensions.AsIs(f"'{value}'::uuid")


def _bytes_out(value: str | None, _cursor: object) -> bytes | None:
    return None if value is None else bytes.fromhex(value[2:])  # bytea_output is hex: \x…


def _uuid_out(value: str | None, _cursor: object) -> UUID | None:
    return None if value is None else UUID(value)


def _register() -> None:
    extensions.register_adapter(UUID, _uuid)  # type: ignore[arg-type]
    extensions.register_adapter(dict, json)  # type: ignore[arg-type]
    for oid, array, name, cast in ((BYTEA, BYTEA_ARRAY, "BYTEA", _bytes_out), (UUIDS, UUID_ARRAY, "UUID", _uuid_out)):
        one = extensions.new_type((oid,), name, cast)
        extensions.register_type(one)
        extensions.register_type(extensions.new_array_type((array,), f"{name}[]", one))
    psycopg2.extras.register_default_json(globally=True, loads=orjson.loads)
    psycopg2.extras.register_default_jsonb(globally=True, loads=orjson.loads)


_register()
