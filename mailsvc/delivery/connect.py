"""Making one connection to a destination: its hosts in order, their addresses checked at the last moment, TLS as far as it goes.

How SMTP is spoken: smtp/client, behind `Dial`. Which hosts: route. How many connections: lane.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

import attrs
from twisted.logger import Logger

from mailsvc.delivery.classify import Stage
from mailsvc.delivery.route import Host, Names, Route
from mailsvc.delivery.terms import DeliverySettings
from mailsvc.dns import Records, Temporary
from mailsvc.guard import Network, networks, refusal
from mailsvc.mail.reply import Reply
from mailsvc.smtp.envelope import Envelope
from mailsvc.smtp.offers import Offers

_BROKEN_TLS = 3600.0  # seconds that a host whose TLS failed is spoken to in clear


class Result(Protocol):
    """What became of one transaction, as smtp/client tells it."""

    @property
    def sender(self) -> Reply | None: ...

    @property
    def recipients(self) -> Sequence[Reply | None]: ...  # the reply that decided each

    @property
    def stages(self) -> Sequence[Stage | None]: ...  # what that reply answered

    @property
    def final(self) -> Reply | None: ...

    @property
    def sent_dot(self) -> bool: ...

    @property
    def lost(self) -> str | None: ...

    @property
    def stale(self) -> bool: ...  # a reused connection was over before it took this mail

    @property
    def transcript(self) -> str: ...


class Courier(Protocol):
    """A connection that has greeted and is ready for mail."""

    @property
    def usable(self) -> bool: ...  # for another message, now

    @property
    def tls(self) -> str | None: ...

    @property
    def offers(self) -> Offers | None: ...

    def deliver(self, envelope: Envelope, pieces: Iterable[bytes], may_send_dot: Callable[[], bool]) -> Awaitable[Result]: ...

    def quit(self) -> object: ...

    def abort(self, reason: str) -> object: ...


@attrs.define(eq=False)
class CannotConnect(Exception):
    """No session came about with one address. `tls`: because of TLS, so that it may be tried without."""

    reason: str
    transcript: str = ""
    tls: bool = False


class Dial(Protocol):
    """Opens a session with one address. Raises CannotConnect; any other error is a fault of ours."""

    def __call__(self, address: str, port: int, host: str, *, clear: bool) -> Awaitable[Courier]: ...


@attrs.define(eq=False)
class Line:
    """A connection of a lane. `sent` counts transactions."""

    courier: Courier
    host: str
    address: str
    sent: int = 0


@attrs.define(eq=False)
class Unreachable(Exception):
    """No host of the destination could be connected to. `permanent`: because it has no address that we may connect to."""

    reason: str
    permanent: bool = False
    transcript: str = ""


class Connector:
    """Connections by route."""

    log = Logger()

    def __init__(
        self, clock: Any, names: Names, dial: Dial, terms: DeliverySettings, shuffle: Callable[[list[Any]], Any] | None = None
    ) -> None:
        self._clock, self._names, self._dial = clock, names, dial
        self._allowed: tuple[Network, ...] = networks(terms.allow_addresses)
        self._most = terms.connect_addresses
        self._shuffle = shuffle or random.SystemRandom().shuffle
        self._broken_tls: OrderedDict[str, float] = OrderedDict()

    async def connect(self, route: Route) -> Line:
        """The first session that comes about; Unreachable with what each host said."""
        tried: list[str] = []
        transcripts: list[str] = []
        permanent = True
        hosts = route.in_order(self._shuffle)
        each = -(-self._most // max(1, len(hosts)))  # so that no host with many addresses keeps us from the next
        for host in hosts:
            found = await self._names.addresses(host.name)
            if isinstance(found, Temporary):
                permanent = False
                tried.append(f"the address of {host.name} could not be looked up ({found.reason})")
                continue
            addresses = found.values if isinstance(found, Records) else ()
            if not addresses:
                tried.append(f"{host.name} has no address")
            left = each
            for address in self._spread(addresses):
                refused = None if route.operator else refusal(address, self._allowed)
                if refused is not None:
                    tried.append(f"{host.name} has an address that mail is not sent to ({refused})")
                    continue
                permanent = False
                if left == 0:
                    break
                left -= 1
                try:
                    return await self._open(host, address)
                except CannotConnect as error:
                    tried.append(f"{host.name} ({address}) {error.reason}")
                    transcripts.append(f"{address}\n{error.transcript}" if error.transcript else "")
        raise Unreachable(_sentence(tried), permanent and bool(tried), "\n".join(filter(None, transcripts)))

    def _spread(self, addresses: Sequence[str]) -> list[str]:
        """IPv4 first, since more of what judges senders knows them by it; within a family in any order."""
        families: tuple[list[Any], list[Any]] = ([], [])
        for address in addresses:
            families[":" in address].append(address)
        for family in families:
            self._shuffle(family)
        return families[0] + families[1]

    async def _open(self, host: Host, address: str) -> Line:
        shown = f"[{address}]:{host.port}" if ":" in address else f"{address}:{host.port}"
        clear = self._broken_tls.get(host.name, 0.0) > self._clock.seconds()
        try:
            courier = await self._dial(address, host.port, host.name, clear=clear)
        except CannotConnect as error:
            if clear or not error.tls:
                raise
            # Opportunistic (7435 §3): TLS that does not work is no worse than none.
            self.log.info("TLS with {host} failed, tried again in clear: {reason}", host=host.name, reason=error.reason)
            self._remember(host.name)
            courier = await self._dial(address, host.port, host.name, clear=True)
        return Line(courier, host.name, shown)

    def _remember(self, host: str) -> None:
        self._broken_tls[host] = self._clock.seconds() + _BROKEN_TLS
        while len(self._broken_tls) > 10_000:
            self._broken_tls.popitem(last=False)


def _sentence(tried: list[str]) -> str:
    """What happened, the first few hosts of it, as a sentence."""
    if not tried:
        return "There is no host to connect to."
    more = f"; and {len(tried) - 4} more" if len(tried) > 4 else ""
    text = "; ".join(tried[:4]) + more
    return text[0].upper() + text[1:] + "." if tried[0].startswith("the ") else text + "."
