"""Every table with rows of an account is in exactly one of the lists of a move."""

from __future__ import annotations

import psycopg2

from mailsvc.store.cells import account_tables
from mailsvc.store.cells.account_tables import BOOKKEEPING, LEFT_BEHIND, PASSIVE, STAGED
from mailsvc.store.postgres.cells import TABLES_IN
from tests.store.fixtures import ACCOUNT

# Tables that belong to an account: by its ID, or by that of its domains or members.
OF_ACCOUNTS = f"""
SELECT DISTINCT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = {TABLES_IN}::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
AND (a.attname IN ('account_id', 'domain_id', 'user_id') OR c.relname IN ('accounts', 'users'))
"""
REFERENCES = f"""
SELECT r.relname, t.relname FROM pg_constraint x JOIN pg_class r ON r.oid = x.conrelid JOIN pg_class t ON t.oid = x.confrelid
WHERE x.contype = 'f' AND r.relnamespace = {TABLES_IN}::regnamespace
"""


def query(database: str, statement: str) -> list[tuple[str, ...]]:
    connection = psycopg2.connect(database)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()
    finally:
        connection.close()


def test_every_table_of_an_account_is_in_one_list(database: str) -> None:
    listed = [*PASSIVE, *STAGED, *LEFT_BEHIND, *BOOKKEEPING]
    assert sorted(listed) == sorted(name for (name,) in query(database, OF_ACCOUNTS))


def test_rows_are_inserted_after_those_that_they_refer_to(database: str) -> None:
    order = {name: number for number, name in enumerate((*PASSIVE, *STAGED))}
    for table, other in query(database, REFERENCES):
        if table in order:
            assert order[other] < order[table], f"{table} refers to {other}"
            assert table in STAGED, f"{table} is copied before {other}"


def test_the_rows_of_each_table_are_known(database: str) -> None:
    connection = psycopg2.connect(database)
    try:
        with connection, connection.cursor() as cursor:
            tables = account_tables.read(cursor)
            for table in tables.values():
                cursor.execute(f"SELECT count(*) FROM {table.name} t WHERE {table.scope}", {"account": str(ACCOUNT)})
            assert all(tables[name].shape.keys for name in PASSIVE), "changes are recorded by keys"
    finally:
        connection.close()
