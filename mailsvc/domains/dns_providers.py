"""Who hosts the zone of a domain, by its nameservers, and where its owner edits records. The providers are in dns_providers.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources

import attrs

from mailsvc.domains.names import registrable
from mailsvc.net.dns import Records, Resolver

LABELS = 6  # zones that are tried for a name


@attrs.frozen
class DnsProvider:
    """`nameservers`: parts of their names; `console`: the page where customers sign in and edit records."""

    name: str
    nameservers: Sequence[str]
    console: str


@cache
def known() -> Sequence[DnsProvider]:
    text = (resources.files("mailsvc.domains") / "dns_providers.toml").read_text("utf-8")
    return [DnsProvider(**entry) for entry in tomllib.loads(text)["provider"]]


def provider_of(nameservers: Iterable[str]) -> DnsProvider | None:
    names = [f".{name.lower().rstrip('.')}" for name in nameservers]
    return next((each for each in known() if any(part in name for part in each.nameservers for name in names)), None)


async def nameservers(resolver: Resolver, domain: str) -> tuple[str, ...]:
    """Those of the zone that the domain is in; empty if they are not known."""
    top, name = registrable(domain) or domain, domain
    for _ in range(LABELS):
        found = await resolver.ns(name)
        if isinstance(found, Records) and found.values and found.name == name:
            return found.values
        if name == top:
            break
        name = name.partition(".")[2]
    return ()
