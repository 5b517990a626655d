"""Parses returned mail, whatever software wrote it: permanent failures, a complaint, or something that changes nothing. Pure.

The formats themselves: mail/reports. Taking the mail and recording the result: intake.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import attrs

from mailsvc.bounces.diagnosis import Diagnosis, diagnose
from mailsvc.mail.address import AddressError, parse_mailbox, quoted_if_dotted
from mailsvc.mail.reply import Reply
from mailsvc.mail.reply import read as parse_reply
from mailsvc.mail.reports import auto_reply, dsn_reader, feedback, forwarded, report, ses, text_bounce
from mailsvc.mail.reports.dsn_reader import ReportedRecipient
from mailsvc.mail.reports.feedback import Feedback
from mailsvc.mail.reports.report import Report as MailParts
from mailsvc.outcome import Bounced
from mailsvc.store.events.async_bounces import Complained, Report
from mailsvc.store.mail.dsn_requests import ForwardedReport

Kind = Literal["bounce", "delay", "success", "complaint", "feedback", "automatic", "unknown"]  # only bounce and complaint change anything

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]+")
_REFUSAL = re.compile(r"(?<![\d.+:/-])[45]\d\d[ -](?=[\w#<'\"(\[])")
_SERVER = re.compile(r"(?:\bhost|talking to|connected to) ([a-zA-Z0-9-]{1,63}(?:\.[a-zA-Z0-9-]{1,63}){1,8})")
_READ = 100  # recipients of a report whose texts are read; of further ones, only the status
_TEXT_MAX = 500  # characters of a diagnostic or a name that are kept


@attrs.frozen
class ReportMail:
    """A parsed mail. `failed`: recipients whose delivery failed, with their `outcomes` if they are named; `feedback`: a complaint.

    `others`: all other recipients that a notification reports on. They change nothing, but a submitter may have requested to know.
    """

    kind: Kind
    failed: tuple[ReportedRecipient, ...] = ()
    reporter: str = ""
    outcomes: tuple[Bounced, ...] = ()
    feedback: Feedback | None = None
    others: tuple[ReportedRecipient, ...] = ()

    def reports(self, addresses: Sequence[str]) -> list[Report]:
        """What it reports about an email's recipients, given their addresses."""
        known = _numbers(addresses)
        if self.feedback is not None:
            numbers = dict.fromkeys(match_recipients(known, *self.feedback.recipients))
            return [Report(number, _complaint(self.feedback)) for number in numbers]
        found: dict[int, Report] = {}
        for recipient, outcome in zip(self.failed, self.outcomes, strict=True):
            for number in match_recipients(known, recipient.original, recipient.final, alone=len(self.failed) == 1)[:1]:
                named = _plain(addresses[number]) in (_plain(recipient.original), _plain(recipient.final))
                found.setdefault(number, Report(number, attrs.evolve(outcome, suppress=outcome.suppress and named)))
        return [*found.values()]

    def forwardable(self, addresses: Sequence[str]) -> list[ForwardedReport]:
        """What it reports about recipients that did not fail, given the email's addresses."""
        known = _numbers(addresses)
        found: dict[int, ForwardedReport] = {}
        for recipient in self.others:
            alone = len(self.others) == 1 and not self.failed
            for number in match_recipients(known, recipient.original, recipient.final, alone=alone)[:1]:
                assert recipient.action != "failed"
                text = _short(recipient.diagnostic)
                diagnostic = text if parse_reply(text) is not None else f"{recipient.status} {text}".strip()
                found.setdefault(number, ForwardedReport(number, recipient.action, diagnostic, _short(recipient.remote or self.reporter)))
        return [*found.values()]


def read(message: bytes) -> ReportMail:
    """Never raises, whatever the message contains."""
    mail = report.read(message)
    found = _read(mail)
    if found.kind == "unknown":
        inner = forwarded.read(mail)
        found = found if inner is None else _read(inner)
    return found


def _read(mail: MailParts) -> ReportMail:
    dsn = dsn_reader.read(mail)
    if dsn is not None:
        first = dsn.recipients[:_READ]
        texts = text_bounce.explanations(mail.text, [recipient.final for recipient in first])
        explained = [attrs.evolve(each, explanation=text, near=near) for each, (text, near) in zip(first, texts, strict=True)]
        return _report((*explained, *dsn.recipients[_READ:]), dsn.reporter)
    notification = ses.read(mail)
    if isinstance(notification, tuple):
        return _report(notification, "")
    complaint = notification or feedback.read(mail)
    if complaint is not None:
        return ReportMail("complaint", feedback=complaint) if complaint.complaint else ReportMail("feedback")
    receipt = mail.kind == "disposition-notification" and not text_bounce.is_rejection(mail)
    found = () if receipt else text_bounce.read(mail)
    if found:
        return _report(found, "")
    return ReportMail("automatic" if auto_reply.recognised(mail) else "unknown")


def _report(recipients: Sequence[ReportedRecipient], reporter: str) -> ReportMail:
    failed = tuple(recipient for recipient in recipients if recipient.action == "failed")
    others = tuple(recipient for recipient in recipients if recipient.action != "failed")
    delayed = any(recipient.action == "delayed" for recipient in others)
    kind: Kind = "bounce" if failed else "delay" if delayed else "success" if others else "unknown"
    outcomes = tuple(_bounced(recipient, reporter) for recipient in failed[:_READ])
    further = (attrs.evolve(recipient, diagnostic="", explanation="") for recipient in failed[_READ:])
    return ReportMail(kind, failed, reporter, (*outcomes, *(_bounced(recipient, reporter) for recipient in further)), others=others)


def _numbers(addresses: Sequence[str]) -> dict[str, int]:
    """The numbers of an email's recipients by address."""
    return {_plain(address): number for number, address in reversed([*enumerate(addresses)])}


def match_recipients(known: Mapping[str, int], *named: str, alone: bool = True) -> list[int]:
    """The numbers of the recipients with the given names. If no name is known and the email has one recipient, that one.

    Servers that forward mail report the address that they forwarded to, and many complaints leave the address out.
    """
    found = [known[_plain(name)] for name in named if _plain(name) in known]
    return found or ([*known.values()] if alone and len(known) == 1 else [])


def _bounced(recipient: ReportedRecipient, reporter: str) -> Bounced:
    """The outcome of a reported failure. `suppress` is for the address that the report names; it can be that of a forwarding."""
    reply = _reply(recipient)
    host = recipient.remote or _server(recipient.diagnostic) or _server(recipient.explanation) or reporter
    found: Diagnosis = diagnose(reply, host, "report")
    if not found.stated and recipient.explanation:
        explained = _reply(attrs.evolve(recipient, diagnostic=recipient.explanation))
        better = diagnose(explained, host, "report")
        only = recipient.near and not recipient.diagnostic  # OpenSMTPD writes the reason nowhere else
        if better.stated or only:
            found, reply = better, reply if _REFUSAL.match(_clean(recipient.diagnostic)) else explained
    diagnostic = _short(str(reply))
    by = f"{_short(reporter)} reported later" if reporter else "A later report says"
    reason = found.meaning.sentence(f"{by}: {diagnostic}")
    suppress = found.suppress and recipient.status[:1] in ("", "5") and not recipient.alias  # the other addresses of an alias may exist
    return Bounced(diagnostic, found.type, found.sub_type, suppress, reason, found.meaning)


def _server(text: str) -> str:
    """The mail server whose reply a text quotes, such as `host mx1.example.org[192.0.2.1] said: …`."""
    found = _SERVER.search(text[:_TEXT_MAX])
    return found[1] if found else ""


def _reply(recipient: ReportedRecipient) -> Reply:
    """The diagnostic if it is an SMTP refusal, otherwise a reply made from the status (3464 §2.3.4)."""
    text = _clean(recipient.diagnostic)
    reply = parse_reply(text)
    if reply is None or reply.code < 400:  # a diagnostic such as `220-mx1 421 try later`, or a sentence that quotes a reply
        quoted = _REFUSAL.search(text)
        reply = parse_reply(text[quoted.start() :]) if quoted else None
    if reply is not None:
        return reply if reply.enhanced or not recipient.status else attrs.evolve(reply, enhanced=_consistent(reply.code, recipient.status))
    enhanced = _consistent(450 if recipient.status.startswith("4") else 550, recipient.status)
    code = 450 if recipient.status.startswith("4") else 550 if enhanced or text else 554
    return Reply(code, text or "no reason given", enhanced)


def _consistent(code: int, status: str) -> str | None:
    """The status as an enhanced code, if it agrees with the basic code."""
    return status if status and int(status[0]) == code // 100 and not status.endswith(".0.0") else None


def _complaint(report: Feedback) -> Complained:
    kind, agent = _short(report.kind), _short(report.agent)
    by = f" (reported by {agent})" if agent else ""
    return Complained(f"The recipient reported this email as spam: {kind}{by}. Don't email this address again.", kind, agent)


def _plain(address: str) -> str:
    """An address in the form in which it is compared: lower case, quoted if needed, the domain with A-labels (6533 §3)."""
    if not address.isascii():
        with contextlib.suppress(AddressError):
            return parse_mailbox(address).address.lower()
    local, at, domain = address.strip().rpartition("@")
    return f"{quoted_if_dotted(local)}{at}{domain}".lower()


def _clean(text: str) -> str:
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def _short(text: str) -> str:
    text = _clean(text)
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
