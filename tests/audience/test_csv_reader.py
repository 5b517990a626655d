"""Reading CSV piece by piece gives the rows of the whole file, wherever the pieces are cut."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailsvc.audience import csv_reader
from mailsvc.audience.csv_reader import LINES, LONGEST, read

CELLS = st.lists(st.lists(st.text('ab",;\n é', max_size=6), min_size=1, max_size=3), max_size=8)


def pieces(data: bytes, cuts: list[int], most: int = 3) -> list[tuple[int, list[str] | None]]:
    """The rows with their lines, with the file arriving in pieces."""
    found: list[tuple[int, list[str] | None]] = []
    buffer, line, edges = b"", 0, sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    at = 0
    while True:
        piece = read(buffer, ",", at == len(data), most)
        found += [(line + row.line, None if row.fields is None else list(row.fields)) for row in piece.rows]
        buffer, line = buffer[piece.bytes :], line + piece.lines
        if at == len(data) and not buffer:
            return found
        if not piece.bytes:
            edge = next(edge for edge in edges if edge > at)
            buffer, at = buffer + data[at:edge], edge


@given(CELLS, st.lists(st.integers(0, 200)))
@example([['a\n"b'], ["c"]], [3])
def test_rows_do_not_depend_on_the_pieces(rows: list[list[str]], cuts: list[int]) -> None:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    data = out.getvalue().encode()
    expected = [row for row in csv.reader(io.StringIO(out.getvalue(), newline="")) if any(map(str.strip, row))]
    assert [fields for _, fields in pieces(data, cuts)] == expected


@given(st.text('a",\n\r;é', max_size=60).map(str.encode) | st.binary(max_size=60), st.lists(st.integers(0, 60)))
def test_any_bytes_are_read_to_the_end_with_growing_lines(data: bytes, cuts: list[int]) -> None:
    found = pieces(data, cuts)
    lines = [line for line, _ in found]
    assert lines == sorted(set(lines))
    assert all(line <= data.count(b"\n") for line in lines)


@given(st.binary(max_size=60))
@example(b"email,name\rada@example.net,Ada\r")
@example(b"email,name\rada@example.net,Ada\r\n")
def test_any_first_line_is_read_or_refused(data: bytes) -> None:
    with suppress(csv_reader.Unreadable):
        csv_reader.header(data)


def test_rows_without_a_value_are_skipped() -> None:
    assert pieces(b'a,b\n,\n\n , \n"",\n,d\n,\n', []) == [(0, ["a", "b"]), (5, ["", "d"])]


def test_quotation_mark_that_is_not_closed_is_an_error_of_its_line_only() -> None:
    data = b'a,b\n"c,d\ne,f\n'
    assert pieces(data, []) == [(0, ["a", "b"]), (1, None), (2, ["e", "f"])]


def test_endless_row_is_given_up_before_the_end_of_the_file() -> None:
    data = b'"' + b"x\n" * LONGEST
    piece = read(data, ",", False, 2)
    assert [row.fields for row in piece.rows] == [None, ["x"]]


def test_header_has_a_separator_and_no_mark() -> None:
    assert csv_reader.header(b"\xef\xbb\xbfE-Mail; Name \r\nx") == (["E-Mail", "Name"], ";", 18)
    assert csv_reader.header(b"email") == (["email"], ",", 5)
    assert csv_reader.header(b'"a,b"\tc\td\n') == (["a,b", "c", "d"], "\t", 10)
    assert csv_reader.header(b"\xef\xbb\xbfsep=;\r\nemail;a,b\r\nx") == (["email", "a,b"], ";", 21)
    assert csv_reader.header(b'"sep=|"\nemail|name\n') == (["email", "name"], "|", 19)
    assert csv_reader.header(b"sep=\t\nemail") == (["email"], "\t", 11)
    assert csv_reader.header(b"sep=a,b\nemail\n") == (["sep=a", "b"], ",", 8)
    assert csv_reader.header(b"") == ([], ",", 0)


def test_work_is_proportional_to_the_file_when_no_row_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    read_lines = 0

    def counting(lines: Iterable[str], **options: Any) -> Any:
        def counted() -> Iterator[str]:
            nonlocal read_lines
            for line in lines:
                read_lines += 1
                yield line

        return reader(counted(), **options)

    reader = csv.reader
    monkeypatch.setattr(csv_reader.csv, "reader", counting)
    work = {}
    for count in (10_000, 20_000):
        read_lines = 0
        rows = pieces(b'x","\n' * count, [], 2000)  # each of these lines opens a quotation mark, and closes that of an earlier line
        assert len(rows) == count and all(fields is None for _, fields in rows)
        work[count] = read_lines
    assert work[20_000] < 2.5 * work[10_000] < 2.5 * 40 * 10_000, work


def test_row_spans_many_lines_but_not_any_number() -> None:
    data = b'"' + b"\n" * (LINES - 1) + b'",b\nc\n'
    assert [fields for _, fields in pieces(data, [])] == [["\n" * (LINES - 1), "b"], ["c"]]
    data = b'"' + b"\n" * LINES + b'",b\nc\n'
    assert pieces(data, [], 2000) == pieces(data, [5], 2000)
    assert pieces(data, [], 2000)[0] == (0, None)
