"""A database of one cell on Citus: one node that holds all tables in a distributed schema. On any other server, an ordinary database.

Which server that is: tests/conftest. The servers themselves are started by `.ci/run`.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg2

from mailsvc.store.postgres.cells import directly
from mailsvc.store.postgres.migrate import create_tables

CELL = "cell"


def is_citus(dsn: str) -> bool:
    """Whether the server loads Citus."""
    connection = psycopg2.connect(dsn)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW shared_preload_libraries")
            return "citus" in cursor.fetchone()[0]
    finally:
        connection.close()


def create_cell(administer: Callable[..., None], dsn: str) -> str:
    """Make an empty database one with a cell and its tables. Returns its DSN."""
    administer(
        dsn,
        "CREATE EXTENSION citus",
        "SELECT citus_set_coordinator_host(current_setting('citus.local_hostname'), current_setting('port')::int)",
        "SELECT citus_set_node_property(nodename, nodeport, 'shouldhaveshards', true) FROM pg_dist_node",
        "SET citus.enable_schema_based_sharding = on",
        f"CREATE SCHEMA {CELL}",
    )
    create_tables(dsn, CELL)
    return directly(dsn, CELL)


def close(administer: Callable[..., None], server: str, name: str) -> None:
    """Disconnect Citus' own process from a database, so that it can be copied."""
    administer(
        server,
        f"ALTER DATABASE {name} ALLOW_CONNECTIONS false",
        f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'",
    )
