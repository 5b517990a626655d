"""Two cells on a cluster, one of which has an account with a row in each table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import psycopg2
from psycopg2.extensions import make_dsn

from mailsvc.store.cells import account_changes
from mailsvc.store.cells.account_copying import Side
from mailsvc.store.cells.account_move import AccountMove, Moved
from mailsvc.store.cells.account_tables import BOOKKEEPING, KEPT, PASSIVE, STAGED
from mailsvc.store.cells.views import attach, find
from mailsvc.store.postgres.cells import at, directly
from mailsvc.store.privacy import inventory
from tests.chaos.citus_nodes import CellServer
from tests.store.fixtures import ACCOUNT, NOW
from tests.store.privacy.filling import fill

RED, BLUE = "red", "blue"
TABLES = (*PASSIVE, *STAGED)
EMPTIED = sorted((inventory.tables().keys() - {"house"}) | set(BOOKKEEPING))
READY = (
    "DELETE FROM account_pauses",
    "UPDATE contact_imports SET status = 'completed'",
    "UPDATE api_keys SET created_by = '00000000-0000-0000-0000-0000000000e1', revoked_at = NULL",
    "UPDATE audit_heads SET anchored = 0",
    "UPDATE accounts SET pinned = false",
    "DELETE FROM exports",
)
_CONTENTS = "SELECT to_jsonb(t) - 'ctid' FROM {} t ORDER BY 1"


def _rows(cursor: Any, statement: str) -> list[tuple[Any, ...]]:
    cursor.execute(statement)
    return cursor.fetchall() if cursor.description is not None else []


class Killed(BaseException):
    """What a test raises instead of killing the command."""


@attrs.frozen
class Cells:
    url: str

    @classmethod
    def of(cls, servers: list[CellServer]) -> Cells:
        made = cls(servers[0].cluster.url)
        for server in servers:
            attach(at(made.url, server.place()), server.cell)
        with made.side(RED) as side:
            side.ensure_days([NOW.replace(hour=0, minute=0, second=0, microsecond=0)])
        return made

    def dsn(self, cell: str) -> str:
        """For a superuser, who can insert without foreign keys."""
        return make_dsn(at(directly(self.url, cell), find(self.url, cell).node), user="postgres")

    def execute(self, cell: str, *statements: str, freely: bool = False) -> list[tuple[Any, ...]]:
        """The rows of the last statement. `freely`: without foreign keys and triggers."""
        before = ("SET session_replication_role = replica",) if freely else ()
        return self.each(cell, *before, *statements)[-1]

    def each(self, cell: str, *statements: str) -> list[list[tuple[Any, ...]]]:
        """The rows of each statement, in one transaction."""
        connection = psycopg2.connect(self.dsn(cell))
        try:
            with connection, connection.cursor() as cursor:
                return [_rows(cursor, statement) for statement in statements]
        finally:
            connection.close()

    def fill(self) -> None:
        """Empty both cells, and give the red one an account."""
        for cell in (RED, BLUE):
            self.execute(cell, *(f"DELETE FROM {name}" for name in EMPTIED), freely=True)
            with self.side(cell) as side, side.connection, side.connection.cursor() as cursor:
                for statement in account_changes.ending(cursor, cell, PASSIVE):
                    cursor.execute(statement)
                account_changes.guard(cursor, cell)
        fill(self.dsn(RED))
        self.execute(RED, *READY)

    def contents(self, cell: str) -> dict[str, list[Any]]:
        """All rows of the tables that move."""
        found = self.each(cell, *(_CONTENTS.format(name) for name in TABLES))  # connecting to Citus takes longer than reading a table
        return {name: [row for (row,) in rows] for name, rows in zip(TABLES, found, strict=True)}

    @contextmanager
    def side(self, cell: str) -> Iterator[Side]:
        side = Side.open(self.url, cell)
        try:
            yield side
        finally:
            side.close()

    @contextmanager
    def moving(self, source: str = RED, target: str = BLUE, moment: Callable[[str], None] = lambda _: None, **more: Any) -> Iterator[Any]:
        with self.side(source) as here, self.side(target) as there:
            yield AccountMove(here, there, ACCOUNT, moment=moment, noticed=0.0, **more)

    def move(self, source: str = RED, target: str = BLUE, moment: Callable[[str], None] = lambda _: None, **more: Any) -> Moved:
        with self.moving(source, target, moment, **more) as move:
            return move.run()

    def undo(self) -> bool:
        with self.moving() as move:
            return move.undo()


def assert_moved(cells: Cells, before: dict[str, list[object]], source: str = RED, target: str = BLUE) -> None:
    after, left = cells.contents(target), cells.contents(source)
    for name in TABLES:
        assert after[name] == before[name], name
        assert not left[name] or name in KEPT, name
    assert all(row["subject"] is None for row in left["audit_details"])
    [(phase, cell, finished)] = cells.execute(source, "SELECT phase, cell, finished_at IS NOT NULL FROM account_moves")
    assert (phase, cell, finished) == ("left", target, True)
    assert cells.execute(target, "SELECT * FROM account_moves") == []
    assert cells.execute(target, "SELECT count(*) FROM account_arrivals") == [(0,)]
