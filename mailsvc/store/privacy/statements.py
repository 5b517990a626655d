"""The SQL that looks for an address in the columns of the map and blanks it, made from the map and the types of the columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from mailsvc.mail.address_search import PLACEHOLDER, Address
from mailsvc.store.postgres.cells import TABLES_IN
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy import inventory
from mailsvc.store.privacy.inventory import Column

TEXTS = ("text", "text[]", "json", "jsonb")
BLANKED = "(erased)"

CATALOG = f"""
SELECT c.relname, a.attname, format_type(a.atttypid, NULL), array_position(i.indkey::smallint[], a.attnum)
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relnamespace = {TABLES_IN}::regnamespace AND c.relname = ANY (%s)
"""

# Tables are read along their primary keys. By its statistics of the first column alone, Postgres expects hardly any rows after a key, and
# would read and sort all of them for each batch.
IN_ORDER = "".join(f"SET LOCAL {way} = off; " for way in ("enable_seqscan", "enable_bitmapscan", "enable_sort"))

NOBODY = "false"
# Which rows belong to an account, where a table has no account_id. Every such table that is searched is listed. An account has no rows of
# one that is not.
THROUGH = {
    "accounts": "t.id = %(account)s",
    **dict.fromkeys(("dkim_keys", "domain_history"), "t.domain_id IN (SELECT id FROM domains WHERE account_id = %(account)s)"),
    "users": "t.id IN (SELECT user_id FROM members WHERE account_id = %(account)s)",
    **dict.fromkeys(
        ("address_changes", "identities", "passkeys", "recovery_codes", "sessions"),
        "t.user_id IN (SELECT user_id FROM members WHERE account_id = %(account)s)",
    ),
    # The operator's, and replies to the mail of all accounts.
    **dict.fromkeys(("destinations", "operator_sessions", "operators", "slowdowns"), NOBODY),
}
# Rows that must not be changed now.
_BUSY = {
    "queue": "t.lease IS NOT NULL",
    "broadcasts": "t.status IN ('scheduled', 'queued')",
    # An email of a broadcast is composed from its row each time that it is tried, always to the same bytes.
    "emails": "t.broadcast_id IS NOT NULL AND EXISTS (SELECT FROM queue q WHERE q.email_id = t.email_id)",
}
# Rows that are about this person alone.
_OWN = {
    "emails": "NOT EXISTS (SELECT FROM unnest(t.recipients) AS r WHERE NOT (r ~* %(expression)s))",
    "events": "t.type IN ('contact.created', 'contact.updated', 'contact.deleted')",
}
_NAMES = """|| '{"first_name": null, "last_name": null}'"""


@attrs.frozen
class Shape:
    """A table with its primary key and the types of its columns."""

    name: str
    keys: tuple[str, ...]
    types: Mapping[str, str]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Those that can be searched."""
        return tuple(column for column in inventory.tables()[self.name].personal if self.types[column.name] in TEXTS and _named(column))


def _named(column: Column) -> bool:
    return column.erase != "keyed"


async def shapes(pool: Pool) -> Mapping[str, Shape]:
    """The tables with columns that can be searched, by name."""
    found = await catalog(pool, [name for name, table in inventory.tables().items() if table.personal])
    return {name: shape for name, shape in found.items() if shape.columns}


async def catalog(pool: Pool, names: Sequence[str]) -> Mapping[str, Shape]:
    """Tables by name."""
    return shaped(await pool.rows(CATALOG, (list(names),)))


def shaped(rows: Iterable[Sequence[Any]]) -> Mapping[str, Shape]:
    """Tables by name, from rows of CATALOG."""
    found: dict[str, list[Any]] = {}
    for table, *column in rows:
        found.setdefault(table, []).append(column)
    return {
        name: Shape(
            name,
            tuple(column for _, column in sorted((place, column) for column, _, place in columns if place is not None)),
            {column: type_ for column, type_, _ in columns},
        )
        for name, columns in sorted(found.items())
    }


def parameters(address: Address) -> dict[str, object]:
    return {
        "run": address.run,
        "anywhere": address.anywhere,
        "expression": address.expression,
        "placeholder": PLACEHOLDER,
        "blanked": BLANKED,
    }


def scope(shape: Shape, account: bool) -> str:
    """Which rows: those of the account, or all of the installation."""
    if not account:
        return "true"
    return "t.account_id = %(account)s" if "account_id" in shape.types else THROUGH.get(shape.name, NOBODY)


def after(shape: Shape, account: bool, beyond: bool = False) -> str:
    """The rows after a key, up to another one (`beyond`). `account`: of one account, as `scope`.

    Its ID is left out of the comparison: an index is read from where the comparison begins only if it begins with another column.
    """
    compared = [key for key in shape.keys if not (account and key == "account_id")]
    if not compared:  # an account has one row
        return "true" if beyond else "false"
    keys, name = ", ".join(f"t.{key}" for key in compared), "last" if beyond else "after"
    values = ", ".join(f"%({name}_{key})s::{shape.types[key]}" for key in compared)
    return f"({keys}) {'<=' if beyond else '>'} ({values})"


def bound(shape: Shape, where: str) -> str:
    """The key of the last row of a batch, as text; no row if there are fewer."""
    keys = ", ".join(f"t.{key}::text" for key in shape.keys)
    return f"{IN_ORDER}SELECT {keys} FROM {shape.name} t WHERE {where} ORDER BY {_order(shape)} OFFSET %(batch)s - 1 LIMIT 1"


def hits(shape: Shape, where: str) -> str:
    """The rows that have the address: key, whether it must not be changed now, and whether each column has it."""
    keys = ", ".join(f"t.{key}::text" for key in shape.keys)
    tests = ", ".join(_matches(shape, column.name) for column in shape.columns)
    any_ = " OR ".join(_matches(shape, column.name) for column in shape.columns)
    busy = f"coalesce({_BUSY.get(shape.name, 'false')}, false)"
    return f"{IN_ORDER}SELECT {keys}, {busy}, {tests} FROM {shape.name} t WHERE {where} AND ({any_}) ORDER BY {_order(shape)}"


def rows(shape: Shape, hidden: Iterable[str] = ()) -> str:
    """A whole row as JSON, without bytes and secrets."""
    without = "".join(f" - '{name}'" for name in [*(name for name, type_ in shape.types.items() if type_ == "bytea"), *hidden])
    return f"SELECT to_jsonb(t){without} FROM {shape.name} t WHERE {by_key(shape)}"


def following(shape: Shape, after_key: bool, also: str = "true") -> str:
    """The account's next rows as JSON, each with its key as text."""
    keys = "".join(f", t.{key}::text" for key in shape.keys)
    where = f"{scope(shape, True)} AND {also}" + (f" AND {after(shape, True)}" if after_key else "")
    return f"{IN_ORDER}SELECT to_jsonb(t){keys} FROM {shape.name} t WHERE {where} ORDER BY {_order(shape)} LIMIT %(size)s"


def delete_some(shape: Shape) -> str:
    """Deletes some rows of an account; all of them if they have no key."""
    if not shape.keys:
        return f"DELETE FROM {shape.name} t WHERE {scope(shape, True)}"
    keys = ", ".join(shape.keys)
    found = f"SELECT {', '.join(f't.{key}' for key in shape.keys)} FROM {shape.name} t WHERE {scope(shape, True)} LIMIT %(size)s"
    return f"DELETE FROM {shape.name} WHERE ({keys}) IN ({found})"


def by_key(shape: Shape) -> str:
    return " AND ".join(f"t.{key} = %({key})s::{shape.types[key]}" for key in shape.keys)


def blank(shape: Shape) -> str | None:
    """Blanks a row, given its key. None: there is nothing to change by this rule."""
    changes = [
        f"{column.name} = {_blanked(shape, column)}" for column in shape.columns if column.erase in ("address", "text", "own", "null")
    ]
    for name in [column.name for column in shape.columns if column.erase == "audit"]:
        # The network address goes with its actor. Without its salt, the hash that the chain has of a text says nothing.
        where = " OR ".join(_matches(shape, each) for each in dict.fromkeys((name, "actor" if name == "address" else name)))
        changes += [f"{each} = CASE WHEN {where} THEN NULL ELSE t.{each} END" for each in (name, f"{name}_salt")]
    return f"UPDATE {shape.name} t SET {', '.join(changes)} WHERE {by_key(shape)}" if changes else None


def delete(shape: Shape) -> str:
    return f"DELETE FROM {shape.name} t WHERE {by_key(shape)}"


def _order(shape: Shape) -> str:
    return ", ".join(f"t.{key}" for key in shape.keys)


def _matches(shape: Shape, name: str) -> str:
    text = f"t.{name}"
    if shape.types[name] == "text[]":
        text = f"array_to_string(t.{name}, E'\\n')"
    elif shape.types[name] != "text":
        text = f"t.{name}::text"
    # The cheapest test first: what looks behind a place is slow.
    return f"coalesce(strpos(lower({text}), %(run)s) > 0 AND {text} ~* %(anywhere)s AND {text} ~* %(expression)s, false)"


def _blanked(shape: Shape, column: Column) -> str:
    type_, name = shape.types[column.name], f"t.{column.name}"
    if column.erase == "null":
        return f"CASE WHEN {_matches(shape, column.name)} THEN NULL ELSE {name} END"
    whole = column.erase == "address"
    if type_ == "text[]":
        each = "CASE WHEN e.x ~* %(expression)s THEN %(placeholder)s ELSE e.x END" if whole else _replaced("e.x")
        value = f"ARRAY(SELECT {each} FROM unnest({name}) WITH ORDINALITY AS e(x, n) ORDER BY e.n)"
    elif type_ == "text":
        value = f"CASE WHEN {name} ~* %(expression)s THEN %(placeholder)s ELSE {name} END" if whole else _replaced(name)
    else:
        value = f"{_replaced(f'{name}::text')}::{type_}"
    if column.erase == "own":
        if shape.name == "events":
            alone = f"{value} {_NAMES} "
        else:
            alone = "%(blanked)s" if type_ == "text" else "NULL"
        value = f"CASE WHEN {_OWN[shape.name]} THEN {alone} ELSE {value} END"
    return f"CASE WHEN {name} IS NULL THEN NULL ELSE {value} END"


def _replaced(text: str) -> str:
    return f"regexp_replace({text}, %(expression)s, %(placeholder)s, 'gi')"
