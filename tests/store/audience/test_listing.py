"""Lists and searches of contacts: pages at any depth read a range of an index, searches a bounded number of contacts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest_twisted

from mailsvc.store.audience.listing import ContactLists, Filter, _named, _page
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
    return await explained(audience, *_page(audience.account, filter, page))


async def explained(audience: Audience, sql: str, params: tuple[object, ...]) -> list[dict[str, Any]]:
    async def explain(tx: Transaction) -> list[dict[str, Any]]:
        [(found,)] = await tx.rows("EXPLAIN (ANALYZE, FORMAT JSON) " + sql, params)
        return list(nodes(found[0]["Plan"]))

    return await audience.pool.transact(explain)


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
    pages = []
    after = None
    while not pages or after is not None:
        page = await audience.lists.search(audience.account, Filter(text="c1@example.net c7@example.net c8@example.net"), 2, after)
        pages.append([contact.id.int for contact in page.contacts])
        after = page.after
    assert pages == [[8, 7], [1]]
    everything = await audience.lists.search(audience.account, Filter(), 20)
    assert [contact.id.int for contact in everything.contacts] == list(range(COUNT, COUNT - 20, -1))


@pytest_twisted.ensureDeferred
async def test_search_for_whole_addresses_stays_in_its_segment_and_state(audience: Audience) -> None:
    await filled(audience)
    few = await audience.segments.add(audience.account, "few")
    await audience.pool.run(f"{JOIN} AND id::text < '00000000-0000-0000-0000-000000000100'", (few.id, audience.account))  # 1 to 255
    text = "c7@example.net c200@example.net c300@example.net c400@example.net"
    for filter, expected in [
        (Filter(few.id, text=text), [200, 7]),
        (Filter(few.id, unsubscribed=True, text=text), [200]),
        (Filter(few.id, unsubscribed=False, text=text), [7]),
        (Filter(unsubscribed=True, text=text), [400, 300, 200]),
        (Filter(few.id, text="c300@example.net"), []),
    ]:
        page = await audience.lists.search(audience.account, filter, 20)
        assert ([contact.id.int for contact in page.contacts], page.after) == (expected, None), filter


@pytest_twisted.ensureDeferred
async def test_search_for_whole_addresses_reads_only_them(audience: Audience) -> None:
    segment = await filled(audience)
    named = [f"c{n}@example.net" for n in range(1, 21)]  # few enough for an index with 20,000 contacts
    filters = (Filter(), Filter(segment), Filter(segment, True), Filter(segment, False), Filter(unsubscribed=True))
    for filter in filters:
        for page in (Page(5), Page(20, after=UUID(int=100))):
            found = await explained(audience, *_named(audience.account, named, filter, page))
            scans = [node for node in found if "Scan" in node["Node Type"] and node["Node Type"] != "CTE Scan"]
            assert all("Index" in node["Node Type"] or "Bitmap" in node["Node Type"] for node in scans), (filter, page, scans)
            read = [(node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans]
            assert max(read) <= len(named), (filter, page, read)
