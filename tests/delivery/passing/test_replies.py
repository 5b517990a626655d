"""Replies are read as they were written, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.delivery.passing.frames import BadFrame
from mailsvc.delivery.passing.replies import BEHIND, FILE_READ, IN_TIME, Refused, ReplyReader

REPLIES = st.lists(st.one_of(st.sampled_from([BEHIND, IN_TIME, FILE_READ]), st.builds(Refused, st.text(max_size=20), st.booleans())))


@given(REPLIES, st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_replies_are_read_in_order(replies: list[bytes | Refused], cuts: list[int]) -> None:
    data = b"".join(each.written if isinstance(each, Refused) else each for each in replies)
    reader, found, at = ReplyReader(), [], 0
    for size in cuts * (len(data) + 1):
        found += reader.feed(data[at : at + size])
        at += size
    assert found == replies and not reader._data


def test_a_long_name_is_cut() -> None:
    [refused] = ReplyReader().feed(Refused("x" * 100_000, False).written)
    assert refused == Refused("x" * 65_535, False)


def test_what_nobody_would_write_is_refused() -> None:
    with pytest.raises(BadFrame):
        list(ReplyReader().feed(b"1?"))
