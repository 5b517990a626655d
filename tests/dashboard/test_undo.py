"""Undo: what was removed or deleted is as it was before, for ten minutes, and both are in the audit log."""

from __future__ import annotations

import pytest
import pytest_twisted

from mailsvc.clock import utc
from mailsvc.dashboard.signin import tickets
from mailsvc.store.audience.cleanup import Cleanup
from mailsvc.store.audience.definitions import KEPT, UNDO
from mailsvc.store.audience.imports import Imports
from mailsvc.store.audience.values import Choice, NewContact
from mailsvc.store.events.suppressions import Suppressions
from mailsvc.store.paging import ALL
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.audience.test_contacts import API, AUDIENCE, started
from tests.dashboard.fixtures import Browser, Response

SUPPRESSIONS = "/dashboard/suppressions"
UNDO_FORM = r'role="status">.*?action="([^"]+)".*?>Undo<'


async def undo(browser: Browser, shown: Response) -> Response:
    return await browser.post(shown.found(UNDO_FORM))


@pytest_twisted.ensureDeferred
async def test_a_suppression_is_put_back_as_it_was(pool: Pool) -> None:
    rig, account, ann = await started(pool)
    stored = Suppressions(pool, rig.clock)
    [before] = await stored.add(account, ["Zoé@bücher.example"], origin="bounce", reason="550 5.1.1 No such “user”\r\nhere")
    rig.clock.advance(60)
    await ann.get(SUPPRESSIONS)
    shown = await ann.get((await ann.post(f"{SUPPRESSIONS}/{before.id}/remove")).location)
    assert "was removed. Emails to this address are sent again." in shown.text
    assert await stored.get(account, before.id) is None
    restored = await undo(ann, shown)
    assert "The address is suppressed again." in (await ann.get(restored.location)).text
    assert await stored.get(account, before.id) == before
    assert [line for line in await rig.audit(account) if "suppression" in line[0]] == [
        ("suppression removed", "Zoé@bücher.example"), ("suppression restored", "Zoé@bücher.example"),
    ]  # fmt: skip
    kinds = [kind for (kind,) in await pool.rows("SELECT type FROM events WHERE type LIKE 'suppression.%%' ORDER BY event_id", ())]
    assert kinds == ["suppression.added", "suppression.removed", "suppression.added"]
    assert (await ann.post(f"{SUPPRESSIONS}/restore")).status == 410  # once


@pytest.mark.parametrize("character", ["a", '"', "漢", "😀"])
@pytest_twisted.ensureDeferred
async def test_a_suppression_with_a_long_reason_fits_into_a_cookie(pool: Pool, character: str) -> None:
    rig, account, ann = await started(pool)
    stored = Suppressions(pool, rig.clock)
    [before] = await stored.add(account, [f"{'é' * 30}@{'x' * 60}.{'y' * 60}.example"], origin="bounce", reason=character * 3000)
    await ann.get(SUPPRESSIONS)
    shown = await ann.get((await ann.post(f"{SUPPRESSIONS}/{before.id}/remove")).location)
    assert len(ann.cookies["mailsvc-removed"]) < 4000
    await undo(ann, shown)
    restored = await stored.get(account, before.id)
    assert restored is not None and restored.reason is not None and len(restored.reason) >= 160 and {*restored.reason} == {character}


@pytest_twisted.ensureDeferred
async def test_a_removal_is_undone_within_ten_minutes_in_the_same_session_and_account(pool: Pool) -> None:
    rig, account, ann = await started(pool)
    stored = Suppressions(pool, rig.clock)
    for name, attempt in (("late", 410), ("other", 410), ("again", 303)):
        [added] = await stored.add(account, [f"{name}@example.net"])
        await ann.get(SUPPRESSIONS)
        await ann.post(f"{SUPPRESSIONS}/{added.id}/remove")
        browser = ann
        if name == "late":
            rig.clock.advance(tickets.LIFE + 1)
            assert ">Undo<" not in (await ann.get(f"{SUPPRESSIONS}?done=removed")).text
        if name == "other":
            await rig.person("eve@example.com")
            browser = await rig.inside("eve@example.com")
            browser.cookies["mailsvc-removed"] = ann.cookies["mailsvc-removed"]
            await browser.get(SUPPRESSIONS)
        if name == "again":
            await stored.add(account, [f"{name}@example.net"])
        assert (await browser.post(f"{SUPPRESSIONS}/restore")).status == attempt, name
    assert await pool.rows("SELECT email FROM suppressions") == [("again@example.net",)]
    assert "suppression restored" not in [action for action, _ in await rig.audit(account)]  # nothing was


@pytest_twisted.ensureDeferred
async def test_segments_topics_and_properties_come_back_with_what_contacts_have_of_them(pool: Pool) -> None:
    rig, account, ann = await started(pool)
    audience = rig.assembly.audience
    segment, topic = await audience.segments.add(account, "Friends"), await audience.topics.add(account, "News", True)
    seats = await audience.properties.add(account, "seats", "number", None)
    new = NewContact("ada@example.net", properties={"seats": 7}, segments=[segment.id], topics=[Choice(topic.id, False)])
    contact = await audience.contacts.create(account, new, API)
    cleanup, names = Cleanup(pool, Imports(pool, rig.clock)), ("segments", "topics", "properties")
    tables = ("contact_segments", "contact_topics", "contact_properties")
    before = [await pool.rows(f"SELECT * FROM {table}") for table in tables]
    for name, one in zip(names, (segment, topic, seats), strict=True):
        at = f"{AUDIENCE}/{name}/{one.id}"
        await ann.get(f"{AUDIENCE}/{name}")
        shown = await ann.get((await ann.post(f"{at}/delete")).location)
        rig.clock.advance(UNDO.total_seconds() - 1)
        await cleanup.run(utc(rig.clock), utc(rig.clock), utc(rig.clock) - KEPT)
        assert (await getattr(audience, name).list(account, ALL))[0] == []
        restored = await undo(ann, shown)
        assert "is back." in (await ann.get(restored.location)).text
        assert (await ann.post(f"{at}/restore")).status == 410  # it is there
    assert [await pool.rows(f"SELECT * FROM {table}") for table in tables] == before
    found = await audience.contacts.get(account, contact.id)
    assert found is not None and found.properties == {str(seats.number): 7}
    actions = [action for action, _ in await rig.audit(account)]
    assert actions[-6:] == [f"{name} {what}" for name in ("segment", "topic", "contact property") for what in ("deleted", "restored")]


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("name", ["segments", "topics", "properties"])
async def test_a_deletion_cannot_be_undone_later_or_if_its_place_is_taken(pool: Pool, name: str) -> None:
    rig, account, ann = await started(pool)
    stored = getattr(rig.assembly.audience, name)
    add = {"segments": ("Friends",), "topics": ("News", True), "properties": ("seats", "string", None)}[name]
    one = await stored.add(account, *add)
    await ann.get(f"{AUDIENCE}/{name}")
    await ann.post(f"{AUDIENCE}/{name}/{one.id}/delete")
    other = await stored.add(account, *add)
    if name == "properties":
        assert (await ann.post(f"{AUDIENCE}/{name}/{one.id}/restore")).status == 409
    stored.most = 1
    full = await ann.post(f"{AUDIENCE}/{name}/{one.id}/restore")
    assert full.status == 409 and "which is the maximum" in full.text
    await stored.remove(account, other.id)
    rig.clock.advance(UNDO.total_seconds() + 1)
    late = await ann.post(f"{AUDIENCE}/{name}/{one.id}/restore")
    assert late.status == 410 and "A deletion can be undone for 10 minutes." in late.text
    assert (await stored.list(account, ALL))[0] == []


@pytest_twisted.ensureDeferred
async def test_the_newest_suppressions_are_those_of_the_same_search(pool: Pool) -> None:
    rig, account, ann = await started(pool)
    await Suppressions(pool, rig.clock).add(account, [f"bo{number}@example.net" for number in range(51)])
    first = await ann.get(f"{SUPPRESSIONS}?q=example&origin=manual")
    second = await ann.get(first.found(r'href="([^"]+)">Older<'))
    assert second.found(r'href="([^"]+)">Newest<') == f"{SUPPRESSIONS}?q=example&origin=manual"
    everything = await ann.get((await ann.get(SUPPRESSIONS)).found(r'href="([^"]+)">Older<'))
    assert everything.found(r'href="([^"]+)">Newest<') == SUPPRESSIONS
