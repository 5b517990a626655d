"""Migrations: each applied once, in order, completely or not at all, by one process at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from mailsvc.store.postgres import migrate as module
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.postgres.migrate import MigrationFailed, migrate


@pytest.fixture
def empty(postgres: str, administer: Callable[..., None]) -> Iterator[str]:
    administer(postgres, "CREATE DATABASE mailsvc_empty")
    yield make_dsn(postgres, dbname="mailsvc_empty")
    administer(postgres, "DROP DATABASE mailsvc_empty WITH (FORCE)")


def query(dsn: str, sql: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(dsn)
    with connection.cursor() as cursor:
        cursor.execute(sql)
        found = cursor.fetchall()
    connection.close()
    return found


def tables(dsn: str) -> set[object]:
    return {name for (name,) in query(dsn, "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename NOT LIKE '%yoyo%'")}


def test_packaged_migrations_are_applied_once(empty: str) -> None:
    names = sorted(entry.name.removesuffix(".sql") for entry in files("mailsvc.store").joinpath("migrations").iterdir())
    assert migrate(empty) == names
    assert migrate(empty) == []
    assert {"accounts", "emails", "queue"} <= tables(empty)
    [(partitioned,)] = query(empty, "SELECT count(*) FROM pg_partitioned_table")
    assert partitioned >= 5


def test_processes_that_start_together_take_turns(empty: str, tmp_path: Path) -> None:
    (tmp_path / "0001_slow.sql").write_text("SELECT pg_sleep(0.2);\nCREATE TABLE slow (n int);\n")
    with ThreadPoolExecutor(4) as threads:
        applied = list(threads.map(lambda _: migrate(empty, str(tmp_path)), range(4)))
    assert sorted(applied) == [[], [], [], ["0001_slow"]]


def test_an_error_names_the_file_and_rolls_it_back(empty: str, tmp_path: Path) -> None:
    (tmp_path / "0001_good.sql").write_text("CREATE TABLE good (n int);\n")
    (tmp_path / "0002_bad.sql").write_text("CREATE TABLE half (n int);\nCREATE TABLE bad (n no_such_type);\n")
    with pytest.raises(MigrationFailed, match=r"0002_bad\.sql: .*no_such_type"):
        migrate(empty, str(tmp_path))
    assert tables(empty) == {"good"}
    (tmp_path / "0002_bad.sql").write_text("CREATE TABLE half (n int);\n")
    assert migrate(empty, str(tmp_path)) == ["0002_bad"]


def test_a_lock_timeout_names_the_file(empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT_MS", 20)
    (tmp_path / "0001_first.sql").write_text("CREATE TABLE held (n int);\n")
    migrate(empty, str(tmp_path))
    (tmp_path / "0002_alter.sql").write_text("ALTER TABLE held ADD m int;\n")
    other = psycopg2.connect(empty)
    other.cursor().execute("LOCK TABLE held")
    with pytest.raises(MigrationFailed, match=r"0002_alter\.sql: .*lock timeout"):
        migrate(empty, str(tmp_path))
    other.close()
    assert migrate(empty, str(tmp_path)) == ["0002_alter"]


def test_a_connection_that_is_lost_while_a_file_is_applied(empty: str, tmp_path: Path) -> None:
    (tmp_path / "0001_end.sql").write_text("SELECT pg_terminate_backend(pg_backend_pid());\n")
    with pytest.raises(Unavailable) as raised:
        migrate(empty, str(tmp_path))
    assert raised.value.reason == "The connection was lost while 0001_end.sql was being applied."


def test_a_connection_that_is_refused(empty: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="unknown_role"):
        migrate(make_dsn(empty, user="unknown_role"), str(tmp_path))


def test_limits_of_the_role_do_not_apply(empty: str, tmp_path: Path) -> None:
    names = ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")
    (tmp_path / "0001_first.sql").write_text(f"CREATE TABLE seen AS SELECT {', '.join(f'current_setting({n!r}) AS {n}' for n in names)};\n")
    (tmp_path / "0002_comment.sql").write_text("COMMENT ON TABLE seen IS '…';\n")
    options = " ".join(f"-c {name}=60000" for name in names)
    migrate(make_dsn(empty, options=options, client_encoding="LATIN1"), str(tmp_path))
    assert query(empty, "SELECT * FROM seen") == [("0", "0", "0")]


def test_a_file_may_opt_out_of_its_transaction(empty: str, tmp_path: Path) -> None:
    (tmp_path / "0001_first.sql").write_text("CREATE TABLE t (n int);\n")
    (tmp_path / "0002_index.sql").write_text("-- transactional: false\nCREATE INDEX CONCURRENTLY t_n ON t (n);\n")
    assert migrate(empty, str(tmp_path)) == ["0001_first", "0002_index"]
    assert migrate(empty, str(tmp_path)) == []
