"""Content transfer encodings (RFC 2045 §6): text and files as lines of 7-bit ASCII.

The output has CRLF only, no line that begins with `From ` or is a lone dot, and no white space at the end of a line. It never contains
`=_`, so a boundary that does cannot be mistaken for content.

Everything works in slices of a few milliseconds: a single call over a large text would not let other threads run.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from struct import Struct

import attrs

_LITERAL_IN_7BIT = bytes([0x09, 0x0A, *range(0x20, 0x7F)])
_LITERAL_IN_QP = _LITERAL_IN_7BIT.replace(b"=", b"")
_IN_ASCII = [bytes([octet]) if octet < 128 else b"=%02X" % octet for octet in range(256)]
_LONGEST_LINE = 900  # below the 998 of 5322 §2.1.1, because relays may add to lines
_LONGEST_UNENCODED = 998
_SLICE = 1 << 16  # bytes of text

_LINES = 4096
_LINE_OF_BASE64 = 76  # 2045 §6.8
_SLICE_OF_FILE = _LINES * 57
_CUT = Struct(f"{_LINE_OF_BASE64}s" * _LINES)


@attrs.frozen
class Survey:
    """What decides how a text with LF line ends is encoded. Those of texts that end with a line are added up."""

    size: int  # bytes
    special: int  # bytes that quoted-printable escapes
    plain: bool  # needs no encoding

    @classmethod
    def of(cls, data: bytes) -> Survey:
        special, plain = 0, True
        for lines in _slices(data):
            escaped = lines.translate(None, _LITERAL_IN_QP)
            special += len(escaped)
            plain = plain and not escaped.strip(b"=") and _is_safe(lines)
        return cls(len(data), special, plain)

    def __add__(self, other: Survey) -> Survey:
        return Survey(self.size + other.size, self.special + other.special, self.plain and other.plain)

    @property
    def encoding(self) -> str:
        if self.plain:
            return "7bit"
        # quoted-printable adds two bytes for each, base64 a third of everything
        return "base64" if self.special * 6 > self.size else "quoted-printable"


def encode_text(text: str) -> tuple[str, bytes]:
    """Returns the name of the encoding and the encoded text. Uses the smallest of 7bit, quoted-printable and base64.

    CRLF, LF and CR all end a line. Raises UnicodeEncodeError for lone surrogates.
    """
    data = _with_lf(text.encode("utf-8"))
    encoding = Survey.of(data).encoding
    if encoding == "7bit":
        return encoding, _with_crlf(data)
    return encoding, encode_base64(_with_crlf(data)) if encoding == "base64" else quoted_printable(data)


def unencoded(data: bytes) -> tuple[str, bytes] | None:
    """Returns 7bit or 8bit (2045 §2.7, §2.8), and the text with CRLF. None if it has NUL characters or lines that are too long for both."""
    data = _with_lf(data)
    if b"\0" in data or _has_long_line(data, _LONGEST_UNENCODED):
        return None
    return "7bit" if data.isascii() else "8bit", _with_crlf(data)


def _has_long_line(data: bytes, longest: int) -> bool:
    """Goes from the last line end in reach to the next, so most lines are skipped."""
    at = 0
    while len(data) - at > longest:
        end = data.rfind(b"\n", at, at + longest + 1)
        if end < 0:
            return True
        at = end + 1
    return False


def _slices(data: bytes) -> Iterator[bytes]:
    """Slices of whole lines. A line that is longer than a slice is cut."""
    start = 0
    while len(data) - start > _SLICE:
        end = data.rfind(b"\n", start, start + _SLICE) + 1 or start + _SLICE
        yield data[start:end]
        start = end
    yield data[start:] if start else data


def _with_lf(data: bytes) -> bytes:
    if b"\r" not in data:
        return data
    pieces, start = [], 0
    while start < len(data):
        end = start + _SLICE
        end += data[end - 1 : end + 1] == b"\r\n"
        pieces.append(data[start:end].replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        start = end
    return b"".join(pieces)


def _with_crlf(data: bytes) -> bytes:
    return b"".join([lines.replace(b"\n", b"\r\n") for lines in _slices(data)])


def _is_safe(data: bytes) -> bool:
    """Whether every relay passes the lines of a text without control characters on unchanged."""
    lines = b"\n%s\n" % data
    return not (
        _has_long_line(data, _LONGEST_LINE)
        or b" \n" in lines
        or b"\n.\n" in lines
        or b"\nFrom " in lines
        or (b"\t" in lines and b"\t\n" in lines)  # a single byte is found faster
        or (b"_" in lines and b"=_" in lines)
    )


def quoted_printable(data: bytes) -> bytes:
    """Encodes text with LF line ends as quoted-printable with CRLF (2045 §6.7), in lines of at most 76.

    A line that is longer than a slice is cut by a soft line break.
    """
    pieces, start = [], 0
    while len(data) - start > _SLICE:
        end = data.rfind(b"\n", start, start + _SLICE) + 1
        encoded = _quoted_printable(data[start : end or start + _SLICE])
        pieces.append(encoded if end else _soft_break(encoded))
        start = end or start + _SLICE
    return b"".join([*pieces, _quoted_printable(data[start:])])


def escaped(data: bytes) -> Iterator[bytes]:
    """Escapes bytes above 127 in quoted-printable content with CRLF that should have none. Everything else stays as it is."""
    for lines in _slices(data):
        yield lines if lines.isascii() else b"\r\n".join([_escaped_line(line) for line in lines.split(b"\r\n")])


def _escaped_line(line: bytes) -> bytes:
    if line.isascii():
        return line
    following = zip(line, line[1:] + b" ", strict=True)
    line = b"".join([b"=3D" if octet == 0x3D and after > 127 else _IN_ASCII[octet] for octet, after in following])  # else, `==` follows
    pieces, start = [], 0
    while len(line) - start > 76:
        mark = line.rfind(b"=", start + 73, start + 75)  # an escape is not cut
        end = mark if mark >= 0 else start + 75
        pieces.append(line[start:end])
        start = end
    return b"=\r\n".join([*pieces, line[start:]])


def _soft_break(lines: bytes) -> bytes:
    """Ends the last line with a soft line break. If there is no room for the `=`, the line is broken before."""
    begin = lines.rfind(b"\n") + 1
    if len(lines) - begin > 75:
        cut = len(lines) - 3
        cut = lines.rfind(b"=", cut - 2, cut) if b"=" in lines[cut - 2 : cut] else cut
        lines = lines[:cut] + b"=\r\n" + lines[cut:]
    return lines + b"=\r\n"


def _quoted_printable(data: bytes) -> bytes:
    if b" \n" in data or b"\t\n" in data:
        # Line by line, so that an escaped space at the end of a line counts towards its length.
        out = b"\n".join([binascii.b2a_qp(line, istext=True) for line in data.split(b"\n")])
    else:
        out = binascii.b2a_qp(data, istext=True)
    if b"From " in out:  # with a soft line break, because the escape alone could make the line too long
        out = out.replace(b"\nFrom ", b"\n=46=\nrom ")
        if out.startswith(b"From "):
            out = b"=46=\nrom " + out[5:]
    return out.replace(b"\n", b"\r\n")


def encode_base64(data: bytes) -> bytes:
    """Encodes as base64 in lines of 76 (2045 §6.8). The last line has no line end."""
    view = memoryview(data)
    whole = len(data) - len(data) % _SLICE_OF_FILE
    blocks = [
        b"\r\n".join(_CUT.unpack(binascii.b2a_base64(view[start : start + _SLICE_OF_FILE], newline=False)))
        for start in range(0, whole, _SLICE_OF_FILE)
    ]
    rest = binascii.b2a_base64(view[whole:], newline=False)
    blocks += [rest[at : at + _LINE_OF_BASE64] for at in range(0, len(rest), _LINE_OF_BASE64)]
    return b"\r\n".join(blocks)
