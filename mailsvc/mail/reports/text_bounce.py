"""Reads non-standard bounces, such as those of qmail, Exim, old Exchange and sendmail.

A recipient counts as failed only if the mail contains a known sentence of such programs, and a permanent error next to the address.
"""

from __future__ import annotations

import re

from mailsvc.mail.reports.dsn_reader import Fate
from mailsvc.mail.reports.report import Report

_LINES = 400  # of the text
_LONGEST = 1000  # characters of a line
_NEAR = 8  # lines after an address that are searched for its error

# How bounces begin (qmail, Exim, sendmail, Exchange, Notes, …), or how they introduce the list of failed recipients.
_BEGINNINGS = re.compile(
    r"this is the \S{1,30} program|i'm afraid i wasn't able to deliver|this message was created automatically by mail delivery software"
    r"|could not be delivered to (one or more|all|some)|did not reach (some|all|the following|your)|undeliverable:"
    r"|following addresses? (had|failed)|permanent (fatal )?errors?|delivery (to the following recipients? )?(has )?failed"
    r"|returned to sender|your message (could not|cannot|couldn't) be delivered|transcript of session follows",
    re.IGNORECASE,
)
# A warning that mail is delayed is not a bounce.
_WARNING = re.compile(
    r"has not yet been delivered|will (keep|continue) (on )?trying|warning message only|you do not need to resend", re.IGNORECASE
)
# Where the returned mail begins.
_BELOW = re.compile(
    r"^\s*-{2,}\s*(below this line|this is a copy|original message|returned message|message header|forwarded)"
    r"|^\s*-{3,} ?(unsent|this is the)|^(received|return-path|message-id): ",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"[^\s<>()\[\]:;,\"']{1,64}@[^\s<>()\[\]:;,\"'@]{1,255}")
_REPLY = re.compile(r"(?<![\d.])(5\d\d)(?:[ -](?:#?(5\.\d{1,3}\.\d{1,3})\b)?|\b)")
_STATUS = re.compile(r"(?<![\d.])#?(5\.\d{1,3}\.\d{1,3})(?![\d.])")
_MAILERS = re.compile(r"mailer-daemon|postmaster|mail ?delivery|mail ?administrator", re.IGNORECASE)


def read(mail: Report) -> tuple[Fate, ...]:
    """Returns the recipients that failed permanently; empty if the mail is not a bounce that is recognized here."""
    failed = mail.fields.get("x-failed-recipients", "")  # Exim
    if not failed and not _MAILERS.search(mail.fields.get("from", "")):
        return ()
    text = _text(mail.text)
    joined = "\n".join(text)
    if _WARNING.search(joined) or not _BEGINNINGS.search(joined):
        return ()
    found = {fate.final.lower(): fate for fate in _failures(text)}
    for address in _ADDRESS.findall(failed[: 64 * 1024]):
        # Exim: all recipients in this field failed. The reply, if there is one, is in the text.
        found.setdefault(address.lower(), Fate(address, "", "failed", "", "", ""))
    return tuple(found.values())


def _text(text: str) -> list[str]:
    lines = []
    for line in text.splitlines()[:_LINES]:
        if _BELOW.search(line[:_LONGEST]):
            break
        lines.append(line[:_LONGEST])
    return lines


def _failures(lines: list[str]) -> list[Fate]:
    """Finds addresses that are followed by a 5yz reply, on the same line or before the next address at the start of a line."""
    fates = []
    for number, line in enumerate(lines):
        found = _ADDRESS.search(line)
        if found is None or (line[: found.start()].strip(" \t<-*'\"") and not line.lstrip().startswith("To:")):
            continue
        near = [line[found.end() :]]
        for other in lines[number + 1 : number + 1 + _NEAR]:
            start = _ADDRESS.search(other)
            if start is not None and not other[: start.start()].strip(" \t<-*'\""):
                break
            near.append(other)
        reply = _permanent_error(near)
        if reply is not None:
            status, diagnostic = reply
            fates.append(Fate(found[0].rstrip("."), "", "failed", status, diagnostic, ""))
    return fates


def _permanent_error(lines: list[str]) -> tuple[str, str] | None:
    """Returns the status and the text of the first permanent error."""
    for line in lines:
        found = _REPLY.search(line)
        if found is not None:
            return found[2] or "", line[found.start() :].strip()
    for line in lines:
        status = _STATUS.search(line)
        if status is not None:
            return status[1], f"550 {status[1]} {line[status.end() :].strip(' )>#:')}".rstrip()
    return None
