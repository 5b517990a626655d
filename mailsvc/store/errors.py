"""What can go wrong with the database, as classes that carry data; nobody outside the store needs the driver's.

No error holds values of a statement: they may be secrets or addresses. What the server says about values
(details, excerpts of statements) is left out.
"""

from __future__ import annotations

import attrs
import psycopg2


@attrs.define(eq=False, auto_exc=True)
class StoreError(Exception):
    """Anything that the store raises."""

    def __str__(self) -> str:
        told = (f"{key}={value!r}" for key, value in attrs.asdict(self).items() if value not in (None, False))
        return ", ".join(told)


@attrs.define(eq=False, auto_exc=True, str=False)
class Unavailable(StoreError):
    """There is no database to talk to just now. `unknown`: it may have been committed all the same."""

    reason: str
    unknown: bool = False


@attrs.define(eq=False, auto_exc=True, str=False)
class TimedOut(StoreError):
    """The server stopped the statement at its time limit, or somebody cancelled it. Nothing of it was done."""

    reason: str


@attrs.define(eq=False, auto_exc=True, str=False)
class Contention(StoreError):
    """Others were in the way: a deadlock, a lock timeout, a failed serialization. Nothing was done; a new try may succeed."""

    sqlstate: str
    reason: str


@attrs.define(eq=False, auto_exc=True, str=False)
class Conflict(StoreError):
    """A unique, foreign key or exclusion constraint said no."""

    constraint: str | None
    table: str | None
    sqlstate: str


@attrs.define(eq=False, auto_exc=True, str=False)
class DataRejected(StoreError):
    """A value does not fit: a NUL in a text, a number out of range, a null or a check constraint."""

    sqlstate: str
    constraint: str | None = None
    table: str | None = None
    column: str | None = None


@attrs.define(eq=False, auto_exc=True, str=False)
class StatementFailed(StoreError):
    """The statement itself is wrong, or the server cannot run it: a mistake of ours or of the operator."""

    sqlstate: str | None
    reason: str


CONTENTION = frozenset({"40001", "40P01", "55P03"})
CONFLICT = frozenset({"23503", "23505", "23P01"})
GONE = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "53300"})  # shut down, starting, idle too long, too many


def is_lost(error: psycopg2.Error) -> bool:
    """Whether the connection is of no use after this error."""
    state: str | None = error.pgcode
    if state is None:
        return isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError))
    return state in GONE or state.startswith("08")


def translated(error: BaseException) -> StoreError:
    """Our error for one of the driver's."""
    if not isinstance(error, psycopg2.Error):
        return DataRejected("22021")  # a NUL or a lone surrogate, found before anything was sent
    state = error.pgcode or ""
    said = (error.diag.message_primary if state else str(error).strip().split("\n")[0]) or type(error).__name__
    if is_lost(error):
        return Unavailable(said)
    if state == "57014":
        return TimedOut(said)
    if state in CONTENTION:
        return Contention(state, said)
    if state in CONFLICT:
        return Conflict(error.diag.constraint_name, error.diag.table_name, state)
    if state[:2] in ("22", "23"):
        return DataRejected(state, error.diag.constraint_name, error.diag.table_name, error.diag.column_name)
    return StatementFailed(error.pgcode, said)
