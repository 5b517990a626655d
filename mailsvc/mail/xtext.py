"""How text and typed addresses stand in parameters and reports: xtext (3461 §4), and the address type utf-8 (6533 §3)."""

from __future__ import annotations

import re

_XTEXT = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-F]{2})*")
_HEX = re.compile(r"\+([0-9A-F]{2})")
_ESCAPE = re.compile(r"\\x\{([0-9A-Fa-f]{2,6})\}")
_UNICODE = re.compile(r"(?:[!-*,-<>-\[\]-~]|[^\x00-\x7f]|\\x\{[0-9A-F]{2,6}\})+")
UTF8 = "utf-8"  # the address type


def xtext(text: str) -> str:
    """What is not printable ASCII, and `+` and `=`, as `+XX`."""
    return "".join(chr(o) if 33 <= o <= 126 and o not in b"+=" else f"+{o:02X}" for o in text.encode("utf-8"))


def from_xtext(text: str) -> str | None:
    """What xtext stands for, None when it is malformed or stands for anything but printable ASCII."""
    if not _XTEXT.fullmatch(text):
        return None
    decoded = _HEX.sub(lambda found: chr(int(found[1], 16)), text)
    return decoded if decoded.isascii() and decoded.isprintable() else None


def escaped(address: str) -> str:
    """utf-8-addr-xtext: an address in ASCII, which fits into every parameter and every report."""
    return "".join(c if "!" <= c <= "~" and c not in "+=\\" else f"\\x{{{ord(c):02X}}}" for c in address)


def unescaped(text: str) -> str:
    """The address behind `escaped`, or behind the same with characters as they are. Escapes of what is no character stay."""
    return _ESCAPE.sub(_character, text)


def from_utf8(text: str) -> str | None:
    """The address of a parameter of type utf-8 (utf-8-addr-xtext or -unitext), None when it is malformed or cannot be printed."""
    if not _UNICODE.fullmatch(text) or any(_character(found) == found[0] for found in _ESCAPE.finditer(text)):
        return None
    address = unescaped(text)
    return address if address.isprintable() else None


def typed(kind: str, address: str) -> str:
    """`kind;address` as a parameter (ORCPT) has it, always in ASCII."""
    return f"{kind};{escaped(address) if kind.lower() == UTF8 else xtext(address)}"


def _character(found: re.Match[str]) -> str:
    number = int(found[1], 16)
    return found[0] if number > 0x10FFFF or 0xD800 <= number < 0xE000 or number < 0x20 else chr(number)
