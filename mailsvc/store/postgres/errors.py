"""Database errors as classes with data, so that no other package needs the driver's exceptions.

No error contains values of a statement, which may be secrets or addresses. Parts of the server's message that quote values (details,
excerpts of statements) are left out.
"""

from __future__ import annotations

import attrs
import psycopg2

from mailsvc.store.postgres.libpq import ServerError


@attrs.define(eq=False, auto_exc=True)
class StoreError(Exception):
    """The base class of all errors that the store raises."""

    def __str__(self) -> str:
        fields = (f"{key}={value!r}" for key, value in attrs.asdict(self).items() if value not in (None, False))
        return ", ".join(fields)


@attrs.define(eq=False, auto_exc=True, str=False)
class Transient(StoreError):
    """A problem of the database or its operation, not of the data: the same may succeed later."""


@attrs.define(eq=False, auto_exc=True, str=False)
class Unavailable(Transient):
    """The database cannot be reached. `unknown`: the transaction may have been committed nevertheless."""

    reason: str
    unknown: bool = False


@attrs.define(eq=False, auto_exc=True, str=False)
class TimedOut(Transient):
    """The server cancelled the statement at its time limit or on request. It had no effect."""

    reason: str


@attrs.define(eq=False, auto_exc=True, str=False)
class Contention(Transient):
    """A deadlock, a lock timeout or a serialization failure. It had no effect, and a retry may succeed."""

    sqlstate: str
    reason: str


@attrs.define(eq=False, auto_exc=True, str=False)
class OutOfResources(Transient):
    """The server lacks something that the statement needs: disk space or memory, its system (SQLSTATE classes 53 and 58), or a partition.

    It had no effect.
    """

    sqlstate: str
    reason: str

    @property
    def full(self) -> bool:
        """Whether a resource is exhausted rather than broken."""
        return self.sqlstate.startswith("53")

    @property
    def description(self) -> str:
        """A phrase that does not quote the server."""
        known = {"53100": "its disk is full", "53200": "it is out of memory", CHECK: "it has no partition for the present day yet"}
        return known.get(self.sqlstate, "it is out of a resource" if self.full else "its system reports an error")


@attrs.define(eq=False, auto_exc=True, str=False)
class Conflict(StoreError):
    """A unique, foreign key or exclusion constraint was violated."""

    constraint: str | None
    table: str | None
    sqlstate: str


@attrs.define(eq=False, auto_exc=True, str=False)
class DataRejected(StoreError):
    """A value was rejected: a NUL in a text, a number out of range, a null or a check constraint."""

    sqlstate: str
    constraint: str | None = None
    table: str | None = None
    column: str | None = None


@attrs.define(eq=False, auto_exc=True, str=False)
class Damaged(StoreError):
    """What is stored cannot be what was stored."""

    reason: str


@attrs.define(eq=False, auto_exc=True, str=False)
class StatementFailed(StoreError):
    """The statement is wrong or the server cannot run it: a defect or a misconfiguration."""

    sqlstate: str | None
    reason: str


CHECK = "23514"  # a check constraint, which is named; or, without a name, no partition of the table is for this row
CONTENTION = frozenset({"40001", "40P01", "55P03"})
CONFLICT = frozenset({"23503", "23505", "23P01"})
# Shutting down, starting, idle too long, too many connections; and a server that accepts no writes, such as a former primary.
GONE = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "53300", "25006"})


def is_lost(error: psycopg2.Error) -> bool:
    """Whether the connection is unusable after this error."""
    state: str | None = error.pgcode
    if state is None:
        return isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError))
    return _ended(state)


def translated(error: BaseException) -> StoreError:
    """The StoreError for an exception of the driver."""
    if not isinstance(error, psycopg2.Error):
        return DataRejected("22021")  # a NUL or a lone surrogate, found before anything was sent
    if error.pgcode:
        diag = error.diag
        return server_error(ServerError(error.pgcode, diag.message_primary or "", diag.constraint_name, diag.table_name, diag.column_name))
    message = str(error).strip().split("\n")[0] or type(error).__name__
    return Unavailable(message) if is_lost(error) else StatementFailed(error.pgcode, message)


def server_error(error: ServerError) -> StoreError:
    """The StoreError for an error reported by the server."""
    state = error.state
    if _ended(state):
        return Unavailable(error.message)
    if state == "57014":
        return TimedOut(error.message)
    if state in CONTENTION:
        return Contention(state, error.message)
    if state[:2] in ("53", "58") or (state == CHECK and error.table and not error.constraint):
        return OutOfResources(state, error.message)
    if state in CONFLICT:
        return Conflict(error.constraint, error.table, state)
    if state[:2] in ("22", "23"):
        return DataRejected(state, error.constraint, error.table, error.column)
    return StatementFailed(state, error.message)


def _ended(state: str) -> bool:
    return state in GONE or state.startswith("08")
