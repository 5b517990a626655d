"""Asking authoritative servers: which ones, through the guard, and what is made of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
import pytest_twisted

from mailsvc.domains.authoritative_dns import Authorities
from mailsvc.net import address_guard
from mailsvc.net.dns import Mx, NxDomain, Records, Temporary
from mailsvc.net.dns_query import Nameserver, NameserverError

NS = {"example.com": ["ns1.example.com", "ns2.example.com"]}
ADDRESSES = {"ns1.example.com": ["192.0.2.101"], "ns2.example.com": ["192.0.2.102"]}


class Resolver:
    def __init__(self, ns: Mapping[str, list[str]] = NS, addresses: Mapping[str, list[str]] = ADDRESSES) -> None:
        self.zones, self.hosts = ns, addresses

    async def ns(self, name: str) -> Any:
        if name.startswith("broken."):
            return Temporary("the resolver is silent")
        return Records(name, tuple(self.zones[name])) if name in self.zones else Records(name) if name.count(".") > 1 else NxDomain(name)

    async def addresses(self, host: str) -> Any:
        return Records(host, tuple(self.hosts[host])) if host in self.hosts else NxDomain(host)


class Wire:
    """Servers by address: what each has, or the name of its refusal; None: it is silent."""

    def __init__(self, **servers: Any) -> None:
        self.servers = {name.replace("s", "192.0.2."): has for name, has in servers.items()}
        self.queried: list[str] = []

    async def __call__(self, server: Nameserver, query: dns.message.QueryMessage, seconds: float) -> Any:
        self.queried.append(server.host)
        has = self.servers.get(server.host)
        if has is None:
            raise NameserverError(f"nameserver {server} did not answer in time")
        response: Any = dns.message.make_response(query)
        assert not query.flags & dns.flags.RD
        if isinstance(has, str):
            response.set_rcode(dns.rcode.from_text(has))
            return response
        question = query.question[0]
        for text in has.get("CNAME", []):
            response.answer.append(dns.rrset.from_text(question.name, 60, "IN", "CNAME", text.replace("@", str(question.name))))
        kind = dns.rdatatype.to_text(question.rdtype)
        if has.get(kind) and kind != "CNAME":
            response.answer.append(dns.rrset.from_text(question.name, 60, "IN", kind, *has[kind]))
        for text in has.get("REFERRAL", []):
            response.authority.append(dns.rrset.from_text(question.name, 60, "IN", "NS", text))
        if not has:
            response.set_rcode(dns.rcode.NXDOMAIN)
        return dns.message.from_wire(response.to_wire())


async def look(wire: Wire, name: str = "send.example.com", kind: str = "MX", resolver: Any = None, allowed: str = "192.0.2.0/24") -> Any:
    return await Authorities(None, resolver or Resolver(), address_guard.networks([allowed]), exchange=wire).query(name, kind)


GOOD = {"MX": ["10 out.example.net."]}


@pytest_twisted.ensureDeferred
async def test_all_servers_of_the_zone_are_queried() -> None:
    wire = Wire(s101=GOOD, s102=GOOD)
    seen = await look(wire)
    assert (seen.values, seen.where, seen.problem, seen.differing) == (
        (Mx(10, "out.example.net"),),
        "the nameservers of example.com",
        None,
        None,
    )
    assert sorted(wire.queried) == ["192.0.2.101", "192.0.2.102"]


@pytest_twisted.ensureDeferred
async def test_servers_that_disagree() -> None:
    seen = await look(Wire(s101=GOOD, s102={}))
    assert seen.differing == "ns1.example.com and ns2.example.com have different records for send.example.com"


@pytest.mark.parametrize("bad", [None, "SERVFAIL", "REFUSED"])
@pytest_twisted.ensureDeferred
async def test_a_server_that_does_not_answer_is_ignored(bad: str | None) -> None:
    seen = await look(Wire(s101=bad, s102=GOOD))
    assert (seen.values, seen.problem) == ((Mx(10, "out.example.net"),), None)


@pytest.mark.parametrize("bad", [None, "SERVFAIL"])
@pytest_twisted.ensureDeferred
async def test_no_server_answers(bad: str | None) -> None:
    wire = Wire(s101=bad, s102=bad)
    seen = await look(wire)
    assert seen.values == () and "none of the nameservers of example.com answered" in seen.problem
    assert len(wire.queried) == (4 if bad is None else 2)  # a lost packet is no answer


@pytest.mark.parametrize(
    ("address", "word"), [("127.0.0.1", "loopback"), ("10.0.0.5", "private"), ("169.254.169.254", "link-local"), ("::1", "loopback")]
)
@pytest_twisted.ensureDeferred
async def test_servers_at_private_addresses_are_not_queried(address: str, word: str) -> None:
    wire = Wire()
    seen = await look(wire, resolver=Resolver(addresses={"ns1.example.com": [address], "ns2.example.com": [address]}))
    assert word in seen.problem and wire.queried == []


@pytest_twisted.ensureDeferred
async def test_the_closest_zone_is_queried() -> None:
    resolver = Resolver({**NS, "send.example.com": ["ns9.example.com"]}, {**ADDRESSES, "ns9.example.com": ["192.0.2.109"]})
    wire = Wire(s101={}, s102={}, s109=GOOD)
    assert (await look(wire, resolver=resolver)).where == "the nameservers of send.example.com"
    assert wire.queried == ["192.0.2.109"]


@pytest_twisted.ensureDeferred
async def test_a_referral_is_not_an_answer() -> None:
    refers = {"REFERRAL": ["ns.elsewhere.example."]}
    seen = await look(Wire(s101=refers, s102=refers))
    assert "refers to other servers" in seen.problem
    assert (await look(Wire(s101=refers, s102=GOOD))).values == (Mx(10, "out.example.net"),)


@pytest_twisted.ensureDeferred
async def test_a_name_without_a_zone() -> None:
    assert "no nameservers" in (await look(Wire(), "send.nowhere.test")).problem
    assert (await look(Wire(), "broken.example.com")).problem == "the resolver is silent"
    assert "have no address" in (await look(Wire(), resolver=Resolver(addresses={}))).problem


@pytest_twisted.ensureDeferred
async def test_an_endless_cname_chain() -> None:
    loop = {"CNAME": ["send.example.com."]}
    assert (await look(Wire(s101=loop, s102=loop))).problem is not None
    onward = {"CNAME": ["x.@"]}
    seen = await look(Wire(s101=onward, s102=onward))
    assert "too many chained CNAME" in seen.problem


@pytest_twisted.ensureDeferred
async def test_at_most_four_servers_are_queried() -> None:
    hosts = [f"ns{n}.example.com" for n in range(1, 10)]
    wire = Wire(**{f"s10{n}": GOOD for n in range(1, 10)})
    await look(wire, resolver=Resolver({"example.com": hosts}, {host: [f"192.0.2.10{n}", "192.0.2.99"] for n, host in enumerate(hosts, 1)}))
    assert len(wire.queried) == 4
