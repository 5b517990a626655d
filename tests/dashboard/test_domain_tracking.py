"""The tracking settings on the page of a domain."""

from __future__ import annotations

import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig


@pytest_twisted.ensureDeferred
async def test_tracking_is_switched_on_and_says_when_it_is_not_active(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "mail.acme.example", "us-east-1", [])
    ann = await rig.inside("ann@example.com")
    path = f"/dashboard/domains/{domain.id}"
    host = rig.assembly.maintenance.publishing.tracking_host
    assert host is not None and "lead to <span" not in (await ann.get(path)).text

    await ann.post(f"{path}/track", {"click_tracking": "on"})
    shown = (await ann.get(path)).text
    assert f'lead to <span class="mono">{host}</span>' in shown
    await ann.post(f"{path}/track", {"open_tracking": "on", "click_tracking": "on", "tracking_subdomain": "Links"})
    shown = (await ann.get(path)).text
    assert "Opens and clicks are not tracked yet, because the CNAME record of links.mail.acme.example is not verified." in shown
    assert '"small dim">Tracking' in shown and 'value="links"' in shown

    refused = await ann.post(f"{path}/track", {"tracking_subdomain": "send"})
    assert refused.status == 422 and "The subdomain must not be `send`" in refused.text
    await ann.post(f"{path}/track", {"tracking_subdomain": "links"})
    found = await rig.assembly.domains.own(account, domain.id)
    assert found is not None
    assert (found.open_tracking, found.click_tracking, found.tracking_subdomains) == (False, False, ("links",))
    shown = (await ann.get(path)).text
    assert "not tracked yet" not in shown and "lead to <span" not in shown
