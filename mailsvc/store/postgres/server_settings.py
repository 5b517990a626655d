"""Settings and standbys of the Postgres server, for `mailsvc doctor`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from psycopg2.extensions import parse_dsn

from mailsvc.store.postgres.pool import Pool

_NAMES = (
    "fsync", "full_page_writes", "synchronous_commit", "max_connections", "superuser_reserved_connections", "server_version",
    "server_version_num",
)  # fmt: skip


async def settings(pool: Pool) -> Mapping[str, str]:
    """By name, as SHOW prints them."""
    return dict(await pool.rows("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", (list(_NAMES),)))


@attrs.frozen
class Standbys:
    """`connected`: servers that receive the write-ahead log. `synchronous`: commits wait for at least one of them."""

    connected: int
    synchronous: bool


async def standbys(pool: Pool) -> Standbys:
    sql = "SELECT count(*), current_setting('synchronous_standby_names') <> '' FROM pg_stat_replication"
    [(connected, synchronous)] = await pool.rows(sql)
    return Standbys(connected, synchronous)


def hosts(dsn: str) -> int:
    """How many servers a DSN lists."""
    given = parse_dsn(dsn)
    return len(str(given.get("host") or given.get("hostaddr") or "").split(","))
