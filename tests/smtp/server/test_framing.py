"""Framing by examples and properties: the result does not depend on how the bytes are cut into segments."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.smtp.server.framing import COMMAND_LIMIT, Chunk, DotDecoder, Fault, InputBuffer, Inspection, Overlong

LIMIT = 1 << 20
# Bytes that matter to framing, in any order, and sometimes a long run of text.
nasty = st.lists(
    st.sampled_from([b"\r", b"\n", b".", b"\r\n", b"\r\n.", b"\r\n.\r\n", b"x", b"\0", b"\xff", b"y" * 997, b"z" * 998]), max_size=30
).map(b"".join)


@st.composite
def cut(draw: st.DrawFn, content: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(content)), max_size=20)))
    return [content[a:b] for a, b in zip([0, *places], [*places, len(content)], strict=True)]


def decode(pieces: list[bytes], limit: int = LIMIT) -> tuple[bytes, Fault | None, bytes | None]:
    inspection = Inspection(limit)
    body, text, rest = DotDecoder(inspection), [], b""
    for piece in pieces:
        if body.rest is not None:
            rest += piece
            continue
        text.append(body.feed(piece))
        rest = body.rest or b""
    return b"".join(text), inspection.end(), rest if body.rest is not None else None


def stuff(body: bytes) -> bytes:
    return re.sub(rb"(\A|(?<=\r\n))\.", b"..", body) + b".\r\n"


def slow_fault(body: bytes) -> Fault | None:
    """The same verdict, one byte and one line at a time."""
    if len(body) > LIMIT:
        return "size"
    if b"\0" in body:
        return "nul"
    if re.search(rb"\r(?!\n)", body):
        return "bare_cr"
    if re.search(rb"(?<!\r)\n", body):
        return "bare_lf"
    return "line" if any(len(line) > 998 for line in body.split(b"\r\n")) else None


def lines(pieces: list[bytes], limit: int = COMMAND_LIMIT) -> list[bytes | Overlong]:
    inbox, found = InputBuffer(), []
    for piece in pieces:
        inbox.feed(piece)
        while (line := inbox.line(limit)) is not None:
            found.append(line)
    return found


@settings(max_examples=200, deadline=None)
@given(st.data(), nasty.map(lambda body: body + b"\r\n" if body else body))
def test_body_round_trips_in_any_segments(data: st.DataObject, body: bytes) -> None:
    pieces = data.draw(cut(stuff(body) + b"NEXT\r\n"))
    assert decode(pieces) == (body, slow_fault(body), b"NEXT\r\n")


@settings(max_examples=200, deadline=None)
@given(st.data(), nasty)
def test_streams_are_read_the_same_in_any_segments(data: st.DataObject, content: bytes) -> None:
    whole = decode([content])
    assert decode(data.draw(cut(content))) == whole
    assert decode([content[i : i + 1] for i in range(len(content))]) == whole
    end = (b"\r\n" + content).find(b"\r\n.\r\n")
    assert (whole[2] is None) == (end < 0)


@settings(max_examples=200, deadline=None)
@given(st.data(), nasty)
def test_commands_are_read_the_same_in_any_segments(data: st.DataObject, content: bytes) -> None:
    expected = [line if len(line) <= 998 else Overlong(len(line) + 2) for line in content.split(b"\r\n")[:-1]]
    assert lines(data.draw(cut(content)), limit=1000) == expected


@settings(max_examples=200, deadline=None)
@given(st.data(), nasty)
def test_inspection_agrees_with_a_simple_implementation(data: st.DataObject, content: bytes) -> None:
    inspection = Inspection(LIMIT)
    for piece in data.draw(cut(content)):
        inspection.inspect(piece)
    assert inspection.end() == slow_fault(content)
    assert inspection.size == len(content)
    if inspection.fault is None:
        assert inspection.complete == (content == b"" or content.endswith(b"\r\n"))


@settings(max_examples=100, deadline=None)
@given(st.data(), st.binary(max_size=200), st.integers(0, 150))
def test_chunk_takes_the_announced_bytes(data: st.DataObject, content: bytes, size: int) -> None:
    chunk, inbox, taken = Chunk(size), InputBuffer(), b""
    for piece in data.draw(cut(content)):
        inbox.feed(piece)
        taken += chunk.take(inbox)
    assert taken + inbox.take() == content
    assert len(taken) == min(size, len(content))
    assert chunk.left == size - len(taken)


@pytest.mark.parametrize(
    ("length", "limit_holds"),
    [
        (512, True),
        (513, True),
        (1036, True),
        (COMMAND_LIMIT - 2, True),
        (COMMAND_LIMIT - 1, False),
        (COMMAND_LIMIT, False),
        (10_000_000, False),
    ],
)
def test_command_lines(length: int, limit_holds: bool) -> None:
    expected = b"x" * length if limit_holds else Overlong(length + 2)
    assert lines([b"x" * length + b"\r\nNEXT\r\n"]) == [expected, b"NEXT"]


def test_overlong_lines_are_not_buffered() -> None:
    inbox = InputBuffer()
    for _ in range(100):
        inbox.feed(b"x" * 10_000)
        assert inbox.line() is None
        assert len(inbox) == 0
    assert inbox.discarded == 1_000_000
    inbox.feed(b"\r")
    assert inbox.line() is None
    inbox.feed(b"\n")
    assert inbox.line() == Overlong(1_000_002)


@pytest.mark.parametrize(("size", "fault"), [(999, None), (1000, None), (1001, "size")])
def test_size_counts_neither_stuffed_dots_nor_the_end(size: int, fault: Fault | None) -> None:
    body = b"." * (size % 3 + 1) + b"\r\n" + b".\r\n" * ((size - 3 - size % 3) // 3)
    assert len(body) == size
    assert decode([stuff(body)], limit=1000)[1] == fault


@pytest.mark.parametrize(("line", "fault"), [(997, None), (998, None), (999, "line"), (50_000, "line")])
@pytest.mark.parametrize("before", [0, 1, 500, 998])
@pytest.mark.parametrize("step", [1, 7, 998, 1000, 4096, 1 << 21])
def test_text_lines(line: int, fault: Fault | None, before: int, step: int) -> None:
    content = stuff(b"a" * before + b"\r\n" + b"b" * line + b"\r\nc\r\n")
    pieces = [content[i : i + step] for i in range(0, len(content), step)]
    assert decode(pieces, limit=1 << 30)[1] == fault
