"""The pool: a fixed number of proven connections, transactions over them, and a bounded queue in front.

- What runs in a transaction is detached from who waits for it: a caller that leaves never leaves a connection half-way.
- A connection that fails is given up and replaced in the background; only proven ones are handed out.
- Filling ends only with the pool: whatever a connection attempt raises, there is a next one, and a watchdog sees to it.
- A statement that failed for lack of disk or memory makes the pool report it (`problem`) until a write succeeds again.
- Waiting is bounded in number and time. Inside a transaction use the transaction: a function that asks the pool for a
  second connection waits for one like everybody else, and gets `Unavailable` when all are taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import attrs
from twisted.internet.defer import Deferred, TimeoutError
from twisted.logger import Logger

from mailsvc.store.postgres.backoff import Backoff
from mailsvc.store.postgres.connection import Answer, Connection, Limits, Params, Row
from mailsvc.store.postgres.detach import detached
from mailsvc.store.postgres.errors import OutOfResources, StatementFailed, StoreError, Unavailable
from mailsvc.store.postgres.prepared import Prepared

T = TypeVar("T")

WATCH = 5.0  # seconds between two looks of the watchdog
STUCK = 90.0  # seconds after which a connection attempt is given up as one that never ends; every honest one is shorter
PROBE = 2.0  # seconds between two attempts to write, while the server lacks resources
HURRY = 1.0  # how long callers wait for a connection during a shutdown, when there is none
# Rolled back. It takes 32 new pages, so it fails on a full disk, where an update within an existing page would still succeed.
PROBING = "CREATE TABLE mailsvc_write_probe AS SELECT repeat('x', 1900) AS filler FROM generate_series(1, 128)"


class _Undo(Exception):
    """Rolls the probe back."""


@attrs.define(eq=False)
class _Filler:
    """One run of the loop that opens connections. `tried_at`: when its current attempt began."""

    tried_at: float


class Transaction:
    """Statements between BEGIN and COMMIT. BEGIN travels with the first one, unless that is a prepared one."""

    def __init__(self, link: Connection, pool: Pool) -> None:
        self._link = link
        self._pool = pool
        self._begun = self._busy = self._over = False

    async def rows(self, sql: str | Prepared, params: Params = ()) -> list[Row]:
        return (await self._execute(sql, params)).rows

    async def run(self, sql: str | Prepared, params: Params = ()) -> int:
        """How many rows the statement touched."""
        return (await self._execute(sql, params)).count

    async def _execute(self, sql: str | Prepared, params: Params = ()) -> Answer:
        if self._over or self._busy:
            raise RuntimeError("The transaction is over." if self._over else "A transaction runs one statement at a time.")
        self._busy = True
        try:
            if not self._begun and isinstance(sql, Prepared):
                await self._pool.execute(self._link, "BEGIN")
                self._begun = True
            answer = await self._pool.execute(self._link, sql if self._begun else f"BEGIN; {sql}", params)
            self._begun = True
            return answer
        finally:
            self._busy = False
            self._begun = self._begun or self._link.in_transaction

    async def commit(self) -> None:
        self._over = True
        if not self._begun:
            return
        if self._link.lost:
            raise Unavailable("The connection to the database was lost before the commit.")
        try:
            answer = await self._pool.execute(self._link, "COMMIT")
        except Unavailable as error:
            raise Unavailable(error.reason, unknown=True) from None
        if answer.tag != "COMMIT":  # the server rolls back what had an error in it, whatever became of the exception
            raise StatementFailed("25P02", "A statement of the transaction failed, so it was rolled back.")
        self._pool.commits += 1

    async def rollback(self) -> None:
        self._over = True
        if self._begun and not self._link.lost:
            try:
                await self._pool.execute(self._link, "ROLLBACK")
            except StoreError:
                self._link.abandon()


@attrs.define(eq=False)
class Pool:
    """`size` connections to `dsn`. At most `queue` callers wait, each at most `patience` seconds."""

    log = Logger()

    dsn: str = attrs.field(repr=False)  # may hold a password
    reactor: Any = attrs.field(repr=False)
    size: int = 8
    name: str = "mailsvc"
    limits: Limits = Limits()
    queue: int = 1000
    patience: float = 5.0
    statements: int = 0
    commits: int = 0
    _links: set[Connection] = attrs.field(factory=set, init=False)
    _idle: list[Connection] = attrs.field(factory=list, init=False)
    _waiting: deque[Deferred[Connection]] = attrs.field(factory=deque, init=False)
    _open: bool = attrs.field(default=False, init=False)
    _filler: _Filler | None = attrs.field(default=None, init=False)
    _refused: str | None = attrs.field(default=None, init=False)  # why the last attempt to connect failed
    _lacking: str | None = attrs.field(default=None, init=False)  # which resource the server lacks
    _hurried: bool = attrs.field(default=False, init=False)
    _timers: dict[str, Any] = attrs.field(factory=dict, init=False)
    _filled: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _backoff: Backoff = attrs.field(default=attrs.Factory(lambda self: Backoff(self.reactor), takes_self=True), init=False)
    _serving: bool = attrs.field(default=False, init=False)
    _drained: Deferred[None] | None = attrs.field(default=None, init=False)

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._links)

    @property
    def busy(self) -> int:
        """How many of them are at work."""
        return len(self._links) - len(self._idle)

    @property
    def waiting(self) -> int:
        """How many callers wait for one."""
        return len(self._waiting)

    @property
    def problem(self) -> str | None:
        """Why no mail can be accepted, or None. For everybody to read: the server's own words are in the log."""
        return self._lacking if self._links else "there is no connection to it"

    @property
    def shortage(self) -> str | None:
        """Why there are fewer connections than there should be, or None."""
        if self._refused is None or len(self._links) >= self.size:
            return None
        return f"{len(self._links)} of {self.size} are open"

    @property
    def _wanted(self) -> bool:
        return self._open or bool(self._waiting)

    async def start(self) -> None:
        """Open the first connection, or raise what is wrong; the others follow in the background."""
        self._open = True
        try:
            await self._connect()
        except StoreError:
            self._open = False
            raise
        self._fill()
        self._later("watch", WATCH, self._watch)

    def hurry(self) -> None:
        """The process is about to end: without a database, callers are told so soon instead of waiting for it."""
        self._hurried = True

    async def stop(self, patience: float = 30.0) -> None:
        """Take no new work, let what was taken end, close."""
        self._open = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self.busy or self._waiting:
            self._drained = Deferred()
            timer = self.reactor.callLater(patience, self._drain)
            await self._drained
            if timer.active():
                timer.cancel()
        while self._waiting:
            self._waiting.popleft().errback(Unavailable("The database pool is closed."))
        for link in list(self._links):
            link.abandon()
        self._backoff.wake()
        if self._filler is not None:
            self._filled.append(Deferred())
            try:
                await self._filled[-1].addTimeout(HURRY, self.reactor)
            except TimeoutError:
                self.log.info("a connection attempt to the database is still under way; it ends with the process")

    async def transact(self, fn: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `fn` in a transaction and commit it, or roll back and raise what it raised. It runs to its end even if the caller leaves."""
        return await detached(self._transact(fn))

    async def rows(self, sql: str | Prepared, params: Params = ()) -> list[Row]:
        """One round trip that is a transaction of its own; several statements in it succeed or fail together."""
        return (await detached(self._alone(sql, params))).rows

    async def run(self, sql: str | Prepared, params: Params = ()) -> int:
        """Like `rows`; how many rows the last statement touched."""
        return (await detached(self._alone(sql, params))).count

    async def execute(self, link: Connection, sql: str | Prepared, params: Params = ()) -> Answer:
        self.statements += 1
        try:
            return await link.execute(sql, params)
        except OutOfResources as error:
            self._lack(error)
            raise

    async def _transact(self, fn: Callable[[Transaction], Awaitable[T]]) -> T:
        link = await self._take()
        try:
            transaction = Transaction(link, self)
            try:
                result = await fn(transaction)
            except BaseException:
                await transaction.rollback()
                raise
            await transaction.commit()
            return result
        finally:
            self._give_back(link)

    async def _alone(self, sql: str | Prepared, params: Params) -> Answer:
        link = await self._take()
        try:
            return await self.execute(link, sql, params)
        except Unavailable as error:
            raise Unavailable(error.reason, unknown=True) from None
        finally:
            self._give_back(link)

    async def _take(self) -> Connection:
        if not self._open:
            raise Unavailable("The database pool is closed.")
        while self._idle:
            if (link := self._idle.pop()).still_sound():
                return link
        if len(self._waiting) >= self.queue:
            raise Unavailable(f"{self.queue} others wait for a database connection.")
        place: Deferred[Connection] = Deferred()
        self._waiting.append(place)
        patience = HURRY if self._hurried and not self._links else self.patience
        timer = self.reactor.callLater(patience, self._turn_away, place, patience)
        try:
            return await place
        finally:
            if timer.active():
                timer.cancel()

    def _turn_away(self, place: Deferred[Connection], patience: float) -> None:
        self._waiting.remove(place)
        place.errback(Unavailable(f"No database connection became free within {patience:g} s."))
        self._consider_drained()

    def _give_back(self, link: Connection) -> None:
        if link.sound:
            self._idle.append(link)
            self._serve()
        else:
            link.abandon()
        self._consider_drained()

    def _consider_drained(self) -> None:
        if not self._open and not self._waiting and not self.busy:
            self._drain()

    def _serve(self) -> None:
        """Hand idle connections to those who wait; one loop, however many give theirs back at once."""
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

    def _lost(self, link: Connection) -> None:
        if link in self._links:
            self._links.remove(link)
            if link in self._idle:
                self._idle.remove(link)
            self._fill()

    async def _connect(self) -> None:
        link = await Connection.open(self.reactor, self.dsn, self.name, self._lost, self.limits)
        if not self._wanted or len(self._links) >= self.size:
            link.abandon()
            return
        self._links.add(link)
        self._give_back(link)

    def _fill(self) -> None:
        if self._wanted and self._filler is None:
            filler = self._filler = _Filler(self.reactor.seconds())
            Deferred.fromCoroutine(self._keep_filling(filler)).addErrback(
                lambda failure: self.log.failure("filling the database pool failed", failure=failure)
            )

    async def _keep_filling(self, filler: _Filler) -> None:
        try:
            while self._filler is filler and self._wanted and len(self._links) < self.size:
                filler.tried_at = self.reactor.seconds()
                try:
                    await self._connect()
                except Exception as error:
                    self._refuse(error)
                    await self._backoff.pause()
                else:
                    self._refused = None
                    self._backoff.reset()
        finally:
            if self._filler is filler:
                self._filler = None
            filled, self._filled = self._filled, []
            for waiting in filled:
                waiting.callback(None)

    def _refuse(self, error: Exception) -> None:
        """A connection attempt failed. One of ours comes as a StoreError; everything else is a defect, and no reason to stop trying."""
        self._refused = str(getattr(error, "reason", "")) or str(error) or type(error).__name__
        if not isinstance(error, StoreError):
            self.log.failure("an attempt to connect to the database failed unexpectedly")
        self.log.warn("no database connection, next try in {pause:g} s: {error}", pause=self._backoff.upcoming, error=str(error))

    def _watch(self) -> None:
        """The watchdog: connections that are missing are being opened, by an attempt that ends."""
        self._later("watch", WATCH, self._watch)
        if self._filler is not None and self.reactor.seconds() - self._filler.tried_at > STUCK:
            self._refused = f"a connection attempt did not end within {STUCK:g} s"
            self.log.error("{problem}; starting another", problem=self._refused)
            self._filler = None
        if len(self._links) < self.size:
            self._fill()

    def _lack(self, error: OutOfResources) -> None:
        if self._lacking is None:
            self.log.error("the database lacks resources: {error}", error=str(error))
            self._later("probe", PROBE, self._begin_probe)
        self._lacking = error.what

    def _begin_probe(self) -> None:
        Deferred.fromCoroutine(self._probe()).addErrback(lambda failure: self.log.failure("probing the database failed", failure=failure))

    async def _probe(self) -> None:
        """Write something that takes room; as long as that fails, report it and try again."""

        async def write(transaction: Transaction) -> None:
            await transaction.run(PROBING)
            raise _Undo

        try:
            await self.transact(write)
        except (_Undo, StatementFailed):  # or it may not create tables: then only the next mail can tell
            self._lacking = None
            self.log.info("the database can write again")
        except Exception as error:
            self.log.info("the database cannot write yet: {error}", error=str(error))
            self._later("probe", PROBE, self._begin_probe)

    def _later(self, name: str, seconds: float, do: Callable[[], None]) -> None:
        """At most one timer of each name, and none after the end."""

        def now() -> None:
            del self._timers[name]
            do()

        if self._open and name not in self._timers:
            self._timers[name] = self.reactor.callLater(seconds, now)
