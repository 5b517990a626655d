"""Claiming a domain that another account has, over the API: what the client libraries send and read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest_twisted

from mailsvc.store.domains.values import DomainLimits
from tests.http.resources.test_domains import NOBODY, Office, office

__all__ = ["office"]

NAME = "example.com"


async def held(office: Office) -> Any:
    """Another account has the name verified, with its records in DNS; that domain."""
    made = await office.ask("POST", "/domains", {"name": NAME, "region": "r1"}, office.world.foreign_key)
    domain = await office.rig.domains.called(NAME)
    assert made.status == 201 and domain is not None
    office.rig.dns.zones[NAME] = {"NS": [f"ns.{NAME}."]}
    office.rig.dns.zones[f"ns.{NAME}"] = {"A": ["127.0.0.1"]}
    await office.rig.publish(domain)
    await office.rig.maintenance.verify(domain)
    await office.rig.round()
    return await office.rig.domains.called(NAME)


async def unpublish(office: Office, domain: Any) -> None:
    for record in await office.rig.records(domain):
        if record.purpose == "DKIM":
            office.rig.set(record.name, record.type)


async def claimed(office: Office, status: int = 201) -> Any:
    response = await office.ask("POST", "/domains/claim", {"name": NAME, "region": "r1", "custom_return_path": "bounce"})
    assert response.status == status, response.body
    return response.json


async def verified(office: Office, claim: Any) -> Any:
    pressed = await office.ask("POST", f"/domains/{claim['domain_id']}/claim/verify")
    assert pressed.status == 200 and pressed.json["object"] == "domain_claim"
    await office.rig.round()
    return (await office.ask("GET", f"/domains/{claim['domain_id']}/claim")).json


@pytest_twisted.ensureDeferred
async def test_a_claim_is_proven_by_its_record_and_takes_the_name_over(office: Office) -> None:
    holder = await held(office)
    claim = await claimed(office)
    assert claim["object"] == "domain_claim" and (claim["status"], claim["name"], claim["region"]) == ("pending", NAME, "r1")
    assert set(claim["record"]) == {"type", "name", "value", "ttl"} and (claim["record"]["type"], claim["record"]["name"]) == ("TXT", NAME)
    assert (claim["blocked_reason"], claim["failure_reason"]) == (None, None)
    assert (await claimed(office, 200))["id"] == claim["id"]
    placeholder = (await office.ask("GET", f"/domains/{claim['domain_id']}")).json
    assert (placeholder["name"], placeholder["status"], placeholder["custom_return_path"]) == (NAME, "not_started", "bounce")
    assert (await verified(office, claim))["status"] == "pending"  # its record is not there

    office.rig.set(NAME, "TXT", f'"{claim["record"]["value"]}"')
    await office.rig.later(hours=1)
    blocked = await verified(office, claim)
    assert (blocked["status"], blocked["blocked_reason"]) == ("blocked", "recent_owner_activity")
    assert "still in DNS" in blocked["failure_reason"]
    assert (await office.rig.domains.called(NAME)).status == "verified"  # type: ignore[union-attr]

    await unpublish(office, holder)
    await office.rig.later(hours=1)
    completed = await verified(office, claim)
    assert (completed["status"], completed["blocked_reason"], completed["failure_reason"]) == ("completed", None, None)
    lost = (await office.ask("GET", f"/domains/{holder.id}", key=office.world.foreign_key)).json
    assert lost["status"] == "failed" and "took over" in lost["failure_reason"]
    assert (await verified(office, claim))["status"] == "completed"


@pytest_twisted.ensureDeferred
async def test_the_domains_own_records_complete_a_claim_too(office: Office) -> None:
    holder = await held(office)
    claim = await claimed(office)
    domain = await office.rig.domains.own(office.rig.account.id, UUID(claim["domain_id"]))
    assert domain is not None
    await unpublish(office, holder)
    await office.rig.publish(domain)
    assert (await verified(office, claim))["status"] == "completed"
    assert (await office.ask("GET", f"/domains/{claim['domain_id']}")).json["status"] == "verified"


@pytest_twisted.ensureDeferred
async def test_a_name_that_nobody_has_needs_no_proof_to_be_claimed(office: Office) -> None:
    claim = await claimed(office)
    assert claim["status"] == "completed"
    again = await office.ask("POST", "/domains/claim", {"name": NAME})
    assert again.problem == (403, "validation_error") and "registered already" in again.json["message"]


@pytest_twisted.ensureDeferred
async def test_another_accounts_record_or_one_behind_a_cname_proves_nothing(office: Office) -> None:
    holder = await held(office)
    claim = await claimed(office)
    await unpublish(office, holder)
    office.rig.set(NAME, "TXT", '"mailsvc-domain-verification=' + "0" * 32 + '"')
    assert (await verified(office, claim))["status"] == "pending"
    office.rig.dns.zones["elsewhere.example"] = {"TXT": [f'"{claim["record"]["value"]}"'], "NS": [f"ns.{NAME}."]}
    office.rig.dns.zones[NAME] = {"NS": [f"ns.{NAME}."], "CNAME": ["elsewhere.example."]}
    await office.rig.later(hours=1)
    assert (await verified(office, claim))["status"] == "pending"
    assert (await office.rig.domains.called(NAME)).id == holder.id  # type: ignore[union-attr]


@pytest_twisted.ensureDeferred
async def test_a_claim_expires_after_a_week_and_can_be_made_again(office: Office) -> None:
    holder = await held(office)
    claim = await claimed(office)
    await office.rig.later(days=7)
    gone = (await office.ask("GET", f"/domains/{claim['domain_id']}/claim")).json
    assert gone["status"] == "expired"
    office.rig.set(NAME, "TXT", f'"{claim["record"]["value"]}"')
    await unpublish(office, holder)
    assert (await verified(office, claim))["status"] == "expired"
    fresh = await claimed(office)
    assert fresh["domain_id"] == claim["domain_id"] and fresh["record"]["value"] != claim["record"]["value"]


@pytest_twisted.ensureDeferred
async def test_deleting_the_domain_cancels_its_claim(office: Office) -> None:
    await held(office)
    claim = await claimed(office)
    assert (await office.ask("DELETE", f"/domains/{claim['domain_id']}")).status == 200
    assert (await office.ask("GET", f"/domains/{claim['domain_id']}/claim")).json["status"] == "canceled"
    assert (await office.ask("POST", f"/domains/{claim['domain_id']}/claim/verify")).json["status"] == "canceled"
    assert (await claimed(office))["status"] == "pending"


@pytest_twisted.ensureDeferred
async def test_a_claim_is_its_accounts_own(office: Office) -> None:
    holder = await held(office)
    claim = await claimed(office)
    path = f"/domains/{claim['domain_id']}/claim"
    for method, where in (("GET", path), ("POST", f"{path}/verify")):
        assert (await office.ask(method, where, key=office.world.foreign_key)).problem == (404, "not_found")
    for id in (NOBODY, str(holder.id)):
        assert (await office.ask("GET", f"/domains/{id}/claim")).problem == (404, "not_found")
    assert (await office.ask("GET", "/domains/nonsense/claim")).status == 422
    assert (await office.ask("POST", "/domains/claim", {"region": "r1"})).problem == (422, "missing_required_field")
    assert (await office.ask("POST", "/domains/claim", {"name": "x.example", "region": "mars"})).problem == (422, "invalid_region")


@pytest_twisted.ensureDeferred
async def test_limits_are_problems_that_name_them(office: Office) -> None:
    office.rig.maintenance.limits = DomainLimits(unverified=1)
    await office.made()
    full = await office.ask("POST", "/domains", {"name": "b.example", "region": "r1"})
    assert full.problem == (422, "validation_error") and "at most 1 unverified domains" in full.json["message"]
    assert (await office.ask("POST", "/domains/claim", {"name": "b.example", "region": "r1"})).problem == (422, "validation_error")
    office.rig.maintenance.limits = DomainLimits(adds_per_hour=1)
    soon = await office.ask("POST", "/domains", {"name": "b.example", "region": "r1"})
    assert soon.problem == (429, "rate_limit_exceeded") and "at most 1 domains per hour" in soon.json["message"]
    assert 0 < int(soon.headers["retry-after"]) <= 3600


@pytest_twisted.ensureDeferred
async def test_the_claims_of_others_are_superseded(office: Office) -> None:
    holder = await held(office)
    claim = await claimed(office)
    third = await office.rig.maintenance.add((await _account(office)).id, NAME, "r1")
    rival = await office.rig.maintenance.claims.make(third, "pending")
    await unpublish(office, holder)
    office.rig.set(NAME, "TXT", f'"{claim["record"]["value"]}"')
    assert (await verified(office, claim))["status"] == "completed"
    found = await office.rig.maintenance.claims.get(third.account_id, third.id)
    assert found is not None and (found.id, found.status) == (rival.id, "superseded")
    assert rival.expires_at - rival.created_at == timedelta(days=7)


async def _account(office: Office) -> Any:
    from mailsvc.store.people.accounts import Accounts

    return await Accounts(office.rig.pool, office.rig.clock).create("third")
