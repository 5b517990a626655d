"""What moves through a lane: the recipients of one email at one destination, leased by this process; and whose turn it is."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Protocol
from uuid import UUID

import attrs

from mailsvc.store.broadcasts.personal import PersonalEmail
from mailsvc.store.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.store.mail.values import NewRecipient, Pieces
from mailsvc.store.queue.claims import Leased

Key = tuple[UUID, int]  # a row of the queue: email and recipient number


class Mail(Protocol):
    """What decides about the pool of source addresses of an email."""

    @property
    def account_id(self) -> UUID: ...
    @property
    def domain_id(self) -> UUID: ...
    @property
    def bulk(self) -> bool: ...


PoolOf = Callable[[Mail], str]


class NewMail(Mail, Protocol):
    """What delivery needs of an email that it need not claim."""

    @property
    def email_id(self) -> UUID: ...
    @property
    def region(self) -> str: ...
    @property
    def expires_at(self) -> datetime: ...
    @property
    def recipients(self) -> tuple[NewRecipient, ...]: ...
    @property
    def envelope(self) -> StoredEnvelope: ...
    @property
    def message(self) -> bytes | Pieces | None: ...


@attrs.define(eq=False)
class Transaction:
    """One SMTP transaction of an email. `body` is the message if it is in memory, None if it has to be loaded.

    `personal`: what the message is composed from, if it is of a broadcast and was read with the claim.
    """

    account_id: UUID
    email_id: UUID
    domain_id: UUID
    lease: int
    bulk: bool
    recipients: tuple[Leased, ...]
    body: bytes | Pieces | None = attrs.field(default=None, repr=False)
    envelope: StoredEnvelope = EMPTY  # comes with `body`
    charged: int = 0  # bytes of `body` that count against the memory budget
    personal: PersonalEmail | None = attrs.field(default=None, repr=False)
    plain: bool = False  # send it without optional parameters of MAIL and RCPT: a server refused it, perhaps because of them
    repeated: bool = False  # a reused connection turned out to be closed before it took this mail
    claim: object = attrs.field(factory=object, repr=False)  # which leased it; the same in what is split off

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple([(self.email_id, each.recipient) for each in self.recipients])

    @property
    def destination(self) -> str:
        return self.recipients[0].destination

    @property
    def expires_at(self) -> datetime:
        return self.recipients[0].expires_at

    def split(self, apart: tuple[Leased, ...]) -> Transaction | None:
        """Move recipients into a transaction of their own. None if there are none."""
        if not apart:
            return None
        self.recipients = tuple(each for each in self.recipients if each not in apart)
        return attrs.evolve(self, recipients=apart, charged=0)


def domain_of(address: str) -> str:
    """The part after the last @, as routing reads it."""
    return address.rpartition("@")[2].lower().rstrip(".")


def from_rows(rows: Iterable[Leased], lease: int, most: int) -> Iterator[Transaction]:
    """Claimed rows as transactions: one for each email, more if it has more than `most` recipients here."""
    emails: dict[UUID, list[Leased]] = {}
    for row in rows:
        emails.setdefault(row.email_id, []).append(row)
    for found in emails.values():
        for start in range(0, len(found), most):
            part = tuple(found[start : start + most])
            first = part[0]
            yield Transaction(first.account_id, first.email_id, first.domain_id, lease, first.bulk, part)


def from_email(email: NewMail, destination: str, lease: int, most: int, body: bytes | Pieces | None) -> Iterator[Transaction]:
    """The recipients of a new email that were stored with a lease for `destination`."""
    rows = [
        Leased(
            email.account_id, email.email_id, number, email.domain_id, email.region, new.address, destination,
            0, "queued", email.expires_at, email.bulk,
        )
        for number, new in enumerate(email.recipients)
        if new.leased and new.destination == destination
    ]  # fmt: skip
    for start in range(0, len(rows), most):
        part = tuple(rows[start : start + most])
        yield Transaction(email.account_id, email.email_id, email.domain_id, lease, email.bulk, part, body, email.envelope)


def expired(transaction: Transaction, now: datetime) -> bool:
    return all(each.expires_at <= now for each in transaction.recipients)


class AccountTurns:
    """Transactions that wait in a lane: transactional mail before bulk mail, and in each class accounts take turns."""

    def __init__(self) -> None:
        self._classes: tuple[OrderedDict[UUID, deque[Transaction]], OrderedDict[UUID, deque[Transaction]]] = (OrderedDict(), OrderedDict())
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def transactional(self) -> bool:
        """Whether transactional mail waits."""
        return bool(self._classes[False])

    def put(self, transaction: Transaction, *, first: bool = False) -> None:
        """After its account's other mail; with `first`, before all mail of its class."""
        accounts = self._classes[transaction.bulk]
        waiting = accounts.setdefault(transaction.account_id, deque())
        if first:
            waiting.appendleft(transaction)
            accounts.move_to_end(transaction.account_id, last=False)
        else:
            waiting.append(transaction)
        self._count += 1

    def next(self) -> Transaction | None:
        for accounts in self._classes:
            if accounts:
                account, waiting = next(iter(accounts.items()))
                transaction = waiting.popleft()
                accounts.move_to_end(account)
                if not waiting:
                    del accounts[account]
                self._count -= 1
                return transaction
        return None

    def drain(self) -> list[Transaction]:
        """Remove all of them, in their order."""
        return list(iter(self.next, None))
