"""Reads a CSV file piece by piece, and knows at which byte each row ends. Pure, and linear in the size of the file.

A row can span lines inside quotation marks. A row that never ends, or is too long, is an error of its first line; reading continues at the
next line. After UNENDED such rows, the rest of the piece is read with one row on each line, because every search for an end takes time.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import chain

import attrs

LONGEST = 256 * 1024  # bytes of a row; the csv module refuses fields of more than 128 kB
LINES = 1000  # of a row
UNENDED = 16  # rows of a piece
SEPARATORS = (",", ";", "\t")
_END = "\0end"  # a line after the last one: if it becomes part of a row, that row is not complete
_BOM = b"\xef\xbb\xbf"


class Unreadable(ValueError):
    """The first line is not CSV, ends with CR alone, or has a field that is too long."""


@attrs.frozen
class Row:
    """`line` counts from 0 at the beginning of the piece. `fields` is None if the row cannot be read."""

    line: int
    fields: Sequence[str] | None


@attrs.frozen
class Piece:
    """The rows of a piece that have a value, and how many bytes and lines of it were read. The rest belongs to the next piece."""

    rows: Sequence[Row]
    bytes: int
    lines: int


def header(data: bytes) -> tuple[list[str], str, int]:
    """The fields of the first line, what separates them, and where the next line begins. Raises Unreadable.

    A line `sep=;` before it, which spreadsheet programs write and read, only names the separator.
    """
    start = len(_BOM) if data.startswith(_BOM) else 0
    line, newline, _ = data[start:].partition(b"\n")
    if (named := _separator(line)) is not None:
        start += len(line) + len(newline)
        line, newline, _ = data[start:].partition(b"\n")
    text = line.decode("utf-8", "replace").rstrip("\r")
    separator = named or max(SEPARATORS, key=text.count)  # the first one if none occurs
    try:
        fields = next(csv.reader([text], delimiter=separator), [])
    except csv.Error as error:
        raise Unreadable(str(error)) from None
    return [field.strip() for field in fields], separator, start + len(line) + len(newline)


def _separator(line: bytes) -> str | None:
    """What a line such as `sep=;` or `"sep=;"` names."""
    text = line.rstrip(b"\r").removeprefix(b'"').lower()
    name = text[4:].removesuffix(b'"')
    named = text.startswith(b"sep=") and len(name) == 1 and name.isascii() and not name.isalnum() and name not in (b" ", b'"', b"\0")
    return name.decode("ascii") if named else None


def read(data: bytes, separator: str, final: bool, most: int) -> Piece:
    """At most `most` rows. `final`: the file ends with this piece; otherwise its last line can be incomplete."""
    window = _end_of_lines(data, most + LINES)
    if window < len(data):  # the rest would be split into lines again for the next rows
        piece = _read(data[:window], separator, False, most)
        if piece.bytes:
            return piece
    return _read(data, separator, final, most)


def _end_of_lines(data: bytes, count: int) -> int:
    at = 0
    for _ in range(count):
        at = data.find(b"\n", at) + 1
        if not at:
            return len(data)
    return at


def _read(data: bytes, separator: str, final: bool, most: int) -> Piece:
    lines = data.split(b"\n")
    last = lines.pop()
    if final and last:
        lines.append(last)
    texts = [line.decode("utf-8", "surrogateescape") + "\n" for line in lines]
    rows: list[Row] = []
    at = unended = 0
    while at < len(texts) and len(rows) < most:
        until = len(texts) if unended < UNENDED else at + 1
        for begin, end, fields in _records(texts, at, until, separator):
            if end > len(texts) and not final and unended < UNENDED and _can_go_on(lines[begin:], last):
                return Piece(rows, _bytes(lines[:begin]), begin)  # it may end in the next piece
            if end - begin > LINES:
                fields = None
            if fields is None or any(map(str.strip, fields)):  # spreadsheets write empty rows as separators alone
                rows.append(Row(begin, fields))
            unended += fields is None
            at = begin + 1 if fields is None else end
            if fields is None:
                break
            if len(rows) == most:
                break
    if at == len(texts):
        return Piece(rows, len(data) if final else len(data) - len(last), at)
    return Piece(rows, _bytes(lines[:at]), at)


def _can_go_on(lines: Sequence[bytes], last: bytes) -> bool:
    """Whether a row of these lines is not too long yet."""
    return len(lines) < LINES and _bytes(lines) + len(last) <= LONGEST


def _records(texts: Sequence[str], at: int, until: int, separator: str) -> Iterator[tuple[int, int, Sequence[str] | None]]:
    """First line, line after it, and fields of each record before line `until`, up to and including the first that cannot be read.

    That one has no fields; its end is beyond the last line if it is not closed.
    """
    reader = csv.reader(chain(map(texts.__getitem__, range(at, until)), (_END,)), delimiter=separator)
    begin = at
    while begin < until:
        try:
            fields = next(reader)
        except csv.Error:
            yield begin, begin + 1, None
            return
        end = at + reader.line_num
        if end > until:
            yield begin, end, None
            return
        yield begin, end, fields
        begin = end


def _bytes(lines: Sequence[bytes]) -> int:
    return sum(map(len, lines)) + len(lines)
