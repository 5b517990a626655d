"""The page of a domain: its pool of source addresses, and its switches."""

from __future__ import annotations

from typing import Any, cast

import pytest_twisted
from markupsafe import escape

from mailsvc.dashboard.signin import mails
from mailsvc.dashboard.signin.throttle import FREE
from mailsvc.net.dns import Records
from mailsvc.store.people.residence import Residence
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
    await ann.post(f"/dashboard/domains/{domain.id}/change", {"sending": "on, as Bob asked"})
    assert (await rig.audit(account))[-1] == ("domain changed", f"{domain.name}: TLS opportunistic, sending off")


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


@pytest_twisted.ensureDeferred
async def test_the_records_are_one_table_a_zone_file_and_an_email_to_the_administrator(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    ann = await rig.inside("ann@example.com")
    await ann.get("/dashboard/domains")
    path = (await ann.post("/dashboard/domains", {"name": "mail.acme.example", "region": "us-east-1"})).location

    class Zones:
        async def ns(self, name: str) -> Records[str]:
            return Records(name, ("amy.ns.cloudflare.com",))

    cast(Any, rig.assembly.reputation).resolver = Zones()
    await ann.get(path)
    page = (await ann.get(path)).text
    assert 'href="https://dash.cloudflare.com/"' in page and page.count('<table class="fold dns">') == 1
    assert "Sending turns on automatically" in page  # the records are looked for without a click
    silent = (
        '[{"purpose": "SPF", "type": "TXT", "name": "a", "expected": "", "required": true, "status": "pending", "problem": "unanswered"}]'
    )
    for since, trusted, records, badge, heading, words in (
        ("NULL", "NULL", "[]", "Verified", "Ready to send", "all required records are in DNS"),
        ("now() - interval '71 hours 30 minutes'", "NULL", "[]", "Records missing", "Can still send", "incorrect. It stops <time"),
        ("now()", "NULL", silent, "No answer from DNS", "Can still send", "DNS did not answer for required records. It stops <time"),
        ("now()", "now()", "[]", "Trusted", "Ready to send", "Trusted"),
    ):
        await pool.run(f"UPDATE domains SET status = 'verified', since = {since}, trusted_at = {trusted}, records = %s", (records,))
        page = (await ann.get(path)).text
        head = page[page.index('id="status"') : page.index("</h2>", page.index('id="status"'))]
        assert f">{badge}</span>" in head and head.split()[-len(heading.split()) :] == heading.split() and words in page, badge
        assert ("all required records are in DNS" in page) == (since == "NULL")
        assert f">{badge}</span>" in (await ann.get("/dashboard/domains")).text
    await pool.run("UPDATE domains SET status = 'pending', trusted_at = NULL")
    zone = (await ann.get(f"{path}/zone")).text
    for kind in ("MX 10 out.example.net.", 'TXT "v=spf1', 'TXT "v=DMARC1'):
        assert kind in zone and escape(kind) in page, kind
    assert all(line.split()[0].endswith("mail.acme.example.") for line in zone.splitlines())

    assert (await ann.post(f"{path}/mail", {"email": "nobody"})).status == 422
    assert (await ann.post(f"{path}/mail", {"email": "dns@acme.example"})).location == f"{path}?done=mailed"
    await rig.settled()
    [email] = [email for to, email in rig.mailer.sent if to == "dns@acme.example"]
    text = mails.text(email)
    assert "ann@example.com wants to send email from mail.acme.example" in text and "Value: v=spf1" in text and "Priority: 10" in text
    tries = [(await ann.post(f"{path}/mail", {"email": f"{n}@acme.example"})).status for n in range(FREE)]
    assert tries == [303] * (FREE - 1) + [429]


@pytest_twisted.ensureDeferred
async def test_a_domain_moves_to_another_region_unless_the_account_is_pinned(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    ann = await rig.inside("ann@example.com")
    await ann.get("/dashboard/domains")
    path = (await ann.post("/dashboard/domains", {"name": "acme.example", "region": "us-east-1"})).location
    page = (await ann.get(path)).text
    assert "<option selected>us-east-1</option><option>eu-west-1</option>" in page
    moved = await ann.post(f"{path}/region", {"region": "eu-west-1"})
    assert moved.location == f"{path}?done=moved"
    page = (await ann.get(moved.location)).text
    assert "publish the new values" in page and "out.eu.example.net" in page and "Moved from the region us-east-1 to eu-west-1." in page
    assert (await ann.post(f"{path}/region", {"region": "mars"})).status == 422
    await rig.assembly.domains.residences.set(account, Residence("eu-west-1", pinned=True), [])
    for where, form in ((f"{path}/region", {}), ("/dashboard/domains", {"name": "new.example"})):
        refused = await ann.post(where, {"region": "us-east-1", **form})
        assert refused.status == 422 and "The region must be eu-west-1: the data of this account stays in that region." in refused.text
    assert "Move domain" not in (await ann.get(path)).text, "there is no other region"


@pytest_twisted.ensureDeferred
async def test_the_form_for_a_new_domain_keeps_what_was_chosen_after_an_error(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person("ann@example.com", await rig.account("Acme"))
    ann = await rig.inside("ann@example.com")
    await ann.get("/dashboard/domains")
    refused = await ann.post("/dashboard/domains", {"name": "acme", "region": "eu-west-1"})
    assert refused.status == 422 and 'value="acme"' in refused.text
    assert "<option>us-east-1</option><option selected>eu-west-1</option>" in refused.text
