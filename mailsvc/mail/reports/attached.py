"""Finds the report in a mail that carries one: DMARC aggregate reports (XML) and TLS reports (JSON), plain, in gzip or in zip.

The mail comes from strangers: what a small file may become when it is decompressed is bounded, and only the beginning of a zip is read.
The reports themselves: aggregate, tls_report. Takes up to a second for a large mail, so it belongs in a thread.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from mailsvc.mail import mime

FILES = 5  # attachments of a mail that are looked at
UNPACKED = 16 * 1024 * 1024  # bytes of a decompressed report
TEXT = 255  # characters of a text, or bytes of a name, that are kept
COUNT = 10**12  # messages or sessions in one row

_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_BOM = b"\xef\xbb\xbf"
# The header of a file within a zip: version, flags, method, time, date, checksum, both sizes, lengths of the name and of other fields.
_LOCAL = struct.Struct("<4s5H3I2H")
_ENCRYPTED, _STORED, _DEFLATED = 1, 0, 8


class UnreadableReport(ValueError):
    """Why a report cannot be read, as a phrase."""


def contents(message: bytes) -> Iterator[bytes]:
    """Yields the decompressed attachments of `message` that could be a report. Raises UnreadableReport if one cannot be decompressed."""
    try:
        parsed = mime.parse(message)
    except mime.MimeError:
        raise UnreadableReport("the mail has too many parts") from None
    for file in parsed.files[:FILES]:
        content = unpacked(file.content).removeprefix(_BOM).lstrip(b" \t\r\n")
        if content[:1] in (b"<", b"{") or content[:2] in (b"\xff\xfe", b"\xfe\xff"):  # also XML in UTF-16
            yield content


def clean(text: str) -> str:
    """A value without control characters and invisible ones, made safe to store and show."""
    return " ".join("".join(each if each.isprintable() else " " for each in text[:TEXT]).split())


def name(text: str) -> str:
    """A domain, a host or a type, in the form in which names are compared."""
    return clean(text).lower().rstrip(".").encode()[:TEXT].decode("utf-8", "ignore")


def unpacked(data: bytes, limit: int = UNPACKED) -> bytes:
    """The content of a gzip (1952 §2.3) or of the first file in a zip; anything else unchanged."""
    if data.startswith(_GZIP):
        return _inflated(data, 0, 16 + zlib.MAX_WBITS, limit)
    if data.startswith(_ZIP):
        return _first_of_zip(data, limit)
    if len(data) > limit:
        raise UnreadableReport(f"it is larger than {limit} bytes")
    return data


def _first_of_zip(data: bytes, limit: int) -> bytes:
    if len(data) < _LOCAL.size:
        raise UnreadableReport("the zip is cut off")
    _, _, flags, method, _, _, _, size, _, named, other = _LOCAL.unpack_from(data)
    start = _LOCAL.size + named + other
    if flags & _ENCRYPTED:
        raise UnreadableReport("the zip is encrypted")
    if method == _DEFLATED:
        return _inflated(data, start, -zlib.MAX_WBITS, limit)
    if method == _STORED and size <= limit:
        return data[start : start + size]
    raise UnreadableReport("the zip is compressed in an unknown way")


def _inflated(data: bytes, start: int, form: int, limit: int) -> bytes:
    stream = zlib.decompressobj(form)
    try:
        content = stream.decompress(memoryview(data)[start:], limit)
    except zlib.error:
        raise UnreadableReport("it is not compressed correctly") from None
    if not stream.eof:
        raise UnreadableReport(f"it is cut off, or larger than {limit} bytes")
    return content
