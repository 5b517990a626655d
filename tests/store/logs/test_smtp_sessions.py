"""Transcripts of sessions: each account reads its own."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import attrs
import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import Clock

from mailsvc.store.ids import uuid7
from mailsvc.store.logs.smtp_sessions import SmtpSession, SmtpSessions
from mailsvc.store.paging import Page
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.pool import Pool
from tests.store.fixtures import ACCOUNT, NOW, OTHER


def receipt(at: datetime = NOW, transcript: str = "C: QUIT") -> SmtpSession:
    return SmtpSession(uuid7(at.timestamp()), UUID(int=5), at - timedelta(seconds=3), at, 587, "TLSv1.3 X", 2, 1, transcript)


async def keep(pool: Pool, *kept: tuple[UUID, SmtpSession]) -> SmtpSessions:
    await partitions.ensure(pool, NOW)
    clock = Clock()
    receipts = SmtpSessions(pool, clock)
    writing = [Deferred.fromCoroutine(receipts.add(account, one)) for account, one in kept]
    clock.advance(1)
    await gatherResults(writing, consumeErrors=True)
    return receipts


@pytest_twisted.ensureDeferred
async def test_an_account_reads_its_own(pool: Pool) -> None:
    first, second, foreign = receipt(), receipt(), receipt()
    receipts = await keep(pool, (ACCOUNT, first), (OTHER, foreign), (ACCOUNT, second))
    listed, has_more = await receipts.list(ACCOUNT)
    assert sorted(r.receipt_id for r in listed) == sorted([first.receipt_id, second.receipt_id])
    assert attrs.evolve(first, transcript=None) in listed
    assert all(r.transcript is None for r in listed)
    assert not has_more
    newest, oldest = max(r.receipt_id for r in listed), min(r.receipt_id for r in listed)
    assert [r.receipt_id for r in (await receipts.list(ACCOUNT, Page(1, after=newest)))[0]] == [oldest]
    assert await receipts.get(ACCOUNT, first.receipt_id) == first
    assert await receipts.get(ACCOUNT, foreign.receipt_id) is None


@pytest_twisted.ensureDeferred
async def test_sessions_of_an_account_that_has_moved_to_another_cell_are_not_kept(pool: Pool) -> None:
    await pool.run("INSERT INTO account_moves (account_id, phase, cell, begun_at) VALUES (%s, 'left', 'blue', now())", (OTHER,))
    await keep(pool, (ACCOUNT, receipt()), (OTHER, receipt()))
    assert await pool.rows("SELECT account_id FROM receipts") == [(ACCOUNT,)]


@pytest_twisted.ensureDeferred
async def test_the_key_was_used_then(pool: Pool) -> None:
    await pool.run("INSERT INTO accounts (id, name, created_at) VALUES (%s, 'Example', now())", (ACCOUNT,))
    key = (UUID(int=5), ACCOUNT, b"h" * 32, NOW)
    await pool.run(
        "INSERT INTO api_keys (id, account_id, name, hash, hint, permission, created_at) "
        "VALUES (%s, %s, 'k', %s, 'ms_', 'sending_access', %s)",
        key,
    )
    await keep(pool, (ACCOUNT, receipt()))
    assert await pool.rows("SELECT last_used_at FROM api_keys") == [(NOW,)]
