"""The MTA-STS policies of recipients' domains (RFC 8461): looked up, fetched, kept in memory and in a table for all processes.

The format: mail/authentication/mta_sts. What follows for a connection: tls_policy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs
from twisted.internet.defer import Deferred, FirstError, TimeoutError, gatherResults
from twisted.logger import Logger

from mailsvc.delivery import pace
from mailsvc.delivery.connection.tls_counts import TlsCounts
from mailsvc.mail.authentication import mta_sts
from mailsvc.mail.authentication.mta_sts import BadPolicy, Policy
from mailsvc.net.dns import Records, Resolver
from mailsvc.semaphore import Semaphore
from mailsvc.store.queue.tls import TlsRecords

_SIZE = 20_000  # domains
_WEIGHT = 32 << 20  # bytes of their policies
_HOST = 100  # bytes of memory for each host that a policy names, besides its text
_AGAIN = 300.0  # seconds after a fetch that failed (8461 §3.3)
_FRESH = timedelta(days=1)  # after which a policy is fetched again although its id is the same (8461 §3.3), or after half of its max_age
_LOOKUP_AGAIN = 60.0  # seconds for which a lookup counts
_AT_ONCE = 20  # domains of a mail that are looked up at once: each can take the timeouts of DNS and HTTPS
_PATIENCE = 3.0  # seconds for which an attempt waits for a lookup, counted from its beginning: others need the connection


class NotFetched(Exception):
    """A phrase: why there is no policy. `result`: as TLS reports call it (8460 §4.3)."""

    def __init__(self, why: str, result: str = "sts-policy-fetch-error") -> None:
        super().__init__(why)
        self.result = result


class StillLookedUp(Exception):
    """A sentence: the policy of which domain is not known yet. It will be soon."""


Fetch = Callable[[str], Awaitable[bytes]]  # the policy file of a host; raises NotFetched


@attrs.frozen
class Kept:
    """A policy as it is stored, for all processes."""

    policy_id: str
    policy: str
    fetched_at: datetime
    expires_at: datetime

    @property
    def refresh_at(self) -> datetime:
        """When it is fetched again although its id is the same: before it expires, because without a policy nothing is enforced."""
        return self.fetched_at + min(_FRESH, (self.expires_at - self.fetched_at) / 2)


@attrs.define(eq=False)
class _Known:
    looked_at: float
    policy: Policy | None
    kept: Kept | None
    failed_at: float = float("-inf")
    failed_id: str = ""
    weight: int = 0


@attrs.define(eq=False)
class _Lookup:
    began: float
    waiting: list[Deferred[None]] = attrs.field(factory=list)


class Policies:
    """Never waits long. A domain whose policy cannot be fetched is treated as one without a policy."""

    log = Logger()

    def __init__(self, clock: Any, names: Resolver, fetch: Fetch, records: TlsRecords, tls_counts: TlsCounts) -> None:
        self._clock, self._names, self._fetch, self._records, self._tls_counts = clock, names, fetch, records, tls_counts
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._weight = 0
        self._lookups: dict[str, _Lookup] = {}

    async def of(self, domains: Collection[str]) -> Sequence[tuple[str, Policy]]:
        """The policies of those `domains` that have one, whatever its mode. Raises StillLookedUp; the lookup goes on then."""
        ordered = sorted(domains)
        if len(ordered) == 1:  # nearly every mail
            found = [await self._policy(ordered[0])]
        else:
            slots = Semaphore(_AT_ONCE)
            try:
                found = await gatherResults([slots.run(self._policy_later, domain) for domain in ordered], consumeErrors=True)
            except FirstError as error:
                error.subFailure.raiseException()
        return [(domain, policy) for domain, policy in zip(ordered, found, strict=True) if policy is not None]

    def _policy_later(self, domain: str) -> Deferred[Policy | None]:
        return Deferred.fromCoroutine(self._policy(domain))

    async def _policy(self, domain: str) -> Policy | None:
        known = self._known.get(domain)
        if domain not in self._lookups and (known is None or known.looked_at + _LOOKUP_AGAIN < self._clock.seconds()):
            Deferred.fromCoroutine(self._share_lookup(domain))
        if domain in self._lookups:
            await self._wait(domain, self._lookups[domain])
        known = self._known.get(domain)
        return None if known is None else known.policy

    async def _wait(self, domain: str, lookup: _Lookup) -> None:
        left = lookup.began + _PATIENCE - self._clock.seconds()
        if left > 0:
            waiting: Deferred[None] = Deferred()
            lookup.waiting.append(waiting)
            try:
                await waiting.addTimeout(left, self._clock)
                return
            except TimeoutError:
                pass
        raise StillLookedUp(f"The MTA-STS policy of {domain} is still being looked up.")

    async def _share_lookup(self, domain: str) -> None:
        lookup = self._lookups[domain] = _Lookup(self._clock.seconds())
        try:
            await self._look(domain)
        except Exception:
            self.log.failure("looking up the MTA-STS policy of {domain} failed", domain=domain)
        finally:
            del self._lookups[domain]
            for waiting in lookup.waiting:
                if not waiting.called:
                    waiting.callback(None)

    async def _look(self, domain: str) -> None:
        known = self._known.get(domain) or await self._remembered(domain)
        known.looked_at = self._clock.seconds()
        self._keep(domain, known)
        found = await self._names.txt(f"_mta-sts.{domain}")
        announced = mta_sts.policy_id(found.values) if isinstance(found, Records) else None
        if announced is not None and self._wants(known, announced):
            await self._refresh(domain, known, announced)
        now = pace.now(self._clock)
        # A record that is missing or cannot be looked up does not revoke the policy (8461 §5.1, §10.2).
        known.policy = _read(known.kept) if known.kept is not None and known.kept.expires_at > now else None
        self._keep(domain, known)

    def _keep(self, domain: str, known: _Known) -> None:
        """In memory. Those that were looked up longest ago make room."""
        former = self._known.pop(domain, None)
        self._weight -= 0 if former is None else former.weight
        known.weight = _weight(known)
        self._weight += known.weight
        self._known[domain] = known
        while len(self._known) > _SIZE or (self._weight > _WEIGHT and len(self._known) > 1):
            self._weight -= self._known.popitem(last=False)[1].weight

    async def _remembered(self, domain: str) -> _Known:
        try:
            row = await self._records.policy(domain)
            kept = None if row is None else Kept(*row)
        except Exception as error:
            self.log.warn("the stored MTA-STS policy of {domain} cannot be read: {error!r}", domain=domain, error=error)
            kept = None
        return _Known(self._clock.seconds(), None, kept)

    def _wants(self, known: _Known, announced: str) -> bool:
        if known.failed_id == announced and known.failed_at + _AGAIN > self._clock.seconds():
            return False
        kept = known.kept
        return kept is None or kept.policy_id != announced or kept.refresh_at <= pace.now(self._clock)

    async def _refresh(self, domain: str, known: _Known, announced: str) -> None:
        try:
            body = await self._fetch(f"https://mta-sts.{domain}/.well-known/mta-sts.txt")
            policy = mta_sts.parse(body)
        except (NotFetched, BadPolicy) as error:
            known.failed_at, known.failed_id = self._clock.seconds(), announced
            result = error.result if isinstance(error, NotFetched) else "sts-policy-invalid"
            self._tls_counts.count(domain, "sts", "", result)
            self.log.info("{domain} announces an MTA-STS policy that cannot be used: {error}", domain=domain, error=str(error))
            return
        now = pace.now(self._clock)
        known.kept = Kept(announced, body.decode("utf-8"), now, now + timedelta(seconds=policy.max_age))
        try:
            await self._records.keep_policy(domain, *attrs.astuple(known.kept))
        except Exception as error:
            self.log.warn("the MTA-STS policy of {domain} cannot be stored: {error!r}", domain=domain, error=error)


def _weight(known: _Known) -> int:
    text = 0 if known.kept is None else len(known.kept.policy)
    return text + (0 if known.policy is None else _HOST * len(known.policy.mx))


def _read(kept: Kept) -> Policy | None:
    try:
        policy = mta_sts.parse(kept.policy.encode("utf-8"))
    except BadPolicy:
        return None
    return policy if policy.mode != "none" else None
