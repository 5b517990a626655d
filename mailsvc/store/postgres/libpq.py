"""Functions of libpq, called through ctypes, that send parameters separately from the statement.

psycopg2 writes bytes into the statement as hexadecimal digits: the server receives twice as many, copies and decodes them. Sent in
binary they cost a tenth. Why this module exists and what it saves: docs/decisions/binary-parameters.md. It uses the library that
psycopg2 is linked with; if its functions cannot be found, `LIBRARY` is None and the driver sends everything, more slowly.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, c_char_p, c_int, c_uint, c_void_p
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import attrs
import orjson
import psycopg2

_Functions = dict[str, tuple[Any, tuple[Any, ...]]]
# Functions that talk to the server: called without the interpreter lock.
_BLOCKING: _Functions = {
    "PQsendQueryPrepared": (c_int, (c_void_p, c_char_p, c_int, POINTER(c_char_p), POINTER(c_int), POINTER(c_int), c_int)),
    "PQpipelineSync": (c_int, (c_void_p,)),
    "PQflush": (c_int, (c_void_p,)),
    "PQconsumeInput": (c_int, (c_void_p,)),
}
# Functions that only read memory: faster than releasing the interpreter lock and taking it again.
_IN_MEMORY: _Functions = {
    "PQenterPipelineMode": (c_int, (c_void_p,)),
    "PQexitPipelineMode": (c_int, (c_void_p,)),
    "PQisBusy": (c_int, (c_void_p,)),
    "PQgetResult": (c_void_p, (c_void_p,)),
    "PQerrorMessage": (c_char_p, (c_void_p,)),
    "PQresultStatus": (c_int, (c_void_p,)),
    "PQresultErrorField": (c_char_p, (c_void_p, c_int)),
    "PQcmdStatus": (c_char_p, (c_void_p,)),
    "PQcmdTuples": (c_char_p, (c_void_p,)),
    "PQntuples": (c_int, (c_void_p,)),
    "PQnfields": (c_int, (c_void_p,)),
    "PQftype": (c_uint, (c_void_p, c_int)),
    "PQgetisnull": (c_int, (c_void_p, c_int, c_int)),
    "PQgetlength": (c_int, (c_void_p, c_int, c_int)),
    "PQgetvalue": (c_void_p, (c_void_p, c_int, c_int)),
    "PQclear": (None, (c_void_p,)),
}
_DONE, _ROWS, _END, _SKIPPED = 1, 2, 10, 11  # PGRES_COMMAND_OK, PGRES_TUPLES_OK, PGRES_PIPELINE_SYNC, PGRES_PIPELINE_ABORTED
_TEXT_FORMAT, _BINARY_FORMAT = 0, 1
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def _library() -> Any:
    """The library that the driver's module is linked with, loaded through that module."""
    found: dict[str, Any] = {}
    try:
        for library, functions in ((ctypes.CDLL, _BLOCKING), (ctypes.PyDLL, _IN_MEMORY)):
            opened = library(psycopg2._psycopg.__file__)
            for name, (result, arguments) in functions.items():
                found[name] = function = getattr(opened, name)
                function.restype, function.argtypes = result, arguments
    except (AttributeError, OSError):
        return None
    return SimpleNamespace(**found)


LIBRARY: Final[Any] = _library()


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _moment(microseconds: int) -> datetime:
    """From microseconds since 2000. Values beyond datetime, such as infinity, become the latest datetime."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


# Binary formats by type OID. Statements sent this way return no other types.
_READ: dict[int, Callable[[bytes], Any]] = {
    16: lambda value: value != b"\0",  # boolean
    17: bytes,  # bytea
    20: _number,  # bigint
    21: _number,  # smallint
    23: _number,  # integer
    25: bytes.decode,  # text
    1043: bytes.decode,  # varchar
    1184: lambda value: _moment(_number(value)),  # timestamptz
    2950: lambda value: UUID(bytes=value),  # uuid
    3802: lambda value: orjson.loads(value[1:]),  # jsonb, after a version byte
}


@attrs.frozen
class ServerError:
    """An error reported by the server."""

    state: str
    message: str
    constraint: str | None
    table: str | None
    column: str | None


@attrs.frozen
class Outcome:
    """The result of a statement: its rows, the number of rows affected and the command tag; or the error."""

    rows: list[tuple[Any, ...]]
    count: int
    tag: str
    error: ServerError | None = None


class Broken(Exception):
    """The connection is unusable. The message is libpq's."""


@attrs.define(eq=False)
class Exchange:
    """Statements in one round trip, on a connection that the driver leaves alone meanwhile.

    They are one transaction, unless one is already open. `connection` is libpq's PGconn pointer.
    """

    connection: int
    _statement: bytes = attrs.field(default=b"", init=False)  # the name of the last one
    _next: Sequence[object] | None = attrs.field(default=None, init=False, repr=False)  # parameters that it is sent again with
    _rest: Iterator[Sequence[object]] | None = attrs.field(default=None, init=False, repr=False)
    _outcome: Outcome | None = attrs.field(default=None, init=False)

    def send(self, names: Sequence[str], params: Sequence[object], rest: Iterator[Sequence[object]] | None = None) -> None:
        """Send prepared statements by name. The parameters belong to the last one: bytes are sent in binary, everything else as text.

        The last one is sent again with each element of `rest`, which `flush` takes one by one without waiting for results.
        """
        self._check(LIBRARY.PQenterPipelineMode(self.connection))
        for name in names[:-1]:
            self._check(LIBRARY.PQsendQueryPrepared(self.connection, name.encode(), 0, None, None, None, _BINARY_FORMAT))
        self._statement, self._rest = names[-1].encode(), rest
        self._send_last(params)

    def _send_last(self, params: Sequence[object]) -> None:
        values = [value if value is None or isinstance(value, bytes) else _text_value(value) for value in params]
        count = len(values)
        pointers = (c_char_p * count)(*values)
        lengths = (c_int * count)(*(len(value or b"") for value in values))
        formats = (c_int * count)(*(_BINARY_FORMAT if isinstance(value, bytes) else _TEXT_FORMAT for value in params))
        self._check(LIBRARY.PQsendQueryPrepared(self.connection, self._statement, count, pointers, lengths, formats, _BINARY_FORMAT))
        self._take_next()

    def _take_next(self) -> None:
        failed = self._outcome is not None and self._outcome.error is not None
        self._next = None if self._rest is None or failed else next(self._rest, None)
        if self._next is None:
            self._check(LIBRARY.PQpipelineSync(self.connection))

    def flush(self) -> bool:
        """Returns whether everything has been sent. Takes at most one element of the rest, so that others get their turn."""
        if self._next is not None and self._flushed():
            self._send_last(self._next)
        return self._flushed() and self._next is None

    def _flushed(self) -> bool:
        left = LIBRARY.PQflush(self.connection)
        self._check(left >= 0)
        return not left

    def read(self) -> Outcome | None:
        """Read what has arrived. Returns the outcome of the last statement, or of the one that failed, once all are done."""
        self._check(LIBRARY.PQconsumeInput(self.connection))
        ended = False
        while not LIBRARY.PQisBusy(self.connection):
            result = LIBRARY.PQgetResult(self.connection)
            if not result:
                if ended:  # nothing more was sent so far
                    return None
                ended = True  # the end of one statement
                continue
            ended = False
            try:
                status = LIBRARY.PQresultStatus(result)
                if status == _END:
                    self._check(LIBRARY.PQexitPipelineMode(self.connection))
                    return self._outcome
                if status != _SKIPPED:
                    self._outcome = _outcome(result, status)
            finally:
                LIBRARY.PQclear(result)
            error = self._outcome.error if self._outcome is not None else None
            if error is not None and not error.state:  # libpq's error, not the server's: the connection is gone
                raise Broken(self._error_message())
        return None

    def _check(self, succeeded: int) -> None:
        if not succeeded:
            raise Broken(self._error_message())

    def _error_message(self) -> str:
        return _text(LIBRARY.PQerrorMessage(self.connection)).strip().partition("\n")[0]


def _text_value(value: object) -> bytes:
    """The text format of a value."""
    if isinstance(value, list):
        value = "{" + ",".join('"' + str(item).replace("\\", "\\\\").replace('"', '\\"') + '"' for item in value) + "}"
    return str(value).encode()


def _outcome(result: int, status: int) -> Outcome:
    if status not in (_DONE, _ROWS):
        state, message, constraint, table, column = (LIBRARY.PQresultErrorField(result, ord(field)) for field in "CMntc")
        return Outcome(
            [], -1, "", ServerError(_text(state), _text(message), *(each and _text(each) for each in (constraint, table, column)))
        )
    columns = [(column, _reader(LIBRARY.PQftype(result, column))) for column in range(LIBRARY.PQnfields(result))]
    rows = [tuple([_value(result, row, column, read) for column, read in columns]) for row in range(LIBRARY.PQntuples(result))]
    return Outcome(rows, int(LIBRARY.PQcmdTuples(result) or -1), _text(LIBRARY.PQcmdStatus(result)))


def _reader(kind: int) -> Callable[[bytes], Any]:
    if kind not in _READ:
        raise Broken(f"A prepared statement returned the type {kind}, which cannot be read here.")
    return _READ[kind]


def _value(result: int, row: int, column: int, read: Callable[[bytes], Any]) -> Any:
    length = LIBRARY.PQgetlength(result, row, column)
    if not length and LIBRARY.PQgetisnull(result, row, column):
        return None
    return read(ctypes.string_at(LIBRARY.PQgetvalue(result, row, column), length))


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
