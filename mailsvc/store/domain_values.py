"""Sending domains as values: what the rows of store/domains are read into."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.store.link import Row

DomainStatus = Literal["not_started", "pending", "verified", "failed"]
RecordStatus = Literal["not_started", "pending", "verified", "failed", "temporary_failure"]
TlsPolicy = Literal["opportunistic", "enforced"]
Algorithm = Literal["rsa", "ed25519"]
KeyState = Literal["published", "signing", "leaving", "retired"]


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MOST, _LONGEST = 20, 2000  # of what strangers publish: values of a record, characters of a value


def _clean(text: str) -> str:
    """Something that strangers wrote, as it may be stored and shown."""
    return _CONTROL.sub("\ufffd", text[:_LONGEST])


def _clean_or_none(text: str | None) -> str | None:
    return None if text is None else _clean(text)


def _clean_all(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(_clean(text) for text in islice(texts, _MOST))


@attrs.frozen
class RecordState:
    """What the last check found of one record. `required`: without it the domain may not send.

    `found` is what stands in DNS, `where` who said so, `problem` a word for what is wrong (none when it is right),
    `told` a sentence that says what was found and what to do.
    """

    purpose: str
    type: str
    name: str
    expected: str
    required: bool
    status: RecordStatus
    found: tuple[str, ...] = attrs.field(default=(), converter=_clean_all)
    where: str | None = attrs.field(default=None, converter=_clean_or_none)
    problem: str | None = None
    told: str | None = attrs.field(default=None, converter=_clean_or_none)


@attrs.frozen
class Domain:
    """A sending domain of an account. `trusted` is the operator's word in place of DNS.

    `since`: while it is pending, when its check was asked for; while it is verified, when something was first missed.
    """

    id: UUID
    account_id: UUID
    name: str
    region: str
    status: DomainStatus
    trusted: bool
    return_path: str
    signs_with: tuple[Algorithm, ...]
    tls: TlsPolicy
    created_at: datetime
    sending: bool = True
    receiving: bool = False
    delegated: bool = False
    records: tuple[RecordState, ...] = ()
    advice: tuple[RecordState, ...] = ()
    since: datetime | None = None
    checks: int = 0
    checked_at: datetime | None = None
    next_check_at: datetime | None = None

    @property
    def may_send(self) -> bool:
        return self.sending and (self.trusted or self.status == "verified")

    @property
    def missing(self) -> str | None:
        """Why it may not send, as a sentence; None when it may."""
        if self.may_send:
            return None
        if not self.sending and (self.trusted or self.status == "verified"):
            return "Sending is switched off in its capabilities."
        wrong = [record for record in self.records if record.required and record.status != "verified"]
        if self.checked_at is None or not wrong:
            return "Its DNS records have not been checked yet."
        return f"Not verified in its DNS: {', '.join(f'{r.purpose} ({r.type} {r.name})' for r in wrong)}."


@attrs.frozen
class StoredKey:
    """A DKIM key as signing needs it: PKCS#8 DER, unsealed. It has no place in a log."""

    selector: str
    algorithm: Algorithm
    der: bytes = attrs.field(repr=False)


@attrs.frozen
class DkimKey:
    """The half of a DKIM key that is in DNS, and where it is in its life. `public` is the p= tag."""

    id: UUID
    selector: str
    algorithm: Algorithm
    public: str
    state: KeyState
    created_at: datetime
    changed_at: datetime


def domain_of(row: Row) -> Domain:
    values: list[Any] = [*row]
    values[7] = tuple(values[7])
    for column in (13, 14):
        values[column] = tuple(RecordState(**stored) for stored in values[column])
    return Domain(*values)
