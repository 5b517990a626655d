"""Making one connection to a destination: its hosts in order, their addresses checked at the last moment, TLS as far as it goes.

How SMTP is spoken: smtp/client/client, behind `Dial`. Which hosts: route. How many connections: lane.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Any, Protocol, TypeVar

import attrs
from twisted.logger import Logger

from mailsvc.delivery.classify import Stage, classify
from mailsvc.delivery.connection.route import Host, Names, Route
from mailsvc.delivery.connection.sources import Sources
from mailsvc.delivery.connection.tls_policy import ANY, ActualTls, ConnectionPreference, DialOptions, Mode, TlsPolicy
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.retry import rest
from mailsvc.mail.reply import Reply
from mailsvc.net.address_guard import Network, networks, refusal
from mailsvc.net.dns import Records, Temporary
from mailsvc.outcome import Meaning
from mailsvc.smtp.client import dane
from mailsvc.smtp.client.capabilities import Capabilities
from mailsvc.smtp.client.envelope import Envelope
from mailsvc.smtp.client.plan import Manner

K = TypeVar("K")
V = TypeVar("V")
_BROKEN_TLS = 3600.0  # seconds that a host whose TLS failed is spoken to in clear
_CLOSED = 300.0  # seconds for which a host that said that it never takes mail is not asked again
_AT_ONCE = 20  # hosts tried for one connection; a destination with more has the others tried by the next
_REMEMBERED = 10_000  # hosts, or destinations, of each of these


class Result(Protocol):
    """What became of one transaction, as smtp/client/client tells it."""

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
    def stale(self) -> bool: ...  # nothing was tried: a reused connection was over before it took this mail

    @property
    def unchunked(self) -> bool: ...  # BDAT was not known or not answered

    @property
    def transcript(self) -> str: ...


class SmtpConnection(Protocol):
    """A connection that has greeted and is ready for mail."""

    @property
    def usable(self) -> bool: ...  # for another message, now

    @property
    def tls(self) -> str | None: ...

    @property
    def offers(self) -> Capabilities | None: ...

    def deliver(
        self, envelope: Envelope, pieces: Iterable[bytes], may_send_dot: Callable[[], bool], manner: Manner
    ) -> Awaitable[Result]: ...

    def quit(self) -> object: ...

    def abort(self, reason: str) -> object: ...

    def give_up(self, reason: str) -> object: ...  # the same, but not after a whole message


@attrs.define(eq=False)
class CannotConnect(Exception):
    """No session came about with one address. `tls`: because of TLS, so that it may be tried without."""

    reason: str
    transcript: str = ""
    tls: bool = False
    reply: Reply | None = None
    result: str = "validation-failure"  # of TLS, as reports name it (8460 §4.3)


class Dial(Protocol):
    """Opens a session with one address. Raises CannotConnect; any other error is a fault of ours."""

    def __call__(self, address: str, port: int, host: str, how: DialOptions) -> Awaitable[SmtpConnection]: ...


@attrs.define(eq=False)
class OpenConnection:
    """A connection of a lane. `sent` counts transactions, `source` is our address, `mode` how TLS was to be.

    `proven`: the destination took mail lately. `idled`: it was kept open while there was no mail for it.
    """

    courier: SmtpConnection
    host: str
    address: str
    mode: Mode = "opportunistic"
    source: str | None = None
    operator: bool = False
    sent: int = 0
    proven: bool = False
    idled: bool = False

    @property
    def reused(self) -> bool:
        """Whether its end says nothing of the destination: servers close connections that have been used, or that nobody uses."""
        return self.sent > 0 or self.idled

    @property
    def secured(self) -> ActualTls:
        return ActualTls(self.host, self.courier.tls is not None, self.mode, self.operator)

    @property
    def tls(self) -> str | None:
        """Version, cipher and who vouched for the certificate, as an attempt shows it."""
        by = {"verified": ", certificate verified by its authority", "dane": ", certificate verified by DANE"}
        return None if self.courier.tls is None else self.courier.tls + by.get(self.mode, "")


@attrs.define(eq=False)
class Unreachable(Exception):
    """No host of the destination could be connected to. `permanent`: because it has no address that we may connect to."""

    reason: str
    permanent: bool = False
    transcript: str = ""
    replies: tuple[Reply, ...] = ()  # of servers that turned us away
    meaning: Meaning | None = None  # of the first of them
    reply: Reply | None = None  # with `permanent`: the one that says so
    tls: tuple[tuple[str, str], ...] = ()  # hosts that failed a demand, and the result type (8460 §4.3)


@attrs.define(eq=False)
class _Tried:
    """What came of each host."""

    said: list[str] = attrs.field(factory=list)
    transcripts: list[str] = attrs.field(factory=list)
    replies: list[tuple[str, Reply]] = attrs.field(factory=list)  # of which host
    left: int = 0  # hosts that were not tried
    tls: list[tuple[str, str]] = attrs.field(factory=list)
    permanent: bool = True

    def refused(self, host: str, reply: Reply) -> None:
        self.replies.append((host, reply))
        if classify(reply, "greeting", host).action != "bounced":
            self.permanent = False

    def unreachable(self) -> Unreachable:
        said = self.said if not self.left else [*self.said[:3], f"{self.left} more hosts are tried at the next attempt"]
        verdicts = [classify(reply, "greeting", host) for host, reply in self.replies]
        permanent = self.permanent and bool(self.said) and not self.left
        return Unreachable(
            _sentence(said),
            permanent,
            "\n".join(filter(None, self.transcripts)),
            tuple(reply for _, reply in self.replies),
            verdicts[0].meaning if verdicts else None,
            self.replies[0][1] if permanent and self.replies else None,
            tuple(self.tls),
        )


class Connector:
    """Connections by route. `sources`: our addresses; none: as the system chooses. `dane`: whether TLSA records are asked for."""

    log = Logger()

    def __init__(
        self,
        clock: Any,
        names: Names,
        dial: Dial,
        terms: DeliveryLimits,
        shuffle: Callable[[list[Any]], Any] | None = None,
        sources: Sources | None = None,
    ) -> None:
        self._clock, self._names, self._dial = clock, names, dial
        self._allowed: tuple[Network, ...] = networks(terms.allow_addresses)
        self._most, self._dane = terms.connect_addresses, terms.dane
        self._shuffle = shuffle or random.SystemRandom().shuffle
        self._sources = sources or Sources(())
        self._own = {source.address for source in self._sources.all if refusal(source.address) is None}
        self._broken_tls: OrderedDict[str, float] = OrderedDict()
        self._closed: OrderedDict[tuple[str, str], tuple[float, Reply]] = OrderedDict()  # by host and address
        self._unmet: OrderedDict[tuple[str, TlsPolicy], tuple[float, int, Unreachable]] = OrderedDict()  # until when, how often, why
        self._rests = partial(rest, first=terms.hold_first, longest=terms.hold_longest, random=lambda: 0.5)
        self._first: OrderedDict[str, int] = OrderedDict()  # by destination: the place of the host that is tried first

    def unmet(self, route: Route, demand: TlsPolicy) -> Unreachable | None:
        """Why the demand cannot be met, if that was found a moment ago: so many emails share one attempt to connect."""
        until, _, why = self._unmet.get((route.destination, demand), (0.0, 0, None))
        return why if until > self._clock.seconds() else None

    async def connect(self, route: Route, wish: ConnectionPreference = ANY) -> OpenConnection:
        """The first session that comes about and meets the demand; Unreachable with what each host said."""
        if not wish.demand.verified:
            return await self._connect(route, wish)
        key = route.destination, wish.demand
        known = self.unmet(route, wish.demand)
        if known is not None:
            raise known
        try:
            line = await self._connect(route, wish)
        except Unreachable as why:
            failures = self._unmet.get(key, (0.0, 0, None))[1] + 1
            known = attrs.evolve(why, tls=())  # what is reported is one session, not one for each email
            _remember(self._unmet, key, (self._clock.seconds() + self._rests(failures), failures, known))
            raise
        self._unmet.pop(key, None)
        return line

    async def _connect(self, route: Route, wish: ConnectionPreference) -> OpenConnection:
        tried = _Tried()
        first = self._first.get(route.destination, 0)
        hosts = route.in_order(self._shuffle, first, _AT_ONCE)
        hosts.sort(key=lambda host: host.name != wish.host)
        each = -(-self._most // max(1, len(hosts)))  # so that no host with many addresses keeps us from the next
        for host in hosts:
            line = await self._host(route, host, wish, each, tried)
            if line is not None:
                return line
        if len(route.hosts) > _AT_ONCE:
            following = first + _AT_ONCE
            tried.left = len(route.hosts) - len(hosts)
            _remember(self._first, route.destination, following if following < len(route.hosts) else 0)
        raise tried.unreachable()

    async def _host(self, route: Route, host: Host, wish: ConnectionPreference, most: int, tried: _Tried) -> OpenConnection | None:
        refused = None if route.operator else wish.demand.refusal(host.name)
        found = await self._names.addresses(host.name)
        if isinstance(found, Temporary):
            tried.permanent = False
            tried.said.append(f"the address of {host.name} could not be looked up ({found.reason})")
            return None
        addresses = found.values if isinstance(found, Records) else ()
        if not addresses:
            tried.said.append(f"{host.name} has no address")
            return None
        secure = isinstance(found, Records) and found.authenticated and route.authenticated and not route.operator
        how = await self._how(host, found.name, wish.demand) if secure and self._dane else _by(wish.demand, route)
        if isinstance(how, Temporary) or (refused is not None and how.mode != "dane"):
            tried.permanent = False
            said = f"the TLSA records of {host.name} could not be looked up ({how.reason})" if isinstance(how, Temporary) else refused or ""
            tried.said.append(said)
            tried.tls.append((host.name, "dnssec-invalid" if isinstance(how, Temporary) else "validation-failure"))
            return None
        return await self._addresses(route, host, how, addresses, wish, most, tried)

    async def _addresses(
        self, route: Route, host: Host, how: DialOptions, addresses: Sequence[str], wish: ConnectionPreference, most: int, tried: _Tried
    ) -> OpenConnection | None:
        for address in self._spread(addresses):
            refused = None if route.operator else self._refusal(address)
            if refused is not None:
                tried.said.append(f"{host.name} has an address that mail is not sent to ({refused})")
                continue
            if most == 0:
                tried.permanent = False
                break
            most -= 1
            closed = self._closed.get((host.name, address))
            if closed is not None and closed[0] > self._clock.seconds():
                tried.said.append(f"{host.name} ({address}) answered {' '.join(str(closed[1]).split())}")
                tried.refused(host.name, closed[1])
                continue
            try:
                source = self._sources.choose(address, wish.source)
                ourselves = route.operator or refusal(address) is not None  # by the operator's word
                return await self._open(route, host, address, attrs.evolve(how, source=source, ourselves=ourselves))
            except CannotConnect as error:
                tried.said.append(f"{host.name} ({address}) {error.reason}")
                self._note(host, address, error, tried)
                tried.transcripts.append(f"{address}\n{error.transcript}" if error.transcript else "")
                if error.tls:
                    tried.tls.append((host.name, error.result))
        return None

    def _note(self, host: Host, address: str, error: CannotConnect, tried: _Tried) -> None:
        if error.reply is None:
            tried.permanent = False
            return
        tried.refused(host.name, error.reply)
        if classify(error.reply, "greeting", host.name).action == "bounced":
            _remember(self._closed, (host.name, address), (self._clock.seconds() + _CLOSED, error.reply))

    def _refusal(self, address: str) -> str | None:
        if str(ip_address(address)) in self._own:  # 5321 §5.1
            return f"{address} is our own"
        return refusal(address, self._allowed)

    def _spread(self, addresses: Sequence[str]) -> list[str]:
        """IPv4 first, since more of what judges senders knows them by it; within a family in any order."""
        families: tuple[list[Any], list[Any]] = ([], [])
        for address in addresses:
            families[":" in address].append(address)
        for family in families:
            self._shuffle(family)
        return families[0] + families[1]

    async def _how(self, host: Host, canonical: str, demand: TlsPolicy) -> DialOptions | Temporary:
        """By DANE, when the host publishes TLSA records under DNSSEC (7672 §2.2); else as without."""
        for name in dict.fromkeys([canonical, host.name]):  # 7672 §2.1.3: where aliases led first
            found = await self._names.tlsa(f"_{host.port}._tcp.{name}")
            if isinstance(found, Temporary):
                return found  # never downgraded: the host counts as unreachable (7672 §2.1.1)
            if isinstance(found, Records) and found.values and found.authenticated:
                if any(dane.usable(record) for record in found.values):
                    return DialOptions("dane", tlsa=found.values, names=(name, host.name))
                return DialOptions("verified" if demand.verified else "encrypted")
        return _by(demand, None)

    async def _open(self, route: Route, host: Host, address: str, how: DialOptions) -> OpenConnection:
        shown = f"[{address}]:{host.port}" if ":" in address else f"{address}:{host.port}"
        if how.mode == "opportunistic" and self._broken_tls.get(host.name, 0.0) > self._clock.seconds():
            how = attrs.evolve(how, mode="clear")
        try:
            courier = await self._dial(address, host.port, host.name, how)
        except CannotConnect as error:
            if how.mode != "opportunistic" or not error.tls:
                raise
            # Opportunistic (7435 §3): TLS that does not work is no worse than none.
            self.log.info("TLS with {host} failed, tried again in clear: {reason}", host=host.name, reason=error.reason)
            _remember(self._broken_tls, host.name, self._clock.seconds() + _BROKEN_TLS)
            courier = await self._in_clear(address, host, attrs.evolve(how, mode="clear"), error)
            how = attrs.evolve(how, mode="clear")
        return OpenConnection(courier, host.name, shown, how.mode, how.source.address if how.source else None, route.operator)

    async def _in_clear(self, address: str, host: Host, how: DialOptions, before: CannotConnect) -> SmtpConnection:
        """Without TLS after it failed. Where that fails too, both are told."""
        try:
            return await self._dial(address, host.port, host.name, how)
        except CannotConnect as error:
            error.reason = f"{before.reason}; without TLS it {error.reason}"
            error.transcript = "\n".join(filter(None, (before.transcript, error.transcript)))
            raise


def _remember(among: OrderedDict[K, V], key: K, value: V) -> None:
    among[key] = value
    among.move_to_end(key)
    while len(among) > _REMEMBERED:
        among.popitem(last=False)


def _by(demand: TlsPolicy, route: Route | None) -> DialOptions:
    if not demand.verified:
        return DialOptions()
    return DialOptions("encrypted" if route is not None and route.operator else "verified")


def _sentence(tried: list[str]) -> str:
    """What happened, the first few hosts of it, as a sentence."""
    if not tried:
        return "There is no host to connect to."
    more = f"; and {len(tried) - 4} more" if len(tried) > 4 else ""
    text = "; ".join(tried[:4]) + more
    return text[0].upper() + text[1:] + "." if tried[0].startswith("the ") else text + "."
