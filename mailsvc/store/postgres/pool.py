"""The connection pool: a fixed number of verified connections, transactions over them, and a bounded waiting line.

- A transaction runs to its end even if its caller is cancelled, so a connection is never left in the middle of one.
- A failed connection is dropped and replaced in the background. Only verified connections are handed out.
- Refilling continues until the pool stops: whatever a connection attempt raises, there is another, and a watchdog makes sure of it.
- When a statement fails for lack of disk space or memory, `problem` reports it until a write succeeds again.
- Waiting is bounded in number and time. Inside a transaction, use the transaction: no second connection may be free.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

import attrs
from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mailsvc.store.postgres.backoff import Backoff
from mailsvc.store.postgres.connection import GRACE, SHARED, Connection, Limits, Params, Result, Row
from mailsvc.store.postgres.detach import detached
from mailsvc.store.postgres.errors import OutOfResources, StatementFailed, StoreError, Unavailable
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.postgres.trial import WAITING, WROTE, try_write

T = TypeVar("T")

WATCH_INTERVAL = 5.0  # seconds between two checks of the watchdog
ATTEMPT_TIMEOUT = 90.0  # seconds after which a connection attempt counts as stuck; its own timeouts are shorter
PROBE_INTERVAL = 2.0  # seconds between two trial writes while the server lacks resources
PAUSE_CHECK = 0.02  # seconds between two looks whether all work has ended
SHUTDOWN_TIMEOUT = 1.0  # seconds that callers wait for a connection during a shutdown, if there is none


@attrs.define(eq=False)
class _Refill:
    """One run of the loop that opens connections. `tried_at`: when its current attempt began."""

    tried_at: float


class Transaction:
    """Statements between BEGIN and COMMIT. BEGIN is sent with the first one, unless that is a prepared statement."""

    def __init__(self, connection: Connection, pool: Pool) -> None:
        self._connection = connection
        self._pool = pool
        self._begun = self._busy = self._ended = False
        self._at_end: list[tuple[Any, Callable[[Transaction], Awaitable[None]]]] = []

    def at_end(self, order: Any, do: Callable[[Transaction], Awaitable[None]]) -> None:
        """Have `do` called right before the commit, for rows that many transactions change: they are locked last, and in this order."""
        self._at_end.append((order, do))

    async def finish(self) -> None:
        """Call what `at_end` was given."""
        while self._at_end:
            waiting, self._at_end = sorted(self._at_end, key=lambda each: each[0]), []
            for _, do in waiting:
                await do(self)

    async def rows(self, sql: str | Prepared, params: Params = ()) -> list[Row]:
        return (await self.execute(sql, params)).rows

    async def run(self, sql: str | Prepared, params: Params = ()) -> int:
        """Returns the number of rows affected."""
        return (await self.execute(sql, params)).count

    async def run_each(self, sql: Prepared, rows: Iterable[Params]) -> None:
        """Run `sql` with each of `rows`. The next one is sent without waiting for the result of the previous one."""
        rest = iter(rows)
        for params in rest:
            await self.execute(sql, params, rest)

    async def execute(self, sql: str | Prepared, params: Params = (), rest: Iterator[Params] | None = None) -> Result:
        if self._ended or self._busy:
            raise RuntimeError("The transaction has ended." if self._ended else "A transaction runs one statement at a time.")
        self._busy = True
        try:
            if not self._begun and isinstance(sql, Prepared):
                await self._pool.execute(self._connection, "BEGIN")
                self._begun = True
            result = await self._pool.execute(self._connection, sql if self._begun else f"BEGIN; {sql}", params, rest)
            self._begun = True
            return result
        finally:
            self._busy = False
            self._begun = self._begun or self._connection.in_transaction

    async def commit(self) -> None:
        self._ended = True
        if not self._begun:
            return
        if self._connection.lost:
            raise Unavailable("The connection to the database was lost before the commit.")
        if self._pool.commits_wait and (await self._pool.execute(self._connection, WROTE)).rows != [(None,)]:
            await self.rollback()
            raise Unavailable(WAITING)
        try:
            result = await self._pool.execute(self._connection, "COMMIT")
        except Unavailable as error:
            raise Unavailable(error.reason, unknown=True) from None
        if result.tag != "COMMIT":  # after an error the server rolls back, even if the exception was caught
            raise StatementFailed("25P02", "A statement of the transaction failed, so it was rolled back.")
        self._pool.commits += 1

    async def rollback(self) -> None:
        self._ended = True
        if self._begun and not self._connection.lost:
            try:
                await self._pool.execute(self._connection, "ROLLBACK")
            except StoreError:
                self._connection.abandon()


@attrs.define(eq=False)
class Pool:
    """`size` connections to `dsn`. At most `queue` callers wait, each for `timeout` seconds at most.

    `admit`: called with each new connection before anyone else uses it, because another server may have taken over.
    """

    log = Logger()

    dsn: str = attrs.field(repr=False)  # may contain a password
    reactor: Any = attrs.field(repr=False)
    size: int = 8
    name: str = "mailsvc"
    limits: Limits = Limits()
    queue: int = 1000
    timeout: float = 5.0
    admit: Callable[[Connection], Awaitable[None]] | None = attrs.field(default=None, repr=False)
    statements: int = 0
    commits: int = 0
    commits_wait_until: float = attrs.field(default=-math.inf, init=False)  # by the reactor's clock
    _connections: set[Connection] = attrs.field(factory=set, init=False)
    _idle: list[Connection] = attrs.field(factory=list, init=False)
    _waiting: deque[Deferred[Connection]] = attrs.field(factory=deque, init=False)
    _open: bool = attrs.field(default=False, init=False)
    _refill: _Refill | None = attrs.field(default=None, init=False)
    _connect_error: str | None = attrs.field(default=None, init=False)  # of the last connection attempt
    _exhausted: str | None = attrs.field(default=None, init=False)  # which resource the server lacks
    _shutting_down: bool = attrs.field(default=False, init=False)
    _timers: dict[str, Any] = attrs.field(factory=dict, init=False)
    _refilled: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _backoff: Backoff = attrs.field(default=attrs.Factory(lambda self: Backoff(self.reactor), takes_self=True), init=False)
    _serving: bool = attrs.field(default=False, init=False)
    _paused: bool = attrs.field(default=False, init=False)
    _drained: Deferred[None] | None = attrs.field(default=None, init=False)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    @property
    def busy(self) -> int:
        """The number of connections in use."""
        return len(self._connections) - len(self._idle)

    @property
    def waiting(self) -> int:
        """The number of callers waiting for a connection."""
        return len(self._waiting)

    @property
    def problem(self) -> str | None:
        """Why no mail can be accepted, or None. It is public; the server's own message is in the log."""
        return self._exhausted if self._connections else "there is no connection to it"

    @property
    def shortage(self) -> str | None:
        """Why there are fewer connections than configured, or None."""
        if self._connect_error is None or len(self._connections) >= self.size:
            return None
        return f"{len(self._connections)} of {self.size} are open"

    @property
    def commits_wait(self) -> bool:
        """Whether a commit has been waiting for a standby for long. Transactions that have written something then fail."""
        return bool(self.reactor.seconds() < self.commits_wait_until)

    @property
    def _wanted(self) -> bool:
        return not self._paused and (self._open or bool(self._waiting))

    async def start(self) -> None:
        """Open the first connection or raise why it failed. The others are opened in the background."""
        self._open = True
        try:
            await self._connect()
            if any(connection.pooled for connection in self._connections):
                await self._connect()  # a second one shows whether both have a server of their own
        except StoreError:
            await self.stop()
            raise
        self._fill()
        self._later("watch", WATCH_INTERVAL, self._watch)

    def shutting_down(self) -> None:
        """The process is about to exit: without a database, callers now fail after a short time."""
        self._shutting_down = True

    async def stop(self, timeout: float = 30.0) -> None:
        """Refuse new work, wait for work in progress, then close all connections."""
        self._open = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self.busy or self._waiting:
            self._drained = Deferred()
            timer = self.reactor.callLater(timeout, self._drain)
            await self._drained
            if timer.active():
                timer.cancel()
        while self._waiting:
            self._waiting.popleft().errback(Unavailable("The database pool is closed."))
        for connection in list(self._connections):
            connection.abandon()
        self._backoff.wake()
        if self._refill is not None:
            self._refilled.append(Deferred())
            try:
                await self._refilled[-1].addTimeout(SHUTDOWN_TIMEOUT, self.reactor)
            except TimeoutError:
                self.log.info("still connecting to the database; the attempt is dropped when the process exits")

    async def pause(self, patience: float) -> None:
        """Close all connections until `resume`; those in use when their work ends, or after `patience` seconds. Callers wait."""
        self._paused, deadline = True, self.reactor.seconds() + patience
        for connection in list(self._idle):
            connection.abandon()
        while self._connections and self.reactor.seconds() < deadline:
            await deferLater(self.reactor, PAUSE_CHECK)
        for connection in list(self._connections):
            connection.abandon()

    def resume(self) -> None:
        self._paused = False
        self._fill()

    async def transact(self, fn: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `fn` in a transaction and commit it, or roll back and re-raise. It continues if the caller is cancelled."""
        return await detached(self._transact(fn))

    async def rows(self, sql: str | Prepared, params: Params = ()) -> list[Row]:
        """One round trip in its own transaction. Several statements in it succeed or fail together."""
        return (await detached(self._execute_alone(sql, params))).rows

    async def run(self, sql: str | Prepared, params: Params = ()) -> int:
        """Like `rows`, but returns the number of rows that the last statement affected."""
        return (await detached(self._execute_alone(sql, params))).count

    async def execute(
        self, connection: Connection, sql: str | Prepared, params: Params = (), rest: Iterator[Params] | None = None
    ) -> Result:
        self.statements += 1
        try:
            return await connection.execute(sql, params, rest)
        except OutOfResources as error:
            self._report_exhausted(error)
            raise

    async def _transact(self, fn: Callable[[Transaction], Awaitable[T]]) -> T:
        connection = await self._acquire()
        try:
            return await self.transact_on(connection, fn)
        finally:
            self._release(connection)

    async def transact_on(self, connection: Connection, fn: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `fn` in a transaction on a connection that nobody else uses."""
        transaction = Transaction(connection, self)
        try:
            result = await fn(transaction)
            await transaction.finish()
        except BaseException:
            await transaction.rollback()
            raise
        await transaction.commit()
        return result

    async def _execute_alone(self, sql: str | Prepared, params: Params) -> Result:
        if self.commits_wait:
            return await self._transact(lambda transaction: transaction.execute(sql, params))
        connection = await self._acquire()
        try:
            return await self.execute(connection, sql, params)
        except Unavailable as error:
            raise Unavailable(error.reason, unknown=True) from None
        finally:
            self._release(connection)

    async def _acquire(self) -> Connection:
        if not self._open:
            raise Unavailable("The database pool is closed.")
        while self._idle:
            if (connection := self._idle.pop()).still_usable():
                return connection
        if len(self._waiting) >= self.queue:
            raise Unavailable(f"{self.queue} other callers are waiting for a database connection.")
        waiter: Deferred[Connection] = Deferred()
        self._waiting.append(waiter)
        timeout = SHUTDOWN_TIMEOUT if self._shutting_down and not self._connections else self.timeout
        timer = self.reactor.callLater(timeout, self._time_out, waiter, timeout)
        try:
            return await waiter
        finally:
            if timer.active():
                timer.cancel()

    def _time_out(self, waiter: Deferred[Connection], timeout: float) -> None:
        self._waiting.remove(waiter)
        waiter.errback(Unavailable(f"No database connection became free within {timeout:g} s."))
        self._check_drained()

    def _release(self, connection: Connection) -> None:
        if connection.usable and not self._paused:
            self._idle.append(connection)
            self._serve()
        else:
            connection.abandon()
            if connection.silent:
                self._abandon_idle()
        self._check_drained()

    def _abandon_idle(self) -> None:
        """A statement got no answer in time, so the server may hang while another one has taken over. Those used since then stay."""
        for idle in [each for each in self._idle if each.idle_for(self.limits.statement + GRACE)]:
            idle.abandon()

    def _check_drained(self) -> None:
        if not self._open and not self._waiting and not self.busy:
            self._drain()

    def _serve(self) -> None:
        """Hand idle connections to waiting callers. One loop, however many connections are released at once."""
        if self._serving:
            return
        self._serving = True
        while self._idle and self._waiting:
            self._waiting.popleft().callback(self._idle.pop())
        self._serving = False

    def _drain(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.callback(None)

    def _lost(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            if connection in self._idle:
                self._idle.remove(connection)
            self._fill()

    async def _connect(self) -> None:
        connection = await Connection.open(self.reactor, self.dsn, self.name, self._lost, self.limits)
        try:
            self._check_own_server(connection)
            if self.admit is not None:
                await self.admit(connection)
        except BaseException:
            connection.abandon()
            raise
        if not self._wanted or len(self._connections) >= self.size:
            connection.abandon()
            return
        self._connections.add(connection)
        self._release(connection)

    def _check_own_server(self, connection: Connection) -> None:
        if connection.pooled and any(connection.server == other.server for other in self._connections):
            raise StatementFailed("0A000", SHARED)

    def _fill(self) -> None:
        if self._wanted and self._refill is None:
            refill = self._refill = _Refill(self.reactor.seconds())
            Deferred.fromCoroutine(self._keep_filling(refill)).addErrback(
                lambda failure: self.log.failure("refilling the database pool failed", failure=failure)
            )

    async def _keep_filling(self, refill: _Refill) -> None:
        try:
            while self._refill is refill and self._wanted and len(self._connections) < self.size:
                refill.tried_at = self.reactor.seconds()
                try:
                    await self._connect()
                except Exception as error:
                    self._connect_failed(error)
                    await self._backoff.pause()
                else:
                    self._connect_error = None
                    self._backoff.reset()
        finally:
            if self._refill is refill:
                self._refill = None
            filled, self._refilled = self._refilled, []
            for waiting in filled:
                waiting.callback(None)

    def _connect_failed(self, error: Exception) -> None:
        """Expected failures are StoreErrors. Anything else is a defect, but no reason to stop retrying."""
        self._connect_error = str(getattr(error, "reason", "")) or str(error) or type(error).__name__
        if not isinstance(error, StoreError):
            self.log.failure("connecting to the database failed unexpectedly")
        self.log.warn("cannot connect to the database, retrying in {pause:g} s: {error}", pause=self._backoff.upcoming, error=str(error))

    def _watch(self) -> None:
        """The watchdog: make sure that missing connections are being opened, by an attempt that is not stuck."""
        self._later("watch", WATCH_INTERVAL, self._watch)
        if self._refill is not None and self.reactor.seconds() - self._refill.tried_at > ATTEMPT_TIMEOUT:
            self._connect_error = f"a connection attempt did not finish within {ATTEMPT_TIMEOUT:g} s"
            self.log.error("{problem}; starting another attempt", problem=self._connect_error)
            self._refill = None
        if len(self._connections) < self.size:
            self._fill()

    def _report_exhausted(self, error: OutOfResources) -> None:
        if self._exhausted is None:
            self.log.error("the database is out of resources: {error}", error=str(error))
            self._later("probe", PROBE_INTERVAL, self._begin_probe)
        self._exhausted = error.description

    def _begin_probe(self) -> None:
        Deferred.fromCoroutine(self._probe()).addErrback(lambda failure: self.log.failure("probing the database failed", failure=failure))

    async def _probe(self) -> None:
        """Try a write that needs space. As long as it fails, keep reporting the problem and try again."""
        try:
            await try_write(self.transact)
        except Exception as error:
            self.log.info("the database does not accept writes yet: {error}", error=str(error))
            self._later("probe", PROBE_INTERVAL, self._begin_probe)
        else:
            self._exhausted = None
            self.log.info("the database accepts writes again")

    def _later(self, name: str, seconds: float, do: Callable[[], None]) -> None:
        """Set a timer. There is at most one of each name, and none once the pool is stopped."""

        def now() -> None:
            del self._timers[name]
            do()

        if self._open and name not in self._timers:
            self._timers[name] = self.reactor.callLater(seconds, now)
