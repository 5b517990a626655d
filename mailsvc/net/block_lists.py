"""DNS block lists (RFC 5782): which of them list an address or a domain, and which answered."""

from __future__ import annotations

from collections.abc import Sequence

from mailsvc.net.dns import NxDomain, Records, Resolver


async def look_up(resolver: Resolver, query: str, lists: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those that list `query`, an address in reverse order or a domain, and those that answered.

    127.255.255.x means that a list refuses our queries (of public resolvers, for example).
    """
    listed, answered = [], []
    for zone in lists:
        answer = await resolver.addresses(f"{query}.{zone}")  # 5782 §2.1
        codes = answer.values if isinstance(answer, Records) else ()
        if isinstance(answer, NxDomain):
            answered.append(zone)
        elif codes and all(code.startswith("127.") and not code.startswith("127.255.255.") for code in codes):
            answered.append(zone)
            listed.append(zone)
    return listed, answered


async def look_up_current(resolver: Resolver, query: str, lists: Sequence[str]) -> tuple[list[str], list[str]]:
    """The same, without lists that were given up."""
    listed, answered = await look_up(resolver, query, lists)
    given_up = {zone for zone in listed if await lists_everything(resolver, zone)}
    return [zone for zone in listed if zone not in given_up], [zone for zone in answered if zone not in given_up]


async def lists_everything(resolver: Resolver, zone: str) -> bool:
    """Whether a list was given up: it lists 127.0.0.1, which no list in use does (5782 §5), neither of addresses nor of domains."""
    return isinstance(await resolver.addresses(f"1.0.0.127.{zone}"), Records)
