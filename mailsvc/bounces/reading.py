"""Parses returned mail, whatever software wrote it: permanent failures, a complaint, or something that changes nothing. Pure.

The formats themselves: mail/reports. Taking the mail and recording the result: intake.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Literal

import attrs

from mailsvc.bounces.diagnosis import Diagnosis, diagnose
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.mail.reply import Reply
from mailsvc.mail.reply import read as parse_reply
from mailsvc.mail.reports import auto_reply, dsn_reader, feedback, report, text_bounce
from mailsvc.mail.reports.dsn_reader import Fate
from mailsvc.mail.reports.feedback import Feedback
from mailsvc.outcome import Bounced
from mailsvc.store.events.async_bounces import Complained, Report
from mailsvc.store.mail.dsn_requests import Passed

Kind = Literal["bounce", "delay", "success", "complaint", "feedback", "automatic", "unknown"]  # only bounce and complaint change anything

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]+")
_TEXT_MAX = 500  # characters of a diagnostic or a name that are kept


@attrs.frozen
class ReportMail:
    """A parsed mail. `failed`: recipients whose delivery failed; `feedback`: a complaint.

    `others`: all other recipients that a notification reports on. They change nothing, but a submitter may have requested to know.
    """

    kind: Kind
    failed: tuple[Fate, ...] = ()
    reporter: str = ""
    feedback: Feedback | None = None
    others: tuple[Fate, ...] = ()

    def reports(self, addresses: Sequence[str]) -> list[Report]:
        """What it reports about an email's recipients, given their addresses."""
        if self.feedback is not None:
            return [Report(number, _complaint(self.feedback)) for number in match_recipients(addresses, *self.feedback.recipients)[:1]]
        found: dict[int, Report] = {}
        for fate in self.failed:
            for number in match_recipients(addresses, fate.original, fate.final, alone=len(self.failed) == 1)[:1]:
                named = addresses[number].lower() in (fate.original.lower(), fate.final.lower())
                found.setdefault(number, Report(number, bounced(fate, self.reporter, named)))
        return [*found.values()]

    def forwardable(self, addresses: Sequence[str]) -> list[Passed]:
        """What it reports about recipients that did not fail, given the email's addresses."""
        found: dict[int, Passed] = {}
        for fate in self.others:
            alone = len(self.others) == 1 and not self.failed
            for number in match_recipients(addresses, fate.original, fate.final, alone=alone)[:1]:
                assert fate.action != "failed"
                text = _short(fate.diagnostic)
                said = text if parse_reply(text) is not None else f"{fate.status} {text}".strip()
                found.setdefault(number, Passed(number, fate.action, said, _short(fate.remote or self.reporter)))
        return [*found.values()]


def read(message: bytes) -> ReportMail:
    """Never raises, whatever the message contains."""
    mail = report.read(message)
    dsn = dsn_reader.read(mail)
    if dsn is not None:
        failed = tuple(fate for fate in dsn.fates if fate.action == "failed")
        others = tuple(fate for fate in dsn.fates if fate.action != "failed")
        delayed = any(fate.action == "delayed" for fate in others)
        kind: Kind = "bounce" if failed else "delay" if delayed else "success" if others else "unknown"
        return ReportMail(kind, failed, dsn.reporter, others=others)
    complaint = feedback.read(mail)
    if complaint is not None:
        return ReportMail("complaint", feedback=complaint) if complaint.complaint else ReportMail("feedback")
    failed = text_bounce.read(mail)
    if failed:
        return ReportMail("bounce", failed)
    return ReportMail("automatic" if auto_reply.recognised(mail) else "unknown")


def match_recipients(addresses: Sequence[str], *named: str, alone: bool = True) -> list[int]:
    """The numbers of the recipients with the given names. If no name is known and the email has one recipient, that one.

    Servers that forward mail report the address that they forwarded to, and many complaints leave the address out.
    """
    known = {_plain(address): number for number, address in reversed([*enumerate(addresses)])}
    found = [known[_plain(name)] for name in named if _plain(name) in known]
    return found or ([0] if alone and len(addresses) == 1 else [])


def bounced(fate: Fate, reporter: str, named: bool) -> Bounced:
    """The outcome of a reported failure. It suppresses the address only if the report names the exact address that we sent to."""
    reply = _reply(fate)
    host = fate.remote or reporter
    found: Diagnosis = diagnose(reply, host, "report")
    said = _short(str(reply))
    by = f"{_short(reporter)} reported later" if reporter else "A later report says"
    reason = found.meaning.sentence(f"{by}: {said}")
    suppress = found.suppress and named and fate.status[:1] in ("", "5")
    return Bounced(said, found.type, found.sub_type, suppress, reason, found.meaning)


def _reply(fate: Fate) -> Reply:
    """The diagnostic if it is an SMTP refusal, otherwise a reply made from the status (3464 §2.3.4)."""
    text = _clean(fate.diagnostic)
    reply = parse_reply(text)
    if reply is not None and reply.code >= 400:
        return reply if reply.enhanced or not fate.status else attrs.evolve(reply, enhanced=_consistent(reply.code, fate.status))
    enhanced = _consistent(450 if fate.status.startswith("4") else 550, fate.status)
    code = 450 if fate.status.startswith("4") else 550 if enhanced or text else 554
    return Reply(code, text or "no reason given", enhanced)


def _consistent(code: int, status: str) -> str | None:
    """The status as an enhanced code, if it agrees with the basic code."""
    return status if status and int(status[0]) == code // 100 and not status.endswith(".0.0") else None


def _complaint(report: Feedback) -> Complained:
    kind, agent = _short(report.kind), _short(report.agent)
    by = f" (reported by {agent})" if agent else ""
    return Complained(f"The recipient reported this email as spam: {kind}{by}. Don't email this address again.", kind, agent)


def _plain(address: str) -> str:
    """An address in the form in which it is compared: lower case, with an internationalized domain as A-labels (6533 §3 has both)."""
    if not address.isascii():
        with contextlib.suppress(AddressError):
            return parse_mailbox(address).address.lower()
    return address.strip().lower()


def _clean(text: str) -> str:
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def _short(text: str) -> str:
    text = _clean(text)
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
