"""Asking the servers that are authoritative for a name, past all caches: what its owner has published by now.

Whoever owns a zone chooses these servers, so every address passes the guard.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Protocol

import attrs
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger

from mailsvc.domains.fair_share import Busy, FairShare
from mailsvc.net import address_guard, dns_query
from mailsvc.net import dns as resolving
from mailsvc.net.address_guard import Network
from mailsvc.net.dns import NxDomain, Records, Result, Temporary
from mailsvc.net.dns_query import Nameserver, Unanswered

HOSTS = 4  # nameservers of a zone that are asked, one address of each
HOPS = 4  # CNAMEs from zone to zone
LABELS = 12  # a name is looked for in at most so many zones
PATIENCE = 3.0  # seconds for one question
QUESTIONS = 50  # on the wire at once, a quarter of them for one account

log = Logger()

Exchange = Callable[[Nameserver, dns.message.QueryMessage, float], Awaitable[dns.message.QueryMessage]]


class Names(Protocol):
    """The resolver."""

    async def ns(self, name: str) -> Records[str] | NxDomain | Temporary: ...
    async def addresses(self, host: str) -> Records[str] | NxDomain | Temporary: ...


@attrs.frozen
class Seen:
    """What the servers of a zone said of a name. No `values` without `problem`: there is nothing of that kind.

    `where` names who said it; `alias` where a CNAME of the name leads; `differing` is a phrase when they do not agree.
    """

    values: tuple[Any, ...] = ()
    where: str = ""
    alias: str | None = None
    differing: str | None = None
    problem: str | None = None


@attrs.define(eq=False)
class Authorities:
    """`allowed` are networks that may be asked although they are not public."""

    reactor: Any
    resolver: Names
    allowed: Sequence[Network] = ()
    port: int = 53
    exchange: Exchange | None = None
    _questions: FairShare = attrs.field(factory=lambda: FairShare(QUESTIONS, QUESTIONS // 4), init=False)

    async def look(self, name: str, kind: str, account: Hashable = None) -> Seen:
        """Values of `kind` at `name`, through CNAMEs. The values of MX are dns.Mx, of others texts.

        Questions for one `account` share a part of all questions, so that its slow nameservers delay no other account's checks.
        """
        alias: str | None = None
        asked = name
        for _ in range(HOPS):
            seen, further = await self._look(asked, kind, account)
            if further is None:
                return attrs.evolve(seen, alias=seen.alias or alias)
            alias = asked = further
        return Seen(problem=f"{name} leads through too many CNAME records", alias=alias)

    async def _look(self, name: str, kind: str, account: Hashable) -> tuple[Seen, str | None]:
        """What the servers of the name's zone have, and where its CNAME leads when that is all they have."""
        zone, servers, problem = await self._servers(name)
        if not servers:
            return Seen(problem=problem), None
        asking = [Deferred.fromCoroutine(self._ask(server, name, kind, account)) for _, server in servers]
        answers = await gatherResults(asking, consumeErrors=True)
        told = [(host, answer) for (host, _), answer in zip(servers, answers, strict=True) if not isinstance(answer, Temporary)]
        if not told:
            reason = answers[0].reason if isinstance(answers[0], Temporary) else ""
            return Seen(problem=f"none of the nameservers of {zone} answered ({reason})"), None
        (host, first), where = told[0], f"the nameservers of {zone}"
        values = tuple(sorted(_values(first), key=str))
        for other, answer in told[1:]:
            if _values(answer) != _values(first):
                return Seen(values, where, differing=f"{host} and {other} answer differently about {name}"), None
        alias = first.name if isinstance(first, Records) and first.name != name.lower() and kind != "CNAME" else None
        if alias is not None and not values:
            return Seen(where=where), alias
        return Seen(values, where, alias), None

    async def _servers(self, name: str) -> tuple[str, list[tuple[str, Nameserver]], str]:
        """The zone of a name and its nameservers by address; or none, and a phrase that says why."""
        labels = name.split(".")
        for start in range(max(0, len(labels) - LABELS), len(labels) - 1):
            zone = ".".join(labels[start:])
            found = await self.resolver.ns(zone)
            if isinstance(found, Temporary):
                return zone, [], found.reason
            if isinstance(found, Records) and found.values and found.name == zone.lower():
                return zone, *await self._addresses(zone, found.values)
        return name, [], f"no nameservers of {name} are known"

    async def _addresses(self, zone: str, hosts: Sequence[str]) -> tuple[list[tuple[str, Nameserver]], str]:
        servers, why = [], f"the nameservers of {zone} have no address"
        for host in sorted(hosts)[:HOSTS]:
            found = await self.resolver.addresses(host)
            for address in found.values if isinstance(found, Records) else ():
                refusal = address_guard.refusal(address, self.allowed)
                if refusal is None:
                    servers.append((host, Nameserver(address, self.port)))
                    break
                why = f"the nameservers of {zone} cannot be asked: {refusal}"
        return servers, why

    async def _ask(self, server: Nameserver, name: str, kind: str, account: Hashable) -> Result:
        """One server's own answer, asked twice."""
        reason = ""
        for _ in range(2):
            try:
                query = dns_query.question(name, kind, recursive=False)
                async with self._questions.place(account):
                    response = await (self.exchange or self._over_the_wire)(server, query, PATIENCE)
                return _read(response, name, kind)
            except Unanswered as error:
                reason = str(error)
            except Busy:
                return Temporary("too many DNS questions of this account are waiting")
            except dns.exception.DNSException:
                return Temporary(f"the answer of nameserver {server} makes no sense")
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
