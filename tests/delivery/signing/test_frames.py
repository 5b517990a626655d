"""What the daemon and its signing process write to each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mailsvc.delivery.signing.frames import FrameReader, Hashes, NewKey, framed, read, written

NUMBERS = st.integers(0, 2**32 - 1)
FRAMES = st.one_of(
    st.builds(NewKey, NUMBERS, st.sampled_from(["rsa", "ed25519"]), st.binary(max_size=200)),
    st.builds(Hashes, st.lists(st.tuples(NUMBERS, st.binary(min_size=32, max_size=32)), max_size=5)),
)


@given(st.lists(st.binary(max_size=600), max_size=6), st.integers(1, 50))
def test_frames_can_be_cut_anywhere(frames: list[bytes], size: int) -> None:
    data, reader = b"".join(map(framed, frames)), FrameReader()
    assert [each for at in range(0, len(data), size) for each in reader.feed(data[at : at + size])] == frames


@given(FRAMES)
def test_what_is_written_can_be_read(frame: NewKey | Hashes) -> None:
    assert [*map(read, FrameReader().feed(written(frame)))] == [frame]


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(NewKey(1, "rsa", b"secret"))
