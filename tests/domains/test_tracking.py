"""Tracking subdomains: with a real DNS server and a clock that is turned by hand."""

from __future__ import annotations

from datetime import timedelta

import pytest
import pytest_twisted

from mailsvc.domains import caa_check
from mailsvc.domains.tracking import awaits_record, inactive
from mailsvc.net.dns import Caa
from mailsvc.store.domains.domains import Domain
from tests.domains.rig import Rig

OWN = "track.example.net"


async def changed(rig: Rig, domain: Domain, label: str) -> Domain:
    await rig.domains.update(rig.account.id, domain.id, {"tracking_subdomain": label})
    return await rig.now_of(domain)


def statuses(domain: Domain) -> dict[str, str]:
    return {record.name: record.status for record in domain.records if record.purpose == "Tracking"}


@pytest_twisted.ensureDeferred
async def test_links_have_a_subdomain_once_its_record_is_verified(rig: Rig) -> None:
    domain = await rig.verified(await rig.add(click_tracking=True))
    assert domain.tracking_host(OWN) == OWN and inactive(domain, OWN) is None
    assert inactive(domain, None) == "Clicks are not tracked: this server does not track opens and clicks." and not awaits_record(domain)
    domain = await changed(rig, domain, "links")
    assert inactive(domain, OWN) == "Clicks are not tracked yet, because the CNAME record of links.example.com is not verified."
    assert awaits_record(domain)
    assert domain.status == "verified" and domain.tracking_host(OWN) is None and not domain.serves_tracking_host("links.example.com")

    assert await rig.round() == 1  # soon, although the next check was due in a day
    domain = await rig.now_of(domain)
    assert (domain.status, statuses(domain), domain.tracking_host(OWN)) == ("verified", {"links.example.com": "pending"}, None)
    assert domain.next_check_at == rig.now() + timedelta(hours=1)

    rig.set("links.example.com", "CNAME", "elsewhere.example.net.")
    assert await rig.problems(domain) == {("Tracking", "CNAME"): "other"}
    rig.set("links.example.com", "CNAME", f"{OWN}.")
    await rig.later(hours=1)
    await rig.round()
    domain = await rig.now_of(domain)
    assert (statuses(domain), domain.tracking_host(OWN)) == ({"links.example.com": "verified"}, "links.example.com")
    assert domain.next_check_at == rig.now() + timedelta(days=1) and domain.serves_tracking_host("links.example.com")
    assert not domain.serves_tracking_host("example.com")


@pytest_twisted.ensureDeferred
async def test_a_former_subdomain_is_used_until_the_new_one_is_verified_and_stays_served(rig: Rig) -> None:
    domain = await rig.verified(await rig.add(open_tracking=True, tracking_subdomain="old"))
    domain = await changed(rig, domain, "new")
    await rig.round()
    domain = await rig.now_of(domain)
    assert (statuses(domain), domain.tracking_host(OWN)) == (
        {"old.example.com": "verified", "new.example.com": "pending"},
        "old.example.com",
    )

    rig.set("new.example.com", "CNAME", f"{OWN}.")
    await rig.later(hours=1)
    await rig.round()
    domain = await rig.now_of(domain)
    assert domain.tracking_host(OWN) == "new.example.com" and domain.serves_tracking_host("old.example.com")

    rig.set("new.example.com", "CNAME")
    await rig.later(days=1)
    await rig.round()
    domain = await rig.now_of(domain)
    assert (domain.status, domain.since) == ("verified", None)  # the domain itself can send
    assert statuses(domain)["new.example.com"] == "temporary_failure"
    assert domain.tracking_host(OWN) == "old.example.com" and domain.serves_tracking_host("new.example.com")


@pytest_twisted.ensureDeferred
async def test_nothing_is_tracked_while_both_switches_are_off(rig: Rig) -> None:
    domain = await rig.verified(await rig.add(tracking_subdomain="links"))
    assert statuses(domain) == {"links.example.com": "verified"} and domain.tracking_host(OWN) is None
    assert inactive(domain, OWN) is None


@pytest_twisted.ensureDeferred
async def test_a_zone_that_allows_other_authorities_has_to_allow_this_one(rig: Rig) -> None:
    domain = await rig.add(click_tracking=True, tracking_subdomain="links")
    rig.set("example.com", "CAA", '0 issue "other.example; policy=x"', '0 iodef "mailto:a@example.com"')
    domain = await rig.verified(domain)
    [record] = [record for record in domain.records if record.purpose == "TrackingCAA"]
    assert (record.type, record.name, record.expected, record.status) == ("CAA", "example.com", '0 issue "ca.example"', "pending")
    assert "do not allow ca.example" in (record.message or "") and domain.status == "verified"
    assert [(each.purpose, each.name, each.value) for each in await rig.records(domain)][-1] == (
        "TrackingCAA", "example.com", '0 issue "ca.example"',
    )  # fmt: skip

    rig.set("example.com", "CAA", '0 issue "other.example"', '0 ISSUE " CA.example ; a=b"')
    await rig.later(days=1)
    await rig.round()
    domain = await rig.now_of(domain)
    assert [record.status for record in domain.records if record.purpose == "TrackingCAA"] == ["verified"]
    as_written = caa_check.state("links.example.com", "example.com", [Caa(0, "issue", "ca.example")], "CA.example")
    assert as_written is not None and as_written.status == "verified"

    rig.set("example.com", "CAA", '0 issuewild "other.example"')
    await rig.later(days=1)
    await rig.round()
    assert not [record for record in (await rig.now_of(domain)).records if record.purpose == "TrackingCAA"]


@pytest.mark.parametrize(
    ("host", "places"),
    [
        ("links.example.com", ["links.example.com", "example.com"]),
        ("links.mail.example.co.uk", ["links.mail.example.co.uk", "mail.example.co.uk", "example.co.uk"]),
    ],
)
def test_where_certificate_authorities_look(host: str, places: list[str]) -> None:
    assert caa_check.places(host) == places


def test_a_record_is_not_beside_the_cname_of_the_host() -> None:
    nobody = [Caa(0, "issue", ";")]
    state = caa_check.state("links.example.com", "links.example.com", nobody, "ca.example")
    assert state is not None and (state.name, state.status, state.found) == ("example.com", "pending", ('0 issue ";"',))
    assert caa_check.state("links.example.com", "example.com", [], "ca.example") is None
