"""What a mail that came back says, whoever made it: refusals for good, a complaint, or nothing that changes anything. Pure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Literal

import attrs

from mailsvc.bounces.diagnosis import Diagnosis, diagnose
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.mail.reply import Reply
from mailsvc.mail.reply import read as written
from mailsvc.mail.reports import auto_reply, dsn_reader, feedback, report, text_bounce
from mailsvc.mail.reports.dsn_reader import Fate
from mailsvc.mail.reports.feedback import Feedback
from mailsvc.outcome import Bounced
from mailsvc.store.events.async_bounces import Complained, Report
from mailsvc.store.mail.dsn_requests import Passed

# Why a mail changed nothing, by what it is.
Kind = Literal["bounce", "delay", "success", "complaint", "feedback", "automatic", "unknown"]

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]+")
_LONGEST = 500


@attrs.frozen
class Letter:
    """A mail that came back, understood. `fates` are those who failed; `feedback` is a complaint.

    `told` are all others that a notification tells of; nothing of ours changes for them.
    """

    kind: Kind
    fates: tuple[Fate, ...] = ()
    reporter: str = ""
    feedback: Feedback | None = None
    told: tuple[Fate, ...] = ()

    def news(self, addresses: Sequence[str]) -> list[Report]:
        """What it says about an email's recipients, given their addresses."""
        if self.feedback is not None:
            return [Report(number, _complaint(self.feedback)) for number in whom(addresses, *self.feedback.recipients)[:1]]
        found: dict[int, Report] = {}
        for fate in self.fates:
            for number in whom(addresses, fate.original, fate.final, alone=len(self.fates) == 1)[:1]:
                named = addresses[number].lower() in (fate.original.lower(), fate.final.lower())
                found.setdefault(number, Report(number, bounced(fate, self.reporter, named)))
        return [*found.values()]

    def passed(self, addresses: Sequence[str]) -> list[Passed]:
        """What it says of recipients whose senders may want to hear it, given their addresses."""
        found: dict[int, Passed] = {}
        for fate in self.told:
            for number in whom(addresses, fate.original, fate.final, alone=len(self.told) == 1 and not self.fates)[:1]:
                assert fate.action != "failed"
                text = _short(fate.diagnostic)
                said = text if written(text) is not None else f"{fate.status} {text}".strip()
                found.setdefault(number, Passed(number, fate.action, said, _short(fate.remote or self.reporter)))
        return [*found.values()]


def read(message: bytes) -> Letter:
    """Never raises, whatever the message is."""
    mail = report.read(message)
    dsn = dsn_reader.read(mail)
    if dsn is not None:
        failed = tuple(fate for fate in dsn.fates if fate.action == "failed")
        told = tuple(fate for fate in dsn.fates if fate.action != "failed")
        delayed = any(fate.action == "delayed" for fate in told)
        return Letter("bounce" if failed else "delay" if delayed else "success" if told else "unknown", failed, dsn.reporter, told=told)
    complaint = feedback.read(mail)
    if complaint is not None:
        return Letter("complaint", feedback=complaint) if complaint.complaint else Letter("feedback")
    failed = text_bounce.read(mail)
    if failed:
        return Letter("bounce", failed)
    return Letter("automatic" if auto_reply.recognised(mail) else "unknown")


def whom(addresses: Sequence[str], *named: str, alone: bool = True) -> list[int]:
    """The numbers of those who are meant: named ones; or, when nobody is known by that name, the only one there is.

    A forwarding server reports the address that it forwarded to, and many who report complaints leave the address out.
    """
    known = {_plain(address): number for number, address in reversed([*enumerate(addresses)])}
    found = [known[_plain(name)] for name in named if _plain(name) in known]
    return found or ([0] if alone and len(addresses) == 1 else [])


def bounced(fate: Fate, reporter: str, named: bool) -> Bounced:
    """The outcome that a refusal makes. It suppresses only when it names the very address that we wrote to."""
    reply = _reply(fate)
    host = fate.remote or reporter
    found: Diagnosis = diagnose(reply, host, "report")
    said = _short(str(reply))
    by = f"{_short(reporter)} reported later" if reporter else "A later report says"
    reason = found.meaning.sentence(f"{by}: {said}")
    suppress = found.suppress and named and fate.status[:1] in ("", "5")
    return Bounced(said, found.type, found.sub_type, suppress, reason, found.meaning)


def _reply(fate: Fate) -> Reply:
    """The diagnostic when it is a refusal in the words of SMTP, else what the status says (3464 §2.3.4)."""
    text = _clean(fate.diagnostic)
    reply = written(text)
    if reply is not None and reply.code >= 400:
        return reply if reply.enhanced or not fate.status else attrs.evolve(reply, enhanced=_agreeing(reply.code, fate.status))
    said = _agreeing(450 if fate.status.startswith("4") else 550, fate.status)
    code = 450 if fate.status.startswith("4") else 550 if said or text else 554
    return Reply(code, text or "no reason given", said)


def _agreeing(code: int, status: str) -> str | None:
    return status if status and int(status[0]) == code // 100 and not status.endswith(".0.0") else None


def _complaint(told: Feedback) -> Complained:
    kind, agent = _short(told.kind), _short(told.agent)
    by = f" (reported by {agent})" if agent else ""
    return Complained(f"The recipient reported this email as unwanted: {kind}{by}. Write to this address no more.", kind, agent)


def _plain(address: str) -> str:
    """As addresses are compared: without regard to case, and a domain beyond ASCII as its A-labels (6533 §3 has both)."""
    if not address.isascii():
        with contextlib.suppress(AddressError):
            return parse_mailbox(address).address.lower()
    return address.strip().lower()


def _clean(text: str) -> str:
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def _short(text: str) -> str:
    text = _clean(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
