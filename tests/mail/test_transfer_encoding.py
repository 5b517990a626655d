"""Content transfer encodings: the output is safe for every relay and decodes to the input."""

from __future__ import annotations

import base64
import binascii
import quopri
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailsvc.mail import transfer_encoding

PIECES = [
    "a",
    "é",
    "日本",
    " ",
    "\t",
    ".",
    "\n",
    "\r\n",
    "\r",
    "From ",
    "=",
    "=_",
    "--",
    "\x7f",
    "\x01",
    "x" * 75,
    "w " * 40,
    "\n.\n",
    "\nFrom ",
]
BODIES = st.text(st.characters(blacklist_categories=["Cs"])) | st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
_DECODERS: dict[str, Callable[[bytes], bytes]] = {"7bit": bytes, "quoted-printable": binascii.a2b_qp, "base64": binascii.a2b_base64}


def normal(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def safe(data: bytes, longest: int) -> None:
    assert data.isascii()
    assert not re.search(rb"\r(?!\n)|(?<!\r)\n|\x00|=_", data)
    lines = data.split(b"\r\n")
    assert all(len(line) <= longest for line in lines)
    assert all(line == line.rstrip() and line != b"." and not line.startswith(b"From ") for line in lines)


@given(BODIES)
@example("x" * 75 + ".")
@example("x" * 75 + ".\ny")
@example("x" * 75 + " \ny")
@example("x" * 75 + "From here")
@example("x" * 76 + "\nFrom " + "y" * 71)
@example("From From From ")
@example("From \nFrom .\n")
@example(".")
@example(".\n.\n.")
@example(".\r.\n")
@example(" ")
@example("x" * 901)
@example("é" + ("x" * 74 + " \n") * 3)
def test_any_text_is_encoded_safely(text: str) -> None:
    name, data = transfer_encoding.encode_text(text)
    safe(data, 900 if name == "7bit" else 76)
    assert _DECODERS[name](data).decode().replace("\r\n", "\n") == normal(text)


@given(BODIES)
@example("x" * 75 + ".\n")
@example("From " * 30)
@example("From " + "x" * 80 + "\n" + "From " + "y" * 71)
def test_any_text_is_encoded_as_quoted_printable(text: str) -> None:
    data = transfer_encoding.quoted_printable(normal(text).encode())
    safe(data, 76)
    assert binascii.a2b_qp(data).decode().replace("\r\n", "\n") == normal(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "7bit"),
        ("Hi.\n..\n", "7bit"),
        ("<a href=3>\n" * 100, "7bit"),
        ("x" * 900, "7bit"),
        ("x" * 901, "quoted-printable"),
        ("Hi \n", "quoted-printable"),
        ("From me", "quoted-printable"),
        ("a=_b, and some more", "quoted-printable"),
        ("Grüße aus der Ferne, und mehr Text", "quoted-printable"),
        ("日本語のメール", "base64"),
    ],
)
def test_the_smallest_encoding_is_chosen(text: str, name: str) -> None:
    assert transfer_encoding.encode_text(text)[0] == name


@pytest.mark.parametrize(
    "unit", ["a\n", "a\r\n", "\r", "\n", "=\n", ".\n", " \n", "From \n", "x" * 899 + "\n", "x" * 950, "é\n", "é" * 30 + "\r\n"]
)
@pytest.mark.parametrize("shift", range(3))
def test_large_text_is_encoded_like_small_text_and_in_slices(monkeypatch: pytest.MonkeyPatch, unit: str, shift: int) -> None:
    """No call may work on the whole text: it would keep all other threads waiting, the reactor included."""
    text = "b" * shift + unit * (3000 // len(unit))
    whole = transfer_encoding.encode_text(text)
    monkeypatch.setattr(transfer_encoding, "_SLICE", 1000)
    lengths: list[int] = []
    is_safe = transfer_encoding._is_safe
    monkeypatch.setattr(transfer_encoding, "_is_safe", lambda lines: lengths.append(len(lines)) or is_safe(lines))
    name, data = transfer_encoding.encode_text(text)
    assert name == whole[0] and _DECODERS[name](data) == _DECODERS[name](whole[1])
    assert max(lengths, default=0) <= 1000
    if name != "quoted-printable":  # where a line that is cut gets a soft line break
        assert data == whole[1]


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        transfer_encoding.encode_text("a\ud800")


@pytest.mark.parametrize("size", [0, 1, 56, 57, 58, 114, 57 * 4096 - 1, 57 * 4096, 57 * 4096 + 1, 57 * 8192, 57 * 8192 + 100])
def test_base64_matches_the_standard_library_at_any_size(size: int) -> None:
    data = random.Random(size).randbytes(size)
    encoded = transfer_encoding.encode_base64(data)
    assert encoded == base64.encodebytes(data).rstrip(b"\n").replace(b"\n", b"\r\n")


@pytest.mark.parametrize("line", ["é" * 400_000, "a=" * 300_000, "x" * 600_000, " " * 300_000, ("wörd " * 20 + "\n") * 6000])
@pytest.mark.parametrize("shift", range(4))
def test_text_longer_than_a_slice_is_quoted_printable(line: str, shift: int) -> None:
    data = b"a" * shift + line.encode()
    result = transfer_encoding.quoted_printable(data)
    assert max(map(len, result.split(b"\r\n"))) <= 76
    assert quopri.decodestring(result.replace(b"\r\n", b"\n")) == data
