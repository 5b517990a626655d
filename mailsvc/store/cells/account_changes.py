"""Triggers on the tables of a cell, on its node: they record what changes while an account is copied, and refuse what it has left.

They are on the shards, as the views of store/cells/views are, so Citus does not know of them, and moves a cell without them. The triggers
that record belong to one run of a move, which notices if the cell was moved meanwhile. `views.attach` calls
`guard_again`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg2 import sql

from mailsvc.store.postgres.cells import direct_schema

RECORDER, GUARD, HOLDER = "account_change", "account_left", "account_held"  # names of triggers
ALWAYS_GUARDED = ("emails",)  # what is accepted without looking for other rows of the account
_SHARDS = """
SELECT c.relname, c.relname || '_' || s.shardid FROM pg_dist_shard s JOIN pg_class c ON c.oid = s.logicalrelid
WHERE c.relnamespace = to_regnamespace(%s) AND c.relname = ANY (%s)
"""
_TRIGGERS = """
SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = to_regnamespace(%s) AND t.tgname = ANY (%s) AND t.tgparentid = 0
"""
_LOG = """
DROP TABLE IF EXISTS {log};
CREATE TABLE {log} (id bigserial PRIMARY KEY, name text NOT NULL, key jsonb NOT NULL)
"""
_RECORD = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO {log} (name, key) VALUES ({name}, jsonb_build_object({old}));
    ELSE
        INSERT INTO {log} (name, key) VALUES ({name}, jsonb_build_object({new}));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER {trigger} AFTER INSERT OR UPDATE ON {shard} FOR EACH ROW WHEN (NEW.account_id = {account}) EXECUTE FUNCTION {function}();
CREATE TRIGGER {deleted} AFTER DELETE ON {shard} FOR EACH ROW WHEN (OLD.account_id = {account}) EXECUTE FUNCTION {function}()
"""
# Processes that know of the pause claim nothing that they would have to give back, so the last leases end although mail is accepted.
_HOLD = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.next_at := 'infinity';
    RETURN NEW;
END $$;
CREATE TRIGGER {trigger} BEFORE INSERT ON {shard} FOR EACH ROW
WHEN (NEW.account_id = {account} AND NEW.lease IS NULL AND NEW.status <> 'scheduled') EXECUTE FUNCTION {function}()
"""
# 40001: the service answers that it cannot do it now, and the next time it knows that the account has left.
_REFUSE = """
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'The account has moved to another cell.' USING ERRCODE = '40001';
END $$
"""
_GUARD = """
CREATE TRIGGER {trigger} BEFORE INSERT OR UPDATE ON {shard} FOR EACH ROW WHEN (NEW.account_id = ANY ({accounts}::uuid[]))
EXECUTE FUNCTION {function}()
"""
_LEFT = "SELECT account_id::text FROM account_moves WHERE phase = 'left' ORDER BY 1"


def record(cursor: Any, cell: str, name: str, keys: Sequence[str], account: UUID) -> None:
    """Record the keys of the account's rows in a table that change from now on. Waits for transactions that are changing the table."""
    [shard] = _shards(cursor, cell, [name]).values()
    pairs = {row: sql.SQL(", ").join(_pair(row, key) for key in keys) for row in ("OLD", "NEW")}
    cursor.execute(
        sql.SQL(_RECORD).format(
            function=sql.Identifier(direct_schema(cell), f"record_{name}"),
            log=log(cell),
            name=sql.Literal(name),
            old=pairs["OLD"],
            new=pairs["NEW"],
            trigger=sql.Identifier(RECORDER),
            deleted=sql.Identifier(f"{RECORDER}_deleted"),
            shard=sql.Identifier(cell, shard),
            account=sql.Literal(str(account)),
        )
    )


def hold(cursor: Any, cell: str, account: UUID) -> None:
    """Put new mail of the account into the queue as mail that is not due."""
    [shard] = _shards(cursor, cell, ["queue"]).values()
    cursor.execute(
        sql.SQL(_HOLD).format(
            function=sql.Identifier(direct_schema(cell), HOLDER),
            trigger=sql.Identifier(HOLDER),
            shard=sql.Identifier(cell, shard),
            account=sql.Literal(str(account)),
        )
    )


def begin_log(cursor: Any, cell: str) -> None:
    cursor.execute(sql.SQL(_LOG).format(log=log(cell)))


def ending(cursor: Any, cell: str, names: Collection[str]) -> list[sql.Composable]:
    """The statements that remove the triggers that record and hold, and what they recorded.

    Each needs a transaction of its own, unless all processes stand still: one that had locked several tables could deadlock with theirs.
    """
    functions = [*(f"record_{name}" for name in names), HOLDER]
    return [
        *_drops(cursor, cell, (RECORDER, f"{RECORDER}_deleted", HOLDER)),
        sql.SQL("DROP TABLE IF EXISTS {}").format(log(cell)),
        *(sql.SQL("DROP FUNCTION IF EXISTS {}()").format(sql.Identifier(direct_schema(cell), each)) for each in functions),
    ]


def unguarding(cursor: Any, cell: str) -> list[sql.Composable]:
    """The statements that remove the triggers that refuse, except from tables that are always guarded. As with `ending`."""
    kept = _shards(cursor, cell, ALWAYS_GUARDED).values()
    return _drops(cursor, cell, (GUARD,), kept)


def guard(cursor: Any, cell: str, names: Collection[str] = ALWAYS_GUARDED) -> None:
    """Refuse rows of accounts that have left the cell, in these tables and in no others."""
    cursor.execute("SELECT to_regclass(%s)", (f"{cell}.account_moves",))
    if cursor.fetchone()[0] is None:  # before its migration
        return
    cursor.execute(_LEFT)
    accounts = [account for (account,) in cursor.fetchall()]
    for drop in _drops(cursor, cell, (GUARD,)):
        cursor.execute(drop)
    if accounts:
        function = sql.Identifier(direct_schema(cell), GUARD)
        cursor.execute(sql.SQL(_REFUSE).format(function=function))
        for shard in _shards(cursor, cell, names).values():
            cursor.execute(
                sql.SQL(_GUARD).format(
                    trigger=sql.Identifier(GUARD), shard=sql.Identifier(cell, shard), accounts=sql.Literal(accounts), function=function
                )
            )


def guard_again(cursor: Any, cell: str) -> None:
    """The same if there is no such trigger, because the cell was moved."""
    cursor.execute(_TRIGGERS, (cell, [GUARD]))
    if not cursor.fetchall():
        guard(cursor, cell)


def log(cell: str) -> sql.Identifier:
    """The table with the changes."""
    return sql.Identifier(direct_schema(cell), "account_changes")


def _drops(cursor: Any, cell: str, triggers: Collection[str], kept: Collection[str] = ()) -> list[sql.Composable]:
    cursor.execute(_TRIGGERS, (cell, list(triggers)))
    found = [(shard, trigger) for shard, trigger in cursor.fetchall() if shard not in kept]
    return [
        sql.SQL("DROP TRIGGER IF EXISTS {} ON {}").format(sql.Identifier(trigger), sql.Identifier(cell, shard)) for shard, trigger in found
    ]


def _shards(cursor: Any, cell: str, names: Collection[str]) -> Mapping[str, str]:
    cursor.execute(_SHARDS, (cell, list(names)))
    return dict(cursor.fetchall())


def _pair(row: str, key: str) -> sql.Composable:
    return sql.SQL("{}, {}.{}").format(sql.Literal(key), sql.SQL(row), sql.Identifier(key))
