"""Finds a bounce that somebody forwarded: as an attachment, or as text with the most important fields of its header above it."""

from __future__ import annotations

from mailsvc.mail.reports import phrases, report
from mailsvc.mail.reports.report import Report

_PREFIXES = ("fwd:", "fw:", "wg:", "tr:", "rv:", "vs:", "enc:", "doorst:", "转发", "轉寄", "転送")
_LINES = 400  # of the text
_HEADER = 10  # lines of a forwarded header


def read(mail: Report) -> Report | None:
    """Returns the forwarded bounce, or what its text has of it. None if the mail forwards none."""
    if not mail.fields.get("subject", "").lower().lstrip().startswith(_PREFIXES):
        return None
    if mail.attached:
        inner = report.read(mail.attached)
        return inner if _sent_by_program(inner.fields.get("from", "")) else None
    lines = [_unquoted(line) for line in mail.text.splitlines()[:_LINES]]
    for number, line in enumerate(lines):
        if line[:5].lower() == "from:" and _sent_by_program(line):
            head = [line, *_head(lines[number + 1 :])]
            fields = {name.strip().lower(): value.strip() for name, _, value in (each.partition(":") for each in head)}
            return Report("", fields, "\n".join(lines[number + len(head) :]))
    return None


def _head(lines: list[str]) -> list[str]:
    """The lines of a header, up to the empty line after it."""
    end = next((number for number, line in enumerate(lines[:_HEADER]) if not line.strip()), 0)
    return lines[:end]


def _sent_by_program(sender: str) -> bool:
    return any(word in sender.lower() for word in phrases.SENDERS)


def _unquoted(line: str) -> str:
    return line.removeprefix(">").removeprefix(" ")
