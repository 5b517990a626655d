"""What a primary says about its standbys: how many, whether commits wait for them, and how far they are behind."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn
from psycopg2.extras import wait_select

from mailsvc.store.postgres.migrate import migrate
from mailsvc.store.postgres.server_settings import STANDBYS, Standbys
from mailsvc.store.postgres.trial import COMMITS_WAIT
from tests.chaos.cluster import Cluster, with_standby
from tests.store.postgres.waiting import eventually


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    with with_standby("logical") as servers:
        yield servers


def ask(server: Cluster, *statements: str) -> Any:
    """The first column of the last statement's first row, if it has one."""
    return rows(server, *statements)[0][0]


def rows(server: Cluster, *statements: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(server.dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else [(None,)]


def seen(server: Cluster, *before: str) -> Standbys:
    return Standbys(*rows(server, *before, STANDBYS)[0])


def test_a_commit_that_waits_for_a_standby_is_seen(pair: tuple[Cluster, Cluster]) -> None:
    primary, _ = pair
    waits = lambda seconds: bool(ask(primary, COMMITS_WAIT % seconds))  # noqa: E731
    ask(primary, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    eventually(lambda: seen(primary).synchronous)
    with closing(psycopg2.connect(primary.dsn, async_=True)) as writing:
        wait_select(writing)
        cursor = writing.cursor()
        cursor.execute("CREATE TABLE waited (n int)")
        eventually(lambda: waits(0))
        assert not waits(60)
        ask(primary, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        wait_select(writing)
    assert not waits(0)


def test_a_standby_that_does_not_apply_what_it_gets_is_behind(pair: tuple[Cluster, Cluster]) -> None:
    primary, standby = pair
    eventually(lambda: seen(primary) == Standbys(1, False, 0))
    ask(standby, "SELECT pg_wal_replay_pause()")
    eventually(lambda: bool(ask(standby, "SELECT pg_get_wal_replay_pause_state() = 'paused'")))
    ask(primary, "CREATE TABLE written AS SELECT repeat('x', 500) FROM generate_series(1, 2000)", "SELECT 1")
    assert 1_000_000 < (seen(primary).lag or 0) < 10_000_000
    ask(standby, "SELECT pg_wal_replay_resume()")
    eventually(lambda: seen(primary).lag == 0)


def test_migrations_are_applied_on_the_primary_wherever_it_is_in_the_dsn(pair: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    (tmp_path / "0001_first.sql").write_text("CREATE TABLE first (n int);\n")
    primary, standby = (parse_dsn(each.dsn) for each in pair)
    hosts, ports = (",".join(each[name] for each in (standby, primary)) for name in ("host", "port"))
    assert migrate(make_dsn(**primary | {"host": hosts, "port": ports}), str(tmp_path)) == ["0001_first"]


def test_commits_that_wait_are_noticed(pair: tuple[Cluster, Cluster]) -> None:
    primary, _ = pair
    for names, waits in (("standby", True), ("", False)):
        ask(primary, f"ALTER SYSTEM SET synchronous_standby_names = '{names}'", "SELECT pg_reload_conf()")
        eventually(lambda waits=waits: seen(primary).synchronous is waits)  # type: ignore[misc]


def test_who_may_not_see_the_lag_sees_no_number(pair: tuple[Cluster, Cluster]) -> None:
    primary, _ = pair
    ask(primary, "CREATE ROLE plain")
    assert seen(primary, "SET ROLE plain") == Standbys(1, False, None)
    ask(primary, "GRANT pg_monitor TO plain")
    assert seen(primary, "SET ROLE plain").lag is not None


def test_logical_replication_is_no_standby(pair: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    primary, _ = pair
    ask(primary, "SELECT 1 FROM pg_create_logical_replication_slot('moving', 'pgoutput')", "CREATE PUBLICATION moving FOR ALL TABLES")
    options = ["-o", "proto_version=1", "-o", "publication_names=moving"]
    receiving = subprocess.Popen(
        [
            primary.binaries.program("pg_recvlogical"),
            "-d",
            primary.dsn,
            "-S",
            "moving",
            "--start",
            "-f",
            str(tmp_path / "received"),
            *options,
        ]
    )
    try:
        eventually(lambda: ask(primary, "SELECT count(*) FROM pg_stat_replication") == 2)
        assert seen(primary).connected == 1
    finally:
        receiving.kill()
        receiving.wait()
