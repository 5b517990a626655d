"""The access review: who has access, what is unused, and who decided what."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from typing import Any

import pytest
import pytest_twisted

from mailsvc.dashboard.account import access_review
from mailsvc.store.people.audit import by_operator, write
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig

ACCESS, ANN, BOB = "/dashboard/settings/access", "ann@example.com", "bob@example.com"


@pytest_twisted.ensureDeferred
async def test_the_review_shows_what_is_unused_and_who_decided(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id, other = await rig.account(), await rig.account("Other")
    await rig.person(ANN, account_id)
    bob = await rig.person(BOB, account_id, "developer")
    await rig.assembly.keys.create(other, "foreign", "full_access")
    key_id, _ = await rig.assembly.keys.create(account_id, "=old", "full_access")
    gone, _ = await rig.assembly.keys.create(account_id, "gone", "sending_access")
    rig.clock.advance(91 * 86400)
    await rig.assembly.keys.create(account_id, "new", "sending_access")
    ann = await rig.inside(ANN)
    shown = await ann.get(ACCESS)
    access = re.findall(r'<td class="small">([^<]+)<', shown.text)
    assert access == ["Admin", "Developer", "Full access", "Sending access", "Sending access"]
    assert shown.text.count("Unused") == 3 and "foreign" not in shown.text  # Bob and two keys
    assert (await ann.post(f"{ACCESS}/keep", {"subject": f"key {key_id}"})).query["done"] == "kept"
    assert (await ann.post(f"{ACCESS}/keep", {"subject": f"key {bob.id}"})).status == 404
    await ann.get("/dashboard/keys")
    await ann.post(f"/dashboard/keys/{gone}/revoke")

    file = await ann.get(f"{ACCESS}/review.csv")
    rows = list(csv.DictReader(file.text.splitlines()))
    assert [(row["kind"], row["name"], row["unused"], row["decision"], row["decided by"]) for row in rows][:4] == [
        ("member", ANN, "no", "", ""),
        ("member", BOB, "yes", "", ""),
        ("key", "'=old", "yes", "kept", ANN),
        ("key", "new", "no", "", ""),
    ]
    assert (rows[4]["name"][:4], rows[4]["unused"], rows[4]["decision"], rows[4]["decided by"]) == ("gone", "no", "revoked", ANN)
    assert [action for action, _ in await rig.audit(account_id)][-3:] == ["access kept", "key revoked", "access review exported"]


@pytest_twisted.ensureDeferred
async def test_the_page_is_short_however_many_keys_ended(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_review, "ENDED", 2)
    files: list[bytes] = []

    async def in_thread(work: Callable[[], Any]) -> Any:
        files.append(work())
        return files[-1]

    rig = DashboardRig(pool, in_thread=in_thread)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    at = rig.clock.seconds()
    lines = [by_operator(account_id, "key revoked", f"key {number}") for number in range(4)]
    await pool.transact(lambda tx: write(tx, lines, at))
    ann = await rig.inside(ANN)
    assert re.findall(r"<strong>(key \d)", (await ann.get(ACCESS)).text) == ["key 2", "key 3"]
    files.clear()
    assert (await ann.get(f"{ACCESS}/review.csv")).text.count("revoked") == 4
    assert [file.count(b"revoked") for file in files] == [4]  # not on the reactor's thread


@pytest_twisted.ensureDeferred
async def test_members_cannot_review_access(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(BOB, account_id, "developer")
    bob = await rig.inside(BOB)
    assert (await bob.get(ACCESS)).status == (await bob.get(f"{ACCESS}/review.csv")).status == 403
    assert "Review access" not in (await bob.get("/dashboard/settings")).text
