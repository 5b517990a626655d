"""The map of personal data has every column of the database, and docs/data.md is generated from it."""

from __future__ import annotations

from pathlib import Path

import psycopg2
import pytest_twisted

from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy import inventory, page, statements

PROJECT = Path(__file__).parents[3]
COLUMNS = """
SELECT c.relname, a.attname, t.typname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped
AND c.relname NOT LIKE '\\_yoyo%' AND c.relname NOT LIKE 'yoyo%' ORDER BY 1, a.attnum
"""
SEARCHABLE = {"text", "_text", "jsonb", "json"}
BYTES = {"message", "import", "member", "keyed"}  # how columns of other types are erased


def columns(database: str) -> dict[str, dict[str, str]]:
    connection = psycopg2.connect(database)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(COLUMNS)
            found: dict[str, dict[str, str]] = {}
            for table, column, type_ in cursor.fetchall():
                found.setdefault(table, {})[column] = type_
            return found
    finally:
        connection.close()


def test_every_column_is_listed_once(database: str) -> None:
    listed = {table.name: sorted([*table.plain, *(column.name for column in table.personal)]) for table in inventory.tables().values()}
    actual = {table: sorted(names) for table, names in columns(database).items()}
    assert listed == actual, "add new columns to mailsvc/store/privacy/personal_data.toml"


def test_what_is_searched_is_text(database: str) -> None:
    actual = columns(database)
    for table in inventory.tables().values():
        for column in table.personal:
            assert actual[table.name][column.name] in SEARCHABLE or column.erase in BYTES, (table.name, column.name)


def test_only_cells_have_accounts_in_them(database: str) -> None:
    without = {name for name, types in columns(database).items() if "account_id" not in types}
    assert {table.name for table in inventory.tables().values() if table.where == "cell"} & without == {"dkim_keys", "domain_history"}
    assert set(partitions.TABLES) <= {table.name for table in inventory.tables().values() if table.where == "cell"}


@pytest_twisted.ensureDeferred
async def test_whose_rows_a_table_has_is_decided(pool: Pool) -> None:
    """A customer searches and erases what is theirs. Where a table has no account_id, statements.THROUGH says which rows that is."""
    without = {name for name, shape in (await statements.shapes(pool)).items() if "account_id" not in shape.types}
    assert without <= statements.THROUGH.keys(), "decide in mailsvc/store/privacy/statements.py (THROUGH) which rows an account can search"


def test_the_page_is_generated() -> None:
    assert (PROJECT / "docs/data.md").read_text("utf-8") == page.render(), "python -m mailsvc.store.privacy.page > docs/data.md"
