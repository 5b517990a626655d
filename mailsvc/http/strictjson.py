"""JSON as strict as RFC 8259 and RFC 7493 (I-JSON) have it: one meaning per document, or an error that says where.

orjson reads; what it lets pass (duplicate names, RFC 7493 §2.3) is found by counting. `load_large` also keeps the memory of
a large document near its size: arrays of bytes never become lists.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

import attrs
import orjson

DEPTH_MAX = 64
NODES_MAX = 1_000_000  # values in a large document, byte arrays apart
LIFT_ABOVE = 64  # octets of text of an array from which on it is lifted
PIECE = 65_536

_NAME_END = re.compile(rb'"[ \t\r\n]*:')
_BYTES_START = re.compile(rb'"(?:content|data)"[ \t\r\n]*:[ \t\r\n]*\[')
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BOM = b"\xef\xbb\xbf"


class Malformed(Exception):
    """Not the JSON that we take. The message is a sentence for the client."""


def load(raw: bytes) -> Any:
    raw = raw.removeprefix(_BOM)  # 8259 §8.1
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _why(raw, error) from None
    _check(raw, value)
    return value


def load_large(raw: bytes) -> Any:
    """Like `load`, for a thread: byte arrays named `content` or `data` come back as bytes."""
    raw, lifted = _lift(raw.removeprefix(_BOM))
    if _nodes(raw) > NODES_MAX:
        raise Malformed(f"The request body has more than {NODES_MAX} values.")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _why(raw, error) from None
    _check(raw, value)
    return _put_back(value, lifted) if lifted else value


def _check(raw: bytes, value: Any) -> None:
    """Depth and duplicate names. Every member has a colon outside strings, so equal counts prove that none was lost."""
    members = _members(value)
    if raw.count(b":") == members:
        return
    # `"` and `:` with nothing but space between them: all names, and some text inside strings, so never too few.
    if len(_NAME_END.findall(raw)) == members:
        return
    json.loads(raw, object_pairs_hook=_unique)


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
                raise Malformed(f"The request body has the field `{shown(name)}` twice.")
            seen.add(name)
    return found


def shown(name: str) -> str:
    """A name of the client's, short enough to repeat."""
    return name if len(name) <= 64 else name[:61] + "…"


# What orjson refuses


class _NotANumber(float):
    """NaN or an infinity, where the document has it."""


def _why(raw: bytes, error: orjson.JSONDecodeError) -> Malformed:
    """The field at fault, where a more lenient reader can still find it; else the place in the text."""
    if not raw:
        return Malformed("The request body is empty; it must be JSON.")
    general = Malformed(f"The request body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}.")
    try:
        value = json.loads(raw, parse_constant=_NotANumber, strict=False)
        return Malformed(_culprit(value)) if _culprit(value) else general
    except (ValueError, RecursionError):
        return general


def _culprit(value: Any, path: str = "") -> str:
    """A sentence about the first value that JSON must not have."""
    name = path.removeprefix(".") or "request body"
    if isinstance(value, dict):
        for key, child in value.items():
            if _surrogate(key):
                return f"A name in the `{name}` has a lone surrogate, which is not a character."
            if found := _culprit(child, f"{path}.{shown(key)}"):
                return found
    elif isinstance(value, list):
        for index, child in enumerate(value):
            if found := _culprit(child, f"{path}[{index}]"):
                return found
    elif isinstance(value, float) and (isinstance(value, _NotANumber) or value in (float("inf"), float("-inf"))):
        return f"The `{name}` field has a number that JSON does not have (NaN or infinite)."
    elif isinstance(value, str) and _surrogate(value):
        return f"The `{name}` field has a lone surrogate, which is not a character."
    elif isinstance(value, str) and any(character < " " for character in value):
        return f"The `{name}` field has a control character that is not escaped."
    return ""


def _surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


# Large documents


def _lift(raw: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The document with its long byte arrays replaced by unguessable strings, and what these stand for."""
    nonce = secrets.token_hex(16)
    lifted: dict[str, bytes] = {}
    kept: list[bytes] = []
    done = at = 0
    names = [_Name(b'"content"'), _Name(b'"data"')]
    while (at := min(name.next(raw, at) for name in names)) < len(raw):
        start = _BYTES_START.match(raw, at)
        # Within a string a quotation mark follows a backslash, so this one begins or ends a string; see 8259 §7.
        if start is None or raw[at - 1 : at] == b"\\":
            at += 1
            continue
        end = raw.find(b"]", start.end())
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
    """Where a text comes next; each part of a document is searched once."""

    text: bytes
    found: int = -1

    def next(self, raw: bytes, at: int) -> int:
        if self.found < at:
            self.found = raw.find(self.text, at)
            if self.found < 0:
                self.found = len(raw)
        return self.found


def _byte_array(raw: bytes, start: int, end: int) -> bytes | None:
    """The numbers between `start` and `end` as bytes; None when they are anything else than numbers from 0 to 255."""
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


def _nodes(raw: bytes) -> int:
    """An upper bound of the number of values; exact in its commas and brackets when it matters."""
    count = _separators(raw)
    return count if count <= NODES_MAX else _separators(_STRING.sub(b"", raw))


def _separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _put_back(value: Any, lifted: dict[str, bytes]) -> Any:
    if isinstance(value, str):
        return lifted.get(value, value) if len(value) < 64 else value
    if isinstance(value, list):
        return [_put_back(child, lifted) for child in value]
    if isinstance(value, dict):
        return {name: _put_back(child, lifted) for name, child in value.items()}
    return value
