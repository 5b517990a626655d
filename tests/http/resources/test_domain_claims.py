"""Claims of domains that another account has, with the requests and responses of the client libraries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest_twisted

from mailsvc.store.domains.values import DomainLimits
from tests.http.resources.test_domains import NOBODY, DomainApi, api

__all__ = ["api"]

NAME = "example.com"


async def held(api: DomainApi) -> Any:
    """Another account has the name verified, with its records in DNS; that domain."""
    created = await api.request("POST", "/domains", {"name": NAME, "region": "r1"}, api.http.foreign_key)
    domain = await api.rig.domains.called(NAME)
    assert created.status == 201 and domain is not None
    api.rig.dns.zones[NAME] = {"NS": [f"ns.{NAME}."]}
    api.rig.dns.zones[f"ns.{NAME}"] = {"A": ["127.0.0.1"]}
    await api.rig.publish(domain)
    await api.rig.maintenance.verify(domain)
    await api.rig.round()
    return await api.rig.domains.called(NAME)


async def unpublish(api: DomainApi, domain: Any) -> None:
    for record in await api.rig.records(domain):
        if record.purpose == "DKIM":
            api.rig.set(record.name, record.type)


async def claimed(api: DomainApi, status: int = 201) -> Any:
    response = await api.request("POST", "/domains/claim", {"name": NAME, "region": "r1", "custom_return_path": "bounce"})
    assert response.status == status, response.body
    return response.json


async def verified(api: DomainApi, claim: Any) -> Any:
    pressed = await api.request("POST", f"/domains/{claim['domain_id']}/claim/verify")
    assert pressed.status == 200 and pressed.json["object"] == "domain_claim"
    await api.rig.round()
    return (await api.request("GET", f"/domains/{claim['domain_id']}/claim")).json


@pytest_twisted.ensureDeferred
async def test_claim_with_its_record_takes_over_the_name(api: DomainApi) -> None:
    holder = await held(api)
    claim = await claimed(api)
    assert claim["object"] == "domain_claim" and (claim["status"], claim["name"], claim["region"]) == ("pending", NAME, "r1")
    assert set(claim["record"]) == {"type", "name", "value", "ttl"} and (claim["record"]["type"], claim["record"]["name"]) == ("TXT", NAME)
    assert (claim["blocked_reason"], claim["failure_reason"]) == (None, None)
    assert (await claimed(api, 200))["id"] == claim["id"]
    placeholder = (await api.request("GET", f"/domains/{claim['domain_id']}")).json
    assert (placeholder["name"], placeholder["status"], placeholder["custom_return_path"]) == (NAME, "not_started", "bounce")
    assert (await verified(api, claim))["status"] == "pending"  # its record is not there

    api.rig.set(NAME, "TXT", f'"{claim["record"]["value"]}"')
    await api.rig.later(hours=1)
    blocked = await verified(api, claim)
    assert (blocked["status"], blocked["blocked_reason"]) == ("blocked", "recent_owner_activity")
    assert "still in DNS" in blocked["failure_reason"]
    assert (await api.rig.domains.called(NAME)).status == "verified"  # type: ignore[union-attr]

    await unpublish(api, holder)
    await api.rig.later(hours=1)
    completed = await verified(api, claim)
    assert (completed["status"], completed["blocked_reason"], completed["failure_reason"]) == ("completed", None, None)
    lost = (await api.request("GET", f"/domains/{holder.id}", key=api.http.foreign_key)).json
    assert lost["status"] == "failed" and "took over" in lost["failure_reason"]
    assert (await verified(api, claim))["status"] == "completed"


@pytest_twisted.ensureDeferred
async def test_claim_is_completed_by_the_domains_records(api: DomainApi) -> None:
    holder = await held(api)
    claim = await claimed(api)
    domain = await api.rig.domains.own(api.rig.account.id, UUID(claim["domain_id"]))
    assert domain is not None
    await unpublish(api, holder)
    await api.rig.publish(domain)
    assert (await verified(api, claim))["status"] == "completed"
    assert (await api.request("GET", f"/domains/{claim['domain_id']}")).json["status"] == "verified"


@pytest_twisted.ensureDeferred
async def test_claim_of_a_free_name_needs_no_proof(api: DomainApi) -> None:
    claim = await claimed(api)
    assert claim["status"] == "completed"
    again = await api.request("POST", "/domains/claim", {"name": NAME})
    assert again.problem == (403, "validation_error") and "registered already" in again.json["message"]


@pytest_twisted.ensureDeferred
async def test_claim_ignores_other_accounts_records_and_cnames(api: DomainApi) -> None:
    holder = await held(api)
    claim = await claimed(api)
    await unpublish(api, holder)
    api.rig.set(NAME, "TXT", '"mailsvc-domain-verification=' + "0" * 32 + '"')
    assert (await verified(api, claim))["status"] == "pending"
    api.rig.dns.zones["elsewhere.example"] = {"TXT": [f'"{claim["record"]["value"]}"'], "NS": [f"ns.{NAME}."]}
    api.rig.dns.zones[NAME] = {"NS": [f"ns.{NAME}."], "CNAME": ["elsewhere.example."]}
    await api.rig.later(hours=1)
    assert (await verified(api, claim))["status"] == "pending"
    assert (await api.rig.domains.called(NAME)).id == holder.id  # type: ignore[union-attr]


@pytest_twisted.ensureDeferred
async def test_claim_expires_after_a_week_and_can_be_repeated(api: DomainApi) -> None:
    holder = await held(api)
    claim = await claimed(api)
    await api.rig.later(days=7)
    gone = (await api.request("GET", f"/domains/{claim['domain_id']}/claim")).json
    assert gone["status"] == "expired"
    api.rig.set(NAME, "TXT", f'"{claim["record"]["value"]}"')
    await unpublish(api, holder)
    assert (await verified(api, claim))["status"] == "expired"
    fresh = await claimed(api)
    assert fresh["domain_id"] == claim["domain_id"] and fresh["record"]["value"] != claim["record"]["value"]


@pytest_twisted.ensureDeferred
async def test_deleting_a_domain_cancels_its_claim(api: DomainApi) -> None:
    await held(api)
    claim = await claimed(api)
    assert (await api.request("DELETE", f"/domains/{claim['domain_id']}")).status == 200
    assert (await api.request("GET", f"/domains/{claim['domain_id']}/claim")).json["status"] == "canceled"
    assert (await api.request("POST", f"/domains/{claim['domain_id']}/claim/verify")).json["status"] == "canceled"
    assert (await claimed(api))["status"] == "pending"


@pytest_twisted.ensureDeferred
async def test_claim_is_invisible_to_other_accounts(api: DomainApi) -> None:
    holder = await held(api)
    claim = await claimed(api)
    path = f"/domains/{claim['domain_id']}/claim"
    for method, where in (("GET", path), ("POST", f"{path}/verify")):
        assert (await api.request(method, where, key=api.http.foreign_key)).problem == (404, "not_found")
    for id in (NOBODY, str(holder.id)):
        assert (await api.request("GET", f"/domains/{id}/claim")).problem == (404, "not_found")
    assert (await api.request("GET", "/domains/nonsense/claim")).status == 422
    assert (await api.request("POST", "/domains/claim", {"region": "r1"})).problem == (422, "missing_required_field")
    assert (await api.request("POST", "/domains/claim", {"name": "x.example", "region": "mars"})).problem == (422, "invalid_region")


@pytest_twisted.ensureDeferred
async def test_claim_beyond_a_limit_names_the_limit(api: DomainApi) -> None:
    api.rig.maintenance.limits = DomainLimits(unverified=1)
    await api.create()
    full = await api.request("POST", "/domains", {"name": "b.example", "region": "r1"})
    assert full.problem == (422, "validation_error") and "at most 1 unverified domains" in full.json["message"]
    assert (await api.request("POST", "/domains/claim", {"name": "b.example", "region": "r1"})).problem == (422, "validation_error")
    api.rig.maintenance.limits = DomainLimits(adds_per_hour=1)
    soon = await api.request("POST", "/domains", {"name": "b.example", "region": "r1"})
    assert soon.problem == (429, "rate_limit_exceeded") and "at most 1 domains per hour" in soon.json["message"]
    assert 0 < int(soon.headers["retry-after"]) <= 3600


@pytest_twisted.ensureDeferred
async def test_completed_claim_supersedes_other_claims(api: DomainApi) -> None:
    holder = await held(api)
    claim = await claimed(api)
    third = await api.rig.maintenance.add((await _account(api)).id, NAME, "r1")
    rival = await api.rig.maintenance.claims.make(third, "pending")
    await unpublish(api, holder)
    api.rig.set(NAME, "TXT", f'"{claim["record"]["value"]}"')
    assert (await verified(api, claim))["status"] == "completed"
    found = await api.rig.maintenance.claims.get(third.account_id, third.id)
    assert found is not None and (found.id, found.status) == (rival.id, "superseded")
    assert rival.expires_at - rival.created_at == timedelta(days=7)


async def _account(api: DomainApi) -> Any:
    from mailsvc.store.people.accounts import Accounts

    return await Accounts(api.rig.pool, api.rig.clock).create("third")
