"""What is passed between processes is read as it was written, however it is cut."""

from __future__ import annotations

import struct
from datetime import UTC
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.delivery.passing.frames import (
    LARGEST,
    BadFrame,
    Committed,
    Dropped,
    Frame,
    FrameReader,
    LeasedRecipients,
    Passed,
    Section,
    written,
)
from mailsvc.store.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.store.mail.values import NewRecipient

ENVELOPES = st.sampled_from([EMPTY, StoredEnvelope("ä@b.example", smtputf8=True, notify=("NEVER", None))])
NUMBERS = st.integers(0, 2**64 - 1)
SECTIONS = st.builds(Section, st.tuples(NUMBERS, NUMBERS), NUMBERS, NUMBERS, st.binary(max_size=300))
TIMES = st.datetimes(timezones=st.just(UTC))
RECIPIENTS = st.lists(st.builds(NewRecipient, st.text(), st.text(), st.booleans()), max_size=3).map(tuple)
LEASED = st.builds(
    LeasedRecipients, st.integers(1, 2**63 - 1), st.floats(0, 1e9), st.uuids(), st.uuids(), st.text(), st.booleans(), TIMES, RECIPIENTS
)
MESSAGES = st.one_of(st.binary(max_size=300), SECTIONS, st.none())
PASSED = st.builds(Passed, st.uuids(), ENVELOPES, MESSAGES, st.one_of(st.none(), LEASED))
COMMITTED = st.builds(Committed, st.uuids(), st.lists(st.integers(0, 99), max_size=3).map(tuple))
FRAMES = st.lists(st.one_of(PASSED, COMMITTED, st.builds(Dropped, st.uuids())), max_size=5)


@given(FRAMES, st.lists(st.integers(1, 400), min_size=1, max_size=9))
def test_frames_are_read_in_order(frames: list[Frame], cuts: list[int]) -> None:
    data, reader, found = b"".join(map(written, frames)), FrameReader(), []
    at = 0
    for size in cuts * (len(data) + 1):
        found += reader.feed(data[at : at + size])
        at += size
        if at >= len(data):
            break
    assert found == frames


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!B16sII", 0, bytes(16), 0, LARGEST + 33),
        struct.pack("!B16sII", 0, bytes(16), 1 << 25, 0),
        struct.pack("!B16sII", 0, bytes(16), 3, 0) + b"{]}",
        struct.pack("!B16sII", 0, bytes(16), 3, 0) + b"[1]",
        struct.pack("!B16sII", 3, bytes(16), 0, 31) + bytes(31),
        struct.pack("!B16sII", 0, bytes(16), 8, 0) + b"[null,1]",
        struct.pack("!B16sII", 1, bytes(16), 1, 0) + b"1",
        struct.pack("!B16sII", 5, bytes(16), 0, 0),
    ],
)
def test_what_nobody_would_write_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        list(FrameReader().feed(data))


def test_nothing_is_kept_of_messages_that_were_read() -> None:
    reader = FrameReader()
    list(reader.feed(written(Passed(UUID(int=1), EMPTY, b"x" * 1000))))
    assert not reader._data
