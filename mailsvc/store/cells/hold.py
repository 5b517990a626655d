"""Holds a cell in place while this process uses it, and follows the cell when it is moved.

The process works on the cell's tables directly, so Citus does not know of its writes, and would not wait for them at the end of a move.
Therefore the process holds the lock that Citus takes before the last changes are copied (`lock_shard_metadata`), in share mode, in a
transaction of its own. When Citus waits for that lock, the pool lets go of all connections, and the lock is released. The next one is
granted when the move has ended, on whatever node the cell is then. If the lock's connection is lost, so are the pool's, at once.

An account that moves to another cell leaves while the lock is released, too. What began before may find nothing of it afterwards;
`moved_to` says where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from mailsvc.store.cells.views import attach
from mailsvc.store.postgres.backoff import Backoff
from mailsvc.store.postgres.cells import PLACE, Address, Place, at, cell_of
from mailsvc.store.postgres.connection import Connection, Limits
from mailsvc.store.postgres.errors import StoreError, Unavailable
from mailsvc.store.postgres.pool import Pool

CHECK_EVERY = 0.5  # seconds between two looks whether Citus waits
PATIENCE = 3.0  # seconds for statements in progress when it does; after that, their outcome is unknown to their callers
TRIES = 3  # when the cell has moved while the lock was waited for
LIMITS = Limits(statement=30.0, lock=20.0, idle_in_transaction=0.0)
BEGIN = "BEGIN"
_LOCK = """
SELECT lock_shard_metadata({mode}, array_agg(s.shardid)) FROM pg_dist_schema d
JOIN pg_dist_partition t ON t.colocationid = d.colocationid JOIN pg_dist_shard s ON s.logicalrelid = t.logicalrelid
WHERE d.schemaid = to_regnamespace(%s) HAVING count(*) > 0
"""
# In a transaction of its own: only afterwards can a statement see what a move has changed. 5: ShareLock, 7: ExclusiveLock.
LOCK, LOCK_ALONE = _LOCK.format(mode=5), _LOCK.format(mode=7)
LEFT = "SELECT account_id, cell FROM account_moves WHERE phase = 'left'"
WAITED_FOR = """
SELECT EXISTS (
    SELECT FROM pg_locks w JOIN pg_locks h USING (locktype, database, classid, objid, objsubid)
    WHERE w.locktype = 'advisory' AND NOT w.granted AND h.granted AND h.pid = pg_backend_pid()
)
"""


@attrs.define(eq=False)
class CellHold:
    """Call `start` before the pool's, and `stop` after it. `on_move` is called after each move.

    `on_resume` is called before the pool has connections again: whatever is cached may have changed.
    """

    log = Logger()

    pool: Pool
    reactor: Any = attrs.field(repr=False)
    on_move: list[Callable[[], object]] = attrs.field(factory=list)
    on_resume: list[Callable[[], object]] = attrs.field(factory=list)
    node: Address | None = None
    moves: int = 0  # that this process has followed
    _connection: Connection | None = attrs.field(default=None, init=False)
    _running: bool = attrs.field(default=False, init=False)
    _following: bool = attrs.field(default=False, init=False)
    _left: Mapping[UUID, str] = attrs.field(factory=dict, init=False)  # accounts that have moved to other cells, and to which
    _resumed_at: float = attrs.field(default=0.0, init=False)
    _timer: Any = attrs.field(default=None, init=False)
    _backoff: Backoff = attrs.field(default=attrs.Factory(lambda self: Backoff(self.reactor, longest=2.0), takes_self=True), init=False)

    @property
    def cell(self) -> str:
        return cell_of(self.pool.dsn) or ""

    async def start(self) -> None:
        """Take the lock, and create the views that are missing. Raises a StoreError or NotHere."""
        self._running = True
        await self._take()
        self._check_later()

    def moved_to(self, account_id: UUID, since: float) -> str | None:
        """The cell that the account may have moved to after `since`, a time of the reactor."""
        return self._left.get(account_id) if since < self._resumed_at else None

    async def stop(self) -> None:
        self._running = False
        self._backoff.wake()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._connection is not None:
            self._connection.abandon()

    async def _take(self) -> None:
        """Take the lock where the cell is, even if it is moved meanwhile. With the lock, create the views."""
        for _ in range(TRIES):
            connection = await Connection.open(self.reactor, self.pool.dsn, "mailsvc cell", self._lost, LIMITS)
            try:
                await connection.execute(BEGIN)
                await connection.execute(LOCK, (self.cell,))
                place = Place.of((await connection.execute(PLACE, (self.cell,))).rows[0])
                if place.here:
                    await self._in_thread(attach, at(self.pool.dsn, place.node), self.cell)
                    if self._following:  # otherwise the tables may not exist yet
                        self._left = dict((await connection.execute(LEFT)).rows)
                    if connection.lost:  # meanwhile, and nobody was told
                        raise Unavailable("The connection with the lock of the cell was lost.")
                    self._connection, self.node = connection, place.node
                    return
            except BaseException:
                connection.abandon()
                raise
            connection.abandon()
        raise Unavailable(f"The cell {self.cell} was moved {TRIES} times.")

    def _check_later(self) -> None:
        if self._running:
            self._timer = self.reactor.callLater(CHECK_EVERY, self._begin, self._check)

    def _begin(self, work: Any) -> None:
        Deferred.fromCoroutine(work()).addErrback(lambda failure: self.log.failure("holding the cell failed", failure=failure))

    async def _check(self) -> None:
        connection = self._connection
        try:
            if connection is not None and (await connection.execute(WAITED_FOR)).rows[0][0]:
                self.log.info("the cell {cell} is being moved: its connections are closed until that is done", cell=self.cell)
                await self._follow()
        except StoreError as error:
            self.log.warn("the lock of the cell {cell} was lost: {error}", cell=self.cell, error=str(error))
            if connection is not None:
                connection.abandon()
        finally:
            self._check_later()

    def _lost(self, connection: Connection) -> None:
        if connection is self._connection and self._running and not self._following:
            self._begin(self._follow)

    async def _follow(self) -> None:
        """Let go of the cell, and take it again wherever it is then."""
        self._following = True
        try:
            before = self.node
            held, self._connection = self._connection, None
            await self.pool.pause(0.0 if held is None or held.lost else PATIENCE)
            if held is not None:
                held.abandon()
            while self._running and self._connection is None:
                try:
                    await self._take()
                except Exception as error:  # of any kind: without the lock, the pool must not write
                    self.log.warn("the cell {cell} cannot be used yet: {error}", cell=self.cell, error=str(error))
                    await self._backoff.pause()
            self._backoff.reset()
        finally:
            self._following = False
        if self._connection is None:
            return
        self._resumed_at = self.reactor.seconds()
        for call in self.on_resume:
            call()
        self.pool.resume()
        if self.node != before:
            self.log.info("the cell {cell} is on {node} now", cell=self.cell, node=str(self.node))
            self.moves += 1
            for call in self.on_move:
                call()

    async def _in_thread(self, call: Callable[..., Any], *given: object) -> Any:
        return await deferToThreadPool(self.reactor, self.reactor.getThreadPool(), call, *given)
