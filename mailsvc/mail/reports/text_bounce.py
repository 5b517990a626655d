"""Reads bounces that only people can read, such as those of qmail, Exim, OpenSMTPD and Yahoo, and the human-readable part of others.

A mail is one if its sender has a known name, and its subject or text a known phrase. `phrases` has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest

import attrs

from mailsvc.mail.reports import phrases
from mailsvc.mail.reports.dsn_reader import Action, ReportedRecipient
from mailsvc.mail.reports.report import Report

_LINES = 400  # of the text
_LONGEST = 1000  # characters of a line, and of an error
_NEAR = 12  # lines after an address that are searched for its error
_RECIPIENTS = 200
_EDGE = " \t\r<>()[]{}-*•·|'\"=:,;"

_ADDRESS = re.compile(
    r"(?:\"[^\s\"\\@]{1,62}\"|[^\s<>()\[\]:;,\"'（）＜＞「」【】《》、。，：；]{1,64})@[^\s<>()\[\]:;,\"'@（）＜＞「」【】《》、。，：；]{1,255}"
)
_ALIAS = re.compile(r"\((?:ultimately )?generated from ([^\s()@]{1,64}@[^\s()@]{1,255})\)")  # by Exim, after the address of a forwarding
_REPLY = re.compile(r"(?<![\d.+:/-])([45]\d\d)[ :-]{1,3}(?=[\w#<'\"(\[{:/-])")
_STATUS = re.compile(r"(?<![\d.])#?([45]\.\d{1,3}\.\d{1,3})(?![\d.]?\d)")
_CODE_ONLY = re.compile(r"(?:<<< )?[45]\d\d[ -]?(?:#?[45]\.\d{1,3}\.\d{1,3})?")
_LINE_OF_REPLY = re.compile(r"(?:<<< )?([2-5]\d\d)([ -])")


@attrs.frozen
class _Place:
    """Where the text names a recipient. `error` begins in that line at `start`. `alias`: the address that is forwarded to it."""

    address: str
    line: int
    start: int
    alias: str = ""


def read(mail: Report) -> tuple[ReportedRecipient, ...]:
    """Returns the recipients that failed or are delayed; empty if the mail is not a bounce that is recognized here."""
    named = _ADDRESS.findall(mail.fields.get("x-failed-recipients", "")[: 64 * 1024])[:_RECIPIENTS]  # Exim, Google
    lines, below = _split(mail.text)
    text = " ".join("\n".join(lines).lower().split())  # phrases can be broken between lines
    if not named and not _recognized(mail, text):
        return ()
    action: Action = "delayed" if _any(phrases.DELAYED, text + mail.fields.get("subject", "")[:_LONGEST].lower()) else "failed"
    places = _places(lines, own=_ADDRESS.findall(mail.fields.get("to", "")[:_LONGEST]))
    found = {address.lower(): address for address in (*(place.address for place in places), *named)}
    if not found:
        return (_reported(_returned_to(mail, below), lines, "", action),)
    near = _near(lines, places)
    errors = {address: _error(near, address) for address in [*found.values()][:_RECIPIENTS]}
    failed = {address.lower() for address in named}
    # An address without a text of its own is only mentioned, if others have one.
    wanted = [address for address, error in errors.items() if error or address.lower() in failed] or [*errors]
    alone = lines if len(failed or wanted) == 1 else []
    aliases = {place.address.lower(): place.alias for place in places if place.alias}
    reported = [_reported(address, alone, errors[address], action) for address in wanted]
    return tuple(
        attrs.evolve(each, original=aliases[each.final.lower()], alias=True) if each.final.lower() in aliases else each for each in reported
    )


def is_rejection(mail: Report) -> bool:
    """Whether a receipt says that a filter of the recipient rejected the mail (5429 §2.1)."""
    return mail.kind == "disposition-notification" and _any(phrases.REJECTED, " ".join(mail.text[: _LONGEST * 4].lower().split()))


def explanations(text: str, addresses: Sequence[str]) -> list[tuple[str, bool]]:
    """Returns what a text says about each recipient, and whether near its address. If it is not, the only recipient gets all of it."""
    lines, _ = _split(text)
    near = _near(lines, _places(lines, own=[]))
    whole = (_reply(lines) or _joined(lines)) if len(addresses) == 1 else ""
    errors = {address: _error(near, address) for address in {address.lower() for address in addresses}}
    return [(errors[address.lower()] or whole, bool(errors[address.lower()])) for address in addresses]


def _recognized(mail: Report, text: str) -> bool:
    """Whether a program that sends bounces wrote it. A reply of a person can have the subject and the words of a bounce too."""
    sender = mail.fields.get("from", "").lower()
    if sender.strip(" <>") and not _any(phrases.SENDERS, sender) and "x-mlserver" not in mail.fields:  # FML, a mailing list manager
        return False
    subject = mail.fields.get("subject", "")[:_LONGEST].lower()
    if _any(phrases.DELIVERED, subject + text):
        return False
    return _any(phrases.SUBJECTS, subject) or _any(phrases.FAILED, text) or _any(phrases.DELAYED, text)


def _any(words: tuple[str, ...], text: str) -> bool:
    return any(word in text for word in words)


def _split(text: str) -> tuple[list[str], list[str]]:
    """Returns the lines of the report, and those of the mail that it returns."""
    lines = [line[:_LONGEST] for line in text.splitlines()[:_LINES]]
    for number, line in enumerate(lines):
        plain = line.strip(_EDGE + "_").lower()
        marked = line.lstrip().startswith(("--", "==", "__", "**", "|--"))
        # An indented field is of the report: iPlanet quotes some fields of the mail above the recipients.
        if plain.startswith(phrases.SEPARATORS if marked else phrases.ENDS) or (line[:1] not in " \t" and plain.startswith(phrases.FIELDS)):
            return lines[:number], lines[number + 1 :]
    return lines, []


def _places(lines: list[str], own: list[str]) -> list[_Place]:
    """Finds the recipients. If none is introduced as such, it is the only address other than that of the bounce's own recipient."""
    ignored = {address.lower() for address in own}
    introduced, others = [], []
    for number, line in enumerate(lines):
        for found in _ADDRESS.finditer(line):
            address = found[0].strip(".*=`")
            if "@" not in address or address.lower() in ignored:
                continue
            before = line[: found.start()].strip(_EDGE)
            reply = _CODE_ONLY.fullmatch(before)
            forwarded = _ALIAS.search(lines[number + 1]) if number + 1 < len(lines) else None
            place = _Place(address, number, 0 if before else found.end(), forwarded[1] if forwarded else "")
            if _ALIAS.search(line) or before.lower().endswith(phrases.CONTACTS):
                pass
            elif not before or reply or before.lower().endswith(phrases.INTRODUCTIONS):
                introduced.append(place)
            else:
                others.append(place)
            break
        if len(introduced) >= _RECIPIENTS:
            break
    if introduced:
        return introduced
    return others if len({place.address.lower() for place in others}) == 1 else []


def _near(lines: list[str], places: list[_Place]) -> dict[str, list[list[str]]]:
    """Returns, for each address in lower case, the lines near each of its places: up to the next place, or a few."""
    found: dict[str, list[list[str]]] = {}
    for place, following in zip_longest(places, places[1:]):
        end = min(place.line + 1 + _NEAR, following.line if following else len(lines))
        found.setdefault(place.address.lower(), []).append([lines[place.line][place.start :], *lines[place.line + 1 : end]])
    return found


def _error(near: Mapping[str, list[list[str]]], address: str) -> str:
    """Returns the reply near one of the places, otherwise the text that follows the first."""
    parts = near.get(address.lower(), [])
    replies = [_reply(each) for each in parts]
    texts = [_joined(each) for each in parts]
    return next(filter(None, [*replies, *(text for text in texts if _STATUS.search(text)), _joined(texts)]), "")


def _reply(lines: list[str]) -> str:
    """Returns the first refusal in the lines, with its further lines."""
    for number, line in enumerate(lines):
        found = _REPLY.search(line)
        if found is None:
            continue
        parts = [line[found.start() :]]
        for other in lines[number + 1 :]:
            begins = _LINE_OF_REPLY.match(other.strip())
            before = _LINE_OF_REPLY.match(parts[-1].strip())
            if (
                not other.strip(_EDGE)
                or other.startswith((">>>", "[", "Giving up", "I'm not going", "--"))
                or (begins and not (before and before[2] == "-"))
            ):
                break
            parts.append(other.strip().removeprefix("<<< "))
        return _joined(parts)
    return ""


def _joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines)[:_LONGEST].split()).strip(" >:")


def _reported(address: str, lines: list[str], error: str, action: Action) -> ReportedRecipient:
    """What happened to a recipient. `error` is what the text says about it, `lines` the text if it is about no other recipient."""
    if _REPLY.match(error) is None:
        error = _reply(lines) or error
    status = _STATUS.search(error)
    return ReportedRecipient(address, "", action, status[1] if status else "", error, "", _joined(lines))


def _returned_to(mail: Report, below: list[str]) -> str:
    """Returns the recipient of the returned mail, for a bounce that names none; "" if there are several."""
    given = mail.returned.get("to", "") or next((line[3:] for line in below if line[:3].lower() == "to:"), "")
    found = _ADDRESS.findall(given[:_LONGEST])
    return found[0] if len(found) == 1 else ""
