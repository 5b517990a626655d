"""Source addresses in the database."""

from __future__ import annotations

from datetime import date, timedelta
from uuid import UUID

import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults

from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.sources import PoolTable, SourceTable
from tests.store.fixtures import ACCOUNT, DAY, DOMAIN, MINUTE, NOW, OTHER, REGION, StoreRig, email

ADDRESS, SECOND = "192.0.2.1", "192.0.2.2"
TODAY = NOW.date()


def table(store: StoreRig) -> SourceTable:
    return SourceTable(store.pool, REGION)


@pytest_twisted.ensureDeferred
async def test_sources_of_processes_are_known_to_the_region(store: StoreRig) -> None:
    await table(store).announce([(ADDRESS, "", None), (SECOND, "bulk", TODAY)], NOW)
    await table(store).announce([(SECOND, "shop", None)], NOW + MINUTE)
    await SourceTable(store.pool, "other").announce([(ADDRESS, "bulk", None)], NOW)
    await table(store).announce([], NOW)
    found = [(each.address, each.pool, each.since, each.seen_at) for each in await table(store).read()]
    assert found == [(ADDRESS, "", None, NOW), (SECOND, "shop", None, NOW + MINUTE)]


@pytest_twisted.ensureDeferred
async def test_a_days_emails_are_shared_by_all_processes_and_never_exceeded(store: StoreRig) -> None:
    async def reserve(wanted: int) -> tuple[int, int]:
        return await table(store).reserve(ADDRESS, "google", TODAY, 50, wanted)

    found = await gatherResults([Deferred.fromCoroutine(reserve(7)) for _ in range(10)])
    assert sorted(granted for granted, _ in found) == [0, 0, 1, 7, 7, 7, 7, 7, 7, 7]
    assert await reserve(1) == (0, 50)
    assert await table(store).taken(TODAY) == {(ADDRESS, "google"): 50}
    await table(store).give_back(ADDRESS, "google", TODAY, 5)
    assert await reserve(7) == (5, 50)
    assert await table(store).reserve(ADDRESS, "google", TODAY + DAY, 100, 7) == (7, 7), "another day"
    assert await table(store).reserve(ADDRESS, "yahoo", TODAY, 50, 7) == (7, 7), "another provider"


@pytest_twisted.ensureDeferred
async def test_a_lower_limit_grants_nothing_more_and_forgets_nothing(store: StoreRig) -> None:
    assert await table(store).reserve(ADDRESS, "google", TODAY, 50, 40) == (40, 40)
    assert await table(store).reserve(ADDRESS, "google", TODAY, 20, 5) == (0, 40)


@pytest_twisted.ensureDeferred
async def test_one_process_checks_the_block_lists_daily_and_hourly_while_listed(store: StoreRig) -> None:
    sources = table(store)
    await sources.announce([(ADDRESS, "", None), (SECOND, "", None)], NOW)
    both = [ADDRESS, SECOND]
    assert dict(await sources.take_checks(both, NOW)) == {ADDRESS: [], SECOND: []}
    assert not await sources.take_checks(both, NOW)
    await sources.checked(ADDRESS, ["list.example"], NOW, complete=True)
    await sources.checked(SECOND, [], NOW, complete=False)
    assert dict(await sources.take_checks(both, NOW + MINUTE)) == {SECOND: []}, "not all lists answered"
    assert dict(await sources.take_checks(both, NOW + 60 * MINUTE)) == {ADDRESS: ["list.example"]}
    assert dict(await sources.take_checks(both, NOW + DAY + MINUTE)) == {ADDRESS: ["list.example"], SECOND: []}


@pytest_twisted.ensureDeferred
async def test_since_when_a_source_is_listed(store: StoreRig) -> None:
    sources = table(store)
    await sources.announce([(ADDRESS, "", None)], NOW)
    for minutes, listed in ((0, ["a.example"]), (60, ["a.example", "b.example"]), (120, [])):
        await sources.checked(ADDRESS, listed, NOW + minutes * MINUTE, complete=True)
        [found] = await sources.read()
        assert (list(found.listed), found.listed_at) == (listed, NOW if listed else None)
    await sources.announce([(ADDRESS, "", None)], NOW)
    assert [list(each.listed) for each in await sources.read()] == [[]]


@pytest_twisted.ensureDeferred
async def test_old_counts_and_sources_are_forgotten(store: StoreRig) -> None:
    sources = table(store)
    await sources.announce([(ADDRESS, "", None)], NOW - 61 * DAY)
    await sources.announce([(SECOND, "", None)], NOW - 59 * DAY)
    for days in (59, 61):
        await sources.reserve(ADDRESS, "google", TODAY - timedelta(days=days), 50, 5)
    await sources.forget(NOW)
    assert [each.address for each in await sources.read()] == [SECOND]
    assert await store.count("source_days") == 1
    assert await sources.taken(date(2020, 1, 1)) == {}


@pytest_twisted.ensureDeferred
async def test_waiting_mail_shows_why_and_until_when_no_source_may_send(store: StoreRig) -> None:
    mail = email("x@a.example")
    await store.accept(mail)
    await store.pool.run("UPDATE queue SET destination = 'bulk@big/mx.big.example'")
    reason, until = "Source warm-up: the source addresses have sent as many emails to big as they may today.", NOW + 10 * MINUTE
    await store.queue.hold(REGION, "bulk@big", "source", reason, until)
    shown = "SELECT reason, next_at FROM waiting_at(%s)"
    assert await store.pool.rows(shown, (NOW,)) == [(reason, until)]
    assert await store.queue.ready(REGION, NOW + MINUTE) == []
    await store.queue.end_wait(REGION, "bulk@big")
    assert [each.destination for each in await store.queue.ready(REGION, NOW + MINUTE)] == ["bulk@big/mx.big.example"]
    await store.queue.hold(REGION, "bulk@big", "paused", "Paused by the operator.", until)
    await store.queue.end_wait(REGION, "bulk@big")
    assert await store.count("destinations") == 1, "only a wait for a source ends"


@pytest_twisted.ensureDeferred
async def test_pools_of_accounts_and_domains(pool: Pool, store: StoreRig) -> None:
    pools = PoolTable(pool)
    await pool.run(
        "INSERT INTO accounts (id, name, created_at) VALUES (%s, 'A', now()), (%s, 'B', now()) ON CONFLICT DO NOTHING", (ACCOUNT, OTHER)
    )
    assert await pools.read() == {}
    await pools.assign_account(ACCOUNT, "shop", [], NOW.timestamp())
    await pools.assign_domain(DOMAIN, "letters", [], NOW.timestamp())
    found = dict(await pools.read())
    assert found.pop(ACCOUNT) == "shop"
    assert found in ({}, {DOMAIN: "letters"})
    assert [(pool_, kind) for pool_, kind, _, _ in await pools.owners()][-1:] == [("shop", "account")]
    await pools.assign_account(ACCOUNT, None, [], NOW.timestamp())
    assert ACCOUNT not in await pools.read()
    assert UUID(int=0xA2) not in await pools.read()
