"""What can go wrong with the database, as classes that carry data; nobody outside the store needs the driver's.

No error holds values of a statement: they may be secrets or addresses. What the server says about values
(details, excerpts of statements) is left out.
"""

from __future__ import annotations

import attrs
import psycopg2

from mailsvc.store.postgres.libpq import Refusal


@attrs.define(eq=False, auto_exc=True)
class StoreError(Exception):
    """Anything that the store raises."""

    def __str__(self) -> str:
        told = (f"{key}={value!r}" for key, value in attrs.asdict(self).items() if value not in (None, False))
        return ", ".join(told)


@attrs.define(eq=False, auto_exc=True, str=False)
class Transient(StoreError):
    """The fault is the database's or the operator's, not the data's: the same may succeed later."""


@attrs.define(eq=False, auto_exc=True, str=False)
class Unavailable(Transient):
    """There is no database to talk to just now. `unknown`: it may have been committed all the same."""

    reason: str
    unknown: bool = False


@attrs.define(eq=False, auto_exc=True, str=False)
class TimedOut(Transient):
    """The server stopped the statement at its time limit, or somebody cancelled it. Nothing of it was done."""

    reason: str


@attrs.define(eq=False, auto_exc=True, str=False)
class Contention(Transient):
    """Others were in the way: a deadlock, a lock timeout, a failed serialization. Nothing was done; a new try may succeed."""

    sqlstate: str
    reason: str


@attrs.define(eq=False, auto_exc=True, str=False)
class OutOfResources(Transient):
    """The server has no disk space or memory left, or its system failed: SQLSTATE classes 53 and 58. Nothing was done."""

    sqlstate: str
    reason: str

    @property
    def full(self) -> bool:
        """Whether something is used up, rather than broken."""
        return self.sqlstate.startswith("53")

    @property
    def what(self) -> str:
        """The same as a phrase, without the server's own words."""
        known = {"53100": "its disk is full", "53200": "it is out of memory"}
        return known.get(self.sqlstate, "it is out of a resource" if self.full else "its system reports an error")


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
# Shut down, starting, idle too long, too many connections; and a server that takes no writes, such as a primary that became a standby.
GONE = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "53300", "25006"})


def is_lost(error: psycopg2.Error) -> bool:
    """Whether the connection is of no use after this error."""
    state: str | None = error.pgcode
    if state is None:
        return isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError))
    return _ended(state)


def translated(error: BaseException) -> StoreError:
    """Our error for one of the driver's."""
    if not isinstance(error, psycopg2.Error):
        return DataRejected("22021")  # a NUL or a lone surrogate, found before anything was sent
    if error.pgcode:
        diag = error.diag
        return refused(Refusal(error.pgcode, diag.message_primary or "", diag.constraint_name, diag.table_name, diag.column_name))
    said = str(error).strip().split("\n")[0] or type(error).__name__
    return Unavailable(said) if is_lost(error) else StatementFailed(error.pgcode, said)


def refused(refusal: Refusal) -> StoreError:
    """Our error for what the server said."""
    state = refusal.state
    if _ended(state):
        return Unavailable(refusal.message)
    if state == "57014":
        return TimedOut(refusal.message)
    if state in CONTENTION:
        return Contention(state, refusal.message)
    if state[:2] in ("53", "58"):
        return OutOfResources(state, refusal.message)
    if state in CONFLICT:
        return Conflict(refusal.constraint, refusal.table, state)
    if state[:2] in ("22", "23"):
        return DataRejected(state, refusal.constraint, refusal.table, refusal.column)
    return StatementFailed(state, refusal.message)


def _ended(state: str) -> bool:
    return state in GONE or state.startswith("08")
