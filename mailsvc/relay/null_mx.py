"""Whether a recipient's domain says of itself that it takes no mail (RFC 7505), as far as that is known soon.

Nobody is refused because DNS is slow or away: what is not known in time is accepted, and bounces when it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import attrs
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime

from mailsvc.mail.reply import Reply
from mailsvc.net.dns import Mx, NxDomain, Records, Temporary

TAKES_NO_MAIL: Final = Reply(556, "The recipient's domain takes no mail (null MX)", "5.1.10")  # 7505 §4.1
MOST = 100  # look-ups that are waited for at once

Found = Records[Mx] | NxDomain | Temporary


class Names(Protocol):
    """The resolver. A look-up that nobody waits for any more goes on, for whoever asks next."""

    def known_mx(self, domain: str) -> Found | None: ...

    async def mx(self, domain: str) -> Found: ...


@attrs.define(eq=False)
class NullMx:
    """`seconds`: that the recipients of one mail may wait in all. `fixed` tells which domains DNS is not asked about."""

    names: Names
    clock: IReactorTime
    seconds: float
    fixed: Callable[[str], bool]
    _waiting: int = 0

    def patience(self) -> Patience:
        """For one mail."""
        return Patience(self, self.seconds)

    async def find(self, domain: str, seconds: float) -> Found | None:
        known = self.names.known_mx(domain)
        if known is not None or seconds <= 0 or self._waiting >= MOST:
            return known
        self._waiting += 1
        try:
            return await Deferred.fromCoroutine(self.names.mx(domain)).addTimeout(seconds, self.clock)
        except (TimeoutError, CancelledError):
            return None
        finally:
            self._waiting -= 1


@attrs.define(eq=False)
class Patience:
    """How long the recipients of one mail may still wait."""

    _null_mx: NullMx
    _left: float

    async def refusal(self, domain: str) -> Reply | None:
        """None: it takes mail, or nobody knows."""
        if self._null_mx.fixed(domain):
            return None
        began = self._null_mx.clock.seconds()
        found = await self._null_mx.find(domain, self._left)
        self._left -= self._null_mx.clock.seconds() - began
        if isinstance(found, Records) and [record.host for record in found.values] == [""]:  # 7505 §3: alone
            return TAKES_NO_MAIL
        return None
