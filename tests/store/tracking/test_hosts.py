"""A tracking host serves its own account's links while it is verified, and after it was replaced by another."""

from __future__ import annotations

from typing import Any

import pytest_twisted

from mailsvc.store.domains.domains import Choices, Domains
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.tracking.hosts import ServedHosts
from tests.store.encryption.test_secrets import ENCRYPTION


def record(host: str, status: str) -> dict[str, Any]:
    return {"purpose": "Tracking", "type": "CNAME", "name": host, "expected": "track.example", "required": False, "status": status}


@pytest_twisted.ensureDeferred
async def test_verified_hosts(pool: Pool) -> None:
    from twisted.internet import reactor

    accounts, domains, hosts = Accounts(pool, reactor), Domains(pool, reactor, ENCRYPTION), ServedHosts(pool)
    one, other = await accounts.create("one"), await accounts.create("other")
    domain = await domains.add(one.id, "example.com", "r1", [], Choices(tracking_subdomain="links"))
    await domains.add(other.id, "example.org", "r1", [])
    assert (await hosts.read()).by_host == {}
    await store_records(pool, domain.id, record("links.example.com", "verified"))
    assert (await hosts.read()).by_host == {"links.example.com": {one.id}}
    await domains.update(one.id, domain.id, {"tracking_subdomain": "news"})
    await store_records(pool, domain.id, record("links.example.com", "verified"), record("news.example.com", "pending"))
    assert (await hosts.read()).by_host == {"links.example.com": {one.id}}
    await store_records(pool, domain.id, record("links.example.com", "failed"), record("news.example.com", "verified"))
    assert (await hosts.read()).by_host == {"news.example.com": {one.id}}
    # Only these records are read, of all domains: not what else the checks of this or a newer release have found.
    missed = record("news.example.com", "temporary_failure")
    await store_records(pool, domain.id, {"purpose": "DKIM", "added": 1}, {**missed, "purpose": "TrackingCAA"})
    assert (await hosts.read()).by_host == {}
    await store_records(pool, domain.id, {"purpose": "DKIM", "added": 1}, missed)
    assert (await hosts.read()).by_host == {"news.example.com": {one.id}}
    await store_records(pool, domain.id, missed)
    await domains.delete(one.id, domain.id)
    assert (await hosts.read()).by_host == {}


@pytest_twisted.ensureDeferred
async def test_suspended_accounts(pool: Pool) -> None:
    from twisted.internet import reactor

    accounts, hosts = Accounts(pool, reactor), ServedHosts(pool)
    one, _ = await accounts.create("one"), await accounts.create("other")
    await accounts.suspend(one.id)
    assert (await hosts.read()).suspended == {one.id}
    await accounts.suspend(one.id, False)
    assert (await hosts.read()).suspended == frozenset()


async def store_records(pool: Pool, domain_id: Any, *records: dict[str, Any]) -> None:
    import json

    await pool.run("UPDATE domains SET records = %s::jsonb WHERE id = %s", (json.dumps(records), domain_id))
