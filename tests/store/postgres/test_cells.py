"""A cell: distributed tables, used as ordinary ones on the node that holds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import psycopg2
import pytest
import pytest_twisted
from psycopg2.extensions import make_dsn, parse_dsn

from mailsvc.store.cells import views
from mailsvc.store.postgres import cells
from mailsvc.store.postgres.migrate import migrate
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.claims_sql import LOOK
from tests.citus import CELL, is_citus
from tests.store.fixtures import StoreRig, email, nodes


@pytest.fixture
def citus(postgres: str) -> None:
    if not is_citus(postgres):
        pytest.skip("The server of the tests does not have Citus. See .ci/run.")


def query(dsn: str, sql: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(dsn)
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()
    finally:
        connection.close()


def test_a_dsn_names_its_cell() -> None:
    dsn = cells.directly("postgresql://me@db.example/mail?options=-cjit%3Doff", "cell_7")
    assert cells.cell_of(dsn) == "cell_7"
    assert "-cjit=off" in parse_dsn(dsn)["options"]
    assert cells.cell_of(make_dsn(dsn, host="other.example")) == "cell_7"
    assert cells.cell_of("postgresql://me@db.example/mail") is None


def test_all_tables_are_distributed_and_have_a_view(citus: None, database: str) -> None:
    tables = {
        name
        for (name,) in query(
            database,
            f"SELECT relname FROM pg_class WHERE relnamespace = '{CELL}'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition",
        )
    }
    views = {name for (name,) in query(database, f"SELECT viewname FROM pg_views WHERE schemaname = '{cells.direct_schema(CELL)}'")}
    assert {"emails", "queue", "processes"} <= views == tables
    assert query(database, f"SELECT count(*) FROM citus_schemas WHERE schema_name = '{CELL}'::regnamespace") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_citus_does_not_plan_the_statements_of_a_cell(citus: None, store: StoreRig) -> None:
    await store.accept(email())
    sql = "EXPLAIN (FORMAT JSON) SELECT q.email_id FROM queue q JOIN emails e USING (account_id, email_id)"
    [(plans,)] = await store.pool.rows(sql)
    plan = (json.loads(plans) if isinstance(plans, str) else plans)[0]["Plan"]
    assert not {node["Node Type"] for node in nodes(plan)} & {"Custom Scan"}
    await store.pool.rows(LOOK, ("r1", datetime.now(UTC), [], 10, 100, ""))


def test_views_follow_the_tables(citus: None, database: str, administer: Callable[..., None]) -> None:
    assert migrate(database) == []
    assert views.attach(database, CELL) == []
    administer(cells.through_citus(database, CELL), "ALTER TABLE queue ADD note text", "CREATE TABLE more (account_id uuid PRIMARY KEY)")
    assert views.attach(database, CELL) == ["more", "queue"]
    administer(database, "INSERT INTO more VALUES (gen_random_uuid())")
    assert query(cells.through_citus(database, CELL), "SELECT count(*) FROM more") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_numbers_continue_after_the_greatest(citus: None, pool: Pool, store: StoreRig, database: str) -> None:
    await pool.run("INSERT INTO processes (id, host, pid, region, roles) VALUES (700, 'elsewhere', 1, 'r1', '{}')")
    views.attach(database, CELL)
    assert await store.process() > 700


def test_a_server_without_the_cell_is_refused(citus: None, database: str, administer: Callable[..., None]) -> None:
    administer(database, "CREATE SCHEMA empty")
    with pytest.raises(views.NotHere, match="does not hold the cell empty"):
        views.attach(database, "empty")
