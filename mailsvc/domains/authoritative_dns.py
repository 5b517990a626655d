"""Queries the authoritative servers of a name directly, bypassing all caches.

The owner of a zone chooses these servers, so every address is checked by net/address_guard.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any

import attrs
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger

from mailsvc.fair_share import FairShare, TooManyWaiting
from mailsvc.net import address_guard, dns_query
from mailsvc.net import dns as resolving
from mailsvc.net.address_guard import Network
from mailsvc.net.dns import NxDomain, Records, Resolver, Result, Temporary
from mailsvc.net.dns_query import Nameserver, NameserverError

HOSTS = 4  # nameservers of a zone that are queried, at one address each
HOPS = 4  # CNAMEs from zone to zone
LABELS = 12  # zones that are tried for a name
QUERY_SECONDS = 3.0
CONCURRENT = 50  # queries, at most a quarter of them for one account

log = Logger()

Exchange = Callable[[Nameserver, dns.message.QueryMessage, float], Awaitable[dns.message.QueryMessage]]


@attrs.frozen
class ZoneAnswer:
    """The answer for a name. Empty `values` without a `problem`: there are no records of that type.

    `where`: who answered; `alias`: the target of a CNAME at the name; `differing`: a phrase if the servers disagree.
    """

    values: tuple[Any, ...] = ()
    where: str = ""
    alias: str | None = None
    differing: str | None = None
    problem: str | None = None


@attrs.define(eq=False)
class Authorities:
    """`allowed`: networks that may be queried although they are not public."""

    reactor: Any
    resolver: Resolver
    allowed: Sequence[Network] = ()
    port: int = 53
    exchange: Exchange | None = None
    _questions: FairShare = attrs.field(factory=lambda: FairShare(CONCURRENT, CONCURRENT // 4), init=False)

    async def query(self, name: str, kind: str, account: Hashable = None) -> ZoneAnswer:
        """Values of the type `kind` at `name`, following CNAMEs. MX values are dns.Mx, others are text.

        Queries for one `account` get a share of all queries, so its slow nameservers don't delay other accounts' checks.
        """
        alias: str | None = None
        current = name
        for _ in range(HOPS):
            answer, target = await self._query_zone(current, kind, account)
            if target is None:
                return attrs.evolve(answer, alias=answer.alias or alias)
            alias = current = target
        return ZoneAnswer(problem=f"{name} has too many chained CNAME records", alias=alias)

    async def _query_zone(self, name: str, kind: str, account: Hashable) -> tuple[ZoneAnswer, str | None]:
        """The answer of the name's zone, and the target of its CNAME if there is nothing else."""
        zone, servers, problem = await self._servers(name)
        if not servers:
            return ZoneAnswer(problem=problem), None
        queries = [Deferred.fromCoroutine(self._query(server, name, kind, account)) for _, server in servers]
        answers = await gatherResults(queries, consumeErrors=True)
        answered = [(host, answer) for (host, _), answer in zip(servers, answers, strict=True) if not isinstance(answer, Temporary)]
        if not answered:
            reason = answers[0].reason if isinstance(answers[0], Temporary) else ""
            return ZoneAnswer(problem=f"none of the nameservers of {zone} answered ({reason})"), None
        (host, first), where = answered[0], f"the nameservers of {zone}"
        values = tuple(sorted(_values(first), key=str))
        for other, answer in answered[1:]:
            if _values(answer) != _values(first):
                return ZoneAnswer(values, where, differing=f"{host} and {other} have different records for {name}"), None
        alias = first.name if isinstance(first, Records) and first.name != name.lower() and kind != "CNAME" else None
        if alias is not None and not values:
            return ZoneAnswer(where=where), alias
        return ZoneAnswer(values, where, alias), None

    async def _servers(self, name: str) -> tuple[str, list[tuple[str, Nameserver]], str]:
        """The zone of a name and its nameservers. If there are none, a phrase that says why."""
        labels = name.split(".")
        for start in range(max(0, len(labels) - LABELS), len(labels) - 1):
            zone = ".".join(labels[start:])
            found = await self.resolver.ns(zone)
            if isinstance(found, Temporary):
                return zone, [], found.reason
            if isinstance(found, Records) and found.values and found.name == zone.lower():
                return zone, *await self._addresses(zone, found.values)
        return name, [], f"no nameservers were found for {name}"

    async def _addresses(self, zone: str, hosts: Sequence[str]) -> tuple[list[tuple[str, Nameserver]], str]:
        servers, why = [], f"the nameservers of {zone} have no address"
        for host in sorted(hosts)[:HOSTS]:
            found = await self.resolver.addresses(host)
            for address in found.values if isinstance(found, Records) else ():
                refusal = address_guard.refusal(address, self.allowed)
                if refusal is None:
                    servers.append((host, Nameserver(address, self.port)))
                    break
                why = f"the nameservers of {zone} cannot be queried: {refusal}"
        return servers, why

    async def _query(self, server: Nameserver, name: str, kind: str, account: Hashable) -> Result:
        """One server's answer; two tries."""
        reason = ""
        for _ in range(2):
            try:
                query = dns_query.question(name, kind, recursive=False)
                async with self._questions.place(account):
                    response = await (self.exchange or self._over_the_wire)(server, query, QUERY_SECONDS)
                return _read(response, name, kind)
            except NameserverError as error:
                reason = str(error)
            except TooManyWaiting:
                return Temporary("this account has too many DNS queries waiting")
            except dns.exception.DNSException:
                return Temporary(f"nameserver {server} sent an invalid answer")
        return Temporary(reason)

    async def _over_the_wire(self, server: Nameserver, query: dns.message.QueryMessage, seconds: float) -> dns.message.QueryMessage:
        return await dns_query.exchange(self.reactor, server, query, seconds)


def _read(response: dns.message.QueryMessage, name: str, kind: str) -> Result:
    if response.rcode() not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        return Temporary(f"it answered {dns.rcode.to_text(response.rcode())}")
    chain = response.resolve_chaining()
    canonical = chain.canonical_name.to_text(omit_final_dot=True).lower()
    if chain.answer is not None:
        return Records(canonical, tuple(resolving.value(kind, rdata) for rdata in chain.answer))
    kinds = {rrset.rdtype for rrset in response.authority}
    if canonical == name.lower() and dns.rdatatype.NS in kinds and dns.rdatatype.SOA not in kinds:  # 2308 §2.2: a referral has no SOA
        return Temporary("it only refers to other servers")
    if response.rcode() == dns.rcode.NXDOMAIN and canonical == name.lower():
        return NxDomain(name)
    return Records(canonical)


def _values(answer: Result) -> set[Any]:
    return set(answer.values) if isinstance(answer, Records) else set()
