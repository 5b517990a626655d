"""Sending domains over a real database and a real DNS server, which is their resolver and their authority; the clock is turned by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
from twisted.internet.task import Clock

from mailsvc.domains import views
from mailsvc.domains.authoritative_dns import Authorities
from mailsvc.domains.checking import Checker
from mailsvc.domains.maintenance import DomainMaintenance
from mailsvc.domains.records import Publishing, Record, in_zone_file
from mailsvc.domains.rotation import Rules
from mailsvc.net import address_guard, dns_query
from mailsvc.net.dns import Resolver
from mailsvc.store.domains.checks import DomainChecks
from mailsvc.store.domains.claims import DomainClaims
from mailsvc.store.domains.domains import Choices, Domain, Domains
from mailsvc.store.people.accounts import Account, Accounts
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.pool import Pool
from tests.dnsserver import DnsServer
from tests.store.encryption.test_secrets import ENCRYPTION

HOSTS = {"r1": "out.example.net", "r2": "out.example.org"}
OURS: dict[str, dict[str, list[str]]] = {
    "out.example.net": {"A": ["192.0.2.25"]},
    "out.example.org": {"A": ["192.0.2.26"]},
    "example.net": {"NS": ["ns.example.net."]},
    "ns.example.net": {"A": ["127.0.0.1"]},
}


async def at_once(work: Any) -> Any:
    return work()


@attrs.define(eq=False)
class Rig:
    pool: Pool
    reactor: Any
    dns: DnsServer
    account: Account
    domains: Domains
    checks: DomainChecks
    checker: Checker
    maintenance: DomainMaintenance
    clock: Clock

    @classmethod
    async def start(cls, pool: Pool, reactor: Any, publishing: Publishing | None = None) -> Rig:
        clock, publishing = Clock(), publishing or Publishing(HOSTS, tracking_host="track.example.net", authority="ca.example")
        clock.advance(reactor.seconds())
        dns = DnsServer({name: dict(kinds) for name, kinds in OURS.items()})
        await dns.start(reactor)

        async def exchange(server: Any, query: Any, seconds: float) -> Any:
            return await dns_query.exchange(reactor, server, query, seconds)

        resolver = Resolver(clock, [dns.address], exchange=exchange)
        checker = Checker(resolver, Authorities(reactor, resolver, address_guard.networks(["127.0.0.0/8"]), dns.port), publishing, clock)
        domains = Domains(pool, clock, ENCRYPTION, payload=views.payload(publishing))
        checks = DomainChecks(pool, domains)
        rules = Rules(timedelta(days=7), timedelta(days=180))
        maintenance = DomainMaintenance(
            domains, checks, DomainClaims(pool, domains), checker, publishing, rules, at_once, own=frozenset({"out.example.net"})
        )
        account = await Accounts(pool, clock).create("one")
        return cls(pool, reactor, dns, account, domains, checks, checker, maintenance, clock)

    async def add(self, name: str = "example.com", publish: bool = True, **choices: Any) -> Domain:
        """A domain, and its zone: with all records in it, or with none."""
        domain = await self.maintenance.add(self.account.id, name, "r1", Choices(**choices))
        self.dns.zones[domain.name] = {"NS": [f"ns.{domain.name}."]}
        self.dns.zones[f"ns.{domain.name}"] = {"A": ["127.0.0.1"]}
        if publish:
            await self.publish(domain)
        return domain

    async def records(self, domain: Domain) -> Sequence[Record]:
        return self.maintenance.publishing.records(domain, await self.domains.published_keys(domain.id))

    async def record(self, domain: Domain, purpose: str, type: str = "TXT", contains: str = "") -> Record:
        return next(r for r in await self.records(domain) if (r.purpose, r.type) == (purpose, type) and contains in r.name)

    async def publish(self, domain: Domain) -> None:
        """As the owner copies it from what is shown."""
        for record in await self.records(domain):
            self.set(record.name, record.type, in_zone_file(record).split(f" {record.type} ", 1)[1])
        self.set(f"_dmarc.{domain.name}", "TXT", '"v=DMARC1; p=reject; rua=mailto:d@example.com"')

    def set(self, name: str, type: str, *values: str) -> None:
        """What stands at a name; nothing: the kind is gone."""
        kinds = dict(self.dns.zones.get(name, {}))
        kinds[type] = list(values)
        self.dns.zones[name] = {kind: texts for kind, texts in kinds.items() if texts}

    async def later(self, **time: float) -> None:
        """Turn the clock; on another day also make the partitions that the daily round would have made."""
        day = self.now().date()
        self.clock.advance(timedelta(**time).total_seconds())
        if self.now().date() != day:
            await partitions.ensure(self.pool, self.now(), 1)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.seconds(), UTC)

    async def round(self) -> int:
        """Everything that is due; how many that was."""
        due = await self.checks.due(100)
        for domain in due:
            await self.maintenance.check(domain)
        return len(due)

    async def now_of(self, domain: Domain) -> Domain:
        found = await self.domains.own(self.account.id, domain.id)
        assert found is not None
        return found

    async def verified(self, domain: Domain) -> Domain:
        await self.maintenance.verify(domain)
        await self.round()
        return await self.now_of(domain)

    async def problems(self, domain: Domain) -> dict[tuple[str, str], str | None]:
        """What is wrong with each record, by purpose and type, looked at now."""
        findings = await self.checker.check(domain, await self.domains.published_keys(domain.id))
        return {(r.purpose, r.type): r.problem for r in findings.records if r.problem is not None}

    async def events(self) -> list[tuple[str, Any]]:
        return await self.pool.rows("SELECT type, data FROM events ORDER BY event_id")
