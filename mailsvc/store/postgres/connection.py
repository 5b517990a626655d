"""One connection to Postgres: opened, verified, used for one statement at a time, and closed at the first sign of trouble.

What connections are used for: store/postgres/pool and store/postgres/notifications. Where the server is: store/postgres/targets.

libpq closes its socket as soon as it finds the connection dead, and the descriptor's number is then reused by whatever is opened next.
The reactor therefore watches a duplicate, which only this module closes, after unregistering it.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from mailsvc.store.postgres import adapters, libpq  # noqa: F401  importing adapters registers them
from mailsvc.store.postgres.cells import PLACE, Address, Place, cell_of
from mailsvc.store.postgres.errors import StatementFailed, StoreError, Unavailable, server_error, translated
from mailsvc.store.postgres.libpq import Broken, Exchange, Outcome
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.postgres.targets import OPTIONS, SILENCE, Target, redirected, targets

OLDEST_SERVER = 150000  # the oldest version that the tests run on
IDLE_AFTER = 0.02  # seconds; before that the reactor has certainly read what the server sent
BUFFERED = 1 << 20  # bytes that a Unix socket holds while the server is busy; by default it is 208 kB, less than a piece of a message
GRACE = 5.0  # seconds that a statement may exceed the server's own limit by before the connection is closed

Row = tuple[Any, ...]
Params = Sequence[object] | Mapping[str, object]


@attrs.frozen
class Limits:
    """Seconds after which the server cancels a statement, a wait for a lock, or an idle transaction."""

    statement: float = 30.0
    lock: float = 10.0
    idle_in_transaction: float = 30.0


@attrs.frozen
class Result:
    """The rows of the last statement that returned some, the number of rows it affected, and its command tag."""

    rows: list[Row]
    count: int
    tag: str


@attrs.define(eq=False, auto_exc=True)
class _Elsewhere(Exception):
    """Another node holds the cell."""

    address: Address


class _Cursor(txpostgres.Cursor):  # type: ignore[misc]
    def _handleCancellation(self, failure: Failure) -> Failure:
        return failure  # a statement cancelled at its time limit failed; its caller was not cancelled

    def fileno(self) -> int:
        return int(self._connection.fileno())


class Connection(txpostgres.Connection):  # type: ignore[misc]
    """Calls `on_lost` once when the connection has become unusable, even if nobody was using it."""

    cursorFactory = _Cursor

    def __init__(self, reactor: Any, on_lost: Callable[[Connection], None], limits: Limits = Limits()) -> None:
        super().__init__(reactor, Cooperator(scheduler=lambda step: reactor.callLater(0, step)))
        self.lost = False
        self.server = 0  # the number of the server's process
        self.pooled = False  # a pooler such as PgBouncer is in between
        self._on_lost = on_lost
        self._limits = limits
        self._prepared: set[str] = set()  # names of statements prepared on this connection
        self._used = 0.0  # when the last statement ended
        self.silent = False  # it was closed because a statement got no answer
        self._exchange: tuple[Exchange, Deferred[Outcome]] | None = None  # which the driver is not aware of
        self._descriptor = -1  # the duplicate of libpq's socket
        self._connected = False

    @classmethod
    async def open(cls, reactor: Any, dsn: str, name: str, on_lost: Callable[[Connection], None], limits: Limits = Limits()) -> Connection:
        """Open and verify a connection, or raise a StoreError that says what is wrong.

        Each host and address of the DSN is tried in turn with its own timeout, the one that worked last first. For a cell, the
        connection is to the node that holds it, and any node is asked which one that is.
        """
        problems: dict[str, StoreError] = {}
        tried = await targets(reactor, dsn)
        for number, target in enumerate(tried, 1):
            try:
                connection = await cls._open(reactor, target, name, on_lost, limits)
            except _Elsewhere as other:
                target.forget()
                problems[target.where] = Unavailable(f"It says that the cell is on {other.address}.")
                nodes = await redirected(reactor, target, other.address)
                tried[number:number] = [node for node in nodes if node.where not in problems]  # before a former node, if it is back
            except StoreError as error:
                problems[target.where] = error
            else:
                target.remember()
                return connection
        raise _all_failed(problems)

    @classmethod
    async def _open(cls, reactor: Any, target: Target, name: str, on_lost: Callable[[Connection], None], limits: Limits) -> Connection:
        connection = cls(reactor, on_lost, limits)
        timer = reactor.callLater(target.seconds, lambda: connection.abandon())
        try:
            await connection.connect(**_arguments(target, name, limits))
            _enlarge_buffer(connection.fileno())
            connection._connected = True
            await connection._verify(limits)
            if (cell := cell_of(target.dsn)) is not None:
                await connection._verify_cell(cell)
        except BaseException as error:
            connection.abandon()
            if isinstance(error, (psycopg2.Error, ConnectionDone, ConnectionLost)):
                raise _not_open(error, target) from None
            raise
        finally:
            if timer.active():
                timer.cancel()
        return connection

    async def _verify(self, limits: Limits) -> None:
        [(self.server, *verified)] = (await self.execute(_VERIFICATION)).rows
        self.pooled = self.server != self._connection.get_backend_pid()
        if self.pooled:  # then the options may not have arrived
            session = _session(limits)
            await self.execute(_SET, ([*session], [*session.values()]))
            [(self.server, *verified)] = (await self.execute(_VERIFICATION)).rows
        version, commit, standby, read_only, encoding = verified
        if version < OLDEST_SERVER:
            raise StatementFailed("0A000", f"Postgres 15 or newer is required; this server is version {version // 10000}.")
        if encoding != "UTF8":
            raise StatementFailed("0A000", f"The encoding of the database is {encoding}; create one with UTF8.")
        if commit not in ("on", "remote_apply"):
            raise StatementFailed("F0000", f"synchronous_commit is {commit!r} for this session; it must be 'on'.")
        if standby:
            raise Unavailable("The server is a standby and accepts no writes.")
        if read_only == "on":
            raise Unavailable("The server accepts no writes: default_transaction_read_only is on.")

    async def _verify_cell(self, cell: str) -> None:
        rows = (await self.execute(PLACE, (cell,))).rows
        if not rows:
            raise StatementFailed("3F000", f"There is no cell {cell} in this cluster.")
        place = Place.of(rows[0])
        if not place.here:
            raise _Elsewhere(place.node)

    def fileno(self) -> int:
        """The descriptor that the reactor watches. While connecting, libpq may switch to another host and socket."""
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
        connected, self._connected = self._connected, True  # so that libpq is not asked for its socket now
        for registered in (self, *self._cursors):
            self.reactor.removeReader(registered)
            self.reactor.removeWriter(registered)
        self._descriptor, self._connected = -1, connected
        os.close(descriptor)

    @property
    def in_transaction(self) -> bool:
        return not self.lost and self.get_transaction_status() != extensions.TRANSACTION_STATUS_IDLE

    @property
    def usable(self) -> bool:
        """Whether it can be handed to the next caller."""
        return not self.lost and self.get_transaction_status() == extensions.TRANSACTION_STATUS_IDLE

    def still_usable(self) -> bool:
        """Check it after an idle time: first read what the server has sent, such as a shutdown notice."""
        if self.reactor.seconds() - self._used > IDLE_AFTER:
            while not self.lost and self._has_input():
                self.doRead()
        return self.usable

    async def execute(self, sql: str | Prepared, params: Params = (), rest: Iterator[Params] | None = None) -> Result:
        """Run one statement, or several in one round trip. Without params, percent signs are literal.

        A prepared statement may be run again with each element of `rest`, without waiting for the previous result. Where libpq cannot do
        this, nothing is taken from `rest`.
        """
        if isinstance(sql, Prepared):
            names = [] if sql.first is None else [await self._prepare(sql.first)]
            names.append(await self._prepare(sql))
            if libpq.LIBRARY is not None:
                return await self._run_exchange(names, params, rest)
            sql = sql.execute
        if not self.lost and self._connection.closed:
            self.abandon()  # the driver found it dead during an earlier statement
        if self.lost:
            raise Unavailable("The connection to the database was lost.")
        cursor = self.cursor()
        timer = self.reactor.callLater(self._limits.statement + GRACE, self._give_up)
        try:
            await cursor.execute(sql, params or None)
            rows = cursor.fetchall() if cursor.description is not None else []
            return Result(rows, cursor.rowcount, cursor.statusmessage or "")
        except (ConnectionDone, ConnectionLost):
            raise Unavailable("The connection to the database was lost.") from None
        except (psycopg2.Error, ValueError, orjson.JSONEncodeError) as error:
            problem = translated(error)
            if self._connection.closed and not isinstance(problem, Unavailable):
                problem = Unavailable(str(problem))  # the driver may report something else
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

    async def _run_exchange(self, names: Sequence[str], params: Params, rest: Iterator[Params] | None) -> Result:
        """Run prepared statements in one round trip, with the parameters of the last sent separately. The driver is idle meanwhile."""
        if self.lost:
            raise Unavailable("The connection to the database was lost.")
        seconds = self._limits.statement + GRACE
        timer = self.reactor.callLater(seconds, self._give_up)

        def in_time(rest: Iterator[Params]) -> Iterator[Sequence[object]]:
            for each in rest:
                timer.reset(seconds)
                yield tuple(each)

        try:
            finished: Deferred[Outcome] = Deferred()
            exchange = Exchange(self._connection.pgconn_ptr)
            self._exchange = exchange, finished
            exchange.send(names, tuple(params), None if rest is None else in_time(rest))
            if not exchange.flush():
                self.reactor.addWriter(self)
            outcome = await finished
        except Broken as error:
            self.abandon()
            raise Unavailable(str(error)) from None
        except Exception:  # of `rest`: the statements have no end
            self.abandon()
            raise
        finally:
            self._exchange = None
            if timer.active():
                timer.cancel()
            self._used = self.reactor.seconds()
        if outcome.error is not None:
            problem = server_error(outcome.error)
            if isinstance(problem, Unavailable):
                self.abandon()
            raise problem
        return Result(outcome.rows, outcome.count, outcome.tag)

    def _advance(self) -> None:
        """Write and read as much as possible."""
        assert self._exchange is not None
        exchange, finished = self._exchange
        try:
            outcome = exchange.read()  # this writes, too, so it comes first: the writer must not stay when everything has been sent
            flushed = outcome is not None or exchange.flush()
        except Exception as error:
            self._exchange = None
            finished.errback(error)
            return
        if flushed:
            self.reactor.removeWriter(self)
        else:
            self.reactor.addWriter(self)
        if outcome is not None:
            self._exchange = None
            finished.callback(outcome)

    def _has_input(self) -> bool:
        poll = select.poll()  # unlike select(), without a limit on descriptor numbers
        poll.register(self, select.POLLIN)
        return bool(poll.poll(0))

    def _give_up(self) -> None:
        self.silent = True
        self.abandon()

    def idle_for(self, seconds: float) -> bool:
        return bool(self.reactor.seconds() - self._used >= seconds)

    def abandon(self) -> None:
        """Close at once. Any statement in progress fails."""
        self._unwatch()
        if self._connection is not None:
            self.close()
        self._report_lost()

    def doRead(self) -> None:
        if self._exchange is not None:
            self._advance()
            return
        try:
            super().doRead()
        except psycopg2.Error:
            self.abandon()  # the server went away between statements

    def doWrite(self) -> None:
        if self._exchange is not None:
            self._advance()
        elif self._pollingD is not None:
            super().doWrite()  # it is connecting
        else:
            # The exchange has ended in this iteration. If a cursor has begun a statement since, only the cursor may read its result.
            self.reactor.removeWriter(self)
            for cursor in list(self._cursors):
                cursor.continuePolling()

    def connectionLost(self, reason: object) -> None:
        if self._exchange is not None:
            (_, finished), self._exchange = self._exchange, None
            finished.errback(Broken("The connection to the database was lost."))
            return
        super().connectionLost(reason)
        if self._connection.closed:
            self._report_lost()

    def _report_lost(self) -> None:
        if not self.lost:
            self.lost = True
            self._unwatch()
            self._on_lost(self)


_VERIFICATION = """
SELECT pg_backend_pid(), current_setting('server_version_num')::int, current_setting('synchronous_commit'), pg_is_in_recovery(),
       current_setting('transaction_read_only'), current_setting('server_encoding')
"""

_SET = "SELECT set_config(name, setting, false) FROM unnest(%s::text[], %s::text[]) AS given (name, setting)"
SHARED = (
    "The connection pooler shares connections between transactions, which breaks LISTEN, prepared statements and locks. Let database.url "
    "name Postgres itself, or set pool_mode = session in PgBouncer."
)
_REFUSED = (
    'A connection pooler refuses the parameter "options". Let database.url name Postgres itself, or set '
    "ignore_startup_parameters = options and pool_mode = session in PgBouncer."
)


def _enlarge_buffer(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connected:
        if connected.family == socket.AF_UNIX:  # TCP adapts its buffers
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFERED)


def _not_open(error: BaseException, target: Target) -> StoreError:
    if isinstance(error, psycopg2.Error):
        return StatementFailed("08P01", _REFUSED) if "unsupported startup parameter" in str(error) else translated(error)
    return Unavailable(f"The database did not answer within {target.seconds:g} s.")


def _all_failed(problems: Mapping[str, StoreError]) -> StoreError:
    """One error for all hosts. A server that is up but misconfigured matters more than others that are down."""
    configuration = [error for error in problems.values() if not isinstance(error, Unavailable)] or [*problems.values()]
    if len(configuration) == 1:
        return configuration[0]
    return Unavailable("; ".join(f"{where}: {getattr(error, 'reason', error)}" for where, error in problems.items()))


def _arguments(target: Target, name: str, limits: Limits) -> dict[str, Any]:
    given = dict(target.given)
    session = (f"-c {key}={_escaped(value)}" for key, value in _session(limits).items())
    options = " ".join((OPTIONS, given.pop("options", ""), *session)).strip()
    ours = {"client_encoding": "UTF8", "application_name": name, "options": options}
    return SILENCE | given | ours


def _escaped(value: str) -> str:
    return value.replace(" ", r"\ ")


def _session(limits: Limits) -> dict[str, str]:
    """Settings of each session, whatever those of the server, the database and the role are."""
    return {
        "statement_timeout": f"{limits.statement * 1000:.0f}",
        "lock_timeout": f"{limits.lock * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{limits.idle_in_transaction * 1000:.0f}",
        "idle_session_timeout": "0",
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",  # a statement sees what the former holder of a lock committed
        "standard_conforming_strings": "on",
        "array_nulls": "on",
        "jit": "off",  # statements are short: compiling one takes a thousand times as long as running it
        "TimeZone": "UTC",
        "bytea_output": "hex",
        "extra_float_digits": "1",  # numbers as they are: with fewer digits, clocks seem to differ
        "DateStyle": "ISO",
    }
