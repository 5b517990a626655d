"""Reading abuse reports (ARF, RFC 5965): who complained about which mail."""

from __future__ import annotations

import attrs

from mailsvc.mail.reports import report
from mailsvc.mail.reports.dsn_reader import address
from mailsvc.mail.reports.report import Report

# Types with which somebody says that the mail was not wanted; the others (not-spam, virus, auth-failure, other …) are no complaint.
_COMPLAINTS = frozenset({"abuse", "fraud", "opt-out", "opt-out-list"})  # 5965 §3.5, §7.3, and the registry's former opt-out-list


@attrs.frozen
class Feedback:
    """A report. `recipients` may be empty: many who report leave the address out."""

    kind: str
    agent: str  # the program that made it
    recipients: tuple[str, ...]
    sender: str  # the return path of the mail, "" when it does not say

    @property
    def complaint(self) -> bool:
        return self.kind in _COMPLAINTS


def read(mail: Report) -> Feedback | None:
    """None when the mail is no such report, or one without its type."""
    if mail.kind != "feedback-report" or mail.status is None:
        return None
    fields = [field for group in report.groups(mail.status) for field in group]
    named = dict(reversed(fields))
    kind = named.get("feedback-type", "").lower()
    if not kind:
        return None
    given = tuple(address(value) for name, value in fields if name in ("original-rcpt-to", "removal-recipient"))
    sender = named.get("original-mail-from") or mail.returned.get("return-path", "")
    return Feedback(kind, named.get("user-agent", ""), given, address(sender))
