"""5321 §4.2: parsing replies from data in any pieces; invalid ones are rejected, and memory is bounded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.mail.reply import Reply
from mailsvc.smtp.client.replies import LINE_LIMIT, LINES_LIMIT, REPLY_LIMIT, TEXT_LIMIT, BadReply, ReplyReader


def read(data: bytes, cuts: list[int] | None = None) -> list[Reply]:
    answers = ReplyReader()
    replies = []
    points = [0, *sorted(min(cut, len(data)) for cut in cuts or []), len(data)]
    for start, end in pairwise(points):
        answers.push(data[start:end])
        while (answer := answers.next()) is not None:
            replies.append(answer.reply)
    return replies


def one(data: bytes) -> Reply:
    (reply,) = read(data)
    return reply


replies = st.lists(
    st.tuples(
        st.integers(200, 599),
        st.lists(st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=20), min_size=1, max_size=4),
        st.sampled_from(["\r\n", "\n"]),
    ),
    min_size=1,
    max_size=4,
)


def written(code: int, lines: list[str], end: str) -> bytes:
    *first, last = lines
    return ("".join(f"{code}-{line}{end}" for line in first) + f"{code} {last}{end}").encode()


@given(replies, st.lists(st.integers(0, 120), max_size=8))
@settings(max_examples=200)
def test_replies_are_the_same_in_any_segments(sent, cuts) -> None:
    data = b"".join(written(*reply) for reply in sent)
    found = read(data, cuts)
    assert found == read(data) == read(data, list(range(len(data))))
    assert [reply.code for reply in found] == [code for code, _, _ in sent]


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
@settings(max_examples=200)
def test_any_bytes_are_replies_or_one_error_in_any_segments(data: bytes, cuts: list[int]) -> None:
    def outcome(at: list[int]) -> object:
        try:
            return read(data, at)
        except BadReply as fault:
            return str(fault)

    assert outcome(cuts) == outcome([])


def test_several_lines_are_one_reply_and_share_their_enhanced_code() -> None:
    assert one(b"550-5.1.1 no such\r\n550-5.1.1 user\r\n550 5.1.1 here\r\n") == Reply(550, "no such\nuser\nhere", "5.1.1")


def test_the_first_line_alone_may_have_the_enhanced_code() -> None:
    assert one(b"550-5.1.1 no\r\n550 see http://example.org\r\n") == Reply(550, "no\nsee http://example.org", "5.1.1")


def test_a_different_enhanced_code_on_a_later_line_is_text() -> None:
    assert one(b"550-5.1.1 no\r\n550 5.7.1 policy\r\n") == Reply(550, "no\n5.7.1 policy", "5.1.1")


def test_an_enhanced_code_of_another_class_is_text() -> None:
    assert one(b"550 4.2.2 full\r\n") == Reply(550, "4.2.2 full", None)


@pytest.mark.parametrize("line", [b"250", b"250 ", b"250\r"])
def test_a_code_without_text(line: bytes) -> None:
    assert one(line + b"\n") == Reply(250, "", None)


def test_a_bare_lf_ends_a_line() -> None:
    assert one(b"250-a\n250 b\n") == Reply(250, "a\nb", None)


def test_8_bit_and_control_characters_are_readable() -> None:
    assert one("550 nicht möglich\r\n".encode()).text == "nicht möglich"
    assert one(b"550 m\xf6glich\r\n").text == "m\\xf6glich"
    assert one(b"550 a\0b\x1b[2Jc\rd\te\x7f\r\n").text == "a\ufffdb\ufffd[2Jc\ufffdd\te\ufffd"


@pytest.mark.parametrize(
    "line",
    [
        b"2500 OK",
        b"25 OK",
        b"250_OK",
        b"OK",
        b"",
        b"150 wait",
        b"650 no",
        b"099 no",
        b"\xff\xfe\x00",
        "２５０ OK".encode(),
        b" 250 OK",
        b"+50 OK",
    ],
)
def test_invalid_replies_are_rejected(line: bytes) -> None:
    with pytest.raises(BadReply, match="not an SMTP reply"):
        read(line + b"\r\n")


def test_different_codes_in_one_reply_are_rejected() -> None:
    with pytest.raises(BadReply, match="different codes"):
        read(b"250-fine\r\n550 not fine\r\n")


@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_an_endless_line_is_rejected_at_the_limit(end: bytes) -> None:
    assert one(b"220 " + b"x" * (LINE_LIMIT - 5) + b"\n").code == 220
    with pytest.raises(BadReply, match="line longer than"):
        read(b"220 " + b"x" * 1_000_000 + end, [LINE_LIMIT // 2])


def test_an_endless_reply_is_rejected() -> None:
    assert one(b"250-x\r\n" * (LINES_LIMIT - 1) + b"250 x\r\n").code == 250
    with pytest.raises(BadReply, match="lines or"):
        read(b"250-x\r\n" * 50_000)
    with pytest.raises(BadReply, match="bytes"):
        read((b"250-" + b"x" * 4000 + b"\r\n") * (REPLY_LIMIT // 4000 + 1))


def test_a_long_refusal_is_truncated_and_a_long_ehlo_reply_is_not() -> None:
    assert len(one((b"550-" + b"x" * 1000 + b"\r\n") * 60 + b"550 x\r\n").text) == TEXT_LIMIT
    assert len(one((b"250-" + b"x" * 1000 + b"\r\n") * 60 + b"250 x\r\n").text) > 60_000


def test_pending_data_is_known() -> None:
    answers = ReplyReader()
    answers.push(b"220 go\r\n2")
    assert answers.next() is not None
    assert answers.next() is None
    assert answers.pending
    answers.push(b"50-half\r\n")
    assert answers.next() is None
    assert answers.pending
    answers.push(b"250 whole\r\n")
    assert answers.next() is not None
    assert not answers.pending
