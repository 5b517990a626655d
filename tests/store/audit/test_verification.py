"""The hash chain of the audit log: whatever is changed in the database is found, and erasing texts is not a change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from uuid import UUID, uuid4

import psycopg2
import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import Clock

from mailsvc.runtime.privacy import open_eraser
from mailsvc.settings.privacy import Privacy
from mailsvc.store.audit.chain import Committed, Link, start
from mailsvc.store.audit.verification import Result, accounts, verify
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.people.audit import Audit, Line, by_operator, write
from mailsvc.store.postgres.migrate import migrate
from mailsvc.store.postgres.pool import Pool, Transaction

NOW = 1_700_000_000.0
ACCOUNT, OTHER = UUID(int=0xA), UUID(int=0xB)
Tamper = Callable[[str], None]


async def written(pool: Pool, count: int = 5, account: UUID = ACCOUNT) -> Audit:
    clock = Clock()
    clock.advance(NOW)
    audit = Audit(pool, clock)
    for number in range(count):
        clock.advance(1)
        await audit.add(account, None, "ann@example.com", "192.0.2.1", f"action {number}", f"about bob@example.com {number}")
    return audit


@pytest.fixture
def tamper(database: str) -> Tamper:
    """Runs statements as somebody who owns the database and switches its triggers off."""

    def run(sql: str) -> None:
        connection = psycopg2.connect(database)
        with connection, connection.cursor() as cursor:
            cursor.execute(f"SET session_replication_role = replica; {sql}")
        connection.close()

    return run


async def checked(pool: Pool, anchors: dict[int, set[bytes]] | None = None) -> Result:
    return await verify(pool, ACCOUNT, anchors or {})


@pytest_twisted.ensureDeferred
async def test_an_untouched_log_is_verified(pool: Pool) -> None:
    await written(pool)
    await written(pool, 2, OTHER)
    assert await checked(pool) == Result(ACCOUNT, 5, 0, 0, ())
    assert [each async for each in accounts(pool)] == [ACCOUNT, OTHER]
    assert (await verify(pool, OTHER, {})).lines == 2


TAMPERINGS = {
    "UPDATE audit SET action = 'nothing' WHERE seq = 3": "Line 3 was changed",
    "UPDATE audit SET at = at + interval '1 microsecond' WHERE seq = 3": "Line 3 was changed",
    "UPDATE audit SET user_id = gen_random_uuid() WHERE seq = 3": "Line 3 was changed",
    "UPDATE audit SET kind = 'operator' WHERE seq = 3": "Line 3 was changed",
    "UPDATE audit SET id = gen_random_uuid() WHERE seq = 3": "Line 3 was changed",
    "UPDATE audit SET subject_hash = sha256('') WHERE seq = 3": "Line 3 was changed",
    "UPDATE audit SET hash = sha256('') WHERE seq = 3": "Line 3 was changed",
    "UPDATE audit SET actor = 'somebody' WHERE seq = 3": "Line 3 was changed",
    "UPDATE audit SET action_hash = NULL WHERE seq = 3".replace("action_hash", "actor_hash"): "Line 3 was changed",
    "UPDATE audit_details SET actor = 'somebody' WHERE id = (SELECT id FROM audit WHERE seq = 3)": "The actor of line 3 was changed.",
    "UPDATE audit_details SET subject_salt = NULL WHERE id = (SELECT id FROM audit WHERE seq = 3)": "The subject of line 3 was changed.",
    "DELETE FROM audit_details WHERE id = (SELECT id FROM audit WHERE seq = 3)": "The texts of line 3 are missing.",
    "DELETE FROM audit WHERE seq = 3": "Line 3 is missing.",
    "DELETE FROM audit WHERE seq IN (2, 3)": "Lines 2 to 3 are missing.",
    "DELETE FROM audit WHERE seq = 1": "Line 1 is missing.",
    "DELETE FROM audit WHERE seq > 3": "Lines 4 to 5 are missing.",
    "DELETE FROM audit": "Lines 1 to 5 are missing.",
    "DELETE FROM audit WHERE seq = 3; UPDATE audit SET seq = seq - 1 WHERE seq > 3; UPDATE audit_heads SET seq = 4": "Line 3 was changed",
    "UPDATE audit SET seq = -seq WHERE seq IN (2, 3); UPDATE audit SET seq = 5 + seq WHERE seq < 0": "Line 2 was changed, added, or moved",
    "INSERT INTO audit SELECT account_id, gen_random_uuid(), at, user_id, '', '', 'new', '', 6, kind, actor_hash, address_hash,"
    " subject_hash, hash FROM audit WHERE seq = 5": "1 lines were added after the end",
    "INSERT INTO audit SELECT account_id, gen_random_uuid(), at, user_id, '', '', 'new', '', 6, kind, actor_hash, address_hash,"
    " subject_hash, hash FROM audit WHERE seq = 5; UPDATE audit_heads SET seq = 6": "Line 6 was changed, added",
    "INSERT INTO audit (account_id, id, at, actor, address, action, subject)"
    " SELECT account_id, gen_random_uuid(), at, 'ann', '', 'new', '' FROM audit WHERE seq = 5": "1 lines are not in the chain",
    "UPDATE audit_heads SET hash = sha256('')": "The head of the chain is not line 5",
    "UPDATE audit_heads SET seq = 4": "1 lines were added after the end",
    "DELETE FROM audit_heads": "5 lines were added after the end",
}


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("sql", TAMPERINGS)
async def test_each_kind_of_tampering_is_found(pool: Pool, tamper: Tamper, sql: str) -> None:
    await written(pool)
    tamper(sql)
    problems = (await checked(pool)).problems
    assert any(problem.startswith(TAMPERINGS[sql]) for problem in problems), problems


async def rewritten(pool: Pool, keep: int) -> None:
    """Somebody who can change everything cuts the log after `keep` lines and continues it with a valid chain."""
    await pool.run("UPDATE audit_heads SET seq = %s, hash = (SELECT hash FROM audit WHERE seq = %s)", (keep, keep))


@pytest_twisted.ensureDeferred
async def test_a_log_that_was_cut_and_continued_is_found_by_an_anchor(pool: Pool, tamper: Tamper) -> None:
    audit = await written(pool)
    [(anchored,)] = await pool.rows("SELECT hash FROM audit WHERE seq = 5")
    anchors = {5: {anchored}}
    assert await checked(pool, anchors) == Result(ACCOUNT, 5, 0, 5, ())
    tamper("DELETE FROM audit_details d USING audit a WHERE a.id = d.id AND a.seq > 3; DELETE FROM audit WHERE seq > 3")
    await rewritten(pool, 3)
    assert (await checked(pool)).problems == ()
    [problem] = (await checked(pool, anchors)).problems
    assert problem == "The log ends with line 3, but line 5 was anchored: the lines after 3 were removed."
    for number in range(2):
        await audit.add(ACCOUNT, None, "ann@example.com", "192.0.2.1", f"another {number}")
    assert (await checked(pool)).problems == ()
    [problem] = (await checked(pool, anchors)).problems
    assert problem.startswith("Line 5 is not the one that was anchored")


@pytest_twisted.ensureDeferred
async def test_erased_texts_leave_a_chain_that_verifies(pool: Pool) -> None:
    audit = await written(pool)
    await pool.run("UPDATE audit_details SET subject = NULL, subject_salt = NULL WHERE subject LIKE '%%3'")
    await pool.run("UPDATE audit_details SET actor = NULL, actor_salt = NULL")
    assert await checked(pool) == Result(ACCOUNT, 5, 5, 0, ())
    entries, _ = await audit.list(ACCOUNT, 2)
    assert [(entry.actor, entry.subject) for entry in entries] == [
        ("(erased)", "about bob@example.com 4"),
        ("(erased)", "(erased)"),
    ]


@pytest_twisted.ensureDeferred
async def test_erasing_an_address_keeps_the_chain(pool: Pool) -> None:
    from twisted.internet import reactor

    await written(pool)
    erasing = open_eraser(pool, reactor, Encryption.read(f"1 {'A' * 43}=", "here"), Privacy())
    begun = await erasing.begin(ACCOUNT, "bob@example.com", False, "command", [by_operator(ACCOUNT, "address erased")])
    assert (await erasing.eraser.run(begun, "bob@example.com")).finished_at is not None
    assert await checked(pool) == Result(ACCOUNT, 6, 5, 0, ())
    rows = await pool.rows("SELECT subject, actor FROM audit_entries WHERE action LIKE 'action%%'")
    assert rows == [(None, "ann@example.com")] * 5
    for table in ("audit", "audit_details"):
        [(texts,)] = await pool.rows(f"SELECT string_agg(t::text, ' ') FROM {table} t")
        assert "bob@example.com" not in texts


@pytest_twisted.ensureDeferred
async def test_the_chain_says_nothing_about_texts_without_their_salts(pool: Pool) -> None:
    """The same text has another commitment in each line, so a guess cannot be confirmed."""
    await written(pool)
    [(count,)] = await pool.rows("SELECT count(DISTINCT actor_hash) FROM audit")
    assert count == 5
    [(texts,)] = await pool.rows("SELECT string_agg(a::text, ' ') FROM audit a")
    assert "example.com" not in texts and b"example.com".hex() not in texts


@pytest_twisted.ensureDeferred
async def test_concurrent_actions_of_one_account_make_one_chain(pool: Pool) -> None:
    """Each writes its line first and changes rows afterwards, in opposite orders of what else it locks."""
    await pool.run("CREATE TABLE rows_of_others (n int PRIMARY KEY)")
    await pool.run("INSERT INTO rows_of_others VALUES (1), (2)")

    async def act(number: int) -> None:
        async def change(tx: Transaction) -> None:
            lines = [by_operator(account, f"action {number}") for account in ((ACCOUNT, OTHER) if number % 2 else (OTHER, ACCOUNT))]
            if number % 2:
                await write(tx, lines, NOW)
            await tx.run("SELECT FROM rows_of_others WHERE n = 1 FOR UPDATE")
            if not number % 2:
                await write(tx, lines, NOW)

        await pool.transact(change)

    await gatherResults([Deferred.fromCoroutine(act(number)) for number in range(40)])
    assert await checked(pool) == Result(ACCOUNT, 40, 0, 0, ())
    assert (await verify(pool, OTHER, {})).problems == ()


@pytest_twisted.ensureDeferred
async def test_a_line_is_written_with_its_change_or_not_at_all(pool: Pool) -> None:
    await written(pool, 1)

    async def fails(tx: Transaction) -> None:
        await write(tx, [by_operator(ACCOUNT, "never")], NOW)
        raise KeyError

    with pytest.raises(KeyError):
        await pool.transact(fails)
    assert await checked(pool) == Result(ACCOUNT, 1, 0, 0, ())


@pytest_twisted.ensureDeferred
async def test_kinds_of_actors(pool: Pool) -> None:
    someone = uuid4()
    lines = [
        by_operator(ACCOUNT, "a"),
        Line(ACCOUNT, None, None, "mailsvc", "", "b"),
        Line(ACCOUNT, None, someone, "ann@example.com", "", "c"),
        Line(ACCOUNT, None, None, "ann@example.com", "", "d"),
        Line(ACCOUNT, None, None, "", "", "e", key_id=uuid4()),
    ]
    await pool.transact(lambda tx: write(tx, lines, NOW))
    rows = await pool.rows("SELECT kind, user_id, action FROM audit ORDER BY seq")
    assert rows == [
        ("operator", None, "a"), ("service", None, "b"), ("member", someone, "c"), ("visitor", None, "d"), ("key", None, "e"),
    ]  # fmt: skip


def test_every_part_of_a_line_changes_its_digest() -> None:
    link = Link(ACCOUNT, OTHER, datetime(2026, 1, 1, tzinfo=UTC), None, "member", "x", *(Committed.to("").hash for _ in range(3)))
    digests = {link.digest(), start(ACCOUNT), start(OTHER)}
    import attrs

    for change in (
        {"account_id": OTHER}, {"id": ACCOUNT}, {"at": datetime(2026, 1, 2, tzinfo=UTC)}, {"user_id": ACCOUNT}, {"kind": "memberx"},
        {"action": "y"}, {"actor_hash": b"1" * 32}, {"address_hash": b"1" * 32}, {"subject_hash": b"1" * 32},
    ):  # fmt: skip
        digests.add(attrs.evolve(link, **change).digest())
    assert len(digests) == 12


@pytest_twisted.ensureDeferred
async def test_lines_of_the_previous_release_become_the_beginning_of_the_chain(
    postgres: str, administer: Callable[..., None], tmp_path: Path
) -> None:
    from twisted.internet import reactor

    name = "mailsvc_before_the_chain"
    administer(postgres, f"CREATE DATABASE {name}")
    dsn = make_dsn(postgres, dbname=name)
    try:
        for entry in files("mailsvc.store").joinpath("migrations").iterdir():
            if entry.name < "0034":
                (tmp_path / entry.name).write_text(entry.read_text())
        migrate(dsn, str(tmp_path))
        administer(
            dsn,
            *(
                f"INSERT INTO audit VALUES ('{account}', gen_random_uuid(), '2026-01-01 00:00:00.123457+00', {user}, '{actor}', '::1',"
                f" 'changed', 'Größe')"
                for account in (ACCOUNT, OTHER)
                for user, actor in (("gen_random_uuid()", "ann@example.com"), ("NULL", "the operator"), ("NULL", "API key a (ms_…)"))
            ),
        )
        migrate(dsn)
        pool = Pool(dsn, reactor, size=1, name="mailsvc tests")
        await pool.start()
        audit = await written(pool, 2)
        assert await checked(pool) == Result(ACCOUNT, 5, 0, 0, ())
        assert await verify(pool, OTHER, {}) == Result(OTHER, 3, 0, 0, ())
        entries, _ = await audit.list(OTHER, 9)
        assert {(entry.actor, entry.address, entry.subject) for entry in entries} == {
            ("ann@example.com", "::1", "Größe"), ("the operator", "::1", "Größe"), ("API key a (ms_…)", "::1", "Größe"),
        }  # fmt: skip
        kinds = await pool.rows("SELECT DISTINCT kind FROM audit WHERE account_id = %s ORDER BY 1", (OTHER,))
        assert kinds == [("key",), ("member",), ("operator",)]
        await pool.stop()
    finally:
        administer(postgres, f"DROP DATABASE {name} WITH (FORCE)")
