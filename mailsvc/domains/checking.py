"""Checks all DNS records of a sending domain, and looks for typical mistakes where one is missing.

Authoritative servers decide, or the resolver if none of them can be queried. A new key must be visible to both.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

import attrs
from twisted.internet.defer import Deferred, TimeoutError, gatherResults

from mailsvc.domains import caa_check, dmarc_check, judge, names, spf_check, tls_reports_check
from mailsvc.domains.authoritative_dns import Authorities, ZoneAnswer
from mailsvc.domains.judge import Defect
from mailsvc.domains.records import Publishing, Record
from mailsvc.mail.authentication import dkim_key
from mailsvc.net.dns import Caa, Mx, Records, Resolver, Temporary
from mailsvc.store.domains.values import CAA, DkimKey, Domain, RecordState

RECORD_SECONDS = 45.0  # limit for all queries about one record (7208 §4.6.4: at least 20)
_SLOW = f"the queries took longer than {RECORD_SECONDS:g} seconds"
ADDRESSES = 4  # of our addresses that are evaluated against a customized SPF record


@attrs.frozen
class Findings:
    """`records`: each `verified` or `pending`; `confirmed`: selectors whose key the authoritative servers and the resolver have."""

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
        """Check all records of a domain concurrently."""
        records = [record for record in self.publishing.records(domain, keys) if record.purpose != CAA]
        checks = [Deferred.fromCoroutine(self._check_record(record, domain)) for record in records]
        others = (Deferred.fromCoroutine(self.check_advice(domain)), Deferred.fromCoroutine(self._check_authority(domain)))
        results: list[Any] = await gatherResults([*checks, *others], consumeErrors=True)
        *found, advice, authority = results
        states = {record.name: state for record, state in zip(records, found, strict=True)}
        new = {f"{key.selector}._domainkey.{domain.name}": key for key in keys if key.state == "published"}
        visible = [(name, key) for name, key in new.items() if states[name].status == "verified"]
        resolved = await gatherResults([Deferred.fromCoroutine(self._resolves(name, key)) for name, key in visible], consumeErrors=True)
        confirmed = [key.selector for (_, key), known in zip(visible, resolved, strict=True) if known]
        return Findings((*found, *authority), advice, frozenset(confirmed))

    async def check_dkim(self, domain: Domain, keys: Sequence[DkimKey]) -> tuple[RecordState, ...]:
        """Check only the DKIM records. They prove who controls the DNS, because no two accounts have the same ones."""
        records = [record for record in self.publishing.records(domain, keys) if record.purpose == "DKIM"]
        checks = [Deferred.fromCoroutine(self._check_record(record, domain)) for record in records]
        found: list[RecordState] = await gatherResults(checks, consumeErrors=True)
        return tuple(found)

    async def has_claim_record(self, domain: Domain, value: str) -> bool:
        """Whether the authoritative servers and the resolver have this TXT record at the name itself, not behind a CNAME."""
        looking = Deferred.fromCoroutine(self.authorities.query(domain.name, "TXT", domain.account_id))
        try:
            answer = await looking.addTimeout(RECORD_SECONDS, self.clock)
        except TimeoutError:
            return False
        if value not in answer.values or answer.alias is not None or answer.differing is not None or answer.problem is not None:
            return False
        found = await self.resolver.txt(domain.name)
        return isinstance(found, Records) and value in found.values

    async def check_advice(self, domain: Domain) -> tuple[RecordState, ...]:
        """Check the records that are recommended."""
        dmarc, *others = self.publishing.advised(domain)
        walk = Deferred.fromCoroutine(dmarc_check.walk(self.resolver, domain.name))
        try:
            found = await walk.addTimeout(RECORD_SECONDS, self.clock)
        except TimeoutError:
            found = dmarc_check.Found(None, None, domain.name, unanswered=_SLOW)
        reports = [tls_reports_check.advice(record, await self.resolver.txt(record.name)) for record in others]
        return (dmarc_check.advice(domain.name, found, dmarc), *reports)

    async def _check_authority(self, domain: Domain) -> tuple[RecordState, ...]:
        """Whether the tracking subdomain can get a certificate. If DNS does not answer, what was known before."""
        if self.publishing.authority is None or not domain.tracking_hosts:
            return ()
        host = domain.tracking_hosts[-1]
        looking = Deferred.fromCoroutine(self._issuers(host))
        try:
            found = await looking.addTimeout(RECORD_SECONDS, self.clock)
        except TimeoutError:
            found = None
        if found is None:
            return tuple(state for state in domain.records if state.purpose == CAA)
        state = caa_check.state(host, *found, self.publishing.authority)
        return () if state is None else (state,)

    async def _issuers(self, host: str) -> tuple[str, Sequence[Caa]] | None:
        """The nearest name that has CAA records, and these; None if DNS does not answer."""
        for place in caa_check.places(host):
            found = await self.resolver.caa(place)
            if isinstance(found, Temporary):
                return None
            if isinstance(found, Records) and found.values:
                return place, found.values
        return host, ()

    async def _check_record(self, record: Record, domain: Domain) -> RecordState:
        """Check one record within the time limit: slow nameservers must not delay a check indefinitely."""
        try:
            return await Deferred.fromCoroutine(self._state(record, domain)).addTimeout(RECORD_SECONDS, self.clock)
        except TimeoutError:
            return _state(record, ZoneAnswer(), Defect("unanswered", f"DNS did not answer for {record.name}: {_SLOW}."))

    async def _state(self, record: Record, domain: Domain) -> RecordState:
        answer = await self._query(record, domain)
        return _state(record, answer, await self._defect(record, answer, domain))

    async def _query(self, record: Record, domain: Domain) -> ZoneAnswer:
        answer = await self.authorities.query(record.name, record.type, domain.account_id)
        if answer.problem is None:
            return answer
        lookup = {"MX": self.resolver.mx, "TXT": self.resolver.txt, "CNAME": self.resolver.cname}[record.type]
        found: Any = await lookup(record.name)
        if isinstance(found, Temporary):
            return ZoneAnswer(problem=f"{answer.problem}; {found.reason}")
        return ZoneAnswer(found.values if isinstance(found, Records) else (), "the resolver", answer.alias)

    async def _defect(self, record: Record, answer: ZoneAnswer, domain: Domain) -> Defect | None:
        if answer.problem is not None:
            return Defect("unanswered", f"DNS did not answer for {record.name}: {answer.problem}.")
        defect = await self._compare(record, answer, domain)
        if answer.differing is not None:
            return Defect("differing", f"Not all nameservers have it yet: {answer.differing}. Wait, or contact your DNS provider.")
        if defect is not None and defect.problem == "missing":
            return await self._find_doubled(record, domain) or (judge.behind_cname(record, answer.alias) if answer.alias else defect)
        return defect

    async def _compare(self, record: Record, answer: ZoneAnswer, domain: Domain) -> Defect | None:
        hosts, host = self.publishing.hosts, self.publishing.host(domain.region)
        if record.type == "MX":
            return judge.mx(record, answer.values, hosts)
        if record.type == "CNAME":
            return await self._compare_cname(record, answer)
        if record.purpose == "DKIM":
            return judge.dkim(record, answer.values)
        verdict = judge.spf_record(record, answer.values, hosts, host)
        return await self._evaluate_spf(record, answer, host) if verdict == "evaluate" else verdict

    async def _compare_cname(self, record: Record, answer: ZoneAnswer) -> Defect | None:
        addresses = None if answer.values else await self.resolver.addresses(record.name)
        texts = await self.resolver.txt(record.value) if answer.values else None
        return judge.cname(
            record,
            answer.values,
            addresses.values if isinstance(addresses, Records) else (),
            texts.values if isinstance(texts, Records) else None,
        )

    async def _evaluate_spf(self, record: Record, answer: ZoneAnswer, host: str) -> Defect | None:
        """Evaluate a customized SPF record for our addresses."""
        addresses = await self.resolver.addresses(host)
        if not isinstance(addresses, Records) or not addresses.values:
            return Defect(
                "other", f"It is not the expected record, and {host} has no address to evaluate it with. Change it to: {record.value}"
            )
        for address in addresses.values[:ADDRESSES]:
            result = await spf_check.check(self.resolver, ip_address(address), record.name, f"b@{record.name}", answer.values)
            defect = judge.spf_result(record, result.verdict, result.why, address)
            if defect is not None:
                return defect
        return None

    async def _find_doubled(self, record: Record, domain: Domain) -> Defect | None:
        """Did the editor add the domain to a name that had it already? A wildcard answers for such a name too, with other values."""
        lookup: Any = {"MX": self.resolver.mx, "TXT": self.resolver.txt, "CNAME": self.resolver.cname}[record.type]
        for zone in dict.fromkeys((names.registrable(domain.name) or domain.name, domain.name)):
            found = await lookup(f"{record.name}.{zone}")
            if not isinstance(found, Records) or not found.values:
                continue
            defect = await self._compare(record, ZoneAnswer(found.values), domain)
            if defect is None or defect.problem in judge.OURS:
                return judge.doubled(record, f"{record.name}.{zone}", names.relative(record.name, domain.name))
        return None

    async def _resolves(self, name: str, key: DkimKey) -> bool:
        """Whether resolvers see the key too."""
        found = await self.resolver.txt(name)
        text = f"k={key.algorithm}; p={key.public}"
        return isinstance(found, Records) and any(dkim_key.compare(one, text) is None for one in found.values)


def _state(record: Record, answer: ZoneAnswer, defect: Defect | None) -> RecordState:
    found = tuple(_text(value) for value in answer.values)
    expected = _text(Mx(record.priority, record.value)) if record.priority is not None else record.value
    where = f"{answer.where}, through {answer.alias}" if answer.alias else answer.where
    state = RecordState(record.purpose, record.type, record.name, expected, record.required, "pending", found, where or None)
    if defect is None:
        return attrs.evolve(state, status="verified")
    return attrs.evolve(state, problem=defect.problem, message=defect.message)


def _text(value: Any) -> str:
    return f"{value.preference} {value.host}" if isinstance(value, Mx) else str(value)
