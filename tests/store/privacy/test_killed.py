"""An erasure that is killed continues where it was, and its certificate counts everything once."""

from __future__ import annotations

from typing import Any

import attrs
import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy.erasures import Erasure
from tests.store.fixtures import StoreRig, email
from tests.store.privacy.filling import ACCOUNT, CANARY, INSTALLATION, fill, leaks
from tests.store.privacy.test_eraser import eraser


class Killed(Exception):
    pass


@attrs.define(eq=False)
class Mortal:
    """A pool whose process dies before a transaction, or right after its commit."""

    pool: Pool
    lives: int
    committed: bool

    async def transact(self, work: Any) -> Any:
        self.lives -= 1
        if self.lives == 0 and not self.committed:
            raise Killed
        result = await self.pool.transact(work)
        if self.lives == 0:
            raise Killed
        return result

    async def rows(self, *given: Any) -> Any:
        return await self.pool.rows(*given)


async def prepared(store: StoreRig, database: str) -> Erasure:
    fill(database)
    for n in range(5):
        await store.accept(email(CANARY, f"other{n}@else.example", message=f"To: {CANARY}\r\n\r\nHello\r\n".encode()))
        await store.accept(email(f"other{n}@else.example"))
    await store.pool.run("DELETE FROM queue WHERE address LIKE 'other%'")
    begin = eraser(store.pool).erasures
    return await begin.begin(ACCOUNT, begin.new_id(), CANARY, True, "command")


@pytest_twisted.ensureDeferred
async def test_it_is_killed_between_any_two_transactions(store: StoreRig, database: str) -> None:
    begun = await prepared(store, database)
    kills, done = 0, None
    while done is None:
        mortal: Any = Mortal(store.pool, 3 if kills % 2 else 2, committed=kills % 2 == 0)  # one transaction of work each time
        try:
            done = await eraser(mortal).run(begun, CANARY)
        except Killed:
            kills += 1
    assert kills >= 50 and done.finished_at is not None
    assert {table for table, _ in leaks(database)} == INSTALLATION
    expect(done)


@pytest_twisted.ensureDeferred
async def test_two_processes_at_once(store: StoreRig, database: str) -> None:
    from twisted.internet.defer import Deferred, gatherResults

    begun = await prepared(store, database)
    both = await gatherResults([Deferred.fromCoroutine(eraser(store.pool).run(begun, CANARY)) for _ in range(2)])
    assert {table for table, _ in leaks(database)} == INSTALLATION
    [done] = await store.pool.rows("SELECT finished_at, counts FROM erasures")
    expect(attrs.evolve(both[0], finished_at=done[0], counts=done[1]))


def expect(done: Erasure) -> None:
    """What `prepared` has, counted once. Its mail was suppressed, except for the row in the queue."""
    assert done.finished_at is not None
    counts = done.counts["erased"]
    assert [counts[place] for place in ("emails.recipients", "messages.bytes", "queue.address", "contacts", "users")] == [6, 6, 1, 1, 1]
