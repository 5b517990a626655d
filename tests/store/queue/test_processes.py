"""Processes: leases end with their process, and a process that was ended notices it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import sha512
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater

from mailsvc.clock import TimeOfDay, held, unix
from mailsvc.runtime.polling import PollingLoop
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue import processes as module
from mailsvc.store.queue.processes import FRESH, HEARTBEAT, ProcessRegistration


@attrs.define(eq=False)
class Owner:
    """A process with its clock and heartbeats, and the calls it made."""

    registration: ProcessRegistration
    clock: Clock
    replaced: list[tuple[int, int]]
    freed: list[int]
    loop: PollingLoop

    async def start(self, *roles: str) -> int:
        lease = await self.registration.start("eu-west-1", roles)
        self.loop.start(at_once=False)
        return lease

    async def end(self) -> None:
        await self.loop.stop()
        await self.registration.end()


@pytest.fixture
def make(pool: Pool) -> Any:
    def make() -> Owner:
        clock, replaced, freed = Clock(), [], []
        registration = ProcessRegistration(pool, clock, lambda old, new: replaced.append((old, new)), freed.append, clock.seconds)
        loop = PollingLoop(clock, "sending a heartbeat", registration.renew, HEARTBEAT, retry=1.0)
        return Owner(registration, clock, replaced, freed, loop)

    return make


@pytest_twisted.async_yield_fixture
async def owner(make: Any) -> AsyncIterator[Owner]:
    created = make()
    await created.start("delivery", "http")
    yield created
    if created.registration._id is not None:
        await created.end()


async def silence(pool: Pool, number: int, seconds: float = 46) -> None:
    await pool.rows("UPDATE processes SET heartbeat_at = heartbeat_at - make_interval(secs => %s) WHERE id = %s", (seconds, number))


async def enqueue(pool: Pool, lease: int | None, *statuses: str) -> None:
    now = datetime.now(UTC)
    [(begun,)] = await pool.rows("SELECT count(*) FROM queue")
    for number, status in enumerate(statuses, begun):
        await pool.rows(
            "INSERT INTO queue (email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at,"
            " expires_at, lease)"
            " VALUES (%s, 0, %s, %s, 'eu-west-1', 'a@example.test', 'example.test', %s, false, %s, %s, %s)",
            (UUID(int=number), UUID(int=1), UUID(int=2), status, now, now + timedelta(days=1), lease),
        )


async def leases(pool: Pool) -> list[tuple[str, int | None]]:
    return [(status, lease) for status, lease in await pool.rows("SELECT status, lease FROM queue ORDER BY email_id")]


async def settle(owner: Owner) -> None:
    """Wait until the heartbeat started by the clock has ended."""
    from twisted.internet import reactor

    for _ in range(5000):
        if not owner.loop._polling:
            return
        await deferLater(reactor, 0.001)  # type: ignore[arg-type]
    raise AssertionError("The round does not end.")


@pytest_twisted.ensureDeferred
async def test_heartbeats_keep_a_process_fresh(pool: Pool, owner: Owner) -> None:
    [before] = await pool.rows("SELECT heartbeat_at FROM processes")
    for _ in range(6):
        owner.clock.advance(HEARTBEAT)
        await settle(owner)
    assert owner.registration.fresh
    [after] = await pool.rows("SELECT heartbeat_at FROM processes")
    assert after > before
    assert owner.replaced == []


@pytest_twisted.ensureDeferred
async def test_without_confirmed_heartbeats_leases_are_no_longer_used(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = owner.registration.id

    async def unreachable(*_: object) -> int:
        raise Unavailable("no")

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "rows", unreachable)
        owner.clock.pump([1] * 29)
        assert owner.registration.holds(lease)
        owner.clock.advance(1)
        assert not owner.registration.fresh
        assert not owner.registration.holds(lease)
    owner.clock.advance(HEARTBEAT * 1.2)
    await settle(owner)
    assert owner.registration.holds(lease)


@pytest_twisted.ensureDeferred
async def test_a_heartbeat_counts_from_when_it_was_sent(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    answer: Deferred[list[tuple[float]]] = Deferred()

    async def slow(*_: object) -> list[tuple[float]]:
        return await answer

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "rows", slow)
        owner.clock.advance(HEARTBEAT)
        owner.clock.advance(FRESH - 1)
        answer.callback([(0.0,)])
    assert owner.registration.fresh
    owner.clock.advance(1)
    assert not owner.registration.fresh


@pytest_twisted.ensureDeferred
async def test_a_silent_process_loses_its_leases(pool: Pool, owner: Owner, make: Any) -> None:
    silent = make()
    lease = await silent.start("delivery")
    await enqueue(pool, lease, "queued", "delayed", "uncertain")
    await enqueue(pool, owner.registration.id, "queued")
    await enqueue(pool, None, "scheduled")
    await silence(pool, lease, 40)
    assert await owner.registration.take_over() == 0
    await silence(pool, lease, 6)
    assert await owner.registration.take_over() == 3
    assert await leases(pool) == [
        ("queued", None), ("delayed", None), ("uncertain", None), ("queued", owner.registration.id), ("scheduled", None)
    ]  # fmt: skip
    assert owner.freed == [3]
    assert await owner.registration.take_over() == 0
    assert owner.freed == [3]


@pytest_twisted.ensureDeferred
async def test_leases_end_although_a_destination_is_too_long_to_be_queued(pool: Pool, owner: Owner, make: Any) -> None:
    """Older releases stored such names with a lease."""
    silent = make()
    lease = await silent.start("delivery")
    await enqueue(pool, lease, "queued", "queued")
    hosts = " ".join(f"{sha512(bytes([number])).hexdigest()}.example" for number in range(30))
    await pool.run("UPDATE queue SET destination = %s, address = '\"@\"@Example.test' WHERE email_id = %s", (hosts, UUID(int=0)))
    await silence(pool, lease)
    assert await owner.registration.take_over() == 2
    assert await pool.rows("SELECT destination, lease FROM queue") == [("example.test", None)] * 2


@pytest_twisted.ensureDeferred
async def test_a_process_that_was_ended_continues_under_a_new_id(pool: Pool, owner: Owner, make: Any) -> None:
    silent = make()
    lease = await silent.start("delivery")
    await silence(pool, lease)
    await owner.registration.take_over()
    silent.clock.advance(HEARTBEAT)
    await settle(silent)
    assert silent.replaced == [(lease, silent.registration.id)]
    assert silent.registration.id > lease
    assert silent.registration.holds(silent.registration.id)
    assert not silent.registration.holds(lease)
    await silent.end()


@pytest_twisted.ensureDeferred
async def test_a_lease_committed_after_its_process_was_ended_is_freed_too(pool: Pool, owner: Owner, make: Any) -> None:
    silent = make()
    lease = await silent.start("delivery")
    await silence(pool, lease)
    await owner.registration.take_over()
    await enqueue(pool, lease, "queued")
    owner.clock.advance(HEARTBEAT)
    await settle(owner)
    assert await leases(pool) == [("queued", None)]


@pytest_twisted.ensureDeferred
async def test_ending_frees_the_leases(pool: Pool, make: Any) -> None:
    created = make()
    await enqueue(pool, await created.start(), "delayed")
    await created.end()
    assert await leases(pool) == [("delayed", None)]
    assert not created.registration.fresh
    assert created.clock.getDelayedCalls() == []
    assert await pool.rows("SELECT count(*) FROM processes WHERE ended_at IS NULL") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_live_counts_the_processes_of_a_role(pool: Pool, owner: Owner, make: Any) -> None:
    other = make()
    assert (owner.registration.live("http"), owner.registration.live("smtp")) == (1, 0)
    lease = await other.start("http", "smtp")
    owner.clock.advance(HEARTBEAT)
    await settle(owner)
    assert (owner.registration.live("http"), owner.registration.live("smtp")) == (2, 1)
    await silence(pool, lease)
    owner.clock.advance(HEARTBEAT)
    await settle(owner)
    assert (owner.registration.live("http"), owner.registration.live("smtp")) == (1, 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest_twisted.ensureDeferred
async def test_a_killed_process_of_this_host_is_ended_at_once(pool: Pool, make: Any) -> None:
    gone = subprocess.Popen(["true"])  # noqa: ASYNC220
    gone.wait()
    here, elsewhere = module._host(), "another machine 1/2"
    for host, pid in ((here, gone.pid), (here, 1), (elsewhere, gone.pid)):
        [(lease,)] = await pool.rows(module.START, (host, pid, "eu-west-1", [], None, None))
        await enqueue(pool, lease, "queued")
    created = make()
    await created.start()
    assert [lease is None for _, lease in await leases(pool)] == [True, False, False]
    await created.end()


@pytest_twisted.ensureDeferred
async def test_an_earlier_process_with_the_same_process_id_is_dead(pool: Pool, make: Any) -> None:
    await pool.rows("SELECT setval(pg_get_serial_sequence('processes', 'id'), 1000000)")
    [(lease,)] = await pool.rows(module.START, (module._host(), os.getpid(), "eu-west-1", [], None, None))
    await enqueue(pool, lease, "queued")
    created = make()
    await created.start()
    assert await leases(pool) == [("queued", None)] or " " not in module._host()
    await created.end()


@pytest_twisted.ensureDeferred
async def test_rows_of_ended_processes_without_leases_are_deleted(pool: Pool, owner: Owner) -> None:
    for days in (6, 8):
        await pool.rows(
            "INSERT INTO processes (host, pid, region, roles, heartbeat_at, ended_at)"
            " VALUES ('x', 1, '', '{}', now() - make_interval(days => %s), now() - make_interval(days => %s))",
            (days, days),
        )
    await owner.registration.take_over()
    assert await pool.rows("SELECT count(*) FROM processes WHERE host = 'x'") == [(1,)]


async def counted(owner: Owner, processes: int) -> None:
    """Wait until it counts so many processes."""
    from twisted.internet import reactor

    for _ in range(5000):
        if owner.registration.live("http") == processes:
            return
        await deferLater(reactor, 0.001)  # type: ignore[arg-type]
    raise AssertionError(f"It knows of {owner.registration.live('http')}.")


class _Notifications:
    """Notifies all listeners at once."""

    def __init__(self) -> None:
        self.listening: list[Any] = []

    def listen(self, channel: str, callback: Any) -> None:
        self.listening.append(callback)

    def notify(self, channel: str) -> None:
        for callback in self.listening:
            callback()


@pytest_twisted.ensureDeferred
async def test_new_processes_are_counted_before_the_next_heartbeat(owner: Owner, make: Any) -> None:
    notifications: Any = _Notifications()
    owner.registration.announce(notifications)
    assert owner.registration.live("http") == 1
    other = make().registration
    await other.start("eu-west-1", ["http"])
    other.announce(notifications)
    await counted(owner, 2)
    assert (owner.registration.peers("http"), owner.registration.live("smtp")) == (2, 0)
    await other.end()
    notifications.notify("processes")  # to one that has ended, which has no business to count
    await counted(owner, 1)


@pytest_twisted.ensureDeferred
async def test_after_a_step_of_the_databases_clock_no_process_is_ended(make: Any, owner: Owner, pool: Pool) -> None:
    """All heartbeats look old then. Ending a live process would let another send the same mail."""
    await silence(pool, owner.registration.id, 3600)
    other, clock = make(), owner.clock
    day = TimeOfDay(10.0, other.clock.seconds, lambda: clock.seconds() + 3600)
    day.measured(0, clock.seconds(), 0)
    other.clock.time_of_day = day
    assert held(other.clock) is not None
    await other.start("delivery")
    assert await pool.rows("SELECT ended_at FROM processes WHERE id = %s", (owner.registration.id,)) == [(None,)]
    await other.end()


@pytest_twisted.ensureDeferred
async def test_a_heartbeat_measures_the_databases_clock(make: Any, pool: Pool) -> None:
    created = make()
    created.clock.time_of_day = TimeOfDay(10.0, created.clock.seconds, lambda: created.clock.seconds() + 60)
    await created.start("delivery")
    await created.registration.beat()
    assert abs(unix(created.clock) - datetime.now(UTC).timestamp()) < 5
    await created.end()
