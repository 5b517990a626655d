"""Insights about a domain are on its page, once, and not on each of its emails."""

from __future__ import annotations

import json

import pytest_twisted

from mailsvc.store.domains.values import RecordState
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig

ANN = "ann@example.com"
TITLE, NOTE = "Publish a DMARC policy", "The sending domain has 2 insights"


@pytest_twisted.ensureDeferred
async def test_a_problem_of_a_domain_is_on_its_page_and_emails_link_to_it(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person(ANN, account)
    domain = await rig.assembly.domains.add(account, "mail.acme.example", "us-east-1", [])
    missing = RecordState(
        "DMARC", "TXT", "_dmarc.mail.acme.example", "v=DMARC1; p=none;", False, "pending", message="There is no DMARC policy."
    )
    await pool.run("UPDATE domains SET status = 'verified', advice = %s", (json.dumps([missing.to_json()]),))
    ann = await rig.inside(ANN)
    email = f"/dashboard/emails/{await rig.mail(account, 'mail.acme.example')}?view=insights"
    await ann.get(email)  # looks up facts in the background
    await rig.settled()
    shown = (await ann.get(email)).text
    assert TITLE not in shown and NOTE in shown and f"/dashboard/domains/{domain.id}#insights" in shown
    shown = (await ann.get(f"/dashboard/domains/{domain.id}")).text
    assert shown.count(TITLE) == 1 and "The domain is new" in shown
    fixed = RecordState("DMARC", "TXT", missing.name, missing.expected, False, "verified", (missing.expected,), message="A policy.")
    await pool.run("UPDATE domains SET created_at = created_at - interval '1 year', advice = %s", (json.dumps([fixed.to_json()]),))
    ann = await DashboardRig(pool).inside(ANN)  # without cached domains
    shown = (await ann.get(email)).text
    assert "Doing great" in shown and "The sending domain has" not in shown
