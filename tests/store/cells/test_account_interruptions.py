"""Moves of accounts that are interrupted: what the command says, and what it waits for when it is run again."""

from __future__ import annotations

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from mailsvc.store.cells import account_place, nodes
from mailsvc.store.cells.account_copying import connect
from mailsvc.store.cells.account_move import LOCK
from mailsvc.store.cells.nodes import Refused
from tests.chaos.ground import until
from tests.store.cells.accounts import BLUE, RED, Cells, Killed, assert_moved
from tests.store.fixtures import ACCOUNT

pytestmark = pytest.mark.cells


@pytest.fixture
def servers(cells: Cells) -> nodes.Cluster:
    return nodes.Cluster(cells.url, {})


def interrupt(cells: Cells, step: str) -> None:
    def kill(name: str) -> None:
        if name == step:
            raise Killed

    with pytest.raises(Killed):
        cells.move(moment=kill)


def test_a_move_is_not_undone_while_its_last_commit_is_in_progress(cells: Cells) -> None:
    """The command was killed, and its server still commits: for example, it waits for a standby."""
    before = cells.contents(RED)
    held = f"SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = {LOCK}"
    refused: list[str] = []

    def undo(name: str) -> None:
        if name == "leaving":
            for side in (move.source, move.target):
                side.connection.close()
                until(lambda cell=side.cell: not cells.execute(cell, held), 10, "the end of the connection")
            with pytest.raises(Refused) as error:
                second.undo()
            refused.append(str(error.value))
        elif name == "left":
            raise Killed

    with cells.moving() as second, cells.moving(moment=undo) as move, pytest.raises(Killed):
        move.run()
    assert refused == ["An earlier run of the command is still writing to red. Try again when that has ended."]
    cells.move()
    assert_moved(cells, before)


def test_the_switch_waits_for_statements_of_processes_that_no_longer_hold_the_cell(cells: Cells) -> None:
    late = psycopg2.connect(cells.dsn(RED))

    def write(name: str) -> None:
        if name == "drained":
            late.cursor().execute("UPDATE contacts SET email = 'late@else.example'")
        elif name in ("staged", "undone in the target"):
            late.commit()

    try:
        with pytest.raises(Refused) as refused:
            cells.move(moment=write, still=1.0)
        assert str(refused.value) == "The processes of red did not let go of it in 1 s. The account stays in red."
        assert cells.execute(RED, "SELECT DISTINCT email FROM contacts") == [("late@else.example",)]
    finally:
        late.close()


def test_what_is_written_for_the_move_is_on_disk_when_it_is_committed(cells: Cells) -> None:
    connection = connect(make_dsn(cells.url, options="-c synchronous_commit=off"), RED)
    with connection, connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("on",)
    connection.close()


def test_a_lost_connection_is_reported_with_its_cause(cells: Cells, servers: nodes.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'mailsvc'"
    begin = account_place.AccountMove

    def ending(*given: object, **more: object) -> object:
        return begin(*given, **more, moment=lambda name: name == "recording" and cells.execute(RED, end))  # type: ignore[arg-type]

    monkeypatch.setattr(account_place, "AccountMove", ending)
    with pytest.raises(Refused) as refused:
        account_place.move(servers, account_place.locate(servers, str(ACCOUNT), BLUE), lambda _: None)
    assert str(refused.value) == (
        "The move was interrupted: server closed the connection unexpectedly. Run the command again to complete it, or with --undo."
    )
    assert cells.undo()


def test_a_move_that_was_interrupted_has_to_be_completed_where_it_went(cells: Cells, servers: nodes.Cluster) -> None:
    interrupt(cells, "left")
    with pytest.raises(Refused) as refused:
        account_place.locate(servers, str(ACCOUNT), RED)
    assert str(refused.value) == (
        f"The move of the account {ACCOUNT} from red to blue was interrupted."
        f" Complete it first: `mailsvc cell account-move {ACCOUNT} blue`."
    )
    cells.move()


def test_cells_that_cannot_be_reached_are_named(cells: Cells, servers: nodes.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(cells, "arrived")
    look = account_place._look

    def away(url: str, cell: str, *given: str) -> object:
        if cell == RED:
            raise psycopg2.OperationalError("connection refused")
        return look(url, cell, *given)

    monkeypatch.setattr(account_place, "_look", away)
    with pytest.raises(Refused) as refused:
        account_place.locate(servers, str(ACCOUNT), BLUE)
    assert str(refused.value).endswith("is in blue already. These cells cannot be reached: red.")
    cells.move()
