"""What refers to deleted segments, topics and properties goes, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_twisted

from mailsvc.store.audience import cleanup
from mailsvc.store.audience.cleanup import Cleanup, References
from mailsvc.store.audience.imports import Imports
from mailsvc.store.audience.values import Choice
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.broadcasts.values import Content
from mailsvc.store.postgres.errors import TimedOut
from tests.store.audience.rig import NOW, PAGE, WORDING, Audience


@pytest_twisted.ensureDeferred
async def test_references_go_and_others_stay(audience: Audience, monkeypatch: Any) -> None:
    monkeypatch.setattr(cleanup, "BATCH", 2)
    account = audience.account
    gone, kept = await audience.segments.add(account, "gone"), await audience.segments.add(account, "kept")
    asking = await audience.segments.add(account, "asking", WORDING)
    topic, other = await audience.topics.add(account, "gone", True), await audience.topics.add(account, "kept", True)
    plan, seats = [await audience.properties.add(account, key, "string", None) for key in ("plan", "seats")]
    for n in range(5):
        await audience.add(
            f"{n}@example.net", segments=[gone.id, kept.id, asking.id], topics=[Choice(topic.id, False), Choice(other.id, False)],
            properties={"plan": "free", "seats": "1"},
        )  # fmt: skip
    await audience.preferences.unsubscribe(account, await audience.hash("0@example.net"), topic.id, PAGE)
    await audience.preferences.unsubscribe(account, await audience.hash("0@example.net"), other.id, PAGE)
    stuck, empty = await audience.segments.add(account, "stuck"), Cleanup._empty

    async def fail(self: Cleanup, references: References, account_id: UUID, id_: UUID) -> bool:
        if id_ == stuck.id:
            raise TimedOut("canceling statement due to statement timeout")
        return await empty(self, references, account_id, id_)

    monkeypatch.setattr(Cleanup, "_empty", fail)
    await audience.segments.remove(account, stuck.id)
    await audience.segments.remove(account, gone.id)
    await audience.segments.remove(account, asking.id)
    await audience.topics.remove(account, topic.id)
    await audience.properties.remove(account, plan.id)
    with pytest.raises(TimedOut):
        await Cleanup(audience.pool, Imports(audience.pool, None)).run(NOW, NOW, NOW + timedelta(hours=1))
    for table, ids in (("segments", {kept.id, stuck.id}), ("topics", {other.id}), ("contact_properties", {seats.id})):
        assert {id_ for (id_,) in await audience.pool.rows(f"SELECT id FROM {table}")} == ids
    assert await audience.pool.rows("SELECT segment_id, count(*) FROM contact_segments GROUP BY 1") == [(kept.id, 5)]
    assert await audience.pool.rows("SELECT topic_id, count(*) FROM contact_topics GROUP BY 1") == [(other.id, 5)]
    assert await audience.pool.rows("SELECT topic_id FROM unsubscribes") == [(other.id,)]
    assert await audience.pool.rows("SELECT FROM confirmations") == []
    assert await audience.pool.rows("SELECT DISTINCT properties FROM contacts") == [({str(seats.number): "1"},)]


@pytest_twisted.ensureDeferred
async def test_what_fails_every_time_does_not_keep_the_rest_from_its_turn(audience: Audience, monkeypatch: Any) -> None:
    monkeypatch.setattr(cleanup, "DELETED", 1)
    stuck, gone = [await audience.segments.add(audience.account, name) for name in ("stuck", "gone")]
    empty = Cleanup._empty

    async def fail(self: Cleanup, references: References, account_id: UUID, id_: UUID) -> bool:
        if id_ == stuck.id:
            raise TimedOut("canceling statement due to statement timeout")
        return await empty(self, references, account_id, id_)

    monkeypatch.setattr(Cleanup, "_empty", fail)
    for segment in (stuck, gone):  # in this order
        await audience.segments.remove(audience.account, segment.id)
        audience.clock.advance(1)
    for _ in range(50):  # the order is random
        with suppress(TimedOut):
            await Cleanup(audience.pool, Imports(audience.pool, None)).run(NOW, NOW, NOW + timedelta(hours=1))
        if await audience.pool.rows("SELECT id FROM segments") == [(stuck.id,)]:
            break
    assert await audience.pool.rows("SELECT id FROM segments") == [(stuck.id,)]


@pytest_twisted.ensureDeferred
async def test_a_broadcast_that_is_being_sent_keeps_its_recipients(audience: Audience) -> None:
    """Otherwise, the rest of the segment would get nothing, and the broadcast would be shown as sent."""
    account, stored = audience.account, Broadcasts(audience.pool, audience.clock)
    segment = await audience.segments.add(account, "deleted after sending began")
    await audience.add(segments=[segment.id])
    content = Content(name="News", segment_id=segment.id, sender="a@example.com", subject="News", text="News")
    assert isinstance(await stored.add(account, content, send=True), UUID)
    await audience.pool.run("UPDATE broadcasts SET started_at = %s", (NOW,))
    await audience.segments.remove(account, segment.id)
    cleanup = Cleanup(audience.pool, Imports(audience.pool, audience.clock))
    await cleanup.run(NOW, NOW, NOW + timedelta(hours=1))
    assert len(await audience.members(segment.id)) == 1
    await audience.pool.run("UPDATE broadcasts SET ended_at = %s", (NOW,))
    await cleanup.run(NOW, NOW, NOW + timedelta(hours=1))
    assert await audience.members(segment.id) == set()
    assert await audience.pool.rows("SELECT FROM segments") == []


@pytest_twisted.ensureDeferred
async def test_old_imports_go_with_their_errors(audience: Audience) -> None:
    for id_, days in ((1, 31), (2, 29)):
        at = NOW - timedelta(days=days)
        await audience.pool.run(
            "INSERT INTO contact_imports (account_id, id, status, settings, bytes, created_at, completed_at)"
            " VALUES (%s, lpad(%s, 32, '0')::uuid, 'completed', '{}', 1, %s, %s)",
            (audience.account, str(id_), at, at),
        )
        await audience.pool.run(
            "INSERT INTO contact_import_errors VALUES (%s, lpad(%s, 32, '0')::uuid, 1, 'x', 'y')", (audience.account, str(id_))
        )
    await Cleanup(audience.pool, Imports(audience.pool, None)).run(NOW - timedelta(days=30), NOW, NOW + timedelta(hours=1))
    for table, column in (("contact_imports", "id"), ("contact_import_errors", "import_id")):
        assert [id_.int for (id_,) in await audience.pool.rows(f"SELECT {column} FROM {table}")] == [2]


async def uploaded(audience: Audience) -> UUID:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"email\n"

    return (await Imports(audience.pool, audience.clock).add(audience.account, None, 6, 6, chunks())).id


@pytest_twisted.ensureDeferred
async def test_files_whose_import_nobody_started_go(audience: Audience) -> None:
    old, new = await uploaded(audience), await uploaded(audience)
    await audience.pool.run("UPDATE contact_imports SET created_at = %s WHERE id = %s", (NOW - timedelta(days=2), old))
    await audience.pool.run("UPDATE contact_imports SET created_at = %s WHERE id = %s", (NOW, new))
    await Cleanup(audience.pool, Imports(audience.pool, audience.clock)).run(NOW, NOW - timedelta(days=1), NOW + timedelta(hours=1))
    for table, column in (("contact_imports", "id"), ("contact_import_chunks", "import_id")):
        assert [id_ for (id_,) in await audience.pool.rows(f"SELECT {column} FROM {table}")] == [new]
