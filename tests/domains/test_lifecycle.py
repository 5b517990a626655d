"""From not_started to verified, over grace to failed: with a real DNS server and a clock that is turned by hand."""

from __future__ import annotations

from datetime import timedelta

import pytest_twisted

from tests.domains.rig import Rig


@pytest_twisted.ensureDeferred
async def test_a_domain_from_creation_to_failure(rig: Rig) -> None:
    domain = await rig.add(publish=False)
    assert (domain.status, domain.may_send, await rig.round()) == ("not_started", False, 0)
    assert "not been checked" in (domain.missing or "")

    await rig.maintenance.verify(domain)
    assert await rig.round() == 1
    domain = await rig.now_of(domain)
    assert domain.status == "pending" and {r.status for r in domain.records} == {"pending"}
    assert "SPF (MX send.example.com)" in (domain.missing or "")
    assert await rig.round() == 0  # not before its time
    pauses = []
    for _ in range(8):
        assert domain.next_check_at is not None
        pauses.append(round((domain.next_check_at - rig.now()).total_seconds() / 60))
        await rig.later(minutes=pauses[-1])
        await rig.round()
        domain = await rig.now_of(domain)
    assert pauses == [1, 2, 5, 10, 20, 30, 60, 60]

    await rig.publish(domain)
    await rig.later(hours=1)
    await rig.round()
    domain = await rig.now_of(domain)
    assert (domain.status, domain.may_send, domain.missing) == ("verified", True, None)
    assert {r.status for r in domain.records} == {"verified"}
    assert domain.next_check_at == rig.now() + timedelta(days=1)

    await rig.later(days=1)
    rig.set("send.example.com", "MX")
    await rig.round()
    domain = await rig.now_of(domain)
    assert (domain.status, domain.may_send) == ("verified", True)
    assert {(r.type, r.status) for r in domain.records if r.purpose == "SPF"} == {("MX", "temporary_failure"), ("TXT", "verified")}

    rig.set("send.example.com", "MX", "10 out.example.net.")
    await rig.later(hours=1)
    await rig.round()
    domain = await rig.now_of(domain)
    assert (domain.status, domain.since) == ("verified", None)

    rig.dns.rcodes["send.example.com"] = "SERVFAIL"
    await rig.later(days=1)
    await rig.round()
    assert (await rig.now_of(domain)).shown_status == "dns_unanswered"
    del rig.dns.rcodes["send.example.com"]
    await rig.later(hours=1)
    await rig.round()

    rig.set("send.example.com", "TXT")
    await rig.later(days=1)
    await rig.round()
    missed = rig.now()
    while (await rig.now_of(domain)).status == "verified":
        assert rig.now() - missed < timedelta(hours=73)
        await rig.later(minutes=30)
        await rig.round()
    assert rig.now() - missed >= timedelta(hours=72)
    domain = await rig.now_of(domain)
    assert (domain.status, domain.may_send, domain.next_check_at) == ("failed", False, None)
    assert {r.status for r in domain.records if r.type == "TXT" and r.purpose == "SPF"} == {"failed"}

    await rig.publish(domain)
    assert (await rig.verified(domain)).status == "verified"
    history = [what for _, what in await rig.domains.history(domain.id)][::-1]
    assert history[:2] == ["Domain added.", "Verification requested."]
    assert [line for line in history if not line.startswith(("Domain added", "Verification requested", "SPF", "DKIM"))] == [
        "Verified.",
        "Required records are missing or incorrect. Sending stops after 72 hours unless they are fixed.",
        "All records were found again.",
        "DNS did not answer for required records. Sending stops after 72 hours unless it answers.",
        "All records were found again.",
        "Required records are missing or incorrect. Sending stops after 72 hours unless they are fixed.",
        "Failed: not all records were found within 72 hours.",
        "Verified.",
    ]


@pytest_twisted.ensureDeferred
async def test_a_domain_that_is_never_published_fails_after_72_hours(rig: Rig) -> None:
    domain = await rig.verified(await rig.add(publish=False))
    requested_at = rig.now()
    while domain.next_check_at is not None:
        await rig.later(seconds=(domain.next_check_at - rig.now()).total_seconds())
        await rig.round()
        domain = await rig.now_of(domain)
    assert (domain.status, rig.now() - requested_at) == ("failed", timedelta(hours=72))
    kinds = [kind for kind, _ in await rig.events()]
    assert kinds[0] == "domain.created" and kinds.count("domain.updated") == 3  # requested, first findings, failed
