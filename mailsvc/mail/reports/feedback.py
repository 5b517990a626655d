"""Reads abuse reports (ARF, RFC 5965): who complained about which mail."""

from __future__ import annotations

import attrs

from mailsvc.mail.reports import report
from mailsvc.mail.reports.dsn_reader import address
from mailsvc.mail.reports.report import Report

# Types that mean that the mail was unwanted. The others (not-spam, virus, auth-failure, other …) are not complaints.
_COMPLAINTS = frozenset({"abuse", "fraud", "opt-out", "opt-out-list"})  # 5965 §3.5, §7.3, and opt-out-list, formerly in the registry


@attrs.frozen
class Feedback:
    """A report. `recipients` can be empty, because many reporters omit the address."""

    kind: str
    agent: str  # the program that created it
    recipients: tuple[str, ...]
    sender: str  # the return path of the mail, "" if unknown

    @property
    def complaint(self) -> bool:
        return self.kind in _COMPLAINTS


def read(mail: Report) -> Feedback | None:
    """Returns None if the mail is not an abuse report, or has no feedback type."""
    junk = mail.returned.get("x-hmxmroriginalrecipient", "")
    if junk:  # Microsoft's Junk Mail Reporting Program sends the mail itself, with this field added
        return Feedback("abuse", "Microsoft JMRP", (address(junk),), address(mail.returned.get("return-path", "")))
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
