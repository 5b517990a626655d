"""Accounts that are moved to another cell: every row arrives, whatever changes meanwhile and wherever the command is killed."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import psycopg2
import pytest

from mailsvc.store.cells.account_move import REASON
from mailsvc.store.cells.account_tables import PASSIVE
from mailsvc.store.cells.nodes import Refused
from mailsvc.store.cells.views import attach, find
from mailsvc.store.ids import uuid7
from mailsvc.store.postgres.cells import at
from tests.store.cells.accounts import BLUE, RED, TABLES, Cells, Killed, assert_moved
from tests.store.fixtures import ACCOUNT, NOW
from tests.store.privacy.filling import CANARY

pytestmark = pytest.mark.cells
TRIGGERS = "SELECT DISTINCT t.tgname FROM pg_trigger t WHERE t.tgname LIKE 'account_%'"
OTHER = UUID(int=0xF1)


def triggers(cells: Cells, cell: str = RED) -> set[str]:
    return {name for (name,) in cells.execute(cell, "SET citus.override_table_visibility = off", TRIGGERS)}


def test_every_row_arrives_and_leaves_and_comes_back(cells: Cells) -> None:
    before = cells.contents(RED)
    assert all(before[name] for name in TABLES if name not in ("audit", "erasures")), "a row in each table"
    moved = cells.move()
    assert moved.seconds is not None and moved.number == before["accounts"][0]["number"]
    assert_moved(cells, before)
    [(key, cell)] = cells.execute(RED, "SELECT key_id::text, cell FROM account_move_keys")
    assert (key, cell) == (before["api_keys"][0]["id"], BLUE)
    assert triggers(cells) == {"account_left"}
    cells.move(BLUE, RED)
    assert_moved(cells, before, BLUE, RED)
    assert cells.execute(RED, "SELECT * FROM account_move_keys") == [] and triggers(cells) == set()


def test_rows_of_many_batches_and_of_days_that_the_other_cell_does_not_have_arrive(cells: Cells) -> None:
    before = NOW - timedelta(days=40)
    with cells.side(RED) as side:
        side.ensure_days([before.replace(hour=0, minute=0, second=0, microsecond=0)])
    numbered = {
        ("contacts", 2500): "'id', gen_random_uuid(), 'address', n || '@else.example', 'hash', '\\x' || lpad(n::text, 8, '0')",
        ("messages", 31): f"'email_id', '{uuid7(before.timestamp())}', 'piece', n",
    }
    for (name, count), changes in numbered.items():
        columns = list(cells.contents(RED)[name][0])
        selected = ", ".join(f"r.{column}" for column in columns)
        rows = f"LATERAL jsonb_populate_record(NULL::{name}, to_jsonb(t) || jsonb_build_object({changes})) r"
        cells.execute(
            RED, f"INSERT INTO {name} ({', '.join(columns)}) SELECT {selected} FROM generate_series(1, {count}) n, {name} t, {rows}"
        )
    contents = cells.contents(RED)
    assert (len(contents["contacts"]), len(contents["messages"])) == (2501, 32)
    cells.move()
    assert_moved(cells, contents)


def steps(cells: Cells) -> list[str]:
    names: list[str] = []
    cells.move(moment=names.append)
    return names


@pytest.mark.parametrize("part", range(3))  # because all of them together take minutes
def test_a_killed_move_is_undone_or_completed_from_every_step(cells: Cells, part: int) -> None:
    names = steps(cells)
    left = names.index("left")
    chosen = [n for n, name in enumerate(names) if not name.startswith(("copied ", "deleted ")) or name.endswith((" emails", " segments"))]
    assert {names[n] for n in chosen} >= {"begun", "recording", "drained", "locked", "staged", "leaving", "left", "arrived", "finished"}
    for number in chosen[part::3]:
        cells.fill()
        before = cells.contents(RED)

        def kill(name: str, step: str = names[number]) -> None:
            if name == step:
                raise Killed

        with pytest.raises(Killed):
            cells.move(moment=kill)
        if number < left:
            assert cells.contents(RED) == before, names[number]
            assert cells.undo(), names[number]
            assert not any(cells.contents(BLUE).values()) and triggers(cells) == set(), names[number]
            assert cells.execute(RED, "SELECT * FROM account_moves UNION ALL SELECT * FROM account_moves") == []
            assert cells.execute(RED, "SELECT * FROM account_pauses") == []
            with pytest.raises(Killed):
                cells.move(moment=kill)
        else:
            with pytest.raises(Refused, match="without --undo"):
                cells.undo()
        cells.move()
        assert_moved(cells, before)


def test_rows_that_an_interrupted_move_has_left_do_not_come_back(cells: Cells) -> None:
    def kill(name: str) -> None:
        if name == "arrived":
            raise Killed

    with pytest.raises(Killed):
        cells.move(moment=kill)
    assert cells.contents(RED)["contacts"]
    cells.execute(BLUE, "DELETE FROM contacts", "UPDATE segments SET name = 'renamed'")
    before = cells.contents(BLUE)
    cells.move(BLUE, RED)
    assert_moved(cells, before, BLUE, RED)


def test_an_undo_that_is_killed_can_be_repeated(cells: Cells) -> None:
    before = cells.contents(RED)

    def kill(name: str) -> None:
        if name in ("staged", "undone in the target"):
            raise Killed

    with pytest.raises(Killed):
        cells.move(moment=kill)
    with cells.moving(moment=kill) as move, pytest.raises(Killed):
        move.undo()
    assert cells.undo() and not cells.undo()
    assert cells.contents(RED) == before and not any(cells.contents(BLUE).values())


def test_changes_while_the_rows_are_copied_arrive(cells: Cells) -> None:
    email, contact = uuid7(NOW.timestamp()), uuid7(NOW.timestamp())
    columns = {name: list(cells.contents(RED)[name][0]) for name in ("emails", "messages", "contacts", "suppressions")}

    def another(name: str, **changes: object) -> str:
        new = "".join(f" || jsonb_build_object('{key}', '{value}'::text)" for key, value in changes.items())
        listed = ", ".join(columns[name])
        return (
            f"INSERT INTO {name} ({listed}) SELECT {listed} FROM jsonb_populate_record(NULL::{name},"
            f" (SELECT to_jsonb(t){new} FROM {name} t LIMIT 1))"
        )

    changes = {
        "copied contacts": [another("contacts", id=contact, address="new@else.example", hash="\\x01"), "UPDATE contacts SET email = 'x'"],
        "copied suppressions": ["DELETE FROM suppressions"],
        "copied emails": [another("emails", email_id=email), another("messages", email_id=email)],
        "copied rollups": ["UPDATE rollups SET count = count + 41", "DELETE FROM hits"],
        "drained": [another("emails", email_id=uuid7(NOW.timestamp())), "UPDATE domains SET tls = 'enforced'"],
    }

    def change(name: str) -> None:
        if name in changes:
            cells.execute(RED, *changes[name])

    seen: dict[str, list[object]] = {}

    def last(name: str) -> None:
        change(name)
        if name == "locked":
            seen.update(cells.contents(RED))

    cells.move(moment=last)
    assert (len(seen["emails"]), len(seen["messages"]), len(seen["contacts"]), seen["suppressions"], seen["hits"]) == (3, 2, 2, [], [])
    assert_moved(cells, seen)


def test_mail_is_held_while_the_last_rows_are_copied_and_due_afterwards(cells: Cells) -> None:
    """What is accepted meanwhile is not due, so no process claims it; mail that waits for a retry keeps its time."""
    [(retry,)] = cells.execute(RED, "SELECT next_at::text FROM queue")
    columns = ", ".join(cells.contents(RED)["queue"][0])
    accepted = (
        f"INSERT INTO queue ({columns}) SELECT {columns} FROM jsonb_populate_record(NULL::queue,"
        """ (SELECT to_jsonb(q) || '{"recipient": 7}' FROM queue q))"""
    )
    found: list[object] = []

    def accept(name: str) -> None:
        if name == "drained":
            found.extend(cells.execute(RED, accepted, "SELECT next_at::text FROM queue WHERE recipient = 7"))
            found.extend(cells.execute(RED, "SELECT reason, until::text FROM account_pauses"))

    cells.move(moment=accept)
    assert found == [("infinity",), (REASON, "infinity")]
    due = cells.execute(BLUE, "SELECT recipient, next_at::text, next_at <= now() FROM queue ORDER BY 1")
    assert due[0][:2] == (1, retry) and (due[1][0], due[1][2]) == (7, True)
    assert cells.execute(BLUE, "SELECT * FROM account_pauses") == []


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE queue SET lease = 1", "Mail of the account was still being sent after 0 s."),
        ("UPDATE broadcasts SET status = 'queued'", "A broadcast is being sent."),
        (
            "INSERT INTO erasures (account_id, id, hash, key, suppress, origin, requested_at)"
            " VALUES ('00000000-0000-0000-0000-000000000000', gen_random_uuid(), '', 1, false, 'command', now())",
            "Data is being erased.",
        ),
        ("DELETE FROM account_pauses", "The pause of the account's mail was lifted meanwhile."),
        ("UPDATE accounts SET closes_at = now()", "The account was closed meanwhile."),
    ],
)
def test_a_move_that_cannot_go_on_is_undone(cells: Cells, statement: str, sentence: str) -> None:
    def change(name: str) -> None:
        if name == "paused":
            cells.execute(RED, statement)

    with pytest.raises(Refused) as refused:
        cells.move(moment=change, drain=0.0, sleep=lambda _: None)
    assert str(refused.value) == f"{sentence} The account stays in red."
    assert not any(cells.contents(BLUE).values()) and triggers(cells) == set()
    assert cells.execute(RED, "SELECT * FROM account_moves") == [] == cells.execute(RED, "SELECT * FROM account_pauses")


def test_mail_that_a_process_began_to_send_before_it_noticed_the_pause_ends_before_the_switch(cells: Cells) -> None:
    seen: list[str] = []

    def lease(name: str) -> None:
        if name == "drained":
            cells.execute(RED, "UPDATE queue SET lease = CASE WHEN lease IS NULL THEN 1 END")
            seen.append(name)

    def end(seconds: float) -> None:
        cells.execute(RED, "DELETE FROM queue")

    cells.move(moment=lease, sleep=end)
    assert len(seen) == 2 and cells.execute(BLUE, "SELECT * FROM queue") == []


def test_a_switch_that_takes_too_long_is_undone(cells: Cells) -> None:
    before, passed = cells.contents(RED), [0.0]

    def wait(name: str) -> None:
        passed[0] += 60.0 * (name == "locked")

    with pytest.raises(Refused, match=r"could not be copied in 10 s\. The account stays in red\."):
        cells.move(moment=wait, clock=lambda: passed[0])
    assert cells.contents(RED) == before and not any(cells.contents(BLUE).values())


@pytest.mark.parametrize(
    ("cell", "statements", "sentence"),
    [
        (RED, ["UPDATE accounts SET closes_at = now()"], "is being closed."),
        (RED, ["UPDATE accounts SET archive = id"], "is being imported."),
        (RED, ["UPDATE broadcasts SET status = 'queued'"], "A broadcast is being sent."),
        (RED, ["UPDATE contact_imports SET status = 'in_progress'"], "Contacts are being imported."),
        (RED, ["UPDATE accounts SET pinned = true"], "is pinned to its region, and blue is in another one."),
        (RED, [f"INSERT INTO account_pauses VALUES ('{ACCOUNT}', 'Too many bounces.', 'infinity')"], "is on hold: Too many bounces."),
        (RED, ["DELETE FROM accounts"], "is not in red."),
        (BLUE, [f"INSERT INTO accounts (id, name, created_at) VALUES ('{ACCOUNT}', 'x', now())"], "in blue."),
        (BLUE, ["DELETE FROM _yoyo_migration WHERE migration_id = '0054_account_moves'"], "of different releases."),
        (
            BLUE,
            [
                f"INSERT INTO single_sign_on_domains (account_id, domain, verified) VALUES ('{OTHER}', 'text', 'x')",
            ],
            "Another account in blue has the domain text.",
        ),
    ],
)
def test_what_cannot_be_moved_is_refused_with_a_sentence(cells: Cells, cell: str, statements: list[str], sentence: str) -> None:
    kept = cells.execute(cell, "SELECT migration_id, migration_hash FROM _yoyo_migration WHERE migration_id = '0054_account_moves'")
    cells.execute(cell, *statements, freely=True)
    before = cells.contents(RED)
    try:
        with pytest.raises(Refused) as refused:
            cells.move(near=False)
        assert sentence in str(refused.value)
        assert cells.contents(RED) == before and cells.execute(BLUE, "SELECT * FROM account_moves") == []
    finally:
        missing = not cells.execute(cell, "SELECT 1 FROM _yoyo_migration WHERE migration_id = '0054_account_moves'")
        if missing:
            cells.execute(cell, f"INSERT INTO _yoyo_migration (migration_id, migration_hash) VALUES ('{kept[0][0]}', '{kept[0][1]}')")


def test_two_moves_at_once_are_refused(cells: Cells) -> None:
    refused: list[Refused] = []

    def second(name: str) -> None:
        if name == "begun":
            with pytest.raises(Refused) as error:
                cells.move()
            refused.append(error.value)

    cells.move(moment=second)
    assert [str(each) for each in refused] == ["Another account is being moved from or to red. Wait until that is done."]


def test_a_member_with_a_user_in_the_other_cell_keeps_it(cells: Cells) -> None:
    cells.execute(BLUE, f"INSERT INTO users (id, email, name, created_at) VALUES ('{OTHER}', '{CANARY.lower()}', 'Blue', now())")
    cells.move()
    assert cells.execute(BLUE, "SELECT id::text, name FROM users") == [(str(OTHER), "Blue")]
    assert cells.execute(BLUE, "SELECT user_id::text FROM members") == [(str(OTHER),)]
    assert cells.execute(BLUE, "SELECT created_by::text FROM api_keys") == [(str(OTHER),)]
    assert cells.execute(BLUE, "SELECT count(*) FROM passkeys") == [(0,)]


def test_a_member_who_has_changed_the_address_in_the_other_cell_is_known_by_the_id(cells: Cells) -> None:
    [(user,)] = cells.execute(RED, "SELECT id::text FROM users")
    cells.execute(BLUE, f"INSERT INTO users (id, email, name, created_at) VALUES ('{user}', 'other@else.example', 'Blue', now())")
    cells.move()
    assert cells.execute(BLUE, "SELECT id::text, email FROM users") == [(user, "other@else.example")]
    assert cells.execute(BLUE, "SELECT user_id::text FROM members") == [(user,)]


def test_a_member_of_another_account_stays_in_the_old_cell_too(cells: Cells) -> None:
    [(user,)] = cells.execute(RED, "SELECT id::text FROM users")
    cells.execute(
        RED,
        f"INSERT INTO accounts (id, name, created_at) VALUES ('{OTHER}', 'other', now())",
        f"INSERT INTO members (account_id, user_id, role, created_at) VALUES ('{OTHER}', '{user}', 'admin', now())",
    )
    cells.move()
    for cell in (RED, BLUE):
        assert cells.execute(cell, "SELECT id::text FROM users") == [(user,)]
        assert cells.execute(cell, "SELECT count(*) FROM passkeys") == [(1,)]
    assert cells.execute(RED, "SELECT id::text FROM accounts") == [(str(OTHER),)]


def test_a_taken_number_is_replaced(cells: Cells) -> None:
    [(number,)] = cells.execute(RED, "SELECT number FROM accounts")
    cells.execute(BLUE, f"INSERT INTO accounts (id, number, name, created_at) VALUES ('{OTHER}', {number}, 'other', now())")
    moved = cells.move()
    assert moved.number != number and cells.execute(BLUE, f"SELECT number FROM accounts WHERE id = '{ACCOUNT}'") == [(moved.number,)]


def test_the_old_cell_refuses_rows_of_an_account_that_has_left(cells: Cells) -> None:
    insert = f"INSERT INTO messages (account_id, email_id, piece, bytes) VALUES ('{ACCOUNT}', '{uuid7(NOW.timestamp())}', 0, 'x')"
    refused: list[str] = []

    def late(name: str) -> None:
        if name in ("left", f"deleted {PASSIVE[0]}"):
            with pytest.raises(psycopg2.errors.SerializationFailure):
                cells.execute(RED, insert)
            refused.append(name)

    cells.move(moment=late)
    assert len(refused) == 2
    accept = (
        "INSERT INTO emails SELECT * FROM jsonb_populate_record(NULL::emails,"
        f' \'{{"account_id": "{ACCOUNT}", "email_id": "{uuid7(NOW.timestamp())}"}}\')'
    )
    with pytest.raises(psycopg2.errors.SerializationFailure):
        cells.execute(RED, accept)
    # A cell that was moved to another node has lost its triggers.
    cells.execute(RED, "SET citus.override_table_visibility = off", "SET citus.enable_ddl_propagation = off", *drops(cells))
    assert triggers(cells) == set()
    attach(at(cells.url, find(cells.url, RED).node), RED)
    with pytest.raises(psycopg2.errors.SerializationFailure):
        cells.execute(RED, accept)


def drops(cells: Cells) -> list[str]:
    found = cells.execute(
        RED,
        "SET citus.override_table_visibility = off",
        "SELECT c.oid::regclass::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
        " WHERE t.tgname = 'account_left' AND t.tgparentid = 0",
    )
    return [f"DROP TRIGGER account_left ON {table}" for (table,) in found]
