"""Attached files: what receivers refuse, and what is not what it says."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator

from mailsvc.insights.checks.finding import Insight, Mail, listed
from mailsvc.mail.mime import File

IMAGE_MOST = 1 << 20  # octets
FILE_MOST = 10 << 20
ELSEWHERE = "Link to a page where it can be taken."
ENTRIES = 1000  # of an archive that are looked at

_DANGEROUS = frozenset("exe bat cmd com scr js jse vbs vbe jar msi msp iso img lnk ps1 docm xlsm pptm hta cpl wsf reg dll apk".split())
_SIGNS = {
    "application/pdf": b"%PDF-", "image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8", "application/zip": b"PK",
}  # fmt: skip


def files(mail: Mail) -> Iterator[Insight]:
    names = [file.filename or "" for file in mail.parsed.files if file.disposition == "attachment"]
    if bad := [name for name in names if name.rpartition(".")[2].lower() in _DANGEROUS]:
        seen = f"{listed(bad)} is of a kind that carries viruses."
        yield Insight("attention", "Receivers refuse this attachment", seen, "The mail bounces.", ELSEWHERE)
    if any(name.lower().endswith((".html", ".htm")) for name in names):
        yield Insight("better", "An html file is attached", "Phishing mail does that.", "Filters look twice.", "Link to a page instead.")
    if any(file.disposition == "inline" and len(file.content) > IMAGE_MOST for file in mail.parsed.files):
        yield Insight("better", "An image is large", "It has more than 1 MB.", "It loads slowly on a phone.", "Make it smaller.")


def archives(mail: Mail) -> Iterator[Insight]:
    """What is in them."""
    for file in mail.parsed.files:
        if file.content[:4] == b"PK\x03\x04" and not (file.filename or "").lower().endswith(("docx", "xlsx", "pptx")):
            locked, bad = _inside(file.content)
            if bad:
                seen = f"{_name(file)} has {listed(bad)} in it."
                yield Insight("attention", "Receivers refuse this archive", seen, "The mail bounces.", ELSEWHERE)
            elif locked:
                why = "Filters cannot look into it, so many refuse it."
                yield Insight(
                    "attention", "An archive is locked", f"{_name(file)} has a password.", why, "Link to a page that asks for a sign-in."
                )


def names(mail: Mail) -> Iterator[Insight]:
    attached = [file for file in mail.parsed.files if file.disposition == "attachment"]
    if any(not file.filename for file in attached):
        yield Insight(
            "better", "A file has no name", "Programs then show none, or a number.", "People do not open it.", "Give it a filename."
        )
    lying = [
        _name(file) for file in attached if (sign := _SIGNS.get(file.content_type)) and file.content and not file.content.startswith(sign)
    ]
    if lying:
        seen = f"{listed(lying)} has another type inside."
        yield Insight("better", "A file is not what it says", seen, "Filters count that.", "Give it the content type that it has.")
    if large := [_name(file) for file in attached if len(file.content) > FILE_MOST]:
        seen = f"{listed(large)} has more than {FILE_MOST >> 20} MB."
        why = "Some receivers take 10 MB at most, and on a phone it loads slowly."
        yield Insight("better", "A file is large", seen, why, "Link to it instead.")
    if mail.bulk and attached:
        yield Insight(
            "better",
            "Mail to many has files",
            f"There {'is' if len(attached) == 1 else 'are'} {len(attached)}.",
            "Filters look twice.",
            "Link to them.",
        )


def _inside(content: bytes) -> tuple[bool, list[str]]:
    """Whether an archive has a password, and which names in it receivers refuse."""
    try:
        entries = zipfile.ZipFile(io.BytesIO(content)).infolist()[:ENTRIES]
    except (zipfile.BadZipFile, ValueError, RuntimeError, OSError):
        return False, []
    bad = [entry.filename for entry in entries if entry.filename.rpartition(".")[2].lower() in _DANGEROUS]
    return any(entry.flag_bits & 1 for entry in entries), bad


def _name(file: File) -> str:
    return file.filename or "a file without a name"


CHECKS = (files, archives, names)
