"""One connection to Postgres: opened, proved, used for one statement at a time, and given up at the first doubt.

Which connection is used for what: store/pool and store/bell.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

import attrs
import orjson
import psycopg2
from psycopg2 import extensions
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Cooperator
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from txpostgres import txpostgres

from mailsvc.store import adapt, libpq  # noqa: F401  adapt registers how values are adapted
from mailsvc.store.errors import StatementFailed, StoreError, Unavailable, refused, translated
from mailsvc.store.libpq import Broken, Exchange, Outcome
from mailsvc.store.prepared import Prepared

OLDEST_SERVER = 150000  # what the SQL of the store is tested with
CONNECT_SECONDS = 10.0
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


class Link(txpostgres.Connection):  # type: ignore[misc]
    """A connection that tells once, by `on_lost`, when it has become useless, even if nobody was using it."""

    cursorFactory = _Cursor

    def __init__(self, reactor: Any, on_lost: Callable[[Link], None], limits: Limits = Limits()) -> None:
        super().__init__(reactor, Cooperator(scheduler=lambda step: reactor.callLater(0, step)))
        self.lost = False
        self._on_lost = on_lost
        self._limits = limits
        self._prepared: set[str] = set()  # names of the statements that this connection has planned
        self._used = 0.0  # when the last statement ended
        self._exchange: tuple[Exchange, Deferred[Outcome]] | None = None  # what the driver knows nothing of

    @classmethod
    async def open(cls, reactor: Any, dsn: str, name: str, on_lost: Callable[[Link], None], limits: Limits = Limits()) -> Link:
        """A connection that has answered and keeps what we promise; else an error that says what is wrong."""
        arguments = await _arguments(reactor, dsn, name, limits)
        link = cls(reactor, on_lost, limits)
        timer = reactor.callLater(CONNECT_SECONDS, lambda: link.abandon())
        try:
            await link.connect(**arguments)
            await link._prove()
        except (psycopg2.Error, ConnectionDone, ConnectionLost) as error:
            link.abandon()
            raise _not_open(error) from None
        except StoreError:
            link.abandon()
            raise
        finally:
            if timer.active():
                timer.cancel()
        return link

    async def _prove(self) -> None:
        sql = "SELECT current_setting('server_version_num')::int, current_setting('synchronous_commit'), pg_is_in_recovery()"
        [(version, commit, standby)] = (await self.execute(sql)).rows
        if version < OLDEST_SERVER:
            raise StatementFailed("0A000", f"Postgres 15 or newer is needed; this server is {version // 10000}.")
        if commit not in ("on", "remote_apply"):
            raise StatementFailed("F0000", f"synchronous_commit is {commit!r} for this session, it must be 'on'.")
        if standby:
            raise Unavailable("The server is a standby that takes no writes.")

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
            self.reactor.removeReader(self)
            exchange.send(names, tuple(params))
            self._watch(exchange.flush())
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
        """Whatever the exchange can do now. Nobody watches the socket meanwhile, since the library closes it when it is dead."""
        assert self._exchange is not None
        exchange, over = self._exchange
        self.reactor.removeReader(self)
        self.reactor.removeWriter(self)
        try:
            flushed = exchange.flush()
            outcome = exchange.read()
        except Broken as error:
            self._exchange = None
            over.errback(error)
            return
        self._watch(flushed)
        if outcome is not None:
            self._exchange = None
            over.callback(outcome)

    def _watch(self, flushed: bool) -> None:
        self.reactor.addReader(self)
        if not flushed:
            self.reactor.addWriter(self)

    def _has_input(self) -> bool:
        waiting = select.poll()  # unlike select(), for any number of open files
        waiting.register(self, select.POLLIN)
        return bool(waiting.poll(0))

    def abandon(self) -> None:
        """Close at once; whatever is under way on it fails."""
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
            self._on_lost(self)


def _not_open(error: BaseException) -> StoreError:
    if isinstance(error, psycopg2.Error):
        return translated(error)
    return Unavailable(f"The database did not answer within {CONNECT_SECONDS:.0f} s.")


async def _arguments(reactor: Any, dsn: str, name: str, limits: Limits) -> dict[str, Any]:
    given = extensions.parse_dsn(dsn)
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
    return patience | given | ours | await _addresses(reactor, given)


async def _addresses(reactor: Any, given: dict[str, Any]) -> dict[str, str]:
    """The host's addresses, looked up in a thread: the driver would block while asking the resolver."""
    host = given.get("host", "")
    if not host or host.startswith(("/", "@")) or "," in host or "hostaddr" in given or _is_address(host):
        return {}
    looked_up: Deferred[list[Any]] = deferToThreadPool(
        reactor, reactor.getThreadPool(), socket.getaddrinfo, host, None, 0, socket.SOCK_STREAM
    )
    try:
        found = list(dict.fromkeys(entry[4][0] for entry in await looked_up))
    except OSError as error:
        raise Unavailable(f"The database's host {host} has no address: {error.strerror}") from None
    port = given.get("port", "5432")
    return {"host": ",".join([host] * len(found)), "hostaddr": ",".join(found), "port": ",".join([port] * len(found))}


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
