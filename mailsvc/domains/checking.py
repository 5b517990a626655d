"""Looking at the DNS of a sending domain: every record at its authoritative servers, judged, with clues where it is not there.

The servers that are authoritative decide. Where none of them can be asked the resolver does; a new key needs both.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from ipaddress import ip_address
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, TimeoutError, gatherResults

from mailsvc.domains import dmarc_check, judge, names, spf_check
from mailsvc.domains.authoritative_dns import Seen
from mailsvc.domains.judge import Wrong
from mailsvc.domains.records import Publishing, Record
from mailsvc.mail.authentication import dkim_key
from mailsvc.net.dns import Mx, NxDomain, Records, Temporary
from mailsvc.store.domains.values import DkimKey, Domain, RecordState

PATIENCE = 45.0  # seconds for all that is asked about one record (7208 §4.6.4: at least 20)
_SLOW = f"all of it took longer than {PATIENCE:g} seconds"
ADDRESSES = 4  # of ours for which an SPF record of the customer's own is tried


class Resolver(Protocol):
    async def mx(self, domain: str) -> Records[Mx] | NxDomain | Temporary: ...
    async def txt(self, name: str) -> Records[str] | NxDomain | Temporary: ...
    async def cname(self, name: str) -> Records[str] | NxDomain | Temporary: ...
    async def addresses(self, host: str) -> Records[str] | NxDomain | Temporary: ...


class Authorities(Protocol):
    async def look(self, name: str, kind: str, account: Hashable = None) -> Seen: ...


@attrs.frozen
class Findings:
    """`records` are each `verified` or `pending`; `confirmed` are the selectors whose key the authority and the resolver have."""

    records: tuple[RecordState, ...]
    advice: tuple[RecordState, ...]
    confirmed: frozenset[str] = frozenset()


@attrs.define(eq=False)
class Checker:
    resolver: Resolver
    authorities: Authorities
    publishing: Publishing
    clock: Any

    async def check(self, domain: Domain, keys: Sequence[DkimKey]) -> Findings:
        """All records of a domain, at once."""
        records = self.publishing.records(domain, keys)
        checks = [Deferred.fromCoroutine(self._in_time(record, domain)) for record in records]
        found: list[Any] = await gatherResults([*checks, Deferred.fromCoroutine(self.advise(domain.name))], consumeErrors=True)
        states = {record.name: state for record, state in zip(records, found[:-1], strict=True)}
        new = {f"{key.selector}._domainkey.{domain.name}": key for key in keys if key.state == "published"}
        seen = [(name, key) for name, key in new.items() if states[name].status == "verified"]
        resolved = await gatherResults([Deferred.fromCoroutine(self._resolves(name, key)) for name, key in seen], consumeErrors=True)
        confirmed = [key.selector for (_, key), known in zip(seen, resolved, strict=True) if known]
        return Findings(tuple(found[:-1]), found[-1], frozenset(confirmed))

    async def proof(self, domain: Domain, keys: Sequence[DkimKey]) -> tuple[RecordState, ...]:
        """The DKIM records of a domain as they are now: nobody but who has its DNS can publish them, and no two accounts have the same."""
        records = [record for record in self.publishing.records(domain, keys) if record.purpose == "DKIM"]
        checks = [Deferred.fromCoroutine(self._in_time(record, domain)) for record in records]
        found: list[RecordState] = await gatherResults(checks, consumeErrors=True)
        return tuple(found)

    async def claimed(self, domain: Domain, value: str) -> bool:
        """Whether the authority and the resolver have this TXT record at the name itself, and not at the end of a CNAME."""
        looking = Deferred.fromCoroutine(self.authorities.look(domain.name, "TXT", domain.account_id))
        try:
            seen = await looking.addTimeout(PATIENCE, self.clock)
        except TimeoutError:
            return False
        if value not in seen.values or seen.alias is not None or seen.differing is not None or seen.problem is not None:
            return False
        found = await self.resolver.txt(domain.name)
        return isinstance(found, Records) and value in found.values

    async def advise(self, name: str) -> tuple[RecordState, ...]:
        walk = Deferred.fromCoroutine(dmarc_check.walk(self.resolver, name))
        try:
            found = await walk.addTimeout(PATIENCE, self.clock)
        except TimeoutError:
            found = dmarc_check.Found(None, None, name, unanswered=_SLOW)
        return (dmarc_check.advice(name, found),)

    async def _in_time(self, record: Record, domain: Domain) -> RecordState:
        """Whoever serves the zone decides how long each look-up takes, but not how long all of them do."""
        try:
            return await Deferred.fromCoroutine(self._state(record, domain)).addTimeout(PATIENCE, self.clock)
        except TimeoutError:
            return _state(record, Seen(), Wrong("unanswered", f"DNS gave no answer about {record.name}: {_SLOW}."))

    async def _state(self, record: Record, domain: Domain) -> RecordState:
        seen = await self._look(record, domain)
        return _state(record, seen, await self._wrong(record, seen, domain))

    async def _look(self, record: Record, domain: Domain) -> Seen:
        seen = await self.authorities.look(record.name, record.type, domain.account_id)
        if seen.problem is None:
            return seen
        ask = {"MX": self.resolver.mx, "TXT": self.resolver.txt, "CNAME": self.resolver.cname}[record.type]
        found: Any = await ask(record.name)
        if isinstance(found, Temporary):
            return Seen(problem=f"{seen.problem}; {found.reason}")
        return Seen(found.values if isinstance(found, Records) else (), "the resolver")

    async def _wrong(self, record: Record, seen: Seen, domain: Domain) -> Wrong | None:
        if seen.problem is not None:
            return Wrong("unanswered", f"DNS gave no answer about {record.name}: {seen.problem}.")
        wrong = await self._judged(record, seen, domain)
        if seen.differing is not None:
            return Wrong("differing", f"Not all nameservers have it yet: {seen.differing}. Wait, or ask whoever runs them.")
        if wrong is not None and wrong.problem == "missing":
            return await self._doubled(record, domain) or wrong
        return wrong

    async def _judged(self, record: Record, seen: Seen, domain: Domain) -> Wrong | None:
        hosts, host = self.publishing.hosts, self.publishing.host(domain.region)
        if record.type == "MX":
            return judge.mx(record, seen.values, hosts)
        if record.type == "CNAME":
            return await self._judged_cname(record, seen)
        if record.purpose == "DKIM":
            return judge.dkim(record, seen.values)
        verdict = judge.spf_record(record, seen.values, hosts, host)
        return await self._tried(record, seen, host) if verdict == "evaluate" else verdict

    async def _judged_cname(self, record: Record, seen: Seen) -> Wrong | None:
        addresses = None if seen.values else await self.resolver.addresses(record.name)
        texts = await self.resolver.txt(record.value) if seen.values else None
        return judge.cname(
            record,
            seen.values,
            addresses.values if isinstance(addresses, Records) else (),
            texts.values if isinstance(texts, Records) else None,
        )

    async def _tried(self, record: Record, seen: Seen, host: str) -> Wrong | None:
        """A record of the customer's own making: does it let us send?"""
        ours = await self.resolver.addresses(host)
        if not isinstance(ours, Records) or not ours.values:
            return Wrong("other", f"It is not the expected one, and {host} has no address to try it with. Publish: {record.value}")
        for address in ours.values[:ADDRESSES]:
            result = await spf_check.check(self.resolver, ip_address(address), record.name, f"b@{record.name}", seen.values)
            wrong = judge.spf_result(record, result.verdict, result.why, address)
            if wrong is not None:
                return wrong
        return None

    async def _doubled(self, record: Record, domain: Domain) -> Wrong | None:
        """Did the editor add the domain to a name that had it already?"""
        ask: Any = {"MX": self.resolver.mx, "TXT": self.resolver.txt, "CNAME": self.resolver.cname}[record.type]
        for zone in dict.fromkeys((names.registrable(domain.name) or domain.name, domain.name)):
            found = await ask(f"{record.name}.{zone}")
            if isinstance(found, Records) and found.values:
                return judge.doubled(record, f"{record.name}.{zone}", names.relative(record.name, domain.name))
        return None

    async def _resolves(self, name: str, key: DkimKey) -> bool:
        """Whether those who ask a resolver find the key too."""
        found = await self.resolver.txt(name)
        text = f"k={key.algorithm}; p={key.public}"
        return isinstance(found, Records) and any(dkim_key.compare(one, text) is None for one in found.values)


def _state(record: Record, seen: Seen, wrong: Wrong | None) -> RecordState:
    found = tuple(_shown(value) for value in seen.values)
    expected = _shown(Mx(record.priority, record.value)) if record.priority is not None else record.value
    where = f"{seen.where}, through {seen.alias}" if seen.alias else seen.where
    state = RecordState(record.purpose, record.type, record.name, expected, record.required, "pending", found, where or None)
    if wrong is None:
        return attrs.evolve(state, status="verified")
    return attrs.evolve(state, problem=wrong.problem, told=wrong.told)


def _shown(value: Any) -> str:
    return f"{value.preference} {value.host}" if isinstance(value, Mx) else str(value)
