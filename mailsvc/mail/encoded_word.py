"""Encoded words (RFC 2047): non-ASCII text in header fields."""

from __future__ import annotations

import binascii
import re
from itertools import islice

from mailsvc.mail import charset

WORD_LIMIT = 66  # 2047 §2 allows 75; 66 fit on a line of 76 after "Subject: "
WORDS_MAX = 2000  # that are decoded in one text; the rest is left as it is
_OPENING, _CLOSING = len("=?utf-8?q?"), len("?=")
_BYTES_IN_B = (WORD_LIMIT - _OPENING - _CLOSING) // 4 * 3
_CHARS_IN_Q = WORD_LIMIT - _OPENING - _CLOSING

# 2047 §5 (3): characters allowed unencoded in a phrase, the strictest context.
_LITERAL = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/")
_Q = tuple(chr(octet) if octet in _LITERAL else "_" if octet == 0x20 else f"={octet:02X}" for octet in range(256))

_WORD = re.compile(r"=\?([^?\s]{1,64})\?([bBqQ])\?([^?\r\n]*)\?=")


def encode(text: str) -> list[str]:
    """Encodes text as consecutive encoded words. No character is split between two words."""
    data = text.encode("utf-8")
    escapes = sum(octet not in _LITERAL and octet != 0x20 for octet in data)
    return _encode_b(data) if escapes * 3 > len(data) else _encode_q(text)  # Q keeps mostly-ASCII text readable


def _encode_b(data: bytes) -> list[str]:
    words, start = [], 0
    while start < len(data):
        end = min(start + _BYTES_IN_B, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:  # don't cut a character
            end -= 1
        words.append(f"=?utf-8?b?{binascii.b2a_base64(data[start:end], newline=False).decode('ascii')}?=")
        start = end
    return words


def _encode_q(text: str) -> list[str]:
    words: list[str] = []
    line: list[str] = []
    room = _CHARS_IN_Q
    for character in text:
        coded = "".join([_Q[octet] for octet in character.encode("utf-8")])
        if len(coded) > room:
            words.append(f"=?utf-8?q?{''.join(line)}?=")
            line, room = [], _CHARS_IN_Q
        line.append(coded)
        room -= len(coded)
    words.append(f"=?utf-8?q?{''.join(line)}?=")
    return words


def decode(text: str) -> str:
    """Decodes encoded words. Other text is kept; white space between two words is dropped (2047 §6.2)."""
    out: list[str] = []
    pending, pending_charset, end = bytearray(), "", 0
    for word in islice(_WORD.finditer(text), WORDS_MAX):
        data = _bytes(word[2], word[3])
        if data is None:
            continue
        between, name = text[end : word.start()], word[1].partition("*")[0].lower()  # 2231 §5: "*language"
        if between.strip(" \t\r\n") or not pending_charset or name != pending_charset:
            out.append(charset.decode(bytes(pending), pending_charset))
            if between.strip(" \t\r\n") or not pending_charset:
                out.append(between)
            pending, pending_charset = bytearray(), name
        pending += data  # some senders split characters between words
        end = word.end()
    return "".join([*out, charset.decode(bytes(pending), pending_charset), text[end:]])


def _bytes(encoding: str, encoded: str) -> bytes | None:
    try:
        data = encoded.encode("ascii")
        if encoding in "qQ":
            return binascii.a2b_qp(data, header=True)
        return binascii.a2b_base64(data + b"=" * (-len(data) % 4))
    except (UnicodeEncodeError, binascii.Error):
        return None
