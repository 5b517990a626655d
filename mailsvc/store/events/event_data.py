"""The data of each type of event about an email: a frozen value, and the JSON that is stored in `events.data`.

The data of events about an account (domain.*, suppression.*, …) is what customers see of it and is written where the change is made.
SQL names the same keys: settle.sql, recipients.sql, emails and rollups. The function `told_of_suppression` writes that of
`Suppressed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import attrs

from mailsvc.outcome import Bounced, Meaning

Stored = dict[str, object]


@attrs.frozen
class Empty:
    """Of types without data, such as email.sent."""

    @property
    def text(self) -> str:
        return ""


@attrs.frozen
class Delivery:
    """`attempt`: for an email of a broadcast, which has no row in `attempts` then. Only written; store/mail/emails reads it."""

    reply: str
    attempt: Stored = attrs.field(factory=dict)  # host, address, tls, seconds, source

    def stored(self) -> Stored:
        return {"reply": self.reply, **self.attempt}

    @property
    def text(self) -> str:
        return self.reply


@attrs.frozen
class Bounce:
    """`late`: reported after the email had been delivered. `reason` None: the reply is the only text."""

    type: str
    sub_type: str
    reply: str
    reason: str | None = None
    meaning: Meaning | None = None  # only written; see `_meaning`
    late: bool = False

    @classmethod
    def of(cls, bounced: Bounced, *, late: bool = False) -> Bounce:
        return cls(bounced.type, bounced.sub_type, bounced.reply, bounced.reason or bounced.reply, bounced.meaning, late)

    def stored(self) -> Stored:
        data: Stored = {"type": self.type, "sub_type": self.sub_type, "reply": self.reply}
        if self.reason is not None:
            data["reason"] = self.reason
        if self.meaning is not None:
            data |= _meaning(self.meaning)
        if self.late:
            data["late"] = True
        return data

    @property
    def text(self) -> str:
        return self.reply or self.reason or ""


@attrs.frozen
class Failure:
    reason: str

    def stored(self) -> Stored:
        return {"reason": self.reason}

    @property
    def text(self) -> str:
        return self.reason


@attrs.frozen
class Delay:
    reason: str
    next_at: datetime | None
    meaning: Meaning | None = None  # only written; see `_meaning`

    def stored(self) -> Stored:
        data: Stored = {"reason": self.reason, "next_at": self.next_at}
        return data if self.meaning is None else data | _meaning(self.meaning)

    @property
    def text(self) -> str:
        return self.reason


@attrs.frozen
class Complaint:
    """`feedback_type` and `user_agent` are quoted from the report. Complaints are always late."""

    reason: str
    feedback_type: str
    user_agent: str

    def stored(self) -> Stored:
        return {"reason": self.reason, "feedback_type": self.feedback_type, "user_agent": self.user_agent, "late": True}

    @property
    def text(self) -> str:
        return self.reason


@attrs.frozen
class Suppressed:
    """`origin`: why the address is on the suppression list."""

    origin: str
    reason: str

    @property
    def text(self) -> str:
        return self.reason


@attrs.frozen
class Open:
    """An open, as the request for the pixel shows it. `machine`: why it was a program (mail/tracking/machine), None: perhaps a person."""

    address: str
    agent: str
    method: str = "GET"
    machine: str | None = None

    def stored(self) -> Stored:
        data: Stored = {"address": self.address, "agent": self.agent, "method": self.method}
        return data if self.machine is None else data | {"machine": self.machine}

    @property
    def text(self) -> str:
        return ""


@attrs.frozen
class Click:
    """A link that was followed, and the same about the request."""

    link: str
    address: str
    agent: str
    method: str = "GET"
    machine: str | None = None

    def stored(self) -> Stored:
        return {"link": self.link, **Open(self.address, self.agent, self.method, self.machine).stored()}

    @property
    def text(self) -> str:
        return self.link


@attrs.frozen
class Schedule:
    scheduled_at: datetime | None

    def stored(self) -> Stored:
        return {"scheduled_at": self.scheduled_at}

    @property
    def text(self) -> str:
        return ""


EventData = Empty | Delivery | Bounce | Failure | Delay | Complaint | Suppressed | Open | Click | Schedule


def read(type_: str, data: Mapping[str, Any]) -> EventData:
    """The data of an event about an email. Lenient: what is missing or cannot be parsed is empty."""
    reader = _READERS.get(type_)
    return Empty() if reader is None else reader(data)


def _bounce(data: Mapping[str, Any]) -> Bounce:
    kind, sub_kind = str(data.get("type", "Undetermined")), str(data.get("sub_type", "Undetermined"))
    return Bounce(kind, sub_kind, _text(data, "reply"), _text(data, "reason") or None, late="late" in data)


def _complaint(data: Mapping[str, Any]) -> Complaint:
    return Complaint(_text(data, "reason"), _text(data, "feedback_type"), _text(data, "user_agent"))


def _open(data: Mapping[str, Any]) -> Open:
    return Open(_text(data, "address"), _text(data, "agent"), _text(data, "method") or "GET", _text(data, "machine") or None)


def _click(data: Mapping[str, Any]) -> Click:
    return Click(_text(data, "link"), *attrs.astuple(_open(data)))


_READERS: Mapping[str, Callable[[Mapping[str, Any]], EventData]] = {
    "email.scheduled": lambda data: Schedule(_time(data, "scheduled_at")),
    "email.delivered": lambda data: Delivery(_text(data, "reply")),
    "email.bounced": _bounce,
    "email.failed": lambda data: Failure(_text(data, "reason")),
    "email.delivery_delayed": lambda data: Delay(_text(data, "reason"), _time(data, "next_at")),
    "email.complained": _complaint,
    "email.opened": _open,
    "email.clicked": _click,
    "email.suppressed": lambda data: Suppressed(_text(data, "origin"), _text(data, "reason")),
}


def _meaning(meaning: Meaning) -> Stored:
    """Read from the attempt, which has its class and rule too, and from here by recipients.sql."""
    return {"class": meaning.kind, "rule": meaning.rule, "party": meaning.party, "advice": meaning.advice}


def _text(data: Mapping[str, Any], key: str) -> str:
    return str(data.get(key) or "")


def _time(data: Mapping[str, Any], key: str) -> datetime | None:
    try:
        return datetime.fromisoformat(str(data[key]))
    except (KeyError, ValueError):
        return None
