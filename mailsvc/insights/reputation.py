"""Gathers how an account, its domain and our servers stand with receivers, for the insights on an email (insights/checks/reputation).

Nobody waits for DNS: what is known is given at once, and what is missing or too old is looked up in the background.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.domains.names import registrable
from mailsvc.insights.checks.reputation import Facts, Listed, Rates, Record, Server
from mailsvc.net.dns import Mx, NxDomain, Records, Temporary, reversed_name
from mailsvc.store.domains.values import Domain, RecordState
from mailsvc.store.events.rollups import Count, Wanted

HOUR, MINUTE = 3600.0, 60.0
LINKED = 10  # hosts that a mail links to that are looked up
MOST = 5000  # answers that are kept
BOUNCED = ("email.bounced.permanent", "email.bounced.transient", "email.bounced.undetermined")
COUNTED = ("email.sent", "email.delivered", "email.complained", *BOUNCED)

log = Logger()


class Names(Protocol):
    """dns.Resolver"""

    async def mx(self, domain: str) -> Records[Mx] | NxDomain | Temporary: ...
    async def addresses(self, host: str) -> Records[str] | NxDomain | Temporary: ...
    async def ptr(self, address: str) -> Records[str] | NxDomain | Temporary: ...
    async def txt(self, name: str) -> Records[str] | NxDomain | Temporary: ...


class Rollups(Protocol):
    """store/events/rollups"""

    def counts(self, account_id: Any, wanted: Wanted) -> Awaitable[Sequence[Count]]: ...


@attrs.define(eq=False)
class Kept:
    """Answers that are made in the background; `None` as long as there is none."""

    seconds: Callable[[], float]
    _answers: OrderedDict[Hashable, tuple[float, Any]] = attrs.field(factory=OrderedDict)
    _asked: set[Hashable] = attrs.field(factory=set)

    def get(self, key: Hashable, make: Callable[[], Coroutine[Deferred[Any], Any, Any]], good_for: float) -> Any:
        """The last answer, however old; a new one is made when its time is over."""
        until, answer = self._answers.get(key, (0.0, None))
        if until <= self.seconds() and key not in self._asked:
            self._asked.add(key)
            Deferred.fromCoroutine(self._make(key, make, good_for)).addErrback(lambda failure: log.failure("facts", failure=failure))
            answer = self._answers.get(key, (0.0, answer))[1]
        return answer

    @property
    def waiting(self) -> Collection[Hashable]:
        return self._asked

    async def _make(self, key: Hashable, make: Callable[[], Coroutine[Deferred[Any], Any, Any]], good_for: float) -> None:
        answer = None
        try:
            answer = await make()
        finally:
            self._asked.discard(key)
            self._answers[key] = (self.seconds() + (MINUTE if answer is None else good_for), answer)
            self._answers.move_to_end(key)
            while len(self._answers) > MOST:
                self._answers.popitem(last=False)


@attrs.define(eq=False)
class Reputation:
    """`identities`: our addresses and EHLO names; an address of None is looked up. `block_lists` are asked about addresses, `domain_lists`
    about domains.
    """

    names: Names
    rollups: Rollups
    identities: Sequence[tuple[str | None, str]]
    block_lists: Sequence[str]
    domain_lists: Sequence[str]
    clock: Any
    kept: Kept = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.kept = Kept(self.clock.seconds)

    def of(self, domain: Domain, hosts: Collection[str] = ()) -> tuple[Facts, bool]:
        """What is known of it now, and whether more is on its way. `hosts`: what the mail links to."""
        now = utc(self.clock)
        keys: list[Hashable] = [("rates", domain.account_id, domain.id)]
        rates = self.kept.get(keys[0], lambda: self._rates(domain, now), MINUTE)
        facts = Facts(domain.name, max(0, (now - domain.created_at).days), rates=rates)
        if domain.trusted and domain.status != "verified":  # the operator's word stands in place of DNS
            return facts, any(key in self.kept.waiting for key in keys)
        keys += ["servers", ("domain", domain.name)]
        servers = self.kept.get("servers", self._servers, HOUR) or ((), (), ())
        receives, refuses = self.kept.get(keys[-1], lambda: self._receives(domain.name), HOUR) or (None, False)
        keys.append(("logo", domain.name))
        logo = self.kept.get(keys[-1], lambda: self._logo(domain.name), HOUR)
        on, answered = list(servers[1]), set(servers[2])
        for name in (domain.name, *sorted(hosts)[:LINKED]) if self.domain_lists else ():
            keys.append(("listed", name))
            found = self.kept.get(keys[-1], lambda name=name: self._listed(name, name, self.domain_lists), HOUR)  # type: ignore[misc]
            on += found[0] if found else ()
            answered |= set(found[1]) if found else set()
        facts = attrs.evolve(
            facts, records=tuple(_record(state) for state in (*domain.records, *domain.advice)), receives=receives, refuses=refuses,
            servers=servers[0], listed=tuple(on), lists=tuple(sorted(answered)), logo=logo,
        )  # fmt: skip
        return facts, any(key in self.kept.waiting for key in keys)

    async def _rates(self, domain: Domain, now: datetime) -> Rates:
        """Of the domain, in this account, over seven days; days begin in UTC."""
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        wanted = Wanted(now - timedelta(days=7), now + timedelta(hours=1), "day", "UTC", COUNTED, by_period=True, domains=[domain.id])
        of: dict[str, int] = {}
        sent = {"today": 0, "before": 0}
        for count in await self.rollups.counts(domain.account_id, wanted):
            of[count.type] = of.get(count.type, 0) + count.count
            if count.type == "email.sent":
                sent["today" if count.day == today.date() else "before"] += count.count
        bounced = sum(of.get(kind, 0) for kind in BOUNCED)
        return Rates(
            of.get("email.delivered", 0), bounced, of.get(BOUNCED[0], 0), of.get("email.complained", 0), sent["today"], sent["before"] / 7
        )

    async def _servers(self) -> tuple[tuple[Server, ...], tuple[Listed, ...], tuple[str, ...]]:
        """Our own, with the lists that they are on and the lists that answered."""
        servers: list[Server] = []
        on: list[Listed] = []
        answered: set[str] = set()
        for address, ehlo in self.identities:
            forward = await self.names.addresses(ehlo)
            known = forward.values if isinstance(forward, Records) else ()
            for one in (address,) if address else known:
                if isinstance(forward, Temporary) or not ipaddress.ip_address(one).is_global:
                    continue
                back = await self.names.ptr(one)
                if not isinstance(back, Temporary):
                    names = tuple(name.lower().rstrip(".") for name in back.values) if isinstance(back, Records) else ()
                    servers.append(Server(one, ehlo, one in known, names))
                found = await self._listed(one, reversed_name(one), self.block_lists)
                on += found[0]
                answered |= set(found[1])
        return tuple(servers), tuple(on), tuple(sorted(answered))

    async def _receives(self, domain: str) -> tuple[bool | None, bool]:
        """Whether mail to it has somewhere to go, and whether it says that it wants none."""
        found = await self.names.mx(domain)
        if isinstance(found, Temporary):
            return None, False
        if isinstance(found, Records) and found.values:
            refuses = all(not mx.host for mx in found.values)  # 7505 §3
            return not refuses, refuses
        addresses = await self.names.addresses(domain)  # 5321 §5.1: without MX, the domain's own address
        return (None if isinstance(addresses, Temporary) else isinstance(addresses, Records) and bool(addresses.values)), False

    async def _logo(self, domain: str) -> bool | None:
        """Whether it, or its organisation for it, has a BIMI record."""
        for name in dict.fromkeys((domain, registrable(domain) or domain)):
            found = await self.names.txt(f"default._bimi.{name}")
            if isinstance(found, Temporary):
                return None
            if isinstance(found, Records) and any(value.replace(" ", "").lower().startswith("v=bimi1;") for value in found.values):
                return True
        return False

    async def _listed(self, what: str, asked: str, zones: Sequence[str]) -> tuple[list[Listed], list[str]]:
        """5782 §2.1: on a list is what has an address under the list's name. 127.255.255.x says that the list does not answer us."""
        on, answered = [], []
        for zone in zones:
            answer = await self.names.addresses(f"{asked}.{zone}")
            codes = answer.values if isinstance(answer, Records) else ()
            if isinstance(answer, NxDomain):
                answered.append(zone)
            elif codes and all(code.startswith("127.") and not code.startswith("127.255.255.") for code in codes):
                answered.append(zone)
                on.append(Listed(what, zone))
        return on, answered


def _record(state: RecordState) -> Record:
    there = state.status == "verified"
    unanswered = state.problem == "unanswered" or state.status in ("not_started", "temporary_failure")
    wanted = "" if there else f"{state.type} {state.expected}"
    return Record(state.purpose, state.name, there, there and state.problem is not None, state.told or "", wanted, unanswered, state.found)
