"""What moves through a lane: the recipients of one email at one destination, leased by this process; and whose turn it is."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.store.mail.accept import NewEmail, Pieces
from mailsvc.store.queue.claims import Leased

Key = tuple[UUID, int]  # a row of the queue: email and recipient number


@attrs.define(eq=False)
class Transaction:
    """One transaction's worth of an email. `body` is the message when it is in memory, None when it is to be loaded."""

    account_id: UUID
    email_id: UUID
    domain_id: UUID
    lease: int
    bulk: bool
    recipients: tuple[Leased, ...]
    body: bytes | Pieces | None = attrs.field(default=None, repr=False)
    envelope: StoredEnvelope = EMPTY  # with `body`
    octets: int = 0  # of `body`, when it counts as freight
    again: bool = False  # a reused connection was found dead under it, once

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple([(self.email_id, each.recipient) for each in self.recipients])

    @property
    def destination(self) -> str:
        return self.recipients[0].destination

    def split(self, apart: tuple[Leased, ...]) -> Transaction | None:
        """A parcel of those recipients, which leave this one; None when there are none."""
        if not apart:
            return None
        self.recipients = tuple(each for each in self.recipients if each not in apart)
        return attrs.evolve(self, recipients=apart, octets=0)


def domain_of(address: str) -> str:
    """The part after the last @, as routing reads it."""
    return address.rpartition("@")[2].lower().rstrip(".")


def from_rows(rows: Iterable[Leased], lease: int, most: int) -> Iterator[Transaction]:
    """Rows of a claim as parcels, one for each email unless it has more than `most` recipients here."""
    emails: dict[UUID, list[Leased]] = {}
    for row in rows:
        emails.setdefault(row.email_id, []).append(row)
    for found in emails.values():
        for start in range(0, len(found), most):
            part = tuple(found[start : start + most])
            first = part[0]
            yield Transaction(first.account_id, first.email_id, first.domain_id, lease, first.bulk, part)


def from_email(email: NewEmail, destination: str, lease: int, most: int, body: bytes | Pieces | None) -> Iterator[Transaction]:
    """The recipients of a new email that were born leased for `destination`."""
    rows = [
        Leased(
            email.account_id, email.email_id, number, email.domain_id, email.region, new.address, destination,
            0, "queued", email.expires_at, email.bulk,
        )
        for number, new in enumerate(email.recipients)
        if new.leased and new.destination == destination
    ]  # fmt: skip
    for parcel in from_rows(rows, lease, most):
        parcel.body, parcel.envelope = body, email.envelope
        yield parcel


def expired(parcel: Transaction, now: datetime) -> bool:
    return all(each.expires_at <= now for each in parcel.recipients)


class AccountTurns:
    """Parcels that wait in a lane: transactional mail first, then bulk; within each, accounts take turns."""

    def __init__(self) -> None:
        self._classes: tuple[OrderedDict[UUID, deque[Transaction]], OrderedDict[UUID, deque[Transaction]]] = (OrderedDict(), OrderedDict())
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def urgent(self) -> bool:
        """Whether there is more than bulk mail."""
        return bool(self._classes[False])

    def put(self, parcel: Transaction, *, first: bool = False) -> None:
        """At the end of its account's line, or, for one that was begun, at its front."""
        accounts = self._classes[parcel.bulk]
        line = accounts.setdefault(parcel.account_id, deque())
        if first:
            line.appendleft(parcel)
            accounts.move_to_end(parcel.account_id, last=False)
        else:
            line.append(parcel)
        self._count += 1

    def next(self) -> Transaction | None:
        for accounts in self._classes:
            if accounts:
                account, line = next(iter(accounts.items()))
                parcel = line.popleft()
                accounts.move_to_end(account)
                if not line:
                    del accounts[account]
                self._count -= 1
                return parcel
        return None

    def drain(self) -> list[Transaction]:
        """All of them, in turn."""
        return list(iter(self.next, None))
