"""From a recipient's domain to the hosts that take its mail, in order: the operator's routes, then MX, null MX, implicit MX.

Names only. Addresses are looked up and checked right before they are connected to (connect), so that no check is outdated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

import attrs

from mailsvc.delivery.shaping import destination_name, pooled
from mailsvc.net.address_guard import is_address
from mailsvc.net.dns import Mx, NxDomain, Resolver, Temporary

_KEPT = 300.0  # seconds; the resolver caches answers for their TTL as well
_KEPT_FAILURE = 15.0
_NAMED = 20  # hosts in the name of a destination
_LONGEST = 1000  # characters of that name. With provider, pool and region, it must fit into a row of an index (2704 bytes)
_DIGEST = 32  # characters that stand for the hosts that do not fit
_HOSTS = 8  # of each kept route, on average: one with the most takes 15 kB
_MOST_HOSTS = 200  # of a destination. How many are tried for one connection: connect.
_LABEL = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")  # 5321 §4.1.2, and "_", which some hosts have
_SEPARATORS = frozenset("/@* ")  # in the names of destinations and holds: of the provider, the pool and hosts, and for everything


@attrs.frozen
class Host:
    """A mail server, and its MX preference (lower is tried first)."""

    name: str
    port: int
    preference: int = 0


@attrs.frozen
class Route:
    """Where the mail of a domain goes. `operator`: by a route setting, so that any address may be connected to.

    `authenticated`: the resolver validated it with DNSSEC.
    """

    destination: str
    hosts: tuple[Host, ...]
    operator: bool = False
    authenticated: bool = False

    def of_pool(self, pool: str) -> Route:
        """The route of mail that is sent from the addresses of a pool."""
        return attrs.evolve(self, destination=pooled(self.destination, pool)) if pool else self

    def in_order(self, shuffle: Callable[[list[Host]], Any], first: int = 0, most: int | None = None) -> list[Host]:
        """Hosts by preference, equal ones shuffled (5321 §5.1: randomised for each connection).

        At most `most`, from the one in place `first`.
        """
        ordered: list[Host] = []
        hosts = sorted(self.hosts, key=lambda host: host.preference)
        chosen = hosts[first : None if most is None else first + most] or hosts[:most]
        for _, group in groupby(chosen, key=lambda host: host.preference):
            equals = list(group)
            shuffle(equals)
            ordered += equals
        return ordered


@attrs.frozen
class NoMail:
    """The domain accepts no mail. `reply` is the reply that its recipients get."""

    reply: str


@attrs.frozen
class Unknown:
    """DNS has no answer at the moment. `reason` is a sentence."""

    reason: str


Answer = Route | NoMail | Unknown


def operator_route(target: str) -> Route:
    """From a setting: `smtp://host:port`, by default port 25, `[::1]` for IPv6. ValueError says what is wrong."""
    parts = urlsplit(target)
    host = parts.hostname or ""
    if parts.scheme != "smtp" or not host or _SEPARATORS & set(host) or parts.path not in ("", "/") or parts.query or parts.username:
        raise ValueError(f"a route is smtp://host:port, not {target!r}")
    port = parts.port or 25
    shown = f"[{host}]" if ":" in host else host
    return Route(f"{shown}:{port}", (Host(host, port),), operator=True)


def mx_route(domain: str, records: Sequence[Mx], port: int, own: Collection[str] = ()) -> Route | NoMail:
    """From a domain's MX records. If there are any, its address records do not count (5321 §5.1)."""
    if [record.host for record in records] == [""]:
        return NoMail(f"556 5.1.10 {domain} accepts no mail (null MX)")  # 7505 §3, 7504
    usable = [record for record in records if _is_host(record.host)]
    ours = [record.preference for record in usable if record.host in own]
    if ours:  # 5321 §5.1: ourselves, and all hosts that would relay to us
        usable = [record for record in usable if record.preference < min(ours)]
        if not usable:
            return NoMail(f"554 5.4.6 Mail for {domain} would loop back to this server")
    if not usable:
        return NoMail(f"550 5.4.4 None of the MX records of {domain} names a host")
    usable.sort(key=lambda record: (record.preference, record.host))
    best = {record.host: record.preference for record in reversed(usable)}
    hosts = [Host(name, port, preference) for name, preference in best.items()]
    hosts = sorted(hosts, key=lambda host: (host.preference, host.name))[:_MOST_HOSTS]
    return Route(_name(hosts[:_NAMED]), tuple(hosts))


def _name(hosts: Iterable[Host]) -> str:
    """The name of a set of hosts, whose own names contain no separators (`_is_host`)."""
    whole = " ".join(sorted(host.name for host in hosts))
    if len(whole) <= _LONGEST:
        return whole
    shown = whole[: _LONGEST - _DIGEST - 1].rpartition(" ")[0]
    return f"{shown} +{sha256(whole.encode()).hexdigest()[:_DIGEST]}"


class Routes:
    """Routes by domain. Acceptance reads the cache only, because it must not wait."""

    def __init__(
        self,
        clock: Any,
        names: Resolver,
        routes: Mapping[str, str],
        *,
        port: int = 25,
        own: Collection[str] = (),
        size: int = 50_000,
        provider: Callable[[Iterable[str]], str | None] = lambda hosts: None,
    ) -> None:
        self._clock, self._names, self._port, self._size = clock, names, port, size
        self._provider = provider
        self._own = frozenset(name.lower() for name in own)
        self._fixed = {domain.lower().rstrip("."): operator_route(target) for domain, target in routes.items()}
        self._kept: OrderedDict[str, tuple[float, Answer]] = OrderedDict()
        self._hosts = 0  # of all kept routes

    @property
    def fixed(self) -> frozenset[str]:
        """The destinations of the operator's routes."""
        return frozenset(route.destination for route in self._fixed.values())

    def cached(self, domain: str) -> Answer | None:
        """What is known now. None: the domain has to be resolved."""
        domain = domain.lower()
        fixed = self._fixed.get(domain) or self._fixed.get("*")
        if fixed is not None:
            return fixed
        kept = self._kept.get(domain)
        if kept is None or kept[0] <= self._clock.seconds():
            return None
        self._kept.move_to_end(domain)
        return kept[1]

    async def resolve(self, domain: str) -> Answer:
        """The route of a domain, from the cache or DNS."""
        domain = domain.lower()
        answer = self.cached(domain)
        if answer is None:
            answer = self._filed(await self._look_up(domain))
            self._keep(domain, answer)
        return answer

    def _keep(self, domain: str, answer: Answer) -> None:
        _, former = self._kept.pop(domain, (0.0, None))
        kept_for = _KEPT_FAILURE if isinstance(answer, Unknown) else _KEPT
        self._kept[domain] = (self._clock.seconds() + kept_for, answer)
        self._hosts += _count(answer) - _count(former)
        while len(self._kept) > self._size or self._hosts > _HOSTS * self._size:
            self._hosts -= _count(self._kept.popitem(last=False)[1][1])

    async def signed(self, domain: str) -> bool | None:
        """Whether DNSSEC validated the hosts of a domain. None: that cannot be looked up now."""
        answer = self.cached(domain) or await self.resolve(domain)
        return None if isinstance(answer, Unknown) else isinstance(answer, Route) and answer.authenticated

    def _filed(self, answer: Answer) -> Answer:
        """With the provider's name before its destination, if all hosts belong to one provider."""
        if not isinstance(answer, Route):
            return answer
        provider = self._provider([host.name for host in answer.hosts])
        return attrs.evolve(answer, destination=destination_name(provider, answer.destination))

    async def _look_up(self, domain: str) -> Answer:
        if not _is_host(domain):  # an address literal, or a single label
            return NoMail(f"550 5.1.2 {domain} is not a mail domain")
        found = await self._names.mx(domain)
        if isinstance(found, Temporary):
            return Unknown(f"The mail exchangers of {domain} could not be looked up: {found.reason}.")
        if isinstance(found, NxDomain):
            return NoMail(f"550 5.1.2 The domain {domain} does not exist")
        if found.values:
            route = mx_route(domain, found.values, self._port, self._own)
            return attrs.evolve(route, authenticated=found.authenticated) if isinstance(route, Route) else route
        return await self._implicit(domain)

    async def _implicit(self, domain: str) -> Answer:
        """Without MX records, mail goes to the domain's own address (5321 §5.1)."""
        found = await self._names.addresses(domain)
        if isinstance(found, Temporary):
            return Unknown(f"The address of {domain} could not be looked up: {found.reason}.")
        if isinstance(found, NxDomain) or not found.values:
            return NoMail(f"550 5.1.2 The domain {domain} has neither a mail exchanger nor an address")
        if domain in self._own:
            return NoMail(f"554 5.4.6 Mail for {domain} would loop back to this server")
        hosts = (Host(domain, self._port),)
        return Route(_name(hosts), hosts, authenticated=found.authenticated)


def _is_host(name: str) -> bool:
    """Whether it is a host name with at least two labels (5321 §2.3.5), and not an address.

    DNS allows any character in a label. A host called `google/mx.example` would have a destination that seems to belong to a provider.
    """
    labels = name.split(".")
    if len(labels) < 2 or not all(label and _LABEL.issuperset(label) for label in labels):
        return False
    return not is_address(name)


def _count(answer: Answer | None) -> int:
    return len(answer.hosts) if isinstance(answer, Route) else 0
