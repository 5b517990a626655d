"""JSON as strict as RFC 8259 and RFC 7493 (I-JSON): one meaning per document, or an error that says where it is wrong.

orjson parses. It accepts duplicate names (RFC 7493 §2.3), so they are found by counting. The number of values in a large document is
limited before it is parsed, because a value takes far more memory than the two characters it can be written in. Functions that look at
the text work in pieces and with functions written in C: other threads run between two pieces, and no list grows with the document.
`load_large` also keeps the memory for a large document near its size: arrays of bytes never become lists.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import attrs
import orjson

from mailsvc.mail import charset

DEPTH_MAX = 64
NODES_MAX = 200_000  # values in a large document besides byte arrays; a full batch has some 50,000
LIGHT = 20_000  # values that are parsed in a few milliseconds
LIFT_ABOVE = 64  # bytes; the text of longer arrays is lifted out
LIFTED_MAX = 10_000  # arrays that can be lifted; further ones count as values
PIECE = 65_536
WINDOW = 1 << 20  # bytes that are searched at a time
SMALL_PIECE = 4096
WIDE_MAX = 48 << 20  # bytes of memory for text beyond one byte per character
OUTLINE_MAX = 256 * 1024  # bytes of a document that is searched for the wrong field

_BYTES_START = re.compile(rb'"(?:content|data)"[ \t\r\n]{0,99}+:[ \t\r\n]{0,99}+\[')
_SUSPECT = re.compile(rb"[\x00-\x1f]|\\u[dD]")  # in a string: what can be wrong with it
_UNFIT = re.compile(r"[\x00-\x1f\ud800-\udfff]")
_PAIR = re.compile(rb"\\u[dD][89abAB]")
_SPACES = b" \t\n\r"
_CONTINUATION = bytes(range(0x80, 0xC0))
_BOM = b"\xef\xbb\xbf"


class Malformed(Exception):
    """Not valid JSON. The message is a sentence for the client."""


def load(raw: bytes) -> Any:
    raw = raw.removeprefix(_BOM)  # 8259 §8.1
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _why(raw, error) from None
    _check(raw, value)
    return value


def light(raw: bytes) -> bool:
    """Whether `load` is fast enough for the reactor thread. Separators in strings count, too."""
    return len(raw) <= LIGHT or _separators(raw) <= LIGHT


def load_large(raw: bytes) -> Any:
    """Like `load`, for a thread. Byte arrays named `content` or `data` become bytes."""
    raw, lifted = _lift(raw.removeprefix(_BOM))
    if _too_many_values(raw):
        raise Malformed(f"The request body has more than {NODES_MAX} values.")
    if (not raw.isascii() or b"\\u" in raw) and _memory_of_wide_text(raw) > WIDE_MAX:
        raise Malformed("The request body has too much text with characters beyond Latin-1. Shorten it or split it into several requests.")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _why(raw, error) from None
    _check(raw, value)
    return _put_back(value, lifted) if lifted else value


def _check(raw: bytes, value: Any) -> None:
    """Check the depth and duplicate names. Every member has one colon outside of strings, so equal counts prove that none was dropped."""
    members = _members(value)
    if _possible_colons(raw) == members or sum(text.count(b":") for text in _outside_strings(raw)) == members:
        return
    with suppress(ValueError, RecursionError):  # too long to find the name
        json.loads(_outline(raw), object_pairs_hook=_unique)
    raise Malformed("The request body has a field twice in one object.")


def _possible_colons(raw: bytes) -> int:
    """Count the colons that can be outside of strings: those after a quotation mark or white space (8259 §2)."""
    return raw.count(b'":') + sum(raw.count(b"%c:" % space) for space in _SPACES if space in raw)


def _members(value: Any) -> int:
    """Count the members of all objects."""
    level, depth, members = [value], 0, 0
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            raise Malformed(f"The request body is nested more than {DEPTH_MAX} levels deep.")
        below: list[Any] = []
        for node in level:
            if type(node) is dict:
                members += len(node)
                node = node.values()
            elif type(node) is not list:
                continue
            below += [child for child in node if type(child) is dict or type(child) is list]
        level = below
    return members


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Malformed(f"The request body has the field `{shortened(name)}` twice.")
            seen.add(name)
    return found


def shortened(name: str) -> str:
    """A name from a request, short enough to repeat in an error."""
    return name if len(name) <= 64 else name[:61] + "…"


# What orjson rejects


class _NotANumber(float):
    """NaN or an infinity in a document."""


def _why(raw: bytes, error: orjson.JSONDecodeError) -> Malformed:
    """Name the wrong field if a more lenient parser finds it, otherwise the position."""
    if not raw:
        return Malformed("The request body is empty; it must be JSON.")
    if (wrong := charset.not_utf8(raw)) is not None:
        line, column = raw.count(b"\n", 0, wrong) + 1, wrong - raw.rfind(b"\n", 0, wrong)
        return Malformed(f"The request body is not valid JSON: it is not UTF-8 at line {line}, byte {column}.")
    try:
        found = _culprit(json.loads(_outline(raw), parse_constant=_NotANumber, parse_int=float, strict=False))
    except (ValueError, RecursionError):
        found = None
    if found is None:
        return Malformed(f"The request body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}.")
    path, sentence = found
    return Malformed(sentence.format(path.removeprefix(".") or "request body"))


def _culprit(value: Any, depth: int = 0) -> tuple[str, str] | None:
    """The path of the first invalid value, and a sentence with a placeholder for it."""
    if isinstance(value, dict):
        for key, child in value.items():
            if _surrogate(key):
                return "", "A name in the `{}` has a lone surrogate, which is not a character."
            if found := _below(child, depth):
                return f".{shortened(key)}{found[0]}", found[1]
    elif isinstance(value, list):
        for index, child in enumerate(value):
            if found := _below(child, depth):
                return f"[{index}]{found[0]}", found[1]
    elif isinstance(value, float) and (isinstance(value, _NotANumber) or value in (float("inf"), float("-inf"))):
        return "", "The `{}` field has a number that is not allowed (NaN, infinite or too large)."
    elif isinstance(value, str) and _UNFIT.search(value):
        if _surrogate(value):
            return "", "The `{}` field has a lone surrogate, which is not a character."
        return "", "The `{}` field has a control character that is not escaped."
    return None


def _below(child: Any, depth: int) -> tuple[str, str] | None:
    return _culprit(child, depth + 1) if depth < DEPTH_MAX else None


def _surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


# The text, piece by piece


def _pieces(raw: bytes, size: int) -> Iterator[tuple[bytes, list[bytes], bool]]:
    """Each piece, the same without escapes and split at its quotation marks, and whether it begins in a string."""
    at, inside = 0, False
    while at < len(raw):
        piece = raw[at : at + size]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # an escape belongs to the piece in which it begins
            piece = raw[at : at + size + 1]
        at += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield piece, parts, inside
        inside ^= len(parts) % 2 == 0


def _outside_strings(raw: bytes) -> Iterator[bytes]:
    for _, parts, inside in _pieces(raw, PIECE):
        yield b"".join(parts[inside::2])


def _outline(raw: bytes) -> str:
    """The document without the middle of its long strings, unless they can be wrong. Empty if it is still too long."""
    if len(raw) <= OUTLINE_MAX:
        return raw.decode("utf-8", "replace")
    kept: list[bytes] = []
    for piece, parts, inside in _pieces(raw, SMALL_PIECE):
        if inside and len(parts) == 1 and not _SUSPECT.search(piece):
            continue
        kept.append(piece)
        if len(kept) * SMALL_PIECE > OUTLINE_MAX:
            return ""
    return b"".join(kept).decode("utf-8", "replace")


def _too_many_values(raw: bytes) -> bool:
    """Count separators: first all of them, then those outside of strings."""
    if _separators(raw) <= NODES_MAX:
        return False
    count = 0
    for text in _outside_strings(raw):
        count += _separators(text)
        if count > NODES_MAX:
            return True
    return False


def _memory_of_wide_text(raw: bytes) -> int:
    """The memory that strings take beyond one byte per character: Python stores a string by its widest character."""
    extra = length = width = 0
    for _, parts, inside in _pieces(raw, PIECE):
        if inside:
            length, width = length + _characters(parts[0]), max(width, _width(parts[0]))
            if len(parts) == 1:
                continue
        extra += length * width
        middle = b"".join(parts[1:-1])
        extra += _characters(middle) * _width(middle)
        length, width = _characters(parts[-1]), _width(parts[-1])
    return extra + length * width


def _characters(text: bytes) -> int:
    return len(text.translate(None, _CONTINUATION))


def _width(text: bytes) -> int:
    """How many bytes beyond one Python uses for each character."""
    highest = 0 if text.isascii() else max(text)
    if highest >= 0xF0 or (b"\\u" in text and _PAIR.search(text)):
        return 3
    return 1 if highest >= 0xC4 or b"\\u" in text else 0


def _separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


# Large documents


def _lift(raw: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The document with its long byte arrays replaced by unguessable strings, and the bytes for each of these."""
    nonce = secrets.token_hex(16)
    lifted: dict[str, bytes] = {}
    kept: list[bytes] = []
    done = at = 0
    names = [_Name(b'"content"'), _Name(b'"data"')]
    for _ in range(LIFTED_MAX):
        if (at := min(name.next(raw, at) for name in names)) >= len(raw):
            break
        start = _BYTES_START.match(raw, at)
        # In a string, a quotation mark follows a backslash (8259 §7), so this one begins or ends a string.
        if start is None or raw[at - 1 : at] == b"\\":
            at += 1
            continue
        end = raw.find(b"]", start.end())
        if end < 0:
            break
        if end - start.end() > LIFT_ABOVE and (content := _byte_array(raw, start.end(), end)) is not None:
            token = f"{nonce}-{len(lifted)}"
            lifted[token] = content
            kept += [raw[done : start.end() - 1], b'"', token.encode(), b'"']
            done = end + 1
        at = max(end, start.end())
    if not lifted:
        return raw, lifted
    kept.append(raw[done:])
    return b"".join(kept), lifted


@attrs.define
class _Name:
    """Finds the next occurrence of a text. Each part of a document is searched once."""

    text: bytes
    found: int = -1

    def next(self, raw: bytes, at: int) -> int:
        if self.found < at:
            self.found = _find(raw, self.text, at)
        return self.found


def _find(raw: bytes, text: bytes, at: int) -> int:
    """Like raw.find, in windows, so that other threads can run in between. The end if it is not found."""
    for start in range(at, len(raw), WINDOW):
        found = raw.find(text, start, start + WINDOW + len(text) - 1)
        if found >= 0:
            return found
    return len(raw)


def _byte_array(raw: bytes, start: int, end: int) -> bytes | None:
    """The numbers between `start` and `end` as bytes; None if they aren't all numbers from 0 to 255."""
    pieces: list[bytes] = []
    while start < end:
        cut = end if end - start <= PIECE else raw.rfind(b",", start, start + PIECE)
        if cut <= start:
            return None
        try:
            numbers = orjson.loads(b"[%s]" % raw[start:cut])
            if set(map(type, numbers)) != {int}:
                return None
            pieces.append(bytes(numbers))
        except ValueError:
            return None
        start = cut + 1
    return b"".join(pieces)


def _put_back(value: Any, lifted: dict[str, bytes]) -> Any:
    if isinstance(value, str):
        return lifted.get(value, value) if len(value) < 64 else value
    if isinstance(value, list):
        return [_put_back(child, lifted) for child in value]
    if isinstance(value, dict):
        return {name: _put_back(child, lifted) for name, child in value.items()}
    return value
