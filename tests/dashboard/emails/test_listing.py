"""The list of emails: filtering by a key that was revoked, and a search."""

from __future__ import annotations

from urllib.parse import quote

import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig


@pytest_twisted.ensureDeferred
async def test_emails_are_filtered_by_a_key_that_was_revoked_and_by_subject(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id, other = await rig.account(), await rig.account()
    await rig.person("ann@example.com", account_id)
    domain = await rig.assembly.domains.add(account_id, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account_id, domain.name)
    old, _ = await rig.assembly.keys.create(account_id, "old", "full_access")
    foreign, _ = await rig.assembly.keys.create(other, "foreign", "full_access")
    await rig.assembly.keys.create(account_id, "new", "full_access")
    sent, without = await rig.mail(account_id, domain.name), await rig.mail(account_id, domain.name)
    await pool.run("UPDATE emails SET key_id = %s WHERE email_id = %s", (old, sent))
    await rig.assembly.keys.revoke(account_id, old)
    ann = await rig.inside("ann@example.com")
    page = await ann.get(f"/dashboard/emails?key={old}")
    assert str(sent) in page.text and str(without) not in page.text
    assert ">old (revoked)<" in page.text and page.text.index(">new<") < page.text.index(">old (revoked)<") and "foreign" not in page.text
    assert "key old (revoked)" in (await ann.get(f"/dashboard/emails/{sent}")).text
    assert ">old (revoked)<" in (await ann.get(f"/dashboard/logs?key={old}")).text
    await pool.run("UPDATE emails SET subject = 'Schöne Grüße' WHERE email_id = %s", (sent,))
    for text in ("Grüße", "Schöne Grüße"):
        page = await ann.get(f"/dashboard/emails?q={quote(text)}")
        assert str(sent) in page.text and str(without) not in page.text, text
    assert (await ann.get(f"/dashboard/emails?key={foreign}")).status == 404
    assert "old" not in [key.name for key in (await rig.assembly.keys.list(account_id))[0]]
