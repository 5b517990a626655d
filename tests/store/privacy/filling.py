"""A database with one person's address in every column of the map, and a search for it in everything that is stored."""

from __future__ import annotations

import base64
import hashlib
import json
import quopri
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import UUID

import psycopg2
from psycopg2.extensions import connection as Connection

from mailsvc.store.audience.keys import AudienceKey
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.ids import uuid7
from mailsvc.store.postgres.cells import TABLES_IN
from mailsvc.store.privacy import inventory
from tests.store.fixtures import ACCOUNT, NOW

KEYS = Encryption.read("1 " + "QUFB" * 10 + "QUE=", "the test")
SECRET = b"s" * 32
CANARY = "Zoe.Canary+1@person.example"
USER = UUID(int=0xE1)
OTHER = "somebody@else.example"
MESSAGE = f"To: Zoe <{CANARY}>\r\nSubject: Hi\r\n\r\nHello {CANARY}\r\n".encode()
# Values of columns that are not free.
GIVEN: dict[tuple[str, str], Any] = {
    ("incidents", "impact"): "maintenance",
    ("api_keys", "permission"): "full_access",
    ("confirmations", "kind"): "segment",
    ("consents", "kind"): "all",
    ("consents", "action"): "subscribed",
    ("contact_imports", "status"): "completed",
    ("contact_properties", "type"): "string",
    ("broadcasts", "status"): "sent",
    ("broadcasts", "id"): str(USER),
    ("broadcast_versions", "broadcast_id"): str(USER),
    ("broadcast_versions", "editor"): "html",
    ("images", "kind"): "png",
    ("destinations", "state"): "paused",
    ("dkim_keys", "algorithm"): "rsa",
    ("erased_suppressions", "origin"): "manual",
    ("exports", "state"): "done",
    ("hits", "kind"): "link",
    ("links", "purpose"): "sign-up",
    ("members", "role"): "developer",
    ("queue", "status"): "queued",
    ("queue", "lease"): None,
    ("quota", "period"): "day",
    ("sessions", "stage"): "whole",
    ("suppressions", "origin"): "manual",
    ("suppressions", "address"): CANARY.lower(),
    ("contacts", "address"): CANARY.lower(),
    ("contacts", "email"): CANARY,
    ("users", "email"): CANARY.lower(),
    ("links", "email"): CANARY.lower(),
    ("address_changes", "email"): CANARY.lower(),
    ("queue", "address"): CANARY,
    ("emails", "recipients"): [CANARY, OTHER],
    ("events", "type"): "contact.created",
    ("events", "data"): json.dumps({"email": CANARY, "first_name": "Zoe", "last_name": "Canary"}),
    ("messages", "bytes"): MESSAGE,
    ("messages", "piece"): 0,
    ("sandbox_emails", "message"): MESSAGE,
    ("contact_import_chunks", "data"): f"email\r\n{CANARY}\r\n{OTHER}\r\n".encode(),
    ("broadcasts", "hourly_rate"): None,
    ("broadcast_settings", "hourly_rate"): None,
    ("accounts", "rate_limit"): None,
    ("accounts", "closed_at"): None,
    ("accounts", "closes_at"): None,
    ("accounts", "archive"): None,
    ("webhooks", "status"): "enabled",
    ("webhook_messages", "status"): "success",
    ("dkim_keys", "id"): str(USER),
    ("dkim_keys", "domain_id"): str(USER),
    ("dkim_keys", "sealed_key"): KEYS.encrypt(SECRET, USER),
    ("api_keys", "domain_id"): str(USER),
    ("webhooks", "id"): str(USER),
    ("webhooks", "secret"): KEYS.encrypt(SECRET, USER),
    ("webhooks", "former"): None,
    ("body_keys", "key"): KEYS.encrypt(SECRET, ACCOUNT),
    ("audience_keys", "secret"): KEYS.encrypt(SECRET, ACCOUNT),
    ("contacts", "hash"): AudienceKey(SECRET).hash(CANARY),
    ("consents", "hash"): AudienceKey(SECRET).hash(CANARY),
    ("accounts", "id"): str(ACCOUNT),
    ("single_sign_on", "secret"): KEYS.encrypt(SECRET, ACCOUNT),
    **{(table, "user_id"): str(USER) for table in ("members", "address_changes", "identities", "passkeys", "sessions", "recovery_codes")},
    ("single_sign_on_members", "user_id"): str(USER),
    ("users", "id"): str(USER),
    ("domains", "id"): str(USER),
    ("domain_history", "domain_id"): str(USER),
}
INSTALLATION = {"destinations", "slowdowns"}  # what they say belongs to no account
SKIPPED = {"house", "erasures", "audit", "account_arrivals", "account_move_keys", "account_moves"}
_COLUMNS = f"""
SELECT c.relname, a.attname, format_type(a.atttypid, NULL) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relname = ANY (%s) AND c.relnamespace = {TABLES_IN}::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
AND a.attidentity = '' ORDER BY 1, a.attnum
"""


def fill(database: str) -> None:
    """One row in each table, with the address in every column that can hold it."""
    personal = {(table.name, column.name): column for table in inventory.tables().values() for column in table.personal}
    connection = psycopg2.connect(database)
    with connection, connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")  # no foreign keys
        cursor.execute(_COLUMNS, ([name for name in inventory.tables() if name not in SKIPPED],))
        rows: dict[str, dict[str, Any]] = {}
        for table, column, type_ in cursor.fetchall():
            rule = personal.get((table, column))
            named = rule is not None and rule.erase not in ("keyed", "keep")
            rows.setdefault(table, {})[column] = GIVEN[table, column] if (table, column) in GIVEN else _value(column, type_, named)
        for table, values in rows.items():
            names = ", ".join(values)
            marks = ", ".join(["%s"] * len(values))
            cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))
    connection.close()


def _value(column: str, type_: str, named: bool) -> Any:
    text = f"about {CANARY}, and\nmore: {quote(CANARY)}"
    if column == "account_id" or column == "account":
        return str(ACCOUNT)
    if type_ == "uuid":
        return str(uuid7(NOW.timestamp()))
    match type_:
        case "text":
            return text if named else "text"
        case "text[]":
            return [text, OTHER, f"Zoe <{CANARY.upper()}>"] if named else ["text"]
        case "jsonb" | "json":
            return json.dumps({"a": [text], CANARY: "x"}) if named else "{}"
        case "bytea":
            return b"bytes"
        case "boolean":
            return False
        case "timestamp with time zone" | "date":
            return NOW
        case "smallint[]" | "bigint[]":
            return [0]
    return 1


def dump(connection: Connection) -> Iterator[tuple[str, bytes]]:
    """Every row of every table, as text; bytes as they are."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1")
        for (table,) in cursor.fetchall():
            cursor.execute(f"SELECT * FROM {table}")
            for row in cursor.fetchall():
                for value in row:
                    if isinstance(value, memoryview | bytes):
                        yield table, bytes(value)
                yield table, repr([value for value in row if not isinstance(value, memoryview | bytes)]).encode()


def traces(address: str = CANARY) -> list[bytes]:
    """The address in every encoding, and its hashes without a key."""
    forms = {address, address.lower(), address.upper()}
    found: set[bytes] = set()
    for form in forms:
        data = form.encode()
        found |= {data, quote(form).encode(), quote(form, safe="@").encode(), quopri.encodestring(data), form.replace("@", "=40").encode()}
        found |= {form.replace("@", "+40").encode(), form.replace("+", "+2B").encode(), form.encode("utf-16-le")}
        # base64, wherever in a text it begins: without the characters that depend on its neighbours
        found |= {base64.b64encode(b"x" * n + data)[4 * (n > 0) : -4] for n in range(3)}
        for name in ("md5", "sha1", "sha256", "sha512"):
            digest = hashlib.new(name, data).digest()
            found |= {digest, digest.hex().encode(), base64.b64encode(digest)}
    return sorted(found)


def leaks(database: str, address: str = CANARY) -> list[tuple[str, bytes]]:
    """Where the address still is."""
    wanted = traces(address)
    connection = psycopg2.connect(database)
    try:
        return [(table, each) for table, content in dump(connection) for each in wanted if each in content]
    finally:
        connection.close()
