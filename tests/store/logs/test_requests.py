"""The request log and the shared count of requests, in a database."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import attrs
import orjson
import pytest_twisted

from mailsvc.accounts.ratelimit import Block, RateLimit
from mailsvc.store.ids import uuid7
from mailsvc.store.logs.requests import LogView, NewLog, RequestLog
from mailsvc.store.paging import Page
from mailsvc.store.people.ratelimit import RateWindows
from mailsvc.store.postgres.pool import Pool
from tests.store.fixtures import ACCOUNT, NOW, OTHER, together

ENTRY = NewLog(ACCOUNT, uuid7(NOW.timestamp()), UUID(int=5), "GET", "/emails", 200, "me", 1.5, b'{"a": "\\u0000"}', None)


@pytest_twisted.ensureDeferred
async def test_a_batch_is_read_again_page_by_page(pool: Pool) -> None:
    log = RequestLog(pool)
    ours = [attrs.evolve(ENTRY, status=200 + n, log_id=uuid7(NOW.timestamp() + n)) for n in range(5)]
    await log.write([*ours, attrs.evolve(ENTRY, account_id=OTHER)])
    found, more = await log.list(ACCOUNT, Page(3))
    assert ([entry.status for entry in found], more) == ([204, 203, 202], True)
    assert abs(found[0].created_at - (NOW + timedelta(seconds=4))) < timedelta(seconds=1)
    rest, more = await log.list(ACCOUNT, Page(3, after=found[-1].id))
    assert ([entry.status for entry in rest], more) == ([201, 200], False)
    assert [entry.status for entry in (await log.list(ACCOUNT, Page(3, before=rest[0].id)))[0]] == [204, 203, 202]
    assert [entry.status for entry in (await log.list(ACCOUNT, Page(3), (202, 203)))[0]] == [203, 202]
    one: Any = await log.get(ACCOUNT, found[0].id)
    assert found[0] == LogView(ours[4].log_id, UUID(int=5), "GET", "/emails", 204, "me", 1.5)
    assert one == attrs.evolve(found[0], request_body={"a": "\0"})
    assert await log.get(OTHER, found[0].id) is None


@pytest_twisted.ensureDeferred
async def test_each_request_keeps_its_own_bodies(pool: Pool) -> None:
    log, bodies = RequestLog(pool), [(None, None), ("ä" * 50, "€"), (None, [1]), ({"b": "\u2028"}, None), ("", "")]
    entries = [
        attrs.evolve(ENTRY, log_id=uuid7(NOW.timestamp() + n), request_body=_json(request), response_body=_json(response))
        for n, (request, response) in enumerate(bodies)
    ]
    await log.write(entries)
    found = [await log.get(ACCOUNT, entry.log_id) for entry in entries]
    assert [(one.request_body, one.response_body) for one in found if one is not None] == bodies


def _json(value: object) -> bytes | None:
    return None if value is None else orjson.dumps(value)


@pytest_twisted.ensureDeferred
async def test_requests_of_an_account_that_has_moved_to_another_cell_are_not_logged(pool: Pool) -> None:
    await pool.run("INSERT INTO account_moves (account_id, phase, cell, begun_at) VALUES (%s, 'left', 'blue', now())", (OTHER,))
    await RequestLog(pool).write([ENTRY, attrs.evolve(ENTRY, account_id=OTHER)])
    assert await pool.rows("SELECT account_id FROM request_log") == [(ACCOUNT,)]


@pytest_twisted.ensureDeferred
async def test_many_processes_give_out_no_more_than_the_limit(pool: Pool) -> None:
    windows = RateWindows(pool)
    while time.time() % 1 > 0.5:
        await pool.rows("SELECT pg_sleep(0.05)")
    blocks = await together(*(windows.lease(ACCOUNT, 10, 2) for _ in range(9)))
    assert sum(granted for granted, _, _ in blocks) == 10
    assert sorted(blocks)[0][:2] == (0, 0) and max(left for _, left, _ in blocks) == 8
    assert (await windows.lease(OTHER, 3, 5))[:2] == (3, 0)
    await pool.run("UPDATE rate_windows SET second = second - 1")
    assert (await windows.lease(ACCOUNT, 10, 2))[:2] == (2, 8)


@pytest_twisted.ensureDeferred
async def test_two_processes_together_allow_exactly_the_limit(pool: Pool) -> None:
    """However the requests are divided between them: nothing below the limit is refused, nothing above it is allowed."""
    from twisted.internet import reactor

    async def lease(account_id: UUID, limit: int, wanted: int) -> Block:
        return Block(*await RateWindows(pool).lease(account_id, limit, wanted))

    one, other = (RateLimit(reactor, 10, lease, lambda: False) for _ in range(2))  # type: ignore[arg-type]
    for share in (1, 3, 5, 9):
        account = UUID(int=100 + share)
        while time.time() % 1 > 0.5:
            await pool.rows("SELECT pg_sleep(0.05)")
        below = [await one.take_shared(account) for _ in range(share)]
        below += await together(*(other.take_shared(account) for _ in range(10 - share)))
        above = await together(*(process.take_shared(account) for process in (one, other) for _ in range(5)))
        assert ([quota.allowed for quota in below], [quota.allowed for quota in above]) == ([True] * 10, [False] * 10)


@pytest_twisted.ensureDeferred
async def test_a_statement_that_had_to_wait_does_not_reopen_a_second_that_has_passed(pool: Pool) -> None:
    windows = RateWindows(pool)
    while time.time() % 1 > 0.5:
        await pool.rows("SELECT pg_sleep(0.05)")
    assert (await windows.lease(ACCOUNT, 10, 10))[0] == 10
    await pool.run("UPDATE rate_windows SET second = second + 1")  # as seen by a statement that began before and waited
    assert (await windows.lease(ACCOUNT, 10, 1))[0] == 0
    await pool.run("UPDATE rate_windows SET second = second + 3600")  # the clock went back
    assert (await windows.lease(ACCOUNT, 10, 1))[0] == 1


@pytest_twisted.ensureDeferred
async def test_a_limit_that_was_lowered_gives_nothing_more(pool: Pool) -> None:
    windows = RateWindows(pool)
    while time.time() % 1 > 0.5:
        await pool.rows("SELECT pg_sleep(0.05)")
    assert (await windows.lease(UUID(int=9), 10, 8))[:2] == (8, 2)
    assert (await windows.lease(UUID(int=9), 5, 2))[:2] == (0, 0)
