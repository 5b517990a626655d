"""The lease book: which claim a recipient is held under, and when the next claim brings messages.

Its other work is tested through the service (test_dispatch).
"""

from __future__ import annotations

import io
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from mailsvc.clock import utc
from mailsvc.delivery.admission.memory import MemoryBudget, RecentMessages
from mailsvc.delivery.leases import LeaseBook
from mailsvc.delivery.transaction import Transaction, from_rows
from mailsvc.store.mail.envelope import EMPTY
from mailsvc.store.mail.spooled import Spooled
from mailsvc.store.postgres.errors import StatementFailed
from mailsvc.store.queue.claims import Claimed, Leased
from tests.delivery.fakes import START, clock_at
from tests.store.fixtures import ACCOUNT, NOW, email

DOMAIN = UUID(int=7)


def book() -> LeaseBook:
    unused: Any = None
    return LeaseBook(unused, unused, unused, unused, MemoryBudget(1 << 20), RecentMessages(1 << 20))


def row(number: int, attempts: int = 0) -> Leased:
    return Leased(ACCOUNT, UUID(int=number), 0, DOMAIN, "eu", "a@example.net", "mx.example.net", attempts, "queued", NOW, False)


def test_a_message_of_an_email_that_was_not_committed_is_forgotten() -> None:
    leases = book()
    leases.keep_passed(UUID(int=1), b"x", EMPTY)
    leases.forget_passed(UUID(int=1))
    leases.keep_claimed(Claimed([row(1)]))
    assert leases.claim_bytes > 0


def claimed(lease: int, *recipients: int) -> Transaction:
    [transaction] = from_rows([attrs.evolve(row(1), recipient=each) for each in recipients], lease, 100)
    return transaction


@pytest.mark.parametrize("lease", [7, 8])
@pytest.mark.parametrize("first", [False, True])
def test_only_the_latest_claim_removes_a_recipient(lease: int, first: bool) -> None:
    leases = book()
    old, new = claimed(7, 0, 1), claimed(lease, 1, 2)
    leases.add(old)
    leases.add(new)
    assert not leases.has(old) and leases.has(new)
    leases.remove(old if first else new)
    assert leases.has(new) is first
    leases.remove(new if first else old)
    assert not leases.held


def test_an_ended_lease_does_not_hide_the_current_one() -> None:
    leases = book()
    old, new = claimed(7, 0), claimed(8, 0)
    leases.add(new)
    leases.add(old)
    assert leases.keys(7) == set() and leases.keys(8) == {(UUID(int=1), 0)}
    leases.remove(old)
    assert leases.has(new)


def test_what_is_split_off_removes_its_own_recipients() -> None:
    leases = book()
    whole = claimed(7, 0, 1, 2)
    leases.add(whole)
    part = whole.split(whole.recipients[1:])
    assert part is not None
    leases.remove(part)
    assert set(leases.held) == {(UUID(int=1), 0)} and leases.has(whole)


@pytest.mark.parametrize(("here", "brings"), [(4, False), (3, False), (2, True), (0, True)])
def test_claims_bring_messages_unless_most_are_in_memory(here: int, brings: bool) -> None:
    leases = book()
    assert leases.claim_bytes > 0
    for number in range(here):
        leases.keep_passed(UUID(int=number), b"x", EMPTY)
    leases.keep_claimed(Claimed([row(number) for number in range(4)]))
    assert (leases.claim_bytes > 0) is brings


def test_mail_that_is_retried_does_not_count() -> None:
    """Claims never bring its messages."""
    leases = book()
    leases.keep_passed(UUID(int=1), b"x", EMPTY)
    leases.keep_claimed(Claimed([row(1), *(row(number, attempts=1) for number in range(2, 9))]))
    assert leases.claim_bytes == 0
    leases.keep_claimed(Claimed([row(10, attempts=1)]))
    assert leases.claim_bytes == 0


@pytest.mark.parametrize(("message", "kept"), [(b"x", True), (Spooled(b"", io.BytesIO(), 0, 1000), False)])
def test_messages_that_were_accepted_here_are_kept_if_they_are_in_memory(message: bytes | Spooled, kept: bool) -> None:
    leases = book()
    leases.keep(accepted := attrs.evolve(email(), message=message))
    assert (accepted.email_id in leases._recent) is kept


@pytest_twisted.ensureDeferred
async def test_a_file_that_is_not_claimed_is_forgotten() -> None:
    leases = book()
    leases.keep_passed(UUID(int=1), Spooled(b"", io.BytesIO(), 0, 1000), EMPTY)
    await leases.forget_files()
    assert UUID(int=1) in leases._recent
    await leases.forget_files()
    assert UUID(int=1) not in leases._recent


@pytest.mark.parametrize("destination", [None, "another"])
def test_leases_end_although_the_database_rejects_a_destination(destination: str | None) -> None:
    released: list[tuple[Any, ...]] = []

    class Rejecting:
        async def release(self, keys: Any, lease: int, *, destination: str | None, next_at: datetime | None, reason: Any = None) -> None:
            if destination in (None, "another"):
                raise StatementFailed("54000", "index row size 5096 exceeds btree version 4 maximum 2704")
            released.append((keys, lease, destination, next_at))

    clock, unused = clock_at(START), Any
    leases = LeaseBook(clock, Rejecting(), unused, lambda: None, MemoryBudget(1 << 20), RecentMessages(1 << 20))  # type: ignore[arg-type]
    rows = [attrs.evolve(row(1), recipient=number, address=f"a@{domain}") for number, domain in enumerate(("One.example", "two.example"))]
    [transaction] = from_rows(rows, 7, 100)
    leases.add(transaction)
    Deferred.fromCoroutine(leases.give_back([transaction], destination))
    later = utc(clock) + timedelta(minutes=1)
    assert released == [([(UUID(int=1), 0)], 7, "one.example", later), ([(UUID(int=1), 1)], 7, "two.example", later)]
    assert not leases.held
