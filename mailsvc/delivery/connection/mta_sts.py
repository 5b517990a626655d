"""The MTA-STS policies of recipients' domains (RFC 8461): looked up, fetched, kept in memory and in a table for all processes.

What a policy says: mail/authentication/mta_sts. What follows from it for a connection: demand.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.clock import unix
from mailsvc.delivery import pace
from mailsvc.delivery.connection.tls_counts import TlsCounts
from mailsvc.mail.authentication import mta_sts
from mailsvc.mail.authentication.mta_sts import BadPolicy, Policy
from mailsvc.net.dns import NxDomain, Records, Temporary

_SIZE = 20_000
_AGAIN = 300.0  # seconds after a fetch that failed (8461 §3.3)
_FRESH = 86400.0  # after which a policy is fetched anew although its id is the same (8461 §3.3)
_UNASKED = 60.0  # for which what was found out counts without another look


class NotFetched(Exception):
    """A phrase: why there is no policy to be had."""


Fetch = Callable[[str], Awaitable[bytes]]  # the policy file of a host; raises NotFetched


class Texts(Protocol):
    async def txt(self, name: str) -> Records[str] | NxDomain | Temporary: ...


@attrs.frozen
class Kept:
    """A policy as it is stored, for all processes."""

    policy_id: str
    policy: str
    fetched_at: datetime
    expires_at: datetime


class Shelf(Protocol):
    """store/queue/tls"""

    async def policy(self, domain: str) -> tuple[str, str, datetime, datetime] | None: ...

    async def keep_policy(self, domain: str, policy_id: str, policy: str, fetched_at: datetime, expires_at: datetime) -> None: ...


@attrs.define(eq=False)
class _Known:
    looked_at: float
    policy: Policy | None
    kept: Kept | None
    failed_at: float = float("-inf")
    failed_id: str = ""


class Policies:
    """Never raises and never waits long: whoever publishes no policy that can be had is delivered to as if there were none."""

    log = Logger()

    def __init__(self, clock: Any, names: Texts, fetch: Fetch, shelf: Shelf, tally: TlsCounts) -> None:
        self._clock, self._names, self._fetch, self._shelf, self._tally = clock, names, fetch, shelf, tally
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._flights: dict[str, list[Deferred[None]]] = {}

    async def of(self, domains: Collection[str]) -> Sequence[tuple[str, Policy]]:
        """The policies of those domains that have one, whatever its mode."""
        found = [(domain, await self._policy(domain)) for domain in sorted(domains)]
        return [(domain, policy) for domain, policy in found if policy is not None]

    async def _policy(self, domain: str) -> Policy | None:
        known = self._known.get(domain)
        if domain in self._flights:
            waiting: Deferred[None] = Deferred()
            self._flights[domain].append(waiting)
            await waiting
            known = self._known.get(domain)
        elif known is None or known.looked_at + _UNASKED < self._clock.seconds():
            await self._fly(domain)
            known = self._known.get(domain)
        return None if known is None else known.policy

    async def _fly(self, domain: str) -> None:
        self._flights[domain] = []
        try:
            await self._look(domain)
        except Exception:
            self.log.failure("the MTA-STS policy of {domain} could not be looked at", domain=domain)
        finally:
            for waiting in self._flights.pop(domain):
                if not waiting.called:
                    waiting.callback(None)

    async def _look(self, domain: str) -> None:
        known = self._known.get(domain) or await self._remembered(domain)
        known.looked_at = self._clock.seconds()
        self._known[domain] = known
        self._known.move_to_end(domain)
        while len(self._known) > _SIZE:
            self._known.popitem(last=False)
        found = await self._names.txt(f"_mta-sts.{domain}")
        announced = mta_sts.policy_id(found.values) if isinstance(found, Records) else None
        if announced is not None and self._wants(known, announced):
            await self._refresh(domain, known, announced)
        now = pace.now(self._clock)
        # A record that is gone, or that cannot be seen, takes nothing back (8461 §5.1, §10.2).
        known.policy = _read(known.kept) if known.kept is not None and known.kept.expires_at > now else None

    async def _remembered(self, domain: str) -> _Known:
        try:
            row = await self._shelf.policy(domain)
            kept = None if row is None else Kept(*row)
        except Exception as error:
            self.log.warn("the policy of {domain} cannot be read from the table: {error!r}", domain=domain, error=error)
            kept = None
        return _Known(self._clock.seconds(), None, kept)

    def _wants(self, known: _Known, announced: str) -> bool:
        now = self._clock.seconds()
        if known.failed_id == announced and known.failed_at + _AGAIN > now:
            return False
        kept = known.kept
        return kept is None or kept.policy_id != announced or kept.fetched_at.timestamp() + _FRESH < unix(self._clock)

    async def _refresh(self, domain: str, known: _Known, announced: str) -> None:
        try:
            body = await self._fetch(f"https://mta-sts.{domain}/.well-known/mta-sts.txt")
            policy = mta_sts.parse(body)
        except (NotFetched, BadPolicy) as error:
            known.failed_at, known.failed_id = self._clock.seconds(), announced
            result = "sts-policy-fetch-error" if isinstance(error, NotFetched) else "sts-policy-invalid"
            self._tally.count(domain, "sts", "", result)
            self.log.info("{domain} announces an MTA-STS policy that is not to be had: {error}", domain=domain, error=str(error))
            return
        now = pace.now(self._clock)
        known.kept = Kept(announced, body.decode("utf-8"), now, now + timedelta(seconds=policy.max_age))
        try:
            await self._shelf.keep_policy(domain, *attrs.astuple(known.kept))
        except Exception as error:
            self.log.warn("the policy of {domain} cannot be kept: {error!r}", domain=domain, error=error)


def _read(kept: Kept) -> Policy | None:
    try:
        policy = mta_sts.parse(kept.policy.encode("utf-8"))
    except BadPolicy:
        return None
    return policy if policy.mode != "none" else None
