"""Finds the cell of an account, and moves it to another one or undoes that (account_move). For commands: all of it blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import attrs
import psycopg2

from mailsvc.store.cells.account_copying import Side, connect
from mailsvc.store.cells.account_move import AccountMove, Moved
from mailsvc.store.cells.nodes import Cluster, Refused
from mailsvc.store.cells.views import find

_ACCOUNTS = "SELECT id::text, name FROM accounts WHERE %(text)s IN (id::text, name) ORDER BY id"
_HAS_MOVES = "SELECT to_regclass(%s) IS NOT NULL"
_LEFT = "SELECT account_id::text, cell FROM account_moves WHERE phase = 'left' AND finished_at IS NULL"


@attrs.frozen
class Found:
    """An account, and the cells of its move. `name` None: it is not in a cell, because its move was interrupted."""

    account: UUID
    name: str | None
    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.account} from {self.source} to {self.target}"


def locate(cluster: Cluster, text: str, target: str) -> Found:
    """The account with this ID or name, which is to be moved there. Raises Refused."""
    cells = [each.name for each in cluster.cells() if each.node is not None]
    if target not in cells:
        raise Refused(f"There is no cell {target}. The cells are {', '.join(cells)}.")
    found: list[tuple[str, str, str]] = []
    left: dict[str, str] = {}
    elsewhere: list[tuple[str, str]] = []
    silent = []
    for cell in cells:
        try:
            accounts, gone = _look(cluster.url, cell, text)
        except psycopg2.OperationalError:
            silent.append(cell)
            continue
        found += [(id_, name, cell) for id_, name in accounts]
        left |= {account: cell for account, to in gone if to == target}
        elsewhere += [(cell, to) for account, to in gone if account == text and to != target]
    ids = sorted({id_ for id_, _, _ in found} | ({text} & left.keys()))
    unknown = f" These cells cannot be reached: {', '.join(silent)}." if silent else ""
    if not ids and elsewhere:
        here, to = elsewhere[-1]
        complete = f"`mailsvc cell account-move {text} {to}`"
        raise Refused(f"The move of the account {text} from {here} to {to} was interrupted. Complete it first: {complete}.")
    if not ids:
        raise Refused(f"No account in the cells {', '.join(cells)} is called {text!r}.{unknown}")
    if len(ids) > 1:
        listed = [f"{id_}  {name}  in {cell}" for id_, name, cell in found]
        raise Refused("\n".join([f"{len(ids)} accounts are called {text!r}. Use the ID:", *listed]))
    [account] = ids
    name = next((name for _, name, _ in found), None)
    if (source := left.get(account)) is None:
        source = next((cell for _, _, cell in found if cell != target), None)
    if source is None:
        raise Refused(f"{name} is in {target} already.{unknown}")
    return Found(UUID(account), name, source, target)


def move(cluster: Cluster, found: Found, report: Callable[[str], None]) -> Moved:
    """Move the account, or complete its move. Raises Refused."""
    with _opened(cluster, found, report) as moving:
        return moving.run()


def undo(cluster: Cluster, found: Found) -> bool:
    """Undo a move that was interrupted. False if there is none. Raises Refused."""
    with _opened(cluster, found, lambda _: None) as moving:
        return moving.undo()


@contextmanager
def _opened(cluster: Cluster, found: Found, report: Callable[[str], None]) -> Iterator[AccountMove]:
    sides: list[Side] = []
    try:
        regions = [cluster.regions.get(str(find(cluster.url, cell).node)) for cell in (found.source, found.target)]
        for cell in (found.source, found.target):
            sides.append(Side.open(cluster.url, cell))
        source, target = sides
        yield AccountMove(source, target, found.account, near=regions[0] == regions[1], report=report)
    except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
        why = str(_first(error)).strip().partition("\n")[0].rstrip(".")
        raise Refused(f"The move was interrupted: {why}. Run the command again to complete it, or with --undo.") from None
    finally:
        for side in sides:
            side.close()


def _first(error: BaseException) -> BaseException:
    """Why a connection was lost. Whatever follows from that, such as a transaction that cannot be rolled back, says only that it is."""
    while isinstance(error.__context__, psycopg2.Error):
        error = error.__context__
    return error


def _look(url: str, cell: str, text: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Accounts with this ID or name; and those that have left without being completed, and for which cell."""
    connection = connect(url, cell)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(_ACCOUNTS, {"text": text})
            accounts = cursor.fetchall()
            cursor.execute(_HAS_MOVES, (f"{cell}.account_moves",))
            if not cursor.fetchone()[0]:  # before its migration
                return accounts, []
            cursor.execute(_LEFT)
            return accounts, cursor.fetchall()
    finally:
        connection.close()
