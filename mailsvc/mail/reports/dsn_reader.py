"""Reading delivery status notifications (RFC 3464, and 6533 for addresses beyond ASCII). Those that keep to no standard: oldbounce."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

import attrs

from mailsvc.mail.reports import report
from mailsvc.mail.reports.report import Report
from mailsvc.mail.xtext import unescaped

Action = Literal["failed", "delayed", "delivered", "relayed", "expanded"]  # 3464 §2.3.3

_STATUS = re.compile(r"([245])\.(\d{1,3})\.(\d{1,3})(?!\d)")
_ACTIONS = frozenset(get_args(Action))
_XTEXT = re.compile(r"\+([0-9A-F]{2})")  # 3461 §4
_LONGEST = 2000  # characters of a diagnostic


@attrs.frozen
class Fate:
    """What a notification says of one recipient. `diagnostic` is a reply as SMTP has it, when it says so; "" when it says nothing.

    `final` is the address as the last server knew it, `original` as the sender gave it; "" when it does not say.
    """

    final: str
    original: str
    action: Action
    status: str  # "5.1.1", "" when it does not say
    diagnostic: str
    remote: str  # the server that refused, "" when it does not say


@attrs.frozen
class Dsn:
    """A notification: who reports, and of whom."""

    reporter: str
    fates: tuple[Fate, ...]


def read(mail: Report) -> Dsn | None:
    """None when the mail is no such notification. Recipients that cannot be understood are left out."""
    if mail.kind != "delivery-status" or mail.status is None:
        return None
    about: dict[str, str] = {}
    fates = []
    for number, fields in enumerate(report.groups(mail.status)):
        named = dict(reversed(fields))
        if number == 0:
            about = named
        # 3464 §2.1: the first group is about the message; some leave it out, or forget the empty line after it.
        if "final-recipient" in named or "original-recipient" in named:
            fate = _fate(named)
            if fate is not None:
                fates.append(fate)
    return Dsn(_typed(about.get("reporting-mta", "")), tuple(fates))


def _fate(fields: Mapping[str, str]) -> Fate | None:
    action = fields.get("action", "").partition("(")[0].strip().lower()
    if action not in _ACTIONS:
        return None
    found = _STATUS.search(fields.get("status", ""))
    return Fate(
        final=address(fields.get("final-recipient", "")),
        original=address(fields.get("original-recipient", "")),
        action=action,  # type: ignore[arg-type]
        status=found[0] if found else "",
        diagnostic=_diagnostic(fields.get("diagnostic-code", "")),
        remote=_typed(fields.get("remote-mta", "")),
    )


def address(value: str) -> str:
    """The address of a typed field (3464 §2.1.2): `rfc822; a@b`, `utf-8; ä@b`; decoded, without angle brackets."""
    kind, mark, rest = value.partition(";")
    if not mark:
        kind, rest = "rfc822", value
    rest = _uncommented(rest).strip().removeprefix("<").removesuffix(">").strip()
    if kind.strip().lower() == "utf-8":
        return unescaped(rest)
    return _XTEXT.sub(lambda found: chr(int(found[1], 16)), rest) if "@" not in rest and "+40" in rest else rest


def _diagnostic(value: str) -> str:
    """Replies of SMTP as they are; what other systems say, as it is too, for it may hold one."""
    kind, mark, rest = value.partition(";")
    return (rest if mark and re.fullmatch(r"[\w.-]{1,40}", kind.strip()) else value).strip()[:_LONGEST]


def _typed(value: str) -> str:
    """The name of an MTA (3464 §2.1.2): `dns; mx.example.org`."""
    _, mark, rest = value.partition(";")
    return _uncommented(rest if mark else value).strip()[:255]


def _uncommented(value: str) -> str:
    """Without a comment at the end, which some add."""
    head, mark, tail = value.partition(" (")
    return head if mark and tail.rstrip().endswith(")") else value
