"""The operator's access to content: it has an end, its lines are written with what they are about, and one is open at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.store.audit import verification
from mailsvc.store.people.audit import by_operator
from mailsvc.store.people.operator_access import LONGEST, NoAccess, OperatorAccesses
from mailsvc.store.postgres.pool import Pool, Transaction
from tests.store.fixtures import ACCOUNT, NOW, OTHER, together

HOUR = timedelta(hours=1)
READ = by_operator(ACCOUNT, "email read", "an email")


def opened(pool: Pool) -> tuple[OperatorAccesses, Clock]:
    clock = Clock()
    clock.advance(NOW.timestamp())
    return OperatorAccesses(pool, clock), clock


async def content(tx: Transaction) -> str:
    [(found,)] = await tx.rows("SELECT 'secret'")
    return str(found)


async def lines(pool: Pool) -> list[Any]:
    return await pool.rows("SELECT action, subject FROM audit_entries WHERE account_id = %s ORDER BY seq", (ACCOUNT,))


@pytest_twisted.ensureDeferred
async def test_content_is_read_until_the_access_ends(pool: Pool) -> None:
    accesses, clock = opened(pool)
    with pytest.raises(NoAccess):
        await accesses.read(READ, content)
    assert await accesses.open(ACCOUNT, "ann", "Ticket 7", HOUR) == NOW + HOUR
    assert await accesses.read(READ, content) == "secret" and await accesses.is_open(ACCOUNT)
    with pytest.raises(NoAccess):
        await accesses.read(by_operator(OTHER, "email read"), content)  # it is for one account
    clock.advance(3599)
    await accesses.read(READ, content)
    clock.advance(1)
    with pytest.raises(NoAccess):
        await accesses.read(READ, content)
    assert not await accesses.is_open(ACCOUNT) and not await accesses.end(ACCOUNT, "ann")
    [access] = await accesses.list(ACCOUNT, 9)
    assert (access.end, access.open(NOW), access.open(NOW + HOUR)) == (NOW + HOUR, True, False)
    assert [(each.action, each.subject) for each in access.reads] == [("email read", "an email")] * 2
    until = f"{NOW + HOUR:%Y-%m-%d %H:%M} UTC"
    assert await lines(pool) == [("access to content opened", f"ann, until {until}: Ticket 7"), *[("email read", "an email")] * 2]
    assert (await verification.verify(pool, ACCOUNT, {})).problems == ()


@pytest_twisted.ensureDeferred
async def test_one_is_open_at_a_time_and_can_be_ended(pool: Pool) -> None:
    accesses, clock = opened(pool)
    both = await together(*(accesses.open(ACCOUNT, "ann", "at once", HOUR) for _ in range(2)))
    assert sorted(map(bool, both)) == [False, True]
    assert await accesses.open(ACCOUNT, "bob", "another reason", HOUR) is None
    clock.advance(60)
    assert await accesses.end(ACCOUNT, "bob") and not await accesses.end(ACCOUNT, "bob")
    with pytest.raises(NoAccess):
        await accesses.read(READ, content)
    assert await accesses.open(ACCOUNT, "bob", "another reason", timedelta(days=9)) == NOW + timedelta(seconds=60) + LONGEST
    clock.advance(86400)
    assert await accesses.open(ACCOUNT, "cat", "after one that ended without a command", HOUR)
    assert [(each.operator, each.end - each.opened_at) for each in await accesses.list(ACCOUNT, 9)] == [
        ("cat", HOUR), ("bob", LONGEST), ("ann", timedelta(seconds=60)),
    ]  # fmt: skip
    assert [action.rpartition(" ")[2] for action, _ in await lines(pool)] == ["opened", "ended", "opened", "opened"]


@pytest_twisted.ensureDeferred
async def test_a_failure_leaves_neither_an_access_nor_a_line(pool: Pool) -> None:
    accesses, _ = opened(pool)
    await accesses.open(ACCOUNT, "ann", "Ticket 7", HOUR)
    before = await lines(pool)

    async def fails(tx: Transaction) -> None:
        await tx.rows("SELECT 1 / 0")

    with pytest.raises(Exception, match="22012"):
        await accesses.read(READ, fails)
    assert await lines(pool) == before
    # The line is the last statement: if it cannot be written, there is no access, and nothing that was read is returned.
    await pool.run("ALTER TABLE audit_details ADD CHECK (subject NOT LIKE '%never%' AND subject NOT LIKE '%email%' AND subject <> 'bob')")
    for attempt in (
        accesses.read(READ, content),
        accesses.end(ACCOUNT, "bob"),
        accesses.open(OTHER, "ann", "never", HOUR),
    ):
        with pytest.raises(Exception, match="23514"):
            await attempt
    assert await lines(pool) == before and await accesses.is_open(ACCOUNT) and not await accesses.is_open(OTHER)
    assert await pool.rows("SELECT count(*) FROM operator_access") == [(1,)]


@pytest_twisted.ensureDeferred
async def test_a_reason_of_500_characters_is_whole_in_the_audit_log(pool: Pool) -> None:
    accesses, _ = opened(pool)
    await accesses.open(ACCOUNT, "a" * 60 + " (" + "b" * 32 + " as root)", "r" * 500, HOUR)
    [(_, subject)] = await lines(pool)
    assert subject.endswith("UTC: " + "r" * 500)
