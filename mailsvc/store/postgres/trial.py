"""Whether Postgres can write, and whether its commits wait for a standby."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from mailsvc.store.postgres.errors import StatementFailed

# Rolled back. It takes 32 new pages, so it fails on a full disk, where an update within an existing page would still succeed.
WRITE = "CREATE TABLE mailsvc_write_probe AS SELECT repeat('x', 1900) AS filler FROM generate_series(1, 128)"
WROTE = "SELECT pg_current_xact_id_if_assigned()::text"  # NULL: there is nothing that a commit would write
WAITING = "Commits wait for a standby of Postgres (synchronous_standby_names)."
# A commit that waits cannot be ended safely: its changes would be seen although no standby has them. It goes on when its client has given
# up, so each further one would hold a connection of the server.
COMMITS_WAIT = """
SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND state_change < clock_timestamp() - %s * interval '1 second'
"""


class _Undo(Exception):
    """Raised to roll back the write."""


async def try_write(transact: Callable[[Callable[[Any], Awaitable[None]]], Awaitable[None]]) -> None:
    """Try a write that needs space. Raises why it failed; without permission to create tables, it succeeds."""

    async def write(transaction: Any) -> None:
        await transaction.run(WRITE)
        raise _Undo

    with suppress(_Undo, StatementFailed):
        await transact(write)
