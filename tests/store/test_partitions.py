"""Partitions are there before they are needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults

from mailsvc.store import partitions
from mailsvc.store.errors import StoreError
from mailsvc.store.ids import uuid7
from mailsvc.store.pool import Pool

ACCOUNT = UUID(int=1)


async def insert(pool: Pool, moment: datetime) -> None:
    await pool.rows(
        "INSERT INTO messages (account_id, email_id, piece, bytes) VALUES (%s, %s, 0, %s)", (ACCOUNT, uuid7(moment.timestamp()), b"x")
    )


@pytest_twisted.ensureDeferred
async def test_what_comes_in_sixty_days_has_its_place(pool: Pool) -> None:
    later = datetime.now(UTC) + timedelta(days=60)
    with pytest.raises(StoreError):
        await insert(pool, later)
    await partitions.ensure(pool, later)
    for days in (-1, 0, 1, 14):
        await insert(pool, later + timedelta(days=days))


@pytest_twisted.ensureDeferred
async def test_all_of_a_day_and_nothing_else_is_in_its_partition(pool: Pool) -> None:
    day = datetime(2030, 2, 28, tzinfo=UTC)
    await partitions.ensure(pool, day, days_ahead=1)
    for moment in (day, day + timedelta(days=1, milliseconds=-1)):
        await insert(pool, moment)
    await insert(pool, day + timedelta(days=1))
    assert await pool.rows("SELECT count(*) FROM messages_20300228") == [(2,)]
    assert await pool.rows("SELECT count(*) FROM messages_20300301") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_several_processes_make_each_partition_once(pool: Pool) -> None:
    later = datetime.now(UTC) + timedelta(days=90)
    made = await gatherResults([Deferred.fromCoroutine(partitions.ensure(pool, later, 2)) for _ in range(3)])
    assert sorted(map(len, made)) == [0, 0, 4 * len(partitions.TABLES)]


@pytest_twisted.ensureDeferred
async def test_messages_are_compressed_alike_in_every_partition(pool: Pool) -> None:
    later = datetime.now(UTC) + timedelta(days=120)
    await partitions.ensure(pool, later, 0)
    [(parent,)] = await pool.rows("SELECT attcompression FROM pg_attribute WHERE attrelid = 'messages'::regclass AND attname = 'bytes'")
    name = partitions.name_of("messages", later)
    rows = await pool.rows("SELECT attcompression FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'bytes'", (name,))
    assert rows == [(parent,)]
