"""Lists and searches of contacts: pages at any depth read a range of an index, searches a bounded number of contacts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest_twisted

from mailsvc.store.audience.listing import ContactLists, Filter, _page
from mailsvc.store.paging import Page
from mailsvc.store.postgres.pool import Transaction
from tests.store.audience.rig import Audience
from tests.store.fixtures import nodes

COUNT = 20_000
FILL = """
INSERT INTO contacts (account_id, id, address, email, first_name, unsubscribed, hash, created_at, updated_at)
SELECT %s, lpad(to_hex(n), 32, '0')::uuid, 'c' || n || '@example.net', 'C' || n || '@Example.net', 'Name ' || n, n %% 100 = 0,
       decode(lpad(to_hex(n), 32, '0'), 'hex'), now(), now()
FROM generate_series(1, %s) AS n
"""
JOIN = "INSERT INTO contact_segments SELECT account_id, %s, id, now() FROM contacts WHERE account_id = %s"


async def filled(audience: Audience) -> UUID:
    segment = await audience.segments.add(audience.account, "all")
    await audience.pool.run(FILL, (audience.account, COUNT))
    await audience.pool.run(JOIN, (segment.id, audience.account))
    await audience.pool.run("ANALYZE contacts")
    await audience.pool.run("ANALYZE contact_segments")
    return segment.id


async def plan(audience: Audience, filter: Filter, page: Page) -> list[dict[str, Any]]:
    sql, params = _page(audience.account, filter, page)

    async def explained(tx: Transaction) -> list[dict[str, Any]]:
        [(found,)] = await tx.rows("EXPLAIN (ANALYZE, FORMAT JSON) " + sql, params)
        return list(nodes(found[0]["Plan"]))

    return await audience.pool.transact(explained)


@pytest_twisted.ensureDeferred
async def test_page_at_any_depth_reads_only_its_rows(audience: Audience) -> None:
    segment = await filled(audience)
    filters = (Filter(), Filter(segment), Filter(unsubscribed=True), Filter(unsubscribed=False), Filter(segment, unsubscribed=False))
    for filter in filters:
        for depth in (COUNT, COUNT // 2, 200):
            for page in (Page(20, after=UUID(int=depth)), Page(20, before=UUID(int=depth // 2))):
                found = await plan(audience, filter, page)
                scans = [node for node in found if "Scan" in node["Node Type"]]
                assert all("Index" in node["Node Type"] for node in scans), (filter, page, scans)
                read = [(node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans]
                assert max(read) <= 50, (filter, page, read)


@pytest_twisted.ensureDeferred
async def test_pages_follow_each_other(audience: Audience) -> None:
    segment = await filled(audience)
    seen: list[int] = []
    async for page in audience.lists.all(audience.account, Filter(segment, unsubscribed=True)):
        seen += [contact.id.int for contact in page]
    assert seen == list(range(COUNT, 0, -100))
    newest, more = await audience.lists.page(audience.account, Page(3, before=UUID(int=COUNT - 2)), Filter(segment))
    assert ([contact.id.int for contact in newest], more) == ([COUNT, COUNT - 1], False)


@pytest_twisted.ensureDeferred
async def test_search_for_a_part_reads_a_bounded_number(audience: Audience) -> None:
    await filled(audience)
    lists = ContactLists(audience.pool, searched=6000)
    found, after = [], None
    pages = 0
    while True:
        page = await lists.search(audience.account, Filter(text="NAME 1234"), 5, after)
        found += [contact.id.int for contact in page.contacts]
        pages, after = pages + 1, page.after
        if after is None:
            break
    assert found == [*range(12349, 12339, -1), 1234]
    assert pages >= 4


@pytest_twisted.ensureDeferred
async def test_search_for_whole_addresses(audience: Audience) -> None:
    await filled(audience)
    page = await audience.lists.search(audience.account, Filter(text="C7@example.net, c8@EXAMPLE.net\nnobody@example.net"), 20)
    assert ([contact.id.int for contact in page.contacts], page.after) == ([8, 7], None)
    everything = await audience.lists.search(audience.account, Filter(), 20)
    assert [contact.id.int for contact in everything.contacts] == list(range(COUNT, COUNT - 20, -1))
