"""Gathers facts about the reputation of an account, its domain and our servers, for insights/checks/reputation.

Never waits for DNS: known facts are returned immediately, and missing or outdated ones are looked up in the background.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Hashable, Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.domains import tracking
from mailsvc.domains.names import registrable
from mailsvc.insights.checks.reputation import Facts, Listed, Rates, Record, Server
from mailsvc.net import block_lists
from mailsvc.net.dns import Records, Resolver, Temporary, reversed_name
from mailsvc.store.domains.values import CAA, TRACKING, Domain, RecordState
from mailsvc.store.events.rollups import Rollups, Wanted

HOUR, MINUTE = 3600.0, 60.0
LINKED_HOSTS = 10  # looked up for each email
CACHED = 5000  # facts that are kept
BOUNCED = ("email.bounced.permanent", "email.bounced.transient", "email.bounced.undetermined")
COUNTED = ("email.sent", "email.delivered", "email.complained", *BOUNCED)

log = Logger()


@attrs.define(eq=False)
class BackgroundCache:
    """Facts that are looked up in the background; None until the first result."""

    seconds: Callable[[], float]
    _facts: OrderedDict[Hashable, tuple[float, Any]] = attrs.field(factory=OrderedDict)
    _pending: set[Hashable] = attrs.field(factory=set)

    def get(self, key: Hashable, look_up: Callable[[], Coroutine[Deferred[Any], Any, Any]], good_for: float) -> Any:
        """The last known fact, however old. If it has expired, look it up again in the background."""
        expires, fact = self._facts.get(key, (0.0, None))
        if expires <= self.seconds() and key not in self._pending:
            self._pending.add(key)
            Deferred.fromCoroutine(self._refresh(key, look_up, good_for)).addErrback(
                lambda failure: log.failure("looking up reputation facts", failure=failure)
            )
            fact = self._facts.get(key, (0.0, fact))[1]
        return fact

    @property
    def pending(self) -> Collection[Hashable]:
        return self._pending

    async def _refresh(self, key: Hashable, look_up: Callable[[], Coroutine[Deferred[Any], Any, Any]], good_for: float) -> None:
        fact = None
        try:
            fact = await look_up()
        finally:
            self._pending.discard(key)
            self._facts[key] = (self.seconds() + (MINUTE if fact is None else good_for), fact)
            self._facts.move_to_end(key)
            while len(self._facts) > CACHED:
                self._facts.popitem(last=False)


@attrs.define(eq=False)
class Reputation:
    """`identities`: our IP addresses and EHLO names; an address of None is looked up. `ip_lists` and `domain_lists`: DNS blocklists.

    `tracking_host`: of links of domains without a tracking subdomain.
    """

    resolver: Resolver
    rollups: Rollups
    identities: Sequence[tuple[str | None, str]]
    ip_lists: Sequence[str]
    domain_lists: Sequence[str]
    clock: Any
    tracking_host: str | None = None
    cache: BackgroundCache = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.cache = BackgroundCache(self.clock.seconds)

    def linked(self, hosts: Collection[str]) -> tuple[Sequence[Listed], bool]:
        """The listings of hosts that an email links to as far as known, and whether more are being looked up."""
        listed, _, more = self._listings(sorted(hosts)[:LINKED_HOSTS])
        return listed, more

    def _listings(self, names: Sequence[str]) -> tuple[list[Listed], set[str], bool]:
        """The known listings of names, the blocklists that answered, and whether more are being looked up."""
        listed: list[Listed] = []
        answered: set[str] = set()
        names = names if self.domain_lists else ()
        for name in names:
            found = self.cache.get(("listed", name), lambda name=name: self._listed(name, name, self.domain_lists), HOUR)  # type: ignore[misc]
            listed += found[0] if found else ()
            answered |= set(found[1]) if found else set()
        return listed, answered, any(("listed", name) in self.cache.pending for name in names)

    def facts(self, domain: Domain) -> tuple[Facts, bool]:
        """The facts about a domain known now, and whether more are being looked up."""
        now = utc(self.clock)
        keys: list[Hashable] = [("rates", domain.account_id, domain.id)]
        rates = self.cache.get(keys[0], lambda: self._rates(domain, now), MINUTE)
        days = max(0, (now - domain.created_at).days)
        not_tracked, awaits_record = tracking.inactive(domain, self.tracking_host), tracking.awaits_record(domain)
        facts = Facts(domain.name, days, rates=rates, not_tracked=not_tracked, tracking_awaits_record=awaits_record)
        if domain.trusted and domain.status != "verified":  # the operator vouches for the domain instead of DNS
            return facts, any(key in self.cache.pending for key in keys)
        keys += ["servers", ("domain", domain.name)]
        servers = self.cache.get("servers", self._servers, HOUR) or ((), (), ())
        receives, null_mx = self.cache.get(keys[-1], lambda: self._receives(domain.name), HOUR) or (None, False)
        keys.append(("logo", domain.name))
        logo = self.cache.get(keys[-1], lambda: self._logo(domain.name), HOUR)
        listed, answered, more = self._listings([domain.name])
        others = ("TLS-RPT", TRACKING, CAA)  # about incoming mail, and about links
        records = tuple(_record(state) for state in (*domain.records, *domain.advice) if state.purpose not in others)
        facts = attrs.evolve(
            facts, records=records, receives=receives, null_mx=null_mx,
            servers=servers[0], listed=(*servers[1], *listed), blocklists=tuple(sorted({*servers[2], *answered})), logo=logo,
        )  # fmt: skip
        return facts, more or any(key in self.cache.pending for key in keys)

    async def _rates(self, domain: Domain, now: datetime) -> Rates:
        """The domain's rates in this account over the last seven days. Days are in UTC."""
        today, since = now.replace(hour=0, minute=0, second=0, microsecond=0), now - timedelta(days=7)
        wanted = Wanted(since, now + timedelta(hours=1), "day", "UTC", COUNTED, by_period=True, domains=[domain.id])
        counts: dict[str, int] = {}
        sent = {"today": 0, "before": 0}
        for count in await self.rollups.counts(domain.account_id, wanted):
            counts[count.type] = counts.get(count.type, 0) + count.count
            if count.type == "email.sent":
                sent["today" if count.day == today.date() else "before"] += count.count
        bounced = sum(counts.get(kind, 0) for kind in BOUNCED)
        return Rates(
            counts.get("email.delivered", 0), bounced, counts.get(BOUNCED[0], 0), counts.get("email.complained", 0),
            sent["today"], sent["before"] / ((today - since) / timedelta(days=1)),
        )  # fmt: skip

    async def _servers(self) -> tuple[tuple[Server, ...], tuple[Listed, ...], tuple[str, ...]]:
        """Our sending servers, the blocklists that they are on, and the blocklists that answered."""
        servers: list[Server] = []
        listed: list[Listed] = []
        answered: set[str] = set()
        for address, ehlo in self.identities:
            forward = await self.resolver.addresses(ehlo)
            known = forward.values if isinstance(forward, Records) else ()
            for ip in (address,) if address else known:
                if isinstance(forward, Temporary) or not ipaddress.ip_address(ip).is_global:
                    continue
                back = await self.resolver.ptr(ip)
                if not isinstance(back, Temporary):
                    names = tuple(name.lower().rstrip(".") for name in back.values) if isinstance(back, Records) else ()
                    servers.append(Server(ip, ehlo, ip in known, names))
                found = await self._listed(ip, reversed_name(ip), self.ip_lists)
                listed += found[0]
                answered |= set(found[1])
        return tuple(servers), tuple(listed), tuple(sorted(answered))

    async def _receives(self, domain: str) -> tuple[bool | None, bool]:
        """Whether the domain can receive mail (None: unknown), and whether it has a null MX record."""
        found = await self.resolver.mx(domain)
        if isinstance(found, Temporary):
            return None, False
        if isinstance(found, Records) and found.values:
            null_mx = all(not mx.host for mx in found.values)  # 7505 §3
            return not null_mx, null_mx
        addresses = await self.resolver.addresses(domain)  # 5321 §5.1: without MX records, the domain's own address
        return (None if isinstance(addresses, Temporary) else isinstance(addresses, Records) and bool(addresses.values)), False

    async def _logo(self, domain: str) -> bool | None:
        """Whether the domain or its organizational domain has a BIMI record."""
        for name in dict.fromkeys((domain, registrable(domain) or domain)):
            found = await self.resolver.txt(f"default._bimi.{name}")
            if isinstance(found, Temporary):
                return None
            if isinstance(found, Records) and any(value.replace(" ", "").lower().startswith("v=bimi1;") for value in found.values):
                return True
        return False

    async def _listed(self, name: str, query: str, zones: Sequence[str]) -> tuple[list[Listed], list[str]]:
        """The blocklists that list `name`, and those that answered."""
        listed, answered = await block_lists.look_up_current(self.resolver, query, zones)
        return [Listed(name, zone) for zone in listed], answered


def _record(state: RecordState) -> Record:
    correct = state.status == "verified"
    unanswered = state.problem == "unanswered" or state.status in ("not_started", "temporary_failure")
    expected = "" if correct else f"{state.type} {state.expected}"
    return Record(state.purpose, state.name, correct, state.message or "", expected, unanswered, state.found, state.expected)
