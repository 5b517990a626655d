"""Partitions exist before they are needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mailsvc.store.ids import uuid7
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.errors import OutOfResources
from mailsvc.store.postgres.pool import Pool, Transaction

ACCOUNT = UUID(int=1)


async def insert(pool: Pool, moment: datetime) -> None:
    await pool.rows(
        "INSERT INTO messages (account_id, email_id, piece, bytes) VALUES (%s, %s, 0, %s)", (ACCOUNT, uuid7(moment.timestamp()), b"x")
    )


@pytest_twisted.ensureDeferred
async def test_rows_of_the_next_sixty_days_have_partitions(pool: Pool) -> None:
    later = datetime.now(UTC) + timedelta(days=60)
    with capturedLogs(), pytest.raises(OutOfResources) as raised:  # not an error of the row: an SMTP client would drop its mail
        await insert(pool, later)
    assert raised.value.description == "it has no partition for the present day yet"
    await partitions.ensure(pool, later)
    for days in (-1, 0, 1, 14):
        await insert(pool, later + timedelta(days=days))


@pytest_twisted.ensureDeferred
async def test_a_partition_holds_exactly_one_day(pool: Pool) -> None:
    day = datetime(2030, 2, 28, tzinfo=UTC)
    await partitions.ensure(pool, day, days_ahead=1)
    for moment in (day, day + timedelta(days=1, milliseconds=-1)):
        await insert(pool, moment)
    await insert(pool, day + timedelta(days=1))
    assert await pool.rows("SELECT count(*) FROM messages_20300228") == [(2,)]
    assert await pool.rows("SELECT count(*) FROM messages_20300301") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_the_day_of_any_moment_can_be_made(pool: Pool) -> None:
    """It fits between the days around it."""
    day = datetime(2031, 5, 4, tzinfo=UTC)
    for moment in (day, day + timedelta(days=1, hours=23), day + timedelta(days=2, hours=12)):
        await partitions.ensure_day(pool, moment)
        await insert(pool, moment)


@pytest_twisted.ensureDeferred
async def test_several_processes_create_each_partition_once(pool: Pool) -> None:
    later = datetime.now(UTC) + timedelta(days=90)
    created = await gatherResults([Deferred.fromCoroutine(partitions.ensure(pool, later, 2)) for _ in range(3)])
    assert len([name for names in created for name in names]) == 4 * len(partitions.TABLES)
    assert await partitions.ensure(pool, later, 2) == []


@pytest_twisted.ensureDeferred
async def test_creating_partitions_does_not_wait_for_readers_or_writers(pool: Pool) -> None:
    now = datetime.now(UTC)

    async def in_the_middle(transaction: Transaction) -> None:
        await transaction.rows(
            "LOCK TABLE emails, messages, events, attempts, event_log IN ROW EXCLUSIVE MODE; SELECT count(*) FROM emails"
        )
        assert await partitions.ensure(pool, now + timedelta(days=30), 0)

    await pool.transact(in_the_middle)


@pytest_twisted.ensureDeferred
async def test_a_partition_has_the_keys_and_indexes_of_its_parent(pool: Pool) -> None:
    later = datetime.now(UTC) + timedelta(days=30)
    await partitions.ensure(pool, later, 0)
    for table in partitions.TABLES:
        sql = "SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass AND indisvalid"
        [(own,)] = await pool.rows(sql, (partitions.name_of(table, later),))
        assert [(own,)] == await pool.rows(sql, (table,))
        assert own > 0


@pytest_twisted.ensureDeferred
async def test_message_storage_settings_apply_to_every_partition(pool: Pool) -> None:
    later = datetime.now(UTC) + timedelta(days=120)
    await partitions.ensure(pool, later, 0)
    parent = await pool.rows(
        "SELECT attcompression, attstorage FROM pg_attribute WHERE attrelid = 'messages'::regclass AND attname = 'bytes'"
    )
    name = partitions.name_of("messages", later)
    rows = await pool.rows(
        "SELECT attcompression, attstorage FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'bytes'", (name,)
    )
    assert rows == parent


@pytest_twisted.ensureDeferred
async def test_partitions_are_created_again_when_the_date_was_corrected(pool: Pool) -> None:
    """A process that started with a wrong date created partitions of the wrong days."""
    clock = Clock()
    clock.advance(datetime(2031, 1, 1, tzinfo=UTC).timestamp())
    maker = partitions.PartitionMaker(pool, clock)
    await maker.make()
    clock.rightNow = datetime(2033, 1, 1, tzinfo=UTC).timestamp()
    await maker.make()
    await insert(pool, datetime(2033, 1, 1, 12, tzinfo=UTC))
