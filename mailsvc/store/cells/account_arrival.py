"""The last step of a move of an account: its staged rows are inserted into the new cell, in one transaction."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from mailsvc.store.cells.account_copying import Side
from mailsvc.store.cells.account_tables import STAGED, USER_COLUMNS, USERS

_ROWS = """
FROM account_arrivals a CROSS JOIN LATERAL jsonb_populate_record(NULL::{name}, a.content) r
WHERE a.account_id = %(account)s AND a.name = '{name}'
"""
_INSERT = "INSERT INTO {name} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} {rows} ORDER BY a.number {conflict}"
# The lines of an account that was in this cell before are still here. Sign-in methods that another user has here stay with that user.
_CONFLICT = dict.fromkeys(("audit", "identities", "passkeys", "erasures", "single_sign_on_domains"), "ON CONFLICT DO NOTHING")
_REPLACED = ("audit_details", "audit_heads", "audit_sent")
_CONTENTS = "SELECT content FROM account_arrivals WHERE account_id = %s AND name = %s ORDER BY number"
# Somebody with the same ID came with another account, whatever the address is now.
_FOUND = "SELECT id::text FROM users WHERE id = %(id)s OR email = %(email)s ORDER BY id = %(id)s DESC LIMIT 1"
_DROP_USER = "DELETE FROM account_arrivals WHERE account_id = %s AND name = ANY (%s) AND content ->> %s = %s"
_RENAME = """
UPDATE account_arrivals SET content = jsonb_set(content, ARRAY[%(column)s], to_jsonb(%(new)s::text))
WHERE account_id = %(account)s AND name = %(name)s AND content ->> %(column)s = %(old)s
"""
# A key of somebody who is no longer a member.
_ORPHANS = """
UPDATE account_arrivals a SET content = a.content || '{"created_by": null}'
WHERE a.account_id = %(account)s AND a.name = 'api_keys'
AND NOT EXISTS (SELECT FROM users u WHERE u.id = (a.content ->> 'created_by')::uuid)
AND NOT EXISTS (
    SELECT FROM account_arrivals u WHERE u.account_id = %(account)s AND u.name = 'users' AND u.content ->> 'id' = a.content ->> 'created_by'
)
"""
# Somebody has verified the domain in this cell meanwhile.
_LOST = """
UPDATE account_arrivals a SET content = a.content || jsonb_build_object('status', 'failed', 'trusted_at', NULL, 'lost_at', now())
WHERE a.account_id = %(account)s AND a.name = 'domains' AND EXISTS (
    SELECT FROM domains d WHERE d.name = a.content ->> 'name' AND d.account_id <> %(account)s
    AND (d.status = 'verified' OR d.trusted_at IS NOT NULL)
)
"""
# An account keeps its number if it is free, because the return paths of the mail it has sent contain it.
_NUMBER = """
UPDATE account_arrivals a SET content = jsonb_set(a.content, '{number}', to_jsonb(nextval('accounts_number_seq')))
WHERE a.account_id = %(account)s AND a.name = 'accounts'
AND EXISTS (SELECT FROM accounts o WHERE o.number = (a.content ->> 'number')::bigint)
"""
# New rows get numbers after those that have arrived.
_NUMBERS = """
SELECT setval(s, greatest(nextval(s), coalesce(n, 1)))
FROM (VALUES ('accounts_number_seq'::regclass, (SELECT max(number) FROM accounts WHERE id = %(account)s)),
             ('contact_properties_number_seq', (SELECT max(number) FROM contact_properties WHERE account_id = %(account)s))) AS v(s, n)
"""
_QUEUE = "UPDATE queue SET next_at = now() WHERE account_id = %(account)s AND next_at = 'infinity' AND status <> 'scheduled'"
_DONE = (
    "DELETE FROM account_arrivals WHERE account_id = %(account)s",
    "DELETE FROM account_move_keys WHERE account_id = %(account)s",
    "DELETE FROM account_moves WHERE account_id = %(account)s",
)
_NOTIFY = """
SELECT pg_notify('mailsvc_' || channel, '') FROM unnest(ARRAY[
    'keys', 'domains', 'queue', 'webhooks', 'events', 'broadcasts', 'confirmations', 'imports'
]) AS channel
"""


def arrive(target: Side, account: UUID) -> int:
    """Insert the staged rows. Returns the account's number in this cell."""
    with target.connection, target.connection.cursor() as cursor:
        number = _insert(cursor, target, account)
        cursor.execute(_NOTIFY)
    return number


def rehearse(cursor: Any, target: Side, account: UUID) -> None:
    """Insert the staged rows and take that back, in the transaction of this cursor. Raises an IntegrityError."""
    cursor.execute("SAVEPOINT rehearsal")
    _insert(cursor, target, account)
    cursor.execute("ROLLBACK TO SAVEPOINT rehearsal")


def _insert(cursor: Any, target: Side, account: UUID) -> int:
    given = {"account": str(account)}
    _match_users(cursor, str(account))
    cursor.execute(_ORPHANS, given)
    cursor.execute(_LOST, given)
    cursor.execute(_NUMBER, given)
    for name in STAGED:
        columns, keys = list(target.tables[name].shape.types), target.tables[name].shape.keys
        changes = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in keys)
        replace = f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"
        statement = _INSERT.format(
            name=name,
            columns=", ".join(columns),
            values=", ".join(f"r.{column}" for column in columns),
            rows=_ROWS.format(name=name),
            conflict=replace if name in _REPLACED else _CONFLICT.get(name, ""),
        )
        cursor.execute(statement, given)
    cursor.execute(_NUMBERS, given)
    cursor.execute(_QUEUE, given)
    for statement in _DONE:
        cursor.execute(statement, given)
    cursor.execute("SELECT number FROM accounts WHERE id = %(account)s", given)
    [(number,)] = cursor.fetchall()
    return int(number)


def _match_users(cursor: Any, account: str) -> None:
    """Members who have a user in this cell keep it; the others get one, with what they sign in with."""
    cursor.execute(_CONTENTS, (account, "users"))
    for (content,) in cursor.fetchall():
        old = content["id"]
        cursor.execute(_FOUND, {"id": old, "email": content["email"]})
        if (found := cursor.fetchone()) is not None:
            cursor.execute(_DROP_USER, (account, ["users"], "id", old))
            cursor.execute(_DROP_USER, (account, list(USERS[1:]), "user_id", old))
            _rename(cursor, account, old, found[0])


def _rename(cursor: Any, account: str, old: str, new: str) -> None:
    if old != new:
        for name, column in USER_COLUMNS.items():
            cursor.execute(_RENAME, {"account": account, "name": name, "column": column, "old": old, "new": new})
