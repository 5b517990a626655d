"""Reads delivery status notifications (RFC 3464, and 6533 for non-ASCII addresses). Non-standard bounces: text_bounce."""

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
_ACTIONS: dict[str, Action] = {name: name for name in get_args(Action)} | {  # and what some programs write instead
    **dict.fromkeys(("failure", "fail", "error", "expired", "bounced", "undeliverable", "rejected", "hardbounce"), "failed"),
    **dict.fromkeys(("delay", "deferred", "warning"), "delayed"),
}
# Where the fields of a notification begin that is in a text for people, as Amazon WorkMail sends it, or after its boundaries got lost.
_FIELDS = re.compile(r"^(?:reporting-mta|final-recipient|original-recipient|action): ", re.IGNORECASE | re.MULTILINE)
_XTEXT = re.compile(r"\+([0-9A-F]{2})")  # 3461 §4
_LONGEST = 2000  # characters of a diagnostic


@attrs.frozen
class ReportedRecipient:
    """What a notification reports about one recipient. What it does not report is "".

    `final` is the address as the last server knew it, `original` as the sender gave it. `diagnostic` is usually an SMTP reply, `remote`
    the server that refused the mail. `explanation` is what the text for people says about the recipient;
    `near`: it says so beside the recipient's address.
    `alias`: `original` is forwarded to `final`, and perhaps to others.
    """

    final: str
    original: str
    action: Action
    status: str  # such as "5.1.1"
    diagnostic: str
    remote: str
    explanation: str = ""
    near: bool = False
    alias: bool = False


@attrs.frozen
class Dsn:
    """A notification: the reporting server, and the recipients."""

    reporter: str
    recipients: tuple[ReportedRecipient, ...]


def read(mail: Report) -> Dsn | None:
    """Returns None if the mail is not a delivery status notification, or has no recipients. Leaves out recipients that cannot be parsed."""
    status = mail.status if mail.kind == "delivery-status" else None
    if status is None:
        found = _FIELDS.search(mail.text) if mail.kind in ("", "delivery-status") else None
        if found is None:
            return None
        status = mail.text[found.start() :].encode("utf-8", "replace")
    about: dict[str, str] = {}
    recipients, groups = [], 0
    for number, fields in enumerate(report.groups(status)):
        named = dict(reversed(fields))
        if number == 0:
            about = named
        # 3464 §2.1: the first group is about the message. Some servers omit it, or the empty line after it.
        if "final-recipient" in named or "original-recipient" in named:
            groups += 1
            recipient = recipient_of(named)
            if recipient is not None:
                recipients.append(recipient)
    if not groups:
        return None
    return Dsn(_mta_name(about.get("reporting-mta", "")), tuple(recipients))


def recipient_of(fields: Mapping[str, str]) -> ReportedRecipient | None:
    """What a group of fields reports about a recipient. None if it has no known action."""
    found = _STATUS.search(fields.get("status", ""))
    written = fields.get("action", "").partition("(")[0].partition(";")[0].strip().lower()
    action = _ACTIONS.get(written or ("failed" if found and found[1] == "5" else ""))
    if action is None:
        return None
    return ReportedRecipient(
        final=address(fields.get("final-recipient", "")),
        original=address(fields.get("original-recipient", "")),
        action=action,
        status=found[0] if found else "",
        diagnostic=_diagnostic(fields.get("diagnostic-code", "")),
        remote=_mta_name(fields.get("remote-mta", "")),
    )


def address(value: str) -> str:
    """Returns the decoded address of a typed field (3464 §2.1.2), such as `rfc822; a@b` or `utf-8; ä@b`, without angle brackets."""
    kind, mark, rest = value.partition(";")
    if not mark:
        kind, rest = "rfc822", value
    rest = _without_comment(rest).strip().removeprefix("<").removesuffix(">").strip()
    if kind.strip().lower() == "utf-8":
        return unescaped(rest)
    return _XTEXT.sub(lambda found: chr(int(found[1], 16)), rest) if "@" not in rest and "+40" in rest else rest


def _diagnostic(value: str) -> str:
    """Returns the diagnostic without its type. Other types than smtp can also contain an SMTP reply."""
    kind, mark, rest = value.partition(";")
    return (rest if mark and re.fullmatch(r"[\w.-]{1,40}", kind.strip()) else value).strip()[:_LONGEST]


def _mta_name(value: str) -> str:
    """Returns the name of an MTA (3464 §2.1.2) from `dns; mx.example.org`."""
    _, mark, rest = value.partition(";")
    return _without_comment(rest if mark else value).strip()[:255]


def _without_comment(value: str) -> str:
    """Removes a comment at the end, which some servers add."""
    head, mark, tail = value.partition(" (")
    return head if mark and tail.rstrip().endswith(")") else value
