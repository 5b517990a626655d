"""Sending domains as values: what the rows of store/domains/domains are read into."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.store.postgres.connection import Row

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
    `lost_at`: when another account took the name over.
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
    lost_at: datetime | None = None

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
        if self.lost is not None:
            return self.lost
        wrong = [record for record in self.records if record.required and record.status != "verified"]
        if self.checked_at is None or not wrong:
            return "Its DNS records have not been checked yet."
        return f"Not verified in its DNS: {', '.join(f'{r.purpose} ({r.type} {r.name})' for r in wrong)}."

    @property
    def lost(self) -> str | None:
        """Why the account no longer has the name, as a sentence; None when nobody took it over."""
        if self.lost_at is None:
            return None
        return "Another account took it over: it proved by DNS that it owns the domain, while the DKIM records of this account were gone."


@attrs.frozen
class DomainLimits:
    """How many domains an account may have and add."""

    per_account: int = 1000
    unverified: int = 100
    adds_per_hour: int = 100


@attrs.define(eq=False, auto_exc=True, str=False)
class LimitReached(Exception):
    """The account may not add a domain. The text is a sentence for it; `retry_after`: seconds after which it may."""

    told: str
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.told


ClaimStatus = Literal["pending", "blocked", "completed", "superseded", "canceled", "expired"]


@attrs.frozen
class Claim:
    """An account's claim of a name that another account has verified, or had. `domain_id` is its own domain of that name.

    `failure_reason`: a sentence that says why the claim is blocked.
    """

    id: UUID
    domain_id: UUID
    account_id: UUID
    name: str
    region: str
    token: str
    status: ClaimStatus
    failure_reason: str | None
    created_at: datetime
    expires_at: datetime

    @property
    def open(self) -> bool:
        return self.status in ("pending", "blocked")

    @property
    def record(self) -> str:
        """The TXT record at the claimed name that proves it."""
        return f"mailsvc-domain-verification={self.token}"


@attrs.frozen
class StoredKey:
    """A DKIM key as signing needs it: PKCS#8 DER, decrypted. It has no place in a log."""

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
