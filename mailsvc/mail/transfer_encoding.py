"""Content transfer encodings (RFC 2045 §6): text and files as lines of 7-bit ASCII.

Whatever comes out has CRLF only, no line that begins with `From ` or is a lone dot, no white space at the end of a line, and
nowhere the sequence `=_`: what contains it cannot be mistaken for content, which is how boundaries are chosen.
"""

from __future__ import annotations

import binascii
from struct import Struct

_WRITTEN_AS_IS = bytes([0x09, 0x0A, *range(0x20, 0x7F)])
_LITERAL_IN_QP = _WRITTEN_AS_IS.replace(b"=", b"")
_PLAIN_LINE = 900  # below the 998 of 5322 §2.1.1: hops add to lines
_PIECE_OF_TEXT = 1 << 18

_LINES = 4096
_LINE_OF_BASE64 = 76  # 2045 §6.8
_SLICE = _LINES * 57
_CUT = Struct(f"{_LINE_OF_BASE64}s" * _LINES)


def encode_text(text: str) -> tuple[str, bytes]:
    """The name of the encoding and the encoded text, in whichever of 7bit, quoted-printable and base64 is the smallest.

    Every kind of line end is a line end. UnicodeEncodeError when the text has lone surrogates.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    octets = text.encode("utf-8")
    special = octets.translate(None, _LITERAL_IN_QP)
    if not special.strip(b"=") and _is_safe(octets):
        return "7bit", octets.replace(b"\n", b"\r\n")
    if len(special) * 6 > len(octets):  # each costs two octets more in quoted-printable; base64 costs a third of all
        return "base64", encode_base64(octets.replace(b"\n", b"\r\n"))
    return "quoted-printable", quoted_printable(octets)


def _is_safe(octets: bytes) -> bool:
    """ASCII text that every hop passes on as it is."""
    lines = octets.split(b"\n")
    return (
        max(map(len, lines)) <= _PLAIN_LINE
        and list(map(bytes.rstrip, lines)) == lines
        and b"." not in lines
        and not (b"From " in octets and any(line.startswith(b"From ") for line in lines))
        and not (b"_" in octets and b"=_" in octets)
    )


def quoted_printable(octets: bytes) -> bytes:
    """Text with LF line ends as quoted-printable with CRLF (2045 §6.7), lines of 76 at most.

    In pieces of whole lines, so that other threads get their turn; a line that is longer than a piece is cut by a soft line break.
    """
    pieces, start = [], 0
    while len(octets) - start > _PIECE_OF_TEXT:
        end = octets.rfind(b"\n", start, start + _PIECE_OF_TEXT) + 1
        made = _quoted_printable(octets[start : end or start + _PIECE_OF_TEXT])
        pieces.append(made if end else _soft_break(made))
        start = end or start + _PIECE_OF_TEXT
    return b"".join([*pieces, _quoted_printable(octets[start:])])


def _soft_break(lines: bytes) -> bytes:
    """The last of these lines goes on in the next one; before that it is broken if it has no place for the sign."""
    begin = lines.rfind(b"\n") + 1
    if len(lines) - begin > 75:
        cut = len(lines) - 3
        cut = lines.rfind(b"=", cut - 2, cut) if b"=" in lines[cut - 2 : cut] else cut
        lines = lines[:cut] + b"=\r\n" + lines[cut:]
    return lines + b"=\r\n"


def _quoted_printable(octets: bytes) -> bytes:
    if b" \n" in octets or b"\t\n" in octets:
        # line by line, so that an escaped space at the end of a line counts towards its length
        out = b"\n".join([binascii.b2a_qp(line, istext=True) for line in octets.split(b"\n")])
    else:
        out = binascii.b2a_qp(octets, istext=True)
    if b"From " in out:  # cut in two, since the escape alone might make the line too long
        out = out.replace(b"\nFrom ", b"\n=46=\nrom ")
        if out.startswith(b"From "):
            out = b"=46=\nrom " + out[5:]
    return out.replace(b"\n", b"\r\n")


def encode_base64(octets: bytes) -> bytes:
    """Base64 in lines of 76 (2045 §6.8), the last without a line end."""
    view = memoryview(octets)
    whole = len(octets) - len(octets) % _SLICE
    blocks = [
        b"\r\n".join(_CUT.unpack(binascii.b2a_base64(view[start : start + _SLICE], newline=False))) for start in range(0, whole, _SLICE)
    ]
    rest = binascii.b2a_base64(view[whole:], newline=False)
    blocks += [rest[at : at + _LINE_OF_BASE64] for at in range(0, len(rest), _LINE_OF_BASE64)]
    return b"\r\n".join(blocks)
