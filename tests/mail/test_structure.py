"""Counting depth and parts of a message without parsing all of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.mail import header, structure
from mailsvc.mail.structure import DEPTH_LIMIT, PARTS_LIMIT, fault


def found(message: bytes) -> str | None:
    head, start = header.split_message(message)
    return fault(head, message, start)


def nested(depth: int) -> bytes:
    message = b"Content-Type: text/plain\r\n\r\nx\r\n"
    for n in range(depth):
        message = b'Content-Type: multipart/mixed; boundary="b%d"\r\n\r\n--b%d\r\n%s\r\n--b%d--\r\n' % (n, n, message, n)
    return message


def flat(parts: int) -> bytes:
    return b"Content-Type: multipart/mixed; boundary=x\r\n\r\n" + b"--x\r\n\r\na\r\n" * parts + b"--x--\r\n"


def test_depth_is_counted() -> None:
    assert found(nested(DEPTH_LIMIT)) is None
    assert found(nested(DEPTH_LIMIT + 1)) == "The parts of the message are nested more than 50 deep."
    assert found(nested(10_000)) is not None


@pytest.mark.parametrize("window", [1, 2, 7, 1000])
def test_delimiters_are_found_across_search_windows(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "_WINDOW", window)
    assert found(nested(3)) is None
    assert found(flat(PARTS_LIMIT + 1)) == "The message has more than 1000 parts."


class Counted:
    """A mapped file that counts the bytes that are copied out of it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.copied = data, 0

    def find(self, sub: bytes, start: int = 0, end: int | None = None) -> int:
        return self.data.find(sub, start, end)

    def __getitem__(self, where: slice) -> bytes:
        found = self.data[where]
        self.copied += len(found)
        return found

    def __len__(self) -> int:
        return len(self.data)


@pytest.mark.parametrize("line", [b"\r\n--xyzq", b"\r\n--xy", b"\r\n--"])
@pytest.mark.parametrize("size", [100_000, 400_000, 1_600_000])
def test_lines_that_look_like_delimiters_cause_no_copies(line: bytes, size: int) -> None:
    message = b"Content-Type: multipart/mixed; boundary=xyz\r\n\r\n" + line * (size // len(line))
    head, start = header.split_message(message)
    counted = Counted(message)
    assert fault(head, counted, start) is None
    assert counted.copied <= 3 * len(message)


def test_parts_are_counted() -> None:
    assert found(flat(PARTS_LIMIT)) is None
    assert found(flat(PARTS_LIMIT + 1)) == "The message has more than 1000 parts."
    assert found(flat(100_000)) is not None


def test_nested_messages_are_counted() -> None:
    inner = nested(2)
    for n in range(30):
        inner = b"Content-Type: multipart/mixed; boundary=m%d\r\n\r\n--m%d\r\nContent-Type: message/rfc822\r\n\r\n%s\r\n--m%d--\r\n" % (
            n, n, inner, n,
        )  # fmt: skip
    assert found(inner) is None
    for n in range(30, 60):
        inner = b"Content-Type: multipart/mixed; boundary=m%d\r\n\r\n--m%d\r\nContent-Type: message/rfc822\r\n\r\n%s\r\n--m%d--\r\n" % (
            n, n, inner, n,
        )  # fmt: skip
    assert found(inner) is not None


@pytest.mark.parametrize("kind", [b"message/rfc822", b"Message/Global; x=y"])
def test_parts_that_are_messages_are_counted(kind: bytes) -> None:
    wrapped = b"Content-Type: " + kind + b"\r\n\r\n"
    assert found(wrapped * DEPTH_LIMIT + nested(1)) is None
    assert found(wrapped * (DEPTH_LIMIT + 1) + b"x\r\n") is not None and found(wrapped * 10_000) is not None
    assert found(wrapped + nested(DEPTH_LIMIT + 1)) is not None
    part = b"Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n%s\r\n--x--\r\n"
    assert found(wrapped * 25 + part % (wrapped * 25 + b"x")) is None
    assert found(wrapped * 26 + part % (wrapped * 25 + b"x")) is not None


@pytest.mark.parametrize(
    "message",
    [
        b"Subject: x\r\n\r\n--x\r\n",
        b"Content-Type: multipart/mixed\r\n\r\n--x\r\n",
        b"Content-Type: multipart/mixed; boundary=x\r\n\r\n",
        b"Content-Type: multipart/mixed; boundary=x\r\n\r\n--x",
        b"Content-Type: multipart/mixed; boundary=x\r\n\r\n--x--",
        b"Content-Type: multipart/mixed;\r\n boundary=x",
    ],
)
def test_incomplete_structures_are_not_counted(message: bytes) -> None:
    assert found(message) is None


def test_a_delimiter_ends_the_header_of_a_part() -> None:
    """A part without an empty line has no body, so nothing is inside it (2046 §5.1.1)."""
    part = b"--x\r\nContent-Type: multipart/mixed; boundary=x\r\n"
    message = b"Content-Type: multipart/mixed; boundary=x\r\n\r\n" + part * (DEPTH_LIMIT + 1)
    assert found(message + b"--x--\r\n\r\n") is None
    assert found(message + part.replace(b"\r\n--", b"\r\n\r\n--") * 2) is None


@given(st.recursive(st.just(0), lambda children: st.lists(children, min_size=1, max_size=3), max_leaves=20))
@settings(max_examples=100)
def test_messages_of_the_standard_library_are_counted(tree: object) -> None:
    def build(node: object) -> MIMEMultipart | MIMEText:
        if not isinstance(node, list):
            return MIMEText("leaf")
        result = MIMEMultipart()
        for child in node:
            result.attach(build(child))
        return result

    assert found(build(tree).as_bytes().replace(b"\n", b"\r\n")) is None


@given(st.binary(max_size=400))
@settings(max_examples=200)
def test_any_bytes_are_counted(data: bytes) -> None:
    found(b"Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n" + data)


def slow_fault(head: bytes, message: bytes, start: int) -> str | None:
    """The same verdict, every line that begins like a delimiter looked at and every header read as a whole."""

    def lines(boundaries: list[bytes], begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        for delimiter in re.finditer(rb"(?=\r\n--(.*?)(\r\n|\Z))", message[begin:], re.DOTALL):
            line = delimiter[1][:1000].rstrip(b" \t")
            if begin + delimiter.start() < end and any(line in (boundary, boundary + b"--") for boundary in boundaries):
                yield begin + delimiter.start(), line

    def header_at(begin: int, boundaries: list[bytes]) -> tuple[bytes, int]:
        """The header and where the scan continues."""
        end = message.find(b"\r\n\r\n", begin, begin + 64 * 1024)
        if end < 0:
            return b"", begin
        cut = next(lines(boundaries, begin, end), None)
        return (message[begin + 2 : end + 2], end + 2) if cut is None else (b"", cut[0])

    def within(head: bytes, at: int, boundaries: list[bytes]) -> tuple[bytes | None, int, int]:
        depth = 0
        while depth <= DEPTH_LIMIT and re.search(rb"(?im)^content-type[ \t]*:\s*message/(?:rfc822|global)(?![\w-])", head):
            depth += 1
            head, at = header_at(at, boundaries)
        for field in header.parse_fields(head, strict=False):
            if field.name.lower() == "content-type" and field.raw.strip().lower().startswith(b"multipart"):
                named = re.search(rb'(?i)\bboundary\s*=\s*(?:"([^"\r\n]{1,200})"|([^\s;"]{1,200}))', field.raw.replace(b"\r\n", b""))
                return (named[1] or named[2]).rstrip(b" ") if named else None, depth, at
        return None, depth, at

    boundary, messages, at = within(head, start - 2, [])
    if messages > DEPTH_LIMIT:
        return "deep"
    stack, parts = [] if boundary is None else [(boundary, messages)], 0
    while found := next(lines([boundary for boundary, _ in stack], at, len(message)), None):
        at, line = found
        level = [n for n, (boundary, _) in enumerate(stack) if line in (boundary, boundary + b"--")][-1]
        closing = line != stack[level][0]
        del stack[level if closing else level + 1 :]
        at += 4 + len(line)
        if closing:
            continue
        parts += 1
        if parts > PARTS_LIMIT:
            return "many"
        begin = message.find(b"\r\n", at, at + 200)
        part, at = header_at(begin, [boundary for boundary, _ in stack]) if begin >= 0 else (b"", at)
        inner, messages, at = within(part, at, [boundary for boundary, _ in stack])
        depth = stack[-1][1] + messages
        if inner is not None:
            stack.append((inner, depth))
        if max(len(stack), depth) > DEPTH_LIMIT:
            return "deep"
    return None


KINDS = [
    b"Content-Type: multipart/mixed; boundary=x\r\n\r\n",
    b'content-type :multipart/mixed;\r\n\tboundary="x--"\r\n\r\n',
    b"X: content-type: multipart/x; boundary=no\r\nCONTENT-TYPE:\r\n MULTIPART/alternative; boundary=xy\r\n\r\n",
    b"Content-Type: text/plain\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n",
    b"Subject: multipart\r\n content-type: multipart/mixed; boundary=no\r\n\r\n",
    b"Content-Type: multipart/mixed\r\nContent-Type: multipart/mixed; boundary=no\r\n\r\n",
    b"Content-Type: message/rfc822\r\n\r\n",
    b"X: a\nContent-Type:\r\n\r\nmessage/global\r\n\r\n",
    b"Content-Type multipart/mixed; boundary=x\r\n\r\n",
]
LINES = [
    b"--x\r\n",
    b"--x--\r\n",
    b"--x----\r\n",
    b"--xy \t\r\n",
    b"--xy--\r\n",
    b"--\r\n",
    b"--z\r\n",
    b"text\r\n",
    b"\r\n",
    b"--x",
    b"--xy\r",
]


@settings(max_examples=200)
@given(st.sampled_from(KINDS), st.lists(st.sampled_from([*KINDS, *LINES, *LINES]), max_size=40).map(b"".join), st.integers(1, 3))
def test_skipping_does_not_change_the_count(head: bytes, body: bytes, most: int) -> None:
    message = head + body
    block, start = header.split_message(message)
    with pytest.MonkeyPatch.context() as patch:
        for module in (structure, sys.modules[__name__]):  # so that few are too many
            patch.setattr(module, "DEPTH_LIMIT", most)
            patch.setattr(module, "PARTS_LIMIT", 2 * most)
        verdict, slow = fault(block, message, start), slow_fault(block, message, start)
    assert (verdict is None) == (slow is None) and ("deep" in (verdict or "")) == (slow == "deep")


@pytest.mark.parametrize(
    ("texts", "beginning"),
    [
        ([], b""),
        ([b"ab"], b"ab"),
        ([b"ab", b"ab--"], b"ab"),
        ([b"ac", b"ab", b"abc"], b"a"),
        ([b"x", b"y"], b""),
        ([b"a/b/c", b"a/b/d"], b"a/b/"),
    ],
)
def test_the_common_beginning_of_texts_is_found(texts: list[bytes], beginning: bytes) -> None:
    assert structure.common_beginning(texts) == beginning
