"""How deep and how many: counted as a reader would, without reading everything."""

from __future__ import annotations

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


def test_depth() -> None:
    assert found(nested(DEPTH_LIMIT)) is None
    assert found(nested(DEPTH_LIMIT + 1)) == "The parts of the message are nested more than 50 deep."
    assert found(nested(10_000)) is not None


@pytest.mark.parametrize("window", [1, 2, 7, 1000])
def test_wherever_a_search_window_ends(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "_WINDOW", window)
    assert found(nested(3)) is None
    assert found(flat(PARTS_LIMIT + 1)) == "The message has more than 1000 parts."


def test_parts() -> None:
    assert found(flat(PARTS_LIMIT)) is None
    assert found(flat(PARTS_LIMIT + 1)) == "The message has more than 1000 parts."
    assert found(flat(100_000)) is not None


def test_messages_in_messages_count() -> None:
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
def test_messages_that_are_messages_count(kind: bytes) -> None:
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
def test_half_a_structure_is_none(message: bytes) -> None:
    assert found(message) is None


@given(st.recursive(st.just(0), lambda children: st.lists(children, min_size=1, max_size=3), max_leaves=20))
@settings(max_examples=100)
def test_what_the_standard_library_writes_is_fine(tree: object) -> None:
    def build(node: object) -> MIMEMultipart | MIMEText:
        if not isinstance(node, list):
            return MIMEText("leaf")
        made = MIMEMultipart()
        for child in node:
            made.attach(build(child))
        return made

    assert found(build(tree).as_bytes().replace(b"\n", b"\r\n")) is None


@given(st.binary(max_size=400))
@settings(max_examples=200)
def test_any_octets_are_counted(octets: bytes) -> None:
    found(b"Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n" + octets)
