"""The functions of libpq that send parameters beside a statement rather than written into it. The driver stands on the same library.

The driver writes octets as hexadecimal digits: twice as many go to the server, which reads, copies and decodes them. Sent as they are
they cost a tenth. Where the functions cannot be found `LIBRARY` is None and everything goes the driver's way, slower and the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_int, c_uint, c_void_p
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import attrs
import orjson
import psycopg2

_Functions = dict[str, tuple[Any, tuple[Any, ...]]]
# What speaks with the server: other threads run meanwhile.
_OUTSIDE: _Functions = {
    "PQsendQueryPrepared": (c_int, (c_void_p, c_char_p, c_int, POINTER(c_char_p), POINTER(c_int), POINTER(c_int), c_int)),
    "PQpipelineSync": (c_int, (c_void_p,)),
    "PQflush": (c_int, (c_void_p,)),
    "PQconsumeInput": (c_int, (c_void_p,)),
}
# What looks at memory: done before the interpreter could have been handed to another thread and waited for again.
_INSIDE: _Functions = {
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
_AS_TEXT, _AS_OCTETS = 0, 1
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def _library() -> Any:
    """The driver's module leads to the library that it was linked with."""
    found: dict[str, Any] = {}
    try:
        for library, functions in ((ctypes.CDLL, _OUTSIDE), (ctypes.PyDLL, _INSIDE)):
            opened = library(psycopg2._psycopg.__file__)
            for name, (result, arguments) in functions.items():
                found[name] = function = getattr(opened, name)
                function.restype, function.argtypes = result, arguments
    except (AttributeError, OSError):
        return None
    return SimpleNamespace(**found)


LIBRARY: Final[Any] = _library()


def _number(octets: bytes) -> int:
    return int.from_bytes(octets, "big", signed=True)


def _moment(microseconds: int) -> datetime:
    """Of the count since the year 2000. What no datetime can be, infinity above all, is the last one."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


# How the server writes a type as octets. A statement that goes this way answers with no others.
_READ: dict[int, Callable[[bytes], Any]] = {
    16: lambda octets: octets != b"\0",  # boolean
    17: bytes,  # bytea
    20: _number,  # bigint
    21: _number,  # smallint
    23: _number,  # integer
    25: bytes.decode,  # text
    1043: bytes.decode,  # varchar
    1184: lambda octets: _moment(_number(octets)),  # timestamptz
    2950: lambda octets: UUID(bytes=octets),  # uuid
    3802: lambda octets: orjson.loads(octets[1:]),  # jsonb, behind the number of its format
}


@attrs.frozen
class Refusal:
    """What the server said of a statement that failed."""

    state: str
    message: str
    constraint: str | None
    table: str | None
    column: str | None


@attrs.frozen
class Outcome:
    """What a statement came to: its rows, how many it touched, its tag; or why it failed."""

    rows: list[tuple[Any, ...]]
    count: int
    tag: str
    refusal: Refusal | None = None


class Broken(Exception):
    """The connection cannot be used any more; the text is the library's."""


@attrs.define(eq=False)
class Exchange:
    """Statements in one round trip, on a connection of the driver's that does nothing else meanwhile; unless a transaction is open
    they are one. `connection` is libpq's own."""

    connection: int
    _outcome: Outcome | None = attrs.field(default=None, init=False)

    def send(self, names: Sequence[str], params: Sequence[object]) -> None:
        """Prepared statements by their names. The last one has the parameters: bytes go as octets, everything else as its text."""
        self._must(LIBRARY.PQenterPipelineMode(self.connection))
        for name in names[:-1]:
            self._must(LIBRARY.PQsendQueryPrepared(self.connection, name.encode(), 0, None, None, None, _AS_OCTETS))
        values = [value if value is None or isinstance(value, bytes) else _written(value) for value in params]
        many = len(values)
        octets = (c_char_p * many)(*values)
        lengths = (c_int * many)(*(len(value or b"") for value in values))
        forms = (c_int * many)(*(_AS_OCTETS if isinstance(value, bytes) else _AS_TEXT for value in params))
        self._must(LIBRARY.PQsendQueryPrepared(self.connection, names[-1].encode(), many, octets, lengths, forms, _AS_OCTETS))
        self._must(LIBRARY.PQpipelineSync(self.connection))

    def flush(self) -> bool:
        """Whether all of it has been written."""
        left = LIBRARY.PQflush(self.connection)
        self._must(left >= 0)
        return not left

    def read(self) -> Outcome | None:
        """Take in what has come; the outcome of the last statement, or of the one that failed, once everything is over."""
        self._must(LIBRARY.PQconsumeInput(self.connection))
        while not LIBRARY.PQisBusy(self.connection):
            result = LIBRARY.PQgetResult(self.connection)
            if not result:  # the end of one statement
                continue
            try:
                status = LIBRARY.PQresultStatus(result)
                if status == _END:
                    self._must(LIBRARY.PQexitPipelineMode(self.connection))
                    return self._outcome
                if status != _SKIPPED:
                    self._outcome = _outcome(result, status)
            finally:
                LIBRARY.PQclear(result)
            refusal = self._outcome.refusal if self._outcome is not None else None
            if refusal is not None and not refusal.state:  # not the server's word, but the library's: the connection is gone
                raise Broken(self._said())
        return None

    def _must(self, done: int) -> None:
        if not done:
            raise Broken(self._said())

    def _said(self) -> str:
        return _text(LIBRARY.PQerrorMessage(self.connection)).strip().partition("\n")[0]


def _written(value: object) -> bytes:
    """As the server reads it in a text."""
    if isinstance(value, list):
        value = "{" + ",".join('"' + str(item).replace("\\", "\\\\").replace('"', '\\"') + '"' for item in value) + "}"
    return str(value).encode()


def _outcome(result: int, status: int) -> Outcome:
    if status not in (_DONE, _ROWS):
        state, message, constraint, table, column = (LIBRARY.PQresultErrorField(result, ord(field)) for field in "CMntc")
        return Outcome([], -1, "", Refusal(_text(state), _text(message), *(each and _text(each) for each in (constraint, table, column))))
    columns = range(LIBRARY.PQnfields(result))
    read = [_reader(LIBRARY.PQftype(result, column)) for column in columns]
    rows = [tuple(_value(result, row, column, read[column]) for column in columns) for row in range(LIBRARY.PQntuples(result))]
    return Outcome(rows, int(LIBRARY.PQcmdTuples(result) or -1), _text(LIBRARY.PQcmdStatus(result)))


def _reader(kind: int) -> Callable[[bytes], Any]:
    if kind not in _READ:
        raise Broken(f"A prepared statement answers with the type {kind}, which is not read here.")
    return _READ[kind]


def _value(result: int, row: int, column: int, read: Callable[[bytes], Any]) -> Any:
    length = LIBRARY.PQgetlength(result, row, column)
    if not length and LIBRARY.PQgetisnull(result, row, column):
        return None
    return read(ctypes.string_at(LIBRARY.PQgetvalue(result, row, column), length))


def _text(octets: bytes | None) -> str:
    return (octets or b"").decode("utf-8", "replace")
