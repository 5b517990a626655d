"""Providers of DNS by nameservers, and finding the nameservers of the zone that a domain is in."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mailsvc.domains.dns_providers import known, nameservers, provider_of
from mailsvc.net.dns import NxDomain, Records


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        (["amy.ns.cloudflare.com", "bob.ns.cloudflare.com"], "Cloudflare"),
        (["ns-1.awsdns-12.co.uk."], "Amazon Route 53"),
        (["NS1-03.AZURE-DNS.COM"], "Azure DNS"),
        (["ns1.example.com"], None),
        (["cloudflare.com"], None),
        ([], None),
    ],
)
def test_provider(hosts: list[str], name: str | None) -> None:
    found = provider_of(hosts)
    assert (found.name if found else None) == name


def test_every_entry_has_an_https_console_and_begins_its_names_with_a_dot() -> None:
    for each in known():
        assert each.console.startswith("https://") and each.nameservers, each
        assert all(part.startswith(".") and part == part.lower() for part in each.nameservers), each


class Zones:
    """`asked`: the names that were looked up."""

    def __init__(self, *zones: str) -> None:
        self.zones, self.asked = zones, list[str]()

    async def ns(self, name: str) -> Any:
        self.asked.append(name)
        return Records(name, (f"ns.{name}",)) if name in self.zones else NxDomain(name)


@pytest.mark.parametrize(
    ("zones", "found"), [(("example.com",), ("ns.example.com",)), (("mail.example.com", "com"), ("ns.mail.example.com",)), ((), ())]
)
def test_the_nameservers_are_those_of_the_closest_zone(zones: tuple[str, ...], found: tuple[str, ...]) -> None:
    resolver: Any = Zones(*zones)
    results: list[Any] = []
    Deferred.fromCoroutine(nameservers(resolver, "a.mail.example.com")).addBoth(results.append)
    assert results == [found] and "com" not in resolver.asked
