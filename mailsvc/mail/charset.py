"""Octets to text by the name of a charset, as mail from anywhere gives it."""

from __future__ import annotations

import codecs

# Python has codecs under these names that are no charsets of mail text.
_NOT_CHARSETS = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem"})


def decode(octets: bytes, charset: str) -> str:
    """`octets` as text; what does not decode becomes U+FFFD. An unknown charset is read as UTF-8, else Latin-1."""
    try:
        name = codecs.lookup(charset.strip() or "utf-8").name
        if name.replace("_", "-") not in _NOT_CHARSETS:
            return octets.decode("utf-8" if name == "ascii" else name, "replace")
    except (LookupError, ValueError, UnicodeError):
        pass
    return guess(octets)


def guess(octets: bytes) -> str:
    """Text of which nobody said the charset: UTF-8 when it is, else Latin-1."""
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return octets.decode("latin-1")
