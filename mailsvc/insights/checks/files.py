"""Checks of attachments: types that receivers refuse, and content that does not match its type."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice

from mailsvc.insights.checks.finding import Insight, Mail, listed
from mailsvc.mail.mime import File

IMAGE_MAX = 1 << 20  # bytes
FILE_MAX = 10 << 20
DOWNLOAD = "Link to a page where it can be downloaded."
ENTRIES = 1000  # of an archive that are examined

# The end of an archive, which says where its directory is, and one entry of the directory (APPNOTE.TXT 4.3.16, 4.3.12).
_END, _ENTRY = struct.Struct("<4s4H2IH"), struct.Struct("<4s6H3I5H2I")
_COMMENT_MAX = 65_535  # bytes after the end

_DANGEROUS = frozenset("exe bat cmd com scr js jse vbs vbe jar msi msp iso img lnk ps1 docm xlsm pptm hta cpl wsf reg dll apk".split())
_MAGIC = {
    "application/pdf": b"%PDF-", "image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8", "application/zip": b"PK",
}  # fmt: skip


def files(mail: Mail) -> Iterator[Insight]:
    names = [file.filename or "" for file in mail.parsed.files if file.disposition == "attachment"]
    if bad := [name for name in names if name.rpartition(".")[2].lower() in _DANGEROUS]:
        seen = f"{listed(bad)} has a type that often carries viruses."
        yield Insight("attention", "This attachment will be rejected", seen, "The email bounces.", DOWNLOAD)
    if any(name.lower().endswith((".html", ".htm")) for name in names):
        yield Insight(
            "better",
            "An HTML file is attached",
            "There is an .html attachment.",
            "Phishing emails often have one, so filters are suspicious.",
            "Link to a page instead.",
        )
    if any(file.disposition == "inline" and len(file.content) > IMAGE_MAX for file in mail.parsed.files):
        yield Insight("better", "An image is large", "It is larger than 1 MB.", "It loads slowly on phones.", "Compress or resize it.")


def archives(mail: Mail) -> Iterator[Insight]:
    """The contents of ZIP archives."""
    for file in mail.parsed.files:
        if file.content[:4] == b"PK\x03\x04" and not (file.filename or "").lower().endswith(("docx", "xlsx", "pptx")):
            locked, bad = _inside(file.content)
            if bad:
                seen = f"{_name(file)} contains {listed(bad)}."
                yield Insight("attention", "This archive will be rejected", seen, "The email bounces.", DOWNLOAD)
            elif locked:
                why = "Filters cannot scan it, so many receivers reject it."
                yield Insight(
                    "attention",
                    "An archive is password-protected",
                    f"{_name(file)} requires a password.",
                    why,
                    "Link to a page that requires signing in.",
                )


def names(mail: Mail) -> Iterator[Insight]:
    attached = [file for file in mail.parsed.files if file.disposition == "attachment"]
    if any(not file.filename for file in attached):
        yield Insight(
            "better",
            "An attachment has no filename",
            "At least one attachment has no filename.",
            "People rarely open unnamed files.",
            "Set a filename.",
        )
    mismatched = [
        _name(file) for file in attached if (sign := _MAGIC.get(file.content_type)) and file.content and not file.content.startswith(sign)
    ]
    if mismatched:
        seen = f"The content of {listed(mismatched)} has another type."
        yield Insight("better", "A file does not match its type", seen, "Spam filters penalize that.", "Set the correct content type.")
    if large := [_name(file) for file in attached if len(file.content) > FILE_MAX]:
        seen = f"{listed(large)} is larger than {FILE_MAX >> 20} MB."
        why = "Some receivers accept at most 10 MB, and it loads slowly on phones."
        yield Insight("better", "A file is large", seen, why, "Link to it instead.")
    if mail.bulk and attached:
        yield Insight(
            "better",
            "Bulk email with attachments",
            f"There {'is' if len(attached) == 1 else 'are'} {len(attached)}.",
            "Filters are suspicious of it.",
            "Link to the files instead.",
        )


def _inside(content: bytes) -> tuple[bool, list[str]]:
    """Whether an archive is encrypted, and the files in it that receivers refuse."""
    entries = [*islice(_entries(content), ENTRIES)]
    bad = [name for name, _ in entries if name.rpartition(".")[2].lower() in _DANGEROUS]
    return any(locked for _, locked in entries), bad


def _entries(content: bytes) -> Iterator[tuple[str, bool]]:
    """The name of each file in an archive, and whether it is encrypted.

    `zipfile` reads the whole directory first: a million entries that take 40 MB would become objects of half a gigabyte.
    """
    end = content.rfind(b"PK\x05\x06", max(0, len(content) - _END.size - _COMMENT_MAX))
    if end < 0 or len(content) - end < _END.size:
        return
    *_, size, offset, _ = _END.unpack_from(content, end)
    places = (end - size, offset)  # the former also if something precedes the archive
    at = next((place for place in places if 0 <= place < end and content.startswith(b"PK\x01\x02", place)), end)
    while at + _ENTRY.size <= end and content.startswith(b"PK\x01\x02", at):
        found = _ENTRY.unpack_from(content, at)
        flags, named, more, comment = found[3], found[10], found[11], found[12]
        begins = at + _ENTRY.size
        yield content[begins : begins + named].decode("utf-8" if flags & 0x800 else "cp437", "replace"), bool(flags & 1)
        at = begins + named + more + comment


def _name(file: File) -> str:
    return file.filename or "an unnamed file"


CHECKS = (files, archives, names)
