"""The page of suppressions: adding and removing addresses. Undo: test_undo."""

from __future__ import annotations

import pytest
import pytest_twisted

from mailsvc.store.events.suppressions import Suppressions
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.audience.test_contacts import started

SUPPRESSIONS = "/dashboard/suppressions"


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("Ann@Example.com, bob@example.net;carl@example.org", ["Ann@example.com", "bob@example.net", "carl@example.org"]),
        ("zoe@bücher.example", ["zoe@xn--bcher-kva.example"]),
        ("zoé@BÜCHER.example\nzoé@xn--bcher-kva.example", ["zoé@xn--bcher-kva.example"]),
    ],
)
@pytest_twisted.ensureDeferred
async def test_addresses_are_added_as_people_write_them(pool: Pool, typed: str, stored: list[str]) -> None:
    _, account, ann = await started(pool)
    await ann.get(SUPPRESSIONS)
    added = await ann.post(SUPPRESSIONS, {"emails": typed})
    assert added.location == f"{SUPPRESSIONS}?done=added"
    assert "The addresses are suppressed." in (await ann.get(added.location)).text
    found, _ = await Suppressions(pool, None).list(account, 9)
    assert sorted(one.email for one in found) == stored


@pytest.mark.parametrize("wrong", ["nobody", "a@b@c.example", "Ann<ann@example.com>", "ann@-example.com"])
@pytest_twisted.ensureDeferred
async def test_what_is_not_an_address_is_named_and_stays_in_the_form(pool: Pool, wrong: str) -> None:
    _, account, ann = await started(pool)
    await ann.get(SUPPRESSIONS)
    shown = await ann.post(SUPPRESSIONS, {"emails": f"bob@example.net {wrong}"})
    assert shown.status == 422 and "isn’t a valid email address." in shown.text and "bob@example.net" in shown.text
    assert await Suppressions(pool, None).list(account, 9) == ([], False)


@pytest_twisted.ensureDeferred
async def test_a_suppression_of_an_erased_address_is_found_and_removed(pool: Pool) -> None:
    rig, account, ann = await started(pool)
    await ann.get(SUPPRESSIONS)
    await ann.post(SUPPRESSIONS, {"emails": "zoe@example.net"})
    await rig.assembly.erasing.begin(account, "zoe@example.net", True, "dashboard", [])
    eraser = rig.assembly.erasing.eraser
    [(erasure, email)] = await eraser.erasures.unfinished()
    await eraser.run(erasure, email)
    assert "No suppressed addresses" in (await ann.get(SUPPRESSIONS)).text
    shown = await ann.get(f"{SUPPRESSIONS}?q=zoe@example.net")
    removed = await ann.post(shown.found(r'action="([^"]+/remove)"'), {"email": "zoe@example.net"})
    assert removed.location == f"{SUPPRESSIONS}?done=removed"
    assert "The address was removed." in (await ann.get(removed.location)).text
    assert await pool.rows("SELECT FROM erased_suppressions") == []
