"""The command palette leads to pages that exist, and only to those that the person can open."""

from __future__ import annotations

import re

import pytest_twisted

from mailsvc.dashboard.assembly import NAVIGATION
from mailsvc.dashboard.places import PLACES
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig


def listed(page: str) -> set[str]:
    return set(re.findall(r'<a role="option" [^>]*href="/dashboard([^"]*)"', page))


def test_each_section_has_a_place_and_a_key_of_its_own() -> None:
    keys = [place.key for place in PLACES if place.key]
    assert len(set(keys)) == len(keys) and "g" not in keys
    for section, _, _ in NAVIGATION:
        path = f"/{section}" if section else ""
        assert any(place.path == path and place.key for place in PLACES), section


@pytest_twisted.ensureDeferred
async def test_every_place_can_be_opened(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    await rig.person("bob@example.com", account_id, "developer")
    ann, bob = await rig.inside("ann@example.com"), await rig.inside("bob@example.com")
    for place in PLACES:
        if place.path != "/sandbox":  # which this rig does not have
            assert (await ann.get(f"/dashboard{place.path}")).status == 200, place
    of_ann, of_bob = listed((await ann.get("/dashboard")).text), listed((await bob.get("/dashboard")).text)
    assert of_ann == {place.path for place in PLACES} - {"/sandbox"}
    assert of_ann - of_bob == {"/settings/plan", "/settings/sso", "/settings/data", "/settings/privacy", "/settings/audit"}


@pytest_twisted.ensureDeferred
async def test_single_keys_can_be_turned_off(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person("ann@example.com")
    ann = await rig.inside("ann@example.com")
    page = (await ann.get("/dashboard")).text
    assert " data-keys" in page and 'id="shortcut-list"' in page
    await ann.post("/dashboard/settings/profile/preferences", {"time_zone": "UTC"})
    page = (await ann.get("/dashboard")).text
    assert 'id="palette"' in page and " data-keys" not in page and 'id="shortcut-list"' not in page
