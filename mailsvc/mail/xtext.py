"""Encodings of text and addresses in SMTP parameters and reports: xtext (3461 §4), and the address type utf-8 (6533 §3)."""

from __future__ import annotations

import re

_XTEXT = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-F]{2})*")
_HEX = re.compile(r"\+([0-9A-F]{2})")
_ESCAPE = re.compile(r"\\x\{([0-9A-Fa-f]{2,6})\}")
_UNICODE = re.compile(r"(?:[!-*,-<>-\[\]-~]|[^\x00-\x7f]|\\x\{[0-9A-F]{2,6}\})+")
UTF8 = "utf-8"  # the address type


def xtext(text: str) -> str:
    """Encodes everything except printable ASCII, and `+` and `=`, as `+XX`."""
    return "".join(chr(o) if 33 <= o <= 126 and o not in b"+=" else f"+{o:02X}" for o in text.encode("utf-8"))


def from_xtext(text: str) -> str | None:
    """Decodes xtext. None if it is malformed or not printable ASCII."""
    if not _XTEXT.fullmatch(text):
        return None
    decoded = _HEX.sub(lambda found: chr(int(found[1], 16)), text)
    return decoded if decoded.isascii() and decoded.isprintable() else None


def escaped(address: str) -> str:
    """Encodes an address as utf-8-addr-xtext, in ASCII."""
    return "".join(c if "!" <= c <= "~" and c not in "+=\\" else f"\\x{{{ord(c):02X}}}" for c in address)


def unescaped(text: str) -> str:
    """Decodes an address, with or without escapes. Invalid escapes are kept."""
    return _ESCAPE.sub(_character, text)


def from_utf8(text: str) -> str | None:
    """Decodes an address of type utf-8 (utf-8-addr-xtext or -unitext). None if it is malformed or not printable."""
    if not _UNICODE.fullmatch(text) or any(_character(found) == found[0] for found in _ESCAPE.finditer(text)):
        return None
    address = unescaped(text)
    return address if address.isprintable() else None


def typed(kind: str, address: str) -> str:
    """Encodes `kind;address` for ORCPT, in ASCII."""
    return f"{kind};{escaped(address) if kind.lower() == UTF8 else xtext(address)}"


def _character(found: re.Match[str]) -> str:
    number = int(found[1], 16)
    return found[0] if number > 0x10FFFF or 0xD800 <= number < 0xE000 or number < 0x20 else chr(number)
