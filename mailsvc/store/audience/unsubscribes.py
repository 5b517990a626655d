"""Remembered unsubscribes and objections to tracking: by the hash of an address, whether or not it is a contact now.

A lock per account keeps an unsubscribe from being missed by a contact that is created at the same moment: adding contacts takes it in
share mode, remembering an unsubscribe takes it exclusively.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from mailsvc.store.audience.values import EVERYTHING, TRACKING, Contact
from mailsvc.store.postgres.pool import Transaction

_SIGNED = 1 << 63

SHARED = "SELECT pg_advisory_xact_lock_shared(%s)"
ALONE = "SELECT pg_advisory_xact_lock(%s)"
REMEMBER = """
INSERT INTO unsubscribes (account_id, hash, topic_id, at) SELECT %s, %s, g, %s FROM unnest(%s::uuid[]) AS g
ON CONFLICT (account_id, hash, topic_id) DO NOTHING
"""
FORGET = "DELETE FROM unsubscribes WHERE account_id = %s AND hash = %s AND topic_id = ANY (%s::uuid[])"
REMEMBERED = "SELECT topic_id FROM unsubscribes WHERE account_id = %s AND hash = %s"


def lock_of(account_id: UUID) -> int:
    """The number of an account's lock: a signed 64-bit integer."""
    return (account_id.int ^ (account_id.int >> 64)) % (2 * _SIGNED) - _SIGNED


async def share(tx: Transaction, account_id: UUID) -> None:
    """The first statement of a transaction that adds contacts."""
    await tx.rows(SHARED, (lock_of(account_id),))


async def alone(tx: Transaction, account_id: UUID) -> None:
    """The first statement of a transaction that remembers an unsubscribe."""
    await tx.rows(ALONE, (lock_of(account_id),))


async def remember(tx: Transaction, account_id: UUID, hash: bytes, topics: Iterable[UUID], now: datetime) -> None:
    """`topics`: EVERYTHING, TRACKING or topics."""
    wanted = sorted(set(topics))
    if wanted:
        await tx.run(REMEMBER, (account_id, hash, now, wanted))


async def forget(tx: Transaction, account_id: UUID, hash: bytes, topics: Iterable[UUID]) -> None:
    """The person subscribed again."""
    wanted = sorted(set(topics))
    if wanted:
        await tx.run(FORGET, (account_id, hash, wanted))


async def remembered(tx: Transaction, account_id: UUID, hash: bytes) -> set[UUID]:
    return {topic_id for (topic_id,) in await tx.rows(REMEMBERED, (account_id, hash))}


async def keep(tx: Transaction, account_id: UUID, leaving: Contact, opted_out: Iterable[UUID], now: datetime) -> None:
    """A contact is about to be deleted: remember what it was unsubscribed from, and whether it objected to tracking."""
    more = [*([EVERYTHING] if leaving.unsubscribed else []), *([TRACKING] if leaving.untracked else [])]
    await remember(tx, account_id, leaving.hash, [*opted_out, *more], now)
