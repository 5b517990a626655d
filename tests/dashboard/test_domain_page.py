"""The page of a domain: its pool of source addresses, and its switches."""

from __future__ import annotations

import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.sources import PoolTable
from tests.dashboard.fixtures import DashboardRig


@pytest_twisted.ensureDeferred
async def test_the_page_names_the_pool_of_the_domain_or_its_account(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "mail.acme.example", "us-east-1", [])
    pools = PoolTable(pool)

    async def page() -> str:
        ann = await DashboardRig(pool).inside("ann@example.com")  # without cached domains
        return str((await ann.get(f"/dashboard/domains/{domain.id}")).text)

    assert "address pool" not in await page()
    await pools.assign_account(account, "shop", [], 0.0)
    assert "Sent from the address pool shop" in await page()
    await pools.assign_domain(domain.id, "", [], 0.0)
    assert "Sent from the address pool default" in await page()


@pytest_twisted.ensureDeferred
async def test_a_box_that_is_not_ticked_turns_required_tls_off(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "mail.acme.example", "us-east-1", [])
    ann = await rig.inside("ann@example.com")
    for form, tls in (({"tls": "enforced", "sending": "on"}, "enforced"), ({"sending": "on"}, "opportunistic")):
        await ann.get(f"/dashboard/domains/{domain.id}")
        await ann.post(f"/dashboard/domains/{domain.id}/change", form)
        changed = await rig.assembly.domains.called(domain.name)
        assert changed is not None and changed.tls == tls


@pytest_twisted.ensureDeferred
async def test_pages_show_domains_in_unicode(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "xn--bcher-kva.example", "us-east-1", [])
    await rig.assembly.domains.trust(account, domain.name)
    email = await rig.mail(account, domain.name)
    ann = await rig.inside("ann@example.com")
    await ann.get("/dashboard/suppressions")
    await ann.post("/dashboard/suppressions", {"emails": "bob@xn--bcher-kva.example"})
    for path in ("", "/emails", f"/emails/{email}", "/domains", "/keys", "/metrics", "/suppressions?q=b%C3%BCcher"):
        assert "bücher.example" in (await ann.get(f"/dashboard{path}")).text.replace("<wbr>", ""), path
