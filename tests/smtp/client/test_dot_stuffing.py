"""5321 §2.3.8, §4.5.2: the coding for DATA ends exactly once, in any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.smtp.client.dot_stuffing import BareLineEnd, DotStuffer, slices, stuffed

lines = st.lists(st.one_of(st.sampled_from([b"", b".", b"..", b".a", b"a.", b"a"]), st.binary(max_size=9)), max_size=12)
bodies = lines.map(lambda parts: b"\r\n".join(part.replace(b"\r", b"").replace(b"\n", b"") for part in parts))
cuts = st.lists(st.integers(0, 60), max_size=8)


def sliced(body: bytes, at: list[int]) -> list[bytes]:
    points = [0, *sorted(min(cut, len(body)) for cut in at), len(body)]
    return [body[start:end] for start, end in pairwise(points)]


def unstuffed(wire: bytes) -> bytes:
    """The receiver's side, line by line, after 5321 §4.5.2; what follows the final dot must not exist."""
    body = []
    *wire_lines, rest = wire.split(b"\r\n")
    assert rest == b""
    for number, line in enumerate(wire_lines):
        if line == b".":
            assert number == len(wire_lines) - 1, "the message ended early"
            return b"".join(body)
        body.append((line[1:] if line.startswith(b".") else line) + b"\r\n")
    raise AssertionError("no end")


@given(bodies, cuts)
@settings(max_examples=200)
def test_messages_round_trip_in_any_pieces(body: bytes, at: list[int]) -> None:
    wire = b"".join(stuffed(sliced(body, at)))
    assert unstuffed(wire) == (body if body.endswith(b"\r\n") or not body else body + b"\r\n")
    assert wire == b"".join(stuffed([body]))
    assert wire.count(b"\r") == wire.count(b"\n") == wire.count(b"\r\n")


@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b".", b"a"]), max_size=12).map(b"".join), cuts)
@settings(max_examples=200)
def test_bare_line_ends_are_refused_in_any_pieces(body: bytes, at: list[int]) -> None:
    bare = body.replace(b"\r\n", b"")
    if b"\r" in bare or b"\n" in bare:
        with pytest.raises(BareLineEnd):
            list(stuffed(sliced(body, at)))
    else:
        assert unstuffed(b"".join(stuffed(sliced(body, at))))[: len(body)] == body


@pytest.mark.parametrize("size", [1, 7, 16384, 65536])
@pytest.mark.parametrize("offset", [0, 16383, 16384, 32768])
@pytest.mark.parametrize("line", [b".", b"..", b".MAIL FROM:<smuggled@example.net>"])
def test_a_dot_at_a_slice_boundary(offset: int, size: int, line: bytes) -> None:
    before = b"x" * (offset - 2) + b"\r\n" if offset else b""
    body = before + line + b"\r\nafter\r\n"
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    wire = b"".join(stuffed(pieces))
    assert wire == before + b"." + line + b"\r\nafter\r\n.\r\n"
    assert wire.count(b"\r\n.\r\n") == 1


@pytest.mark.parametrize(
    "end", [b"\n.\n", b"\n.\r\n", b"\r\n.\n", b"\r.\r", b"\r.\r\n", b"\r\n.\r", b"\n.\r", b"\r.\n", b"\r\r\n.\r\r\n", b"\r\n.\r\r\n"]
)
@pytest.mark.parametrize("cut", range(12))
def test_smuggled_ends_are_never_sent(end: bytes, cut: int) -> None:
    body = b"x" + end + b"MAIL FROM:<x>\r\n"
    with pytest.raises(BareLineEnd):
        list(stuffed([body[:cut], body[cut:]]))


def test_a_nul_before_a_dot_is_text() -> None:
    assert b"".join(stuffed([b"\r\n\0.\r\nMAIL\r\n"])) == b"\r\n\0.\r\nMAIL\r\n.\r\n"


def test_an_empty_message_is_a_single_dot() -> None:
    assert b"".join(stuffed([])) == b"".join(stuffed([b""])) == b".\r\n"


def test_a_missing_last_line_end_is_added() -> None:
    stuffer = DotStuffer()
    assert stuffer.feed(b"end") + stuffer.end() == b"end\r\n.\r\n"


@given(st.lists(st.binary(max_size=40), max_size=9), st.integers(1, 20))
def test_slices_keep_every_byte_and_have_one_end(pieces: list[bytes], size: int) -> None:
    found = list(slices(pieces, size))
    assert b"".join(data for data, _ in found) == b"".join(pieces)
    assert [last for _, last in found] == [False] * (len(found) - 1) + [True]
    assert all(len(data) == size for data, _ in found[:-1])
    assert len(found[-1][0]) <= size


def test_slices_read_no_further_than_asked() -> None:
    read = []

    def pieces():
        for number in range(5):
            read.append(number)
            yield b"x" * 10

    source = slices(pieces(), 10)
    next(source)
    assert read == [0, 1]
