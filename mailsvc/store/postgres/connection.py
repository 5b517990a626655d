"""One connection to Postgres: opened, proved, used for one statement at a time, and given up at the first doubt.

Which connection is used for what: store/postgres/pool and store/postgres/notifications. Where the server is: store/postgres/targets.

libpq closes its socket whenever it finds the connection dead, and the number of the descriptor then belongs to whatever is opened next.
The reactor therefore watches a duplicate that only this module closes, after it has been unregistered.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import orjson
import psycopg2
from psycopg2 import extensions
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Cooperator
from twisted.python.failure import Failure
from txpostgres import txpostgres

from mailsvc.store.postgres import adapters, libpq  # noqa: F401  adapt registers how values are adapted
from mailsvc.store.postgres.errors import StatementFailed, StoreError, Unavailable, refused, translated
from mailsvc.store.postgres.libpq import Broken, Exchange, Outcome
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.postgres.targets import Target, targets

OLDEST_SERVER = 150000  # what the SQL of the store is tested with
REST = 0.02  # seconds after which a connection counts as idle; the reactor looks at it in every turn anyway
GRACE = 5.0  # how much longer than the server's own limit a statement may take before the connection is given up

Row = tuple[Any, ...]
Params = Sequence[object] | Mapping[str, object]


@attrs.frozen
class Limits:
    """Seconds after which the server stops a statement, a wait for a lock, a transaction in which nothing happens."""

    statement: float = 30.0
    lock: float = 10.0
    idle_in_transaction: float = 30.0


@attrs.frozen
class Answer:
    """What came back: the rows of the last statement that has some, how many rows it touched, and its command tag."""

    rows: list[Row]
    count: int
    tag: str


class _Cursor(txpostgres.Cursor):  # type: ignore[misc]
    def _handleCancellation(self, failure: Failure) -> Failure:
        return failure  # a statement stopped at its time limit is an error of the statement, not a caller that left

    def fileno(self) -> int:
        return int(self._connection.fileno())


class Connection(txpostgres.Connection):  # type: ignore[misc]
    """A connection that tells once, by `on_lost`, when it has become useless, even if nobody was using it."""

    cursorFactory = _Cursor

    def __init__(self, reactor: Any, on_lost: Callable[[Connection], None], limits: Limits = Limits()) -> None:
        super().__init__(reactor, Cooperator(scheduler=lambda step: reactor.callLater(0, step)))
        self.lost = False
        self._on_lost = on_lost
        self._limits = limits
        self._prepared: set[str] = set()  # names of the statements that this connection has planned
        self._used = 0.0  # when the last statement ended
        self._exchange: tuple[Exchange, Deferred[Outcome]] | None = None  # what the driver knows nothing of
        self._descriptor = -1  # our duplicate of libpq's socket
        self._connected = False

    @classmethod
    async def open(cls, reactor: Any, dsn: str, name: str, on_lost: Callable[[Connection], None], limits: Limits = Limits()) -> Connection:
        """A connection that has answered and keeps what we promise; else an error that says what is wrong.

        Each host and address of the DSN is tried in turn, each with its own time limit. The one that worked last is tried first.
        """
        problems: dict[str, StoreError] = {}
        for target in await targets(reactor, dsn):
            try:
                link = await cls._open(reactor, target, name, on_lost, limits)
            except StoreError as error:
                problems[target.where] = error
            else:
                target.remember()
                return link
        raise _all_failed(problems)

    @classmethod
    async def _open(cls, reactor: Any, target: Target, name: str, on_lost: Callable[[Connection], None], limits: Limits) -> Connection:
        link = cls(reactor, on_lost, limits)
        timer = reactor.callLater(target.seconds, lambda: link.abandon())
        try:
            await link.connect(**_arguments(target, name, limits))
            link._connected = True
            await link._prove()
        except BaseException as error:
            link.abandon()
            if isinstance(error, (psycopg2.Error, ConnectionDone, ConnectionLost)):
                raise _not_open(error, target) from None
            raise
        finally:
            if timer.active():
                timer.cancel()
        return link

    async def _prove(self) -> None:
        [(version, commit, standby, read_only)] = (await self.execute(_PROOF)).rows
        if version < OLDEST_SERVER:
            raise StatementFailed("0A000", f"Postgres 15 or newer is needed; this server is {version // 10000}.")
        if commit not in ("on", "remote_apply"):
            raise StatementFailed("F0000", f"synchronous_commit is {commit!r} for this session, it must be 'on'.")
        if standby:
            raise Unavailable("The server is a standby that takes no writes.")
        if read_only == "on":
            raise Unavailable("The server takes no writes: default_transaction_read_only is on.")

    def fileno(self) -> int:
        """The descriptor that the reactor watches. While libpq connects it may go on to another host, with another socket."""
        if not self._connected and self._connection is not None and not self._connection.closed:
            self._follow(self._connection.fileno())
        return self._descriptor

    def _follow(self, theirs: int) -> None:
        if theirs < 0 or (self._descriptor >= 0 and os.path.sameopenfile(self._descriptor, theirs)):
            return
        self._unwatch()
        self._descriptor = os.dup(theirs)

    def _unwatch(self) -> None:
        """Unregister the descriptor, then close it."""
        descriptor = self._descriptor
        if descriptor < 0:
            return
        connected, self._connected = self._connected, True  # so that nobody asks libpq for its socket now
        for registered in (self, *self._cursors):
            self.reactor.removeReader(registered)
            self.reactor.removeWriter(registered)
        self._descriptor, self._connected = -1, connected
        os.close(descriptor)

    @property
    def in_transaction(self) -> bool:
        return not self.lost and self.get_transaction_status() != extensions.TRANSACTION_STATUS_IDLE

    @property
    def sound(self) -> bool:
        """Whether the next user may have it."""
        return not self.lost and self.get_transaction_status() == extensions.TRANSACTION_STATUS_IDLE

    def still_sound(self) -> bool:
        """After it was idle: what the server said meanwhile, its farewell above all, is heard first."""
        if self.reactor.seconds() - self._used > REST:
            while not self.lost and self._has_input():
                self.doRead()
        return self.sound

    async def execute(self, sql: str | Prepared, params: Params = ()) -> Answer:
        """Run one statement, or several in one round trip. Without params a percent sign is just that."""
        if isinstance(sql, Prepared):
            names = [] if sql.first is None else [await self._prepare(sql.first)]
            names.append(await self._prepare(sql))
            if libpq.LIBRARY is not None:
                return await self._exchanged(names, params)
            sql = sql.execute
        if not self.lost and self._connection.closed:
            self.abandon()  # the driver noticed during an earlier statement, and nobody has told us yet
        if self.lost:
            raise Unavailable("The connection to the database was lost.")
        cursor = self.cursor()
        timer = self.reactor.callLater(self._limits.statement + GRACE, self.abandon)
        try:
            await cursor.execute(sql, params or None)
            rows = cursor.fetchall() if cursor.description is not None else []
            return Answer(rows, cursor.rowcount, cursor.statusmessage or "")
        except (ConnectionDone, ConnectionLost):
            raise Unavailable("The connection to the database was lost.") from None
        except (psycopg2.Error, ValueError, orjson.JSONEncodeError) as error:
            problem = translated(error)
            if self._connection.closed and not isinstance(problem, Unavailable):
                problem = Unavailable(str(problem))  # whatever the driver calls it
            if isinstance(problem, Unavailable):
                self.abandon()
            raise problem from None
        finally:
            if timer.active():
                timer.cancel()
            cursor.close()
            self._used = self.reactor.seconds()

    async def _prepare(self, statement: Prepared) -> str:
        if statement.name not in self._prepared:
            await self.execute(statement.prepare)
            self._prepared.add(statement.name)
        return statement.name

    async def _exchanged(self, names: Sequence[str], params: Params) -> Answer:
        """Prepared statements in one round trip; the parameters of the last go beside it. The driver does nothing meanwhile."""
        if self.lost:
            raise Unavailable("The connection to the database was lost.")
        timer = self.reactor.callLater(self._limits.statement + GRACE, self.abandon)
        try:
            over: Deferred[Outcome] = Deferred()
            exchange = Exchange(self._connection.pgconn_ptr)
            self._exchange = exchange, over
            exchange.send(names, tuple(params))
            if not exchange.flush():
                self.reactor.addWriter(self)
            outcome = await over
        except Broken as error:
            self.abandon()
            raise Unavailable(str(error)) from None
        finally:
            self._exchange = None
            if timer.active():
                timer.cancel()
            self._used = self.reactor.seconds()
        if outcome.refusal is not None:
            problem = refused(outcome.refusal)
            if isinstance(problem, Unavailable):
                self.abandon()
            raise problem
        return Answer(outcome.rows, outcome.count, outcome.tag)

    def _move(self) -> None:
        """Whatever the exchange can do now."""
        assert self._exchange is not None
        exchange, over = self._exchange
        try:
            flushed = exchange.flush()
            outcome = exchange.read()
        except Broken as error:
            self._exchange = None
            over.errback(error)
            return
        if flushed:
            self.reactor.removeWriter(self)
        else:
            self.reactor.addWriter(self)
        if outcome is not None:
            self._exchange = None
            over.callback(outcome)

    def _has_input(self) -> bool:
        waiting = select.poll()  # unlike select(), for any number of open files
        waiting.register(self, select.POLLIN)
        return bool(waiting.poll(0))

    def abandon(self) -> None:
        """Close at once; whatever is under way on it fails."""
        self._unwatch()
        if self._connection is not None:
            self.close()
        self._tell()

    def doRead(self) -> None:
        if self._exchange is not None:
            self._move()
            return
        try:
            super().doRead()
        except psycopg2.Error:
            self.abandon()  # the server went away while nobody was asking it anything

    def doWrite(self) -> None:
        if self._exchange is not None:
            self._move()
        else:
            super().doWrite()

    def connectionLost(self, reason: object) -> None:
        if self._exchange is not None:
            (_, over), self._exchange = self._exchange, None
            over.errback(Broken("The connection to the database was lost."))
            return
        super().connectionLost(reason)
        if self._connection.closed:
            self._tell()

    def _tell(self) -> None:
        if not self.lost:
            self.lost = True
            self._unwatch()
            self._on_lost(self)


_PROOF = """
SELECT current_setting('server_version_num')::int, current_setting('synchronous_commit'), pg_is_in_recovery(),
       current_setting('transaction_read_only')
"""


def _not_open(error: BaseException, target: Target) -> StoreError:
    if isinstance(error, psycopg2.Error):
        return translated(error)
    return Unavailable(f"The database did not answer within {target.seconds:g} s.")


def _all_failed(problems: Mapping[str, StoreError]) -> StoreError:
    """One error for all hosts. A server that is up and misconfigured says more than others that are away."""
    told = [error for error in problems.values() if not isinstance(error, Unavailable)] or [*problems.values()]
    if len(told) == 1:
        return told[0]
    return Unavailable("; ".join(f"{where}: {getattr(error, 'reason', error)}" for where, error in problems.items()))


def _arguments(target: Target, name: str, limits: Limits) -> dict[str, Any]:
    given = dict(target.given)
    session = {
        "statement_timeout": f"{limits.statement * 1000:.0f}",
        "lock_timeout": f"{limits.lock * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{limits.idle_in_transaction * 1000:.0f}",
        "synchronous_commit": "on",
        "jit": "off",  # short statements only: compiling one takes a thousand times as long as it runs
        "TimeZone": "UTC",
        "bytea_output": "hex",
        "DateStyle": "ISO",
    }
    options = " ".join((given.pop("options", ""), *(f"-c {key}={value}" for key, value in session.items()))).strip()
    ours = {"client_encoding": "UTF8", "application_name": name, "options": options}
    # A peer that vanished without a word is noticed in 15 s rather than in the kernel's two hours.
    patience = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "1", "tcp_user_timeout": "15000"}
    return patience | given | ours
