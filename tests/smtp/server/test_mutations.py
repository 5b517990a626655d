"""Dialogues with bytes inserted, deleted, changed and repeated get valid replies, the same in any segments."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.logger import globalLogPublisher

from tests.smtp.dialogue import LISTENERS, everything, read
from tests.smtp.harness import Client

# The harness can do no TLS in the middle of a segment, and crashes on purpose for one sender.
DIALOGUES = [
    (dialogue.listener, data)
    for dialogue in map(read, everything())
    if dialogue.plain
    and len(data := b"".join(turn.sent for turn in dialogue.turns)) < 5000
    and b"STARTTLS" not in data
    and b"crash@" not in data
]
MORE = [b"\r\n", b"\r", b"\n", b".", b"\0", b"\xff", b" ", b"<", b">", b'"', b"=", b"\r\n.\r\n", b"x" * 999, b"x" * 2050]
MORE += [
    b"BDAT 5\r\n",
    b"BDAT 0 LAST\r\n",
    b"DATA\r\n",
    b"RSET\r\n",
    b"MAIL FROM:<a@b.example>\r\n",
    b"RCPT TO:<c@d.example>\r\n",
    b"AUTH PLAIN ",
]
PLACE = st.floats(0, 1, exclude_max=True)
Edit = Callable[[bytes], bytes]


def insert(place: float, more: bytes) -> Edit:
    return lambda data: data[: (i := int(place * (len(data) + 1)))] + more + data[i:]


def lose(place: float, count: int) -> Edit:
    return lambda data: data[: (i := int(place * len(data)))] + data[i + count :]


def repeat(place: float, count: int) -> Edit:
    return lambda data: data[: (i := int(place * len(data))) + count] + data[i:]


EDITS = st.one_of(
    st.builds(insert, PLACE, st.sampled_from(MORE)),
    st.builds(insert, PLACE, st.binary(min_size=1, max_size=2)),
    st.builds(lose, PLACE, st.integers(1, 30)),
    st.builds(repeat, PLACE, st.integers(1, 60)),
)


def outcome(listener: str, pieces: list[bytes], *, slow: bool = False) -> tuple[bytes, list[bytes], bool]:
    client = Client(LISTENERS[listener], slow=slow)
    for piece in pieces:
        if piece and not client.closed:
            client.protocol.dataReceived(piece)
    client.settle()
    found = client.received(), [mail.body for mail in client.mails], client.closed
    client.disconnect()
    recorder = client.recorder
    assert recorder is not None
    assert recorder.sinks == recorder.discards + recorder.calls.count("finish")
    assert not client.clock.getDelayedCalls()
    return found


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(DIALOGUES), st.lists(EDITS, min_size=1, max_size=8), st.lists(PLACE, max_size=10), st.booleans())
def test_mutated_dialogues(dialogue: tuple[str, bytes], edits: list[Edit], places: list[float], slow: bool) -> None:
    failures: list[object] = []

    def watch(event: dict[str, object]) -> None:
        if "log_failure" in event and "No space left" not in str(event["log_failure"]):
            failures.append(event)

    listener, data = dialogue
    for edit in edits:
        data = edit(data)
    cuts = sorted(int(place * (len(data) + 1)) for place in places)
    globalLogPublisher.addObserver(watch)
    try:
        whole = outcome(listener, [data])
        assert outcome(listener, [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)], slow=slow) == whole
        assert outcome(listener, [data[i : i + 1] for i in range(len(data))]) == whole
    finally:
        globalLogPublisher.removeObserver(watch)
    assert failures == []


def test_the_fuzzer_with_one_seed() -> None:
    """A short run of tests/smtp/fuzz. Run a longer one after changes to the framing or the parser."""
    from tests.smtp import fuzz

    assert fuzz.run(1000, seed=3) > 5000
