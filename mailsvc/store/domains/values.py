"""Sending domains as values, and reading rows into them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final, Literal
from uuid import UUID

import attrs

from mailsvc.store.domains import domains_sql
from mailsvc.store.postgres.connection import Row

DomainStatus = Literal["not_started", "pending", "verified", "failed"]
RecordStatus = Literal["not_started", "pending", "verified", "failed", "temporary_failure"]
TlsPolicy = Literal["opportunistic", "enforced"]
Algorithm = Literal["rsa", "ed25519"]
KeyState = Literal["published", "signing", "leaving", "retired"]


TRACKING: Final = "Tracking"  # the purpose of the CNAME of a tracking subdomain
SERVING = ("verified", "temporary_failure")  # states of that record in which links work
CAA: Final = "TrackingCAA"  # the purpose of a CAA record without which a tracking subdomain gets no certificate

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_VALUES_MAX, _CHARACTERS_MAX = 20, 2000  # of untrusted DNS data: values of a record, characters of a value


def _clean(text: str) -> str:
    """Untrusted text, made safe to store and show."""
    return _CONTROL.sub("\ufffd", text[:_CHARACTERS_MAX])


def _clean_or_none(text: str | None) -> str | None:
    return None if text is None else _clean(text)


def _clean_all(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(_clean(text) for text in islice(texts, _VALUES_MAX))


_ATTRIBUTES = {"told": "message"}  # stored key: attribute
_STORED_KEYS = {attribute: key for key, attribute in _ATTRIBUTES.items()}


@attrs.frozen
class RecordState:
    """The result of the last check of one record. `required`: without it the domain cannot send.

    `found`: the values in DNS; `where`: who answered; `problem`: a code, None if the record is correct; `message`: what was found and
    what to do.
    """

    purpose: str
    type: str
    name: str
    expected: str = attrs.field(converter=_clean)  # may contain what is in DNS
    required: bool
    status: RecordStatus
    found: tuple[str, ...] = attrs.field(default=(), converter=_clean_all)
    where: str | None = attrs.field(default=None, converter=_clean_or_none)
    problem: str | None = None
    message: str | None = attrs.field(default=None, converter=_clean_or_none)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> RecordState:
        """The stored key of `message` is `told`."""
        return cls(**{_ATTRIBUTES.get(key, key): value for key, value in stored.items()})

    def to_json(self) -> dict[str, object]:
        return {_STORED_KEYS.get(key, key): value for key, value in attrs.asdict(self).items()}


@attrs.frozen
class Domain:
    """A sending domain of an account. `trusted`: the operator vouches for it instead of DNS.

    `since`: for a pending domain, when verification was requested; for a verified one, since when a record has been missing.
    `lost_at`: when another account took over the name. `pool`: of source addresses, its own or its account's; None: as the settings say.
    `tracking_subdomains`: labels; the last one is chosen for tracked links, the former ones are in mail that was sent.
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
    pool: str | None = None
    open_tracking: bool = False
    click_tracking: bool = False
    tracking_subdomains: tuple[str, ...] = ()
    untracked: bool = False  # the account wants no tracking at all
    encrypted: bool = False  # messages of the account are stored encrypted
    reserved: bool = False  # the service's test emails come from it, and nothing else

    @property
    def tracking_hosts(self) -> tuple[str, ...]:
        """The hosts of tracked links, verified or not."""
        return tuple(f"{label}.{self.name}" for label in self.tracking_subdomains)

    @property
    def verified_tracking_host(self) -> str | None:
        """The host for new links: the chosen one, or the one before until that is verified. None: none is."""
        return next((host for host in reversed(self.tracking_hosts) if self._tracking_record(host) == "verified"), None)

    def tracking_host(self, own: str | None) -> str | None:
        """The host of tracked links in new mail; None: nothing is tracked. `own`: of the installation, for domains without a subdomain."""
        if self.untracked or not (self.open_tracking or self.click_tracking):
            return None
        return self.verified_tracking_host if self.tracking_subdomains else own

    def serves_tracking_host(self, host: str) -> bool:
        """Whether tracked links at this host work: it was verified. A record that is missing now may only not be visible."""
        return host in self.tracking_hosts and self._tracking_record(host) in SERVING

    def _tracking_record(self, host: str) -> RecordStatus | None:
        return next((record.status for record in self.records if record.purpose == TRACKING and record.name == host), None)

    @property
    def shown_status(self) -> str:
        """For people: the API has the result of the checks, and `trusted` beside it."""
        complete = self.status == "verified" and self.since is None
        if self.trusted and not complete:
            return "trusted"
        if self.status == "verified" and not complete:
            return "dns_unanswered" if self.unanswered else "records_missing"
        return self.status

    @property
    def unanswered(self) -> bool:
        """Whether required records are only unknown: DNS did not answer for them."""
        wrong = self._wrong
        return bool(wrong) and all(record.problem == "unanswered" for record in wrong)

    @property
    def _wrong(self) -> list[RecordState]:
        return [record for record in self.records if record.required and record.status != "verified"]

    @property
    def may_send(self) -> bool:
        return self._ready and not self.reserved

    @property
    def may_send_tests(self) -> bool:
        """Whether the service's test emails can be sent from it."""
        return self._ready and self.reserved

    @property
    def _ready(self) -> bool:
        return self.sending and (self.trusted or self.status == "verified")

    @property
    def missing(self) -> str | None:
        """Why it cannot send, as a sentence. None if it can."""
        if self.may_send:
            return None
        if self.reserved:
            return "This domain is reserved for test emails from the dashboard."
        if not self.sending and (self.trusted or self.status == "verified"):
            return "Sending is turned off for this domain."
        if self.lost is not None:
            return self.lost
        wrong = self._wrong
        if self.checked_at is None or not wrong:
            return "Its DNS records have not been checked yet."
        return f"Missing or incorrect DNS records: {', '.join(f'{r.purpose} ({r.type} {r.name})' for r in wrong)}."

    @property
    def lost(self) -> str | None:
        """Why the account lost the name, as a sentence. None if it did not."""
        if self.lost_at is None:
            return None
        return "Another account took over this domain: it verified the domain by DNS while the DKIM records of this account were missing."


@attrs.frozen
class DomainLimits:
    """How many domains an account can have and add."""

    per_account: int = 1000
    unverified: int = 100
    adds_per_hour: int = 100


@attrs.define(eq=False, auto_exc=True, str=False)
class LimitReached(Exception):
    """The account cannot add a domain. `message`: a sentence for the user; `retry_after`: seconds."""

    message: str
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.message


ClaimStatus = Literal["pending", "blocked", "completed", "superseded", "canceled", "expired"]


@attrs.frozen
class Claim:
    """An account's claim of a name that another account has verified. `domain_id`: the claiming account's domain.

    `failure_reason`: why the claim is blocked, as a sentence.
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
        """The value of the TXT record that proves the claim."""
        return f"mailsvc-domain-verification={self.token}"


@attrs.frozen
class StoredKey:
    """A decrypted private DKIM key (PKCS#8 DER). Must not be logged."""

    selector: str
    algorithm: Algorithm
    der: bytes = attrs.field(repr=False)


@attrs.frozen
class DkimKey:
    """The public half of a DKIM key and its state. `public`: the p= tag."""

    id: UUID
    selector: str
    algorithm: Algorithm
    public: str
    state: KeyState
    created_at: datetime
    changed_at: datetime


def domain_of(row: Row) -> Domain:
    values = domains_sql.DOMAIN.read(row)
    for name in ("signs_with", "tracking_subdomains"):
        values[name] = tuple(values[name])
    for name in ("records", "advice"):
        values[name] = tuple(RecordState.from_json(stored) for stored in values[name])
    return Domain(**values)


def key_of(row: Row) -> DkimKey:
    return DkimKey(**domains_sql.KEY.read(row))
