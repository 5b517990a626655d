"""Settings → Privacy: admins find and erase what the account stores about an address; members cannot."""

from __future__ import annotations

import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig

PAGE = "/dashboard/settings/privacy"
ANN, BOB, ZOE = "ann@example.com", "bob@example.com", "zoe@example.net"


@pytest_twisted.ensureDeferred
async def test_find_and_erase(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    ann = await rig.inside(ANN)
    await ann.get(PAGE)
    await rig.assembly.accounts.notify(account_id, ZOE)
    found = await ann.post(f"{PAGE}/find", {"email": ZOE.upper()})
    assert "accounts.notify" in found.text and "member: where notifications are sent" in found.text
    assert "Not stored anywhere" in (await ann.post(f"{PAGE}/find", {"email": "nobody@example.net"})).text
    done = await ann.post(f"{PAGE}/erase", {"email": ZOE, "suppress": "on"})
    assert (done.status, done.location) == (303, f"{PAGE}?done=erase")
    assert "In progress" in (await ann.get(PAGE)).text
    eraser = rig.assembly.erasing.eraser
    [(erasure, email)] = await eraser.erasures.unfinished()
    assert (email, erasure.suppress, erasure.account) == (ZOE, True, account_id)
    await eraser.run(erasure, email)
    shown = (await ann.get(PAGE)).text
    assert "Finished" in shown and "accounts.notify: 1" in shown and ZOE not in shown
    assert await pool.rows("SELECT notify FROM accounts") == [(None,)]


@pytest_twisted.ensureDeferred
async def test_mistakes_are_explained(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person(ANN)
    ann = await rig.inside(ANN)
    await ann.get(PAGE)
    for path, field in (("find", "f-email"), ("export", "f-email"), ("erase", "f-erase")):
        shown = await ann.post(f"{PAGE}/{path}", {"email": "zoe", "suppress": "on"})
        assert shown.status == 422 and "Enter a valid email address." in shown.text
        assert shown.found(r'id="([a-z-]+)" [^>]* value="zoe" aria-invalid="true"') == field
        assert ('class="confirm" open' in shown.text) == ('value="on" checked' in shown.text) == (path == "erase")
    shown = await ann.post(f"{PAGE}/erase", {"email": ANN})
    assert shown.status == 422 and '"d-erase">It is the address of the only admin of Acme.' in shown.text
    [(account_id,)] = await pool.rows("SELECT id FROM accounts")
    with rig.assembly.erasing.turn.take(account_id):
        assert (await ann.post(f"{PAGE}/find", {"email": ZOE})).status == 503


@pytest_twisted.ensureDeferred
async def test_members_cannot_open_it(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person(ANN, account_id)
    await rig.person(BOB, account_id, "developer")
    bob = await rig.inside(BOB)
    assert PAGE not in (await bob.get("/dashboard/settings")).text
    for shown in (await bob.get(PAGE), await bob.post(f"{PAGE}/erase", {"email": ZOE})):
        assert shown.status == 403 and "It needs: Admin." in shown.text
