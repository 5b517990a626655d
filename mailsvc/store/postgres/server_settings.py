"""Settings of the Postgres server, for `mailsvc doctor`."""

from __future__ import annotations

from collections.abc import Mapping

from mailsvc.store.postgres.pool import Pool

_NAMES = (
    "fsync", "full_page_writes", "synchronous_commit", "max_connections", "superuser_reserved_connections", "server_version",
    "server_version_num",
)  # fmt: skip


async def settings(pool: Pool) -> Mapping[str, str]:
    """By name, as SHOW prints them."""
    return dict(await pool.rows("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", (list(_NAMES),)))
