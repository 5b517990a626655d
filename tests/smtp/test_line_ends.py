"""Bare CRs and LFs are found wherever they are."""

from hypothesis import example, given
from hypothesis import strategies as st

from mailsvc.smtp.line_ends import LineEnds

LONG = st.sampled_from([b"", b"x" * 30, b"x" * 63, b"\xff" * 64, b"word " * 60 + b"\r\n", b"\x00\x0e\x0c" * 50])
TEXT = st.lists(st.one_of(LONG, st.sampled_from([b"\r", b"\n", b"\r\n", b"x"])), max_size=12).map(b"".join)


def found(*pieces: bytes) -> tuple[bool, bool]:
    ends = LineEnds()
    for piece in pieces:
        ends.inspect(piece)
    assert ends.clean == (not (ends.bare_cr or ends.bare_lf))
    return ends.bare_cr, ends.bare_lf


@given(TEXT)
@example(b"\n\r")
@example(b"\r\n\n\r")
@example(b"a\r\r\n\n")
def test_every_bare_cr_and_lf_is_found(text: bytes) -> None:
    crlfs = text.count(b"\r\n")
    assert found(text) == (text.count(b"\r") > crlfs, text.count(b"\n") > crlfs)


@given(TEXT, TEXT)
def test_what_was_found_stays_found(first: bytes, second: bytes) -> None:
    one, other = found(first), found(second)
    assert found(first, second) == (one[0] or other[0], one[1] or other[1])
