"""The lease of a cell: which one of several machines runs its processes.

A machine that can run them holds an advisory lock in share mode, so that the others see it. The one that does run them also holds the
lease, an advisory lock that only one session can hold. Both locks belong to a session on the cell's node. Postgres releases them when the
session ends, and ends the session when the machine no longer answers. Nothing is stored, so nothing has to move with a cell.

Two machines that both run processes of a cell do no harm, for processes share the queue anyway. So nothing waits for a lease to end.
"""

from __future__ import annotations

from typing import Any

import attrs

from mailsvc.store.postgres.cells import PLACE, Place, cell_of
from mailsvc.store.postgres.connection import Connection, Limits
from mailsvc.store.postgres.errors import Unavailable

SEEN, LEASE = 0x7365656E, 0x6C656173  # "seen" and "leas": first keys of the advisory locks; the second one is the cell
LIMITS = Limits(statement=5.0, lock=5.0)
_SETTINGS = "SET idle_session_timeout = 0"  # a machine without power loses its lease after 15 seconds nevertheless: postgres/targets
_APPEAR = "SELECT pg_try_advisory_lock_shared(%s, hashtext(%s))"
_TAKE = "SELECT pg_try_advisory_lock(%s, hashtext(%s))"
_GIVE_UP = "SELECT pg_advisory_unlock(%s, hashtext(%s))"
_LOCKS = """pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND l.objid::bigint = hashtext({}::text)::bigint & 4294967295"""
_MACHINES = f"""
SELECT a.application_name, bool_or(l.classid = {LEASE}) FROM {_LOCKS.format("%s")} AND l.classid IN ({SEEN}, {LEASE})
GROUP BY a.application_name ORDER BY 1
"""
_NAME = "mailsvc {} {}"


def machine_name(host: str, pid: int) -> str:
    """The name of a machine, which no other has."""
    return _NAME.format(host[:40], pid)


def holder(cell: str) -> str:
    """An SQL expression: the host that has the lease of a cell, asked on its node. `cell`: an expression, too."""
    return f"(SELECT min(split_part(a.application_name, ' ', 2)) FROM {_LOCKS.format(cell)} AND l.classid = {LEASE})"


@attrs.define(eq=False)
class CellLease:
    """`machine`: the name by which others see this one, in at most 63 bytes."""

    dsn: str = attrs.field(repr=False)
    machine: str
    reactor: Any = attrs.field(repr=False)
    held: bool = attrs.field(default=False, init=False)
    _connection: Connection | None = attrs.field(default=None, init=False)

    @property
    def cell(self) -> str:
        return cell_of(self.dsn) or ""

    async def machines(self) -> dict[str, bool]:
        """All machines that can run the cell's processes, each with whether it has the lease. Appears as one of them.

        Raises a StoreError if the cell's node cannot be reached.
        """
        connection = await self._connected()
        return dict((await connection.execute(_MACHINES, (self.cell,))).rows)

    async def take(self) -> bool:
        """Whether this machine has the lease now. Raises a StoreError."""
        if not self.held:
            connection = await self._connected()
            self.held = (await connection.execute(_TAKE, (LEASE, self.cell))).rows[0][0]
        return self.held

    async def give_up(self) -> None:
        """Raises a StoreError if that is not known; the lease ends with the session then."""
        if self.held and self._connection is not None:
            self.held = False
            await self._connection.execute(_GIVE_UP, (LEASE, self.cell))

    def close(self) -> None:
        """Disappear."""
        if self._connection is not None:
            self._connection.abandon()

    async def _connected(self) -> Connection:
        """The connection to the node on which the cell is now."""
        if self._connection is not None:
            rows = (await self._connection.execute(PLACE, (self.cell,))).rows
            if rows and Place.of(rows[0]).here:
                return self._connection
            self._connection.abandon()
        connection = await Connection.open(self.reactor, self.dsn, self.machine, self._lost, LIMITS)
        try:
            await connection.execute(_SETTINGS)
            await connection.execute(_APPEAR, (SEEN, self.cell))
        except BaseException:
            connection.abandon()
            raise
        if connection.lost:
            raise Unavailable("The connection was lost.")
        self._connection = connection
        return connection

    def _lost(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection, self.held = None, False
