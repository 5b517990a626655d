"""Encodes and decodes parameters of MIME fields (RFC 2045 §5.1, 2231): `; filename="a.pdf"`, and its long and non-ASCII forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

from mailsvc.mail import charset, encoded_word

_SHORT = 60
_ATTRIBUTE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$&+-.^_`{|}~")  # 2231 §7
_PERCENT = tuple(chr(byte) if byte in _ATTRIBUTE else f"%{byte:02X}" for byte in range(256))
_PLAIN = re.compile(r"(?! )(?!.*=\?)[ -~]*(?<! )")  # readers strip spaces, and some decode "=?" as an encoded word

_PARAMETER = re.compile(r';\s*+([^\s=;"]++)\s*+=\s*+(?:"((?>(?:[^"\\]|\\.)*))"?|([^;]*+))', re.DOTALL)
_SECTION = re.compile(r"([^*]+)(?:\*(\d{1,4}))?(\*)?")


def encode(name: str, value: str) -> list[str]:
    """Returns the parameter as one or more `name=value`, each of which fits on a line.

    Uses either the plain or the extended form, never both: that would define the parameter twice (2231 §3, §4), and readers differ in
    which one they use.
    """
    if len(value) <= _SHORT and _PLAIN.fullmatch(value):
        return [_quoted(name, value)]
    pieces = list(_pieces(value))
    if len(pieces) == 1:
        return [f"{name}*=UTF-8''{pieces[0]}"]
    pieces[0] = "UTF-8''" + pieces[0]
    return [f"{name}*{number}*={piece}" for number, piece in enumerate(pieces)]


def _quoted(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


def _pieces(value: str) -> Iterator[str]:
    """Yields the percent-encoded value in pieces that fit on a line. Never splits a character."""
    piece = ""
    for character in value:
        coded = "".join([_PERCENT[byte] for byte in character.encode("utf-8")])
        if len(piece) + len(coded) > _SHORT - 10:
            yield piece
            piece = ""
        piece += coded
    yield piece


def in_ascii(field: str) -> tuple[str, list[str]]:
    """Returns the value of a field and its parameters as they are written, but those that are not ASCII in the extended form."""
    value = field.partition(";")[0]
    written: list[str] = []
    for found in _PARAMETER.finditer(field, len(value)):
        written += [found[0][1:].strip()] if found[0].isascii() else encode(found[1].removesuffix("*"), _text(found))
    return value.strip(), written


def _text(found: re.Match[str]) -> str:
    return re.sub(r"\\(.)", r"\1", found[2], flags=re.DOTALL) if found[2] is not None else found[3].strip()


def decode(field: str) -> tuple[str, dict[str, str]]:
    """Returns the value and the parameters, by name in lower case, of a Content-Type or Content-Disposition. Never raises."""
    value = field.partition(";")[0].strip().lower()
    plain: dict[str, str] = {}
    sections: dict[str, dict[int, tuple[bool, str]]] = {}
    for found in _PARAMETER.finditer(field, len(field.partition(";")[0])):
        text = _text(found)
        section = _SECTION.fullmatch(found[1].lower())
        if section is None or (section[2] is None and section[3] is None):
            plain.setdefault(found[1].lower(), encoded_word.decode(text) if "=?" in text else text)
        else:
            sections.setdefault(section[1], {}).setdefault(int(section[2] or 0), (bool(section[3]), text))
    return value, plain | {name: _join(parts) for name, parts in sections.items()}


def _join(parts: dict[int, tuple[bool, str]]) -> str:
    """Joins the sections up to the first gap (2231 §3), and decodes them with the charset of the first (§4.1)."""
    data, name = bytearray(), "utf-8"
    for number in range(len(parts)):
        if number not in parts:
            break
        extended, text = parts[number]
        if extended and number == 0 and text.count("'") >= 2:
            name, _, text = text.split("'", 2)
        raw = text.encode("utf-8", "replace")
        data += unquote_to_bytes(raw) if extended else raw
    return charset.decode(bytes(data), name)
