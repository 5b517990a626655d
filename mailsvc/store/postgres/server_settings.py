"""Settings and standbys of the Postgres server, and whether it can write: for `mailsvc doctor`, metrics and the list of nodes."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from psycopg2.extensions import parse_dsn

from mailsvc.store.postgres.errors import OutOfResources
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.trial import COMMITS_WAIT, try_write

_NAMES = (
    "fsync", "full_page_writes", "synchronous_commit", "max_connections", "superuser_reserved_connections", "server_version",
    "server_version_num",
)  # fmt: skip


async def settings(pool: Pool) -> Mapping[str, str]:
    """By name, as SHOW prints them."""
    return dict(await pool.rows("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", (list(_NAMES),)))


async def write_problem(pool: Pool) -> str | None:
    """Why Postgres cannot write, such as "its disk is full". None: it can, or this role may not create the table that would show it."""
    try:
        await try_write(pool.transact)
    except OutOfResources as error:
        return error.description
    return None


async def commits_wait(pool: Pool, seconds: float = 0.0) -> bool:
    """Whether a commit of this role has been waiting for a standby for longer than so many seconds."""
    [(waiting,)] = await pool.rows(COMMITS_WAIT, (seconds,))
    return bool(waiting)


# Backups and logical replication, by which Citus moves cells, are not standbys. What has just connected may be any of them; the state is
# NULL for a role that may not see it.
STANDBYS = """
SELECT count(r.pid), current_setting('synchronous_standby_names') <> '',
       max(pg_wal_lsn_diff(pg_current_wal_lsn(), r.replay_lsn))::bigint
FROM pg_stat_replication r LEFT JOIN pg_replication_slots s ON s.active_pid = r.pid
WHERE s.slot_type IS DISTINCT FROM 'logical' AND coalesce(r.state, '') NOT IN ('startup', 'backup')
"""


@attrs.frozen
class Standbys:
    """`connected`: servers that receive the write-ahead log. `synchronous`: commits wait for at least one of them.

    `lag`: bytes of the log that the last of them has not applied yet. None: there is none, or the role lacks pg_monitor.
    """

    connected: int
    synchronous: bool
    lag: int | None = None


async def standbys(pool: Pool) -> Standbys:
    [row] = await pool.rows(STANDBYS)
    return Standbys(*row)


def hosts(dsn: str) -> int:
    """How many servers a DSN lists."""
    given = parse_dsn(dsn)
    return len(str(given.get("host") or given.get("hostaddr") or "").split(","))
