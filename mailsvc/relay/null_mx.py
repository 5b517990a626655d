"""Refuses recipients whose domain publishes that it accepts no mail (RFC 7505), if DNS answers soon enough.

No recipient is refused because DNS is slow or unavailable: what is not known in time is accepted, and bounces when it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime

from mailsvc.mail.reply import Reply
from mailsvc.net.dns import Mx, NxDomain, Records, Resolver, Temporary

NULL_MX: Final = Reply(556, "The recipient's domain does not accept mail (null MX)", "5.1.10")  # 7505 §4.1
MAX_LOOKUPS = 100  # that are waited for at once

Found = Records[Mx] | NxDomain | Temporary


@attrs.define(eq=False)
class NullMx:
    """`seconds`: how long all recipients of one mail may wait together. `routed`: whether a domain has a fixed route, without DNS.

    A lookup continues when its caller stops waiting, for the next caller.
    """

    resolver: Resolver
    clock: IReactorTime
    seconds: float
    routed: Callable[[str], bool]
    _waiting: int = 0

    def check(self) -> NullMxCheck:
        """For the recipients of one mail."""
        return NullMxCheck(self, self.seconds)

    async def find(self, domain: str, seconds: float) -> Found | None:
        known = self.resolver.known_mx(domain)
        if known is not None or seconds <= 0 or self._waiting >= MAX_LOOKUPS:
            return known
        self._waiting += 1
        try:
            return await Deferred.fromCoroutine(self.resolver.mx(domain)).addTimeout(seconds, self.clock)
        except (TimeoutError, CancelledError):
            return None
        finally:
            self._waiting -= 1


@attrs.define(eq=False)
class NullMxCheck:
    """Checks the recipients of one mail, within the time that is left for it."""

    _null_mx: NullMx
    _left: float

    async def refusal(self, domain: str) -> Reply | None:
        """None: the domain accepts mail, or it is not known."""
        if self._null_mx.routed(domain):
            return None
        began = self._null_mx.clock.seconds()
        found = await self._null_mx.find(domain, self._left)
        self._left -= self._null_mx.clock.seconds() - began
        if isinstance(found, Records) and [record.host for record in found.values] == [""]:  # 7505 §3: the only record
            return NULL_MX
        return None
