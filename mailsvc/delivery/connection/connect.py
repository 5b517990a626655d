"""Connecting to a destination: its hosts in order, their addresses checked right before use, TLS as far as it goes.

How one address is dialled: dial. Which hosts there are: route. How many connections a lane may open: delivery/admission.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from ipaddress import ip_address
from typing import Any, Protocol, TypeVar

import attrs
from twisted.logger import Logger

from mailsvc.bounces.diagnosis import known
from mailsvc.delivery.classify import classify
from mailsvc.delivery.connection.failed_hosts import FailedHosts
from mailsvc.delivery.connection.route import Host, Route
from mailsvc.delivery.connection.sources import Chosen, Refused, Sources
from mailsvc.delivery.connection.tls_policy import ANY, ActualTls, ConnectionPreference, DialOptions, Mode, TlsPolicy
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.retry import hold_seconds
from mailsvc.mail.reply import Reply
from mailsvc.net.address_guard import Network, networks, refusal
from mailsvc.net.dns import Records, Resolver, Temporary
from mailsvc.outcome import Meaning
from mailsvc.smtp.client import dane
from mailsvc.smtp.client.client import SmtpClient

K = TypeVar("K")
V = TypeVar("V")
_BROKEN_TLS = 3600.0  # seconds for which a host whose TLS failed is connected to without TLS
_UNBOUND = 60.0  # seconds for which other sources are used than one that this machine does not have
_CLOSED = 300.0  # seconds for which a host that said it accepts no mail is not connected to
_HOSTS = 20  # tried for one connection; if a destination has more, the next connection tries the others
_REMEMBERED = 10_000  # hosts, or destinations, of each kind


@attrs.define(eq=False)
class CannotConnect(Exception):
    """No session with one address. `tls`: because of TLS, so that it can be tried without. `unbound`: this machine lacks our address."""

    reason: str
    transcript: str = ""
    tls: bool = False
    reply: Reply | None = None
    result: str = "validation-failure"  # of TLS, as reports call it (8460 §4.3)
    unbound: bool = False


class Dial(Protocol):
    """Opens a session with one address. Raises CannotConnect; any other exception is an internal error."""

    def __call__(self, address: str, port: int, host: str, options: DialOptions) -> Awaitable[SmtpClient]: ...


@attrs.frozen
class TlsFailure:
    """A session that did not begin because of TLS. `result`: its type (8460 §4.3). `dane`: the host's TLSA records required TLS."""

    host: str
    result: str
    dane: bool = False


@attrs.define(eq=False)
class OpenConnection:
    """A connection of a lane. `sent` counts transactions, `chosen` is our address, `mode` says how TLS was negotiated.

    `proven`: the destination accepted mail lately. `awaited`: other mail waited for a connection when the latest mail was begun.
    `was_idle`: it was kept open while there was no mail for it. `failed`: the host failed during the latest mail. `dane`: TLSA records were
    looked up. `tls_failures`: of the hosts that were tried before.
    """

    client: SmtpClient
    host: str
    address: str
    mode: Mode = "opportunistic"
    chosen: Chosen = Chosen()
    operator: bool = False
    sent: int = 0
    proven: bool = False
    awaited: bool = False
    was_idle: bool = False
    failed: bool = False
    dane: bool = False
    tls_failures: tuple[TlsFailure, ...] = ()

    @property
    def source(self) -> str | None:
        return None if self.chosen.source is None else self.chosen.source.address

    @property
    def reused(self) -> bool:
        """Whether its end says nothing about the destination: servers close connections that were used, or that are idle."""
        return self.sent > 0 or self.was_idle

    @property
    def actual_tls(self) -> ActualTls:
        return ActualTls(self.host, self.client.tls is not None, self.mode, self.operator, self.dane)

    @property
    def tls_failed(self) -> bool:
        """Whether it has no TLS although the host offers it: the handshake failed a while ago, or the host refused STARTTLS now."""
        return self.mode == "clear" or self.client.tls_refused

    @property
    def tls(self) -> str | None:
        """Version, cipher and how the certificate was verified, as an attempt shows it."""
        by = {"verified": ", certificate verified by its authority", "dane": ", certificate verified by DANE"}
        return None if self.client.tls is None else self.client.tls + by.get(self.mode, "")


@attrs.define(eq=False)
class Unreachable(Exception):
    """No host of the destination could be connected to. `permanent`: because none accepts mail, or has an address to connect to."""

    reason: str
    permanent: bool = False
    transcript: str = ""
    replies: tuple[Reply, ...] = ()  # of servers that refused the session
    meaning: Meaning | None = None  # of the first of them, otherwise of what happened
    reply: Reply | None = None  # if `permanent`: the one that says so
    tls: tuple[TlsFailure, ...] = ()


@attrs.define(eq=False)
class NoSource(Unreachable):
    """Nothing was tried, because no source address may send there before `until`. None: another process may, now.

    `other_family`: one may send to hosts with other addresses (IPv4 or IPv6).
    """

    until: datetime | None = None
    other_family: bool = False


@attrs.define(eq=False)
class _Tries:
    """What happened with each host. `no_source`: why an address was not tried."""

    reasons: list[str] = attrs.field(factory=list)
    transcripts: list[str] = attrs.field(factory=list)
    replies: list[tuple[str, Reply]] = attrs.field(factory=list)  # with the host
    left: int = 0  # hosts that were not tried
    tls: list[TlsFailure] = attrs.field(factory=list)
    permanent: bool = True
    no_source: Refused | None = None

    def temporary(self, reason: str) -> None:
        self.permanent = False
        self.reasons.append(reason)

    def refused(self, host: str, reply: Reply) -> None:
        self.replies.append((host, reply))
        if classify(reply, "greeting", host).action != "bounced":
            self.permanent = False

    def unreachable(self) -> Unreachable:
        reasons = self.reasons if not self.left else [*self.reasons[:3], f"{self.left} more hosts are tried at the next attempt"]
        verdicts = [classify(reply, "greeting", host) for host, reply in self.replies]
        permanent = self.permanent and bool(self.reasons) and not self.left
        return Unreachable(
            _sentence(reasons),
            permanent,
            "\n".join(filter(None, self.transcripts)),
            tuple(reply for _, reply in self.replies),
            verdicts[0].meaning if verdicts else known("tls" if self.tls else "network"),
            self.replies[0][1] if permanent and self.replies else None,
            tuple(self.tls),
        )


class Connector:
    """Connections by route. Without `sources`, the system chooses our address."""

    log = Logger()

    def __init__(
        self,
        clock: Any,
        names: Resolver,
        dial: Dial,
        limits: DeliveryLimits,
        shuffle: Callable[[list[Any]], Any] | None = None,
        sources: Sources | None = None,
    ) -> None:
        self._clock, self._names, self._dial = clock, names, dial
        self._allowed: tuple[Network, ...] = networks(limits.allow_addresses)
        self._most, self._dane = limits.connect_addresses, limits.dane
        self._shuffle = shuffle or random.SystemRandom().shuffle
        self._sources = sources or Sources(())
        self._own = {source.address for source in self._sources.all if refusal(source.address) is None}
        self._broken_tls: OrderedDict[str, float] = OrderedDict()
        self._closed: OrderedDict[tuple[str, str], tuple[float, Reply]] = OrderedDict()  # by host and address
        self._unmet: OrderedDict[tuple[str, TlsPolicy], tuple[float, int, Unreachable]] = OrderedDict()  # until when, failures, why
        self._unmet_seconds = partial(hold_seconds, first=limits.hold_first, longest=limits.hold_longest, random=lambda: 0.5)
        self._unbound: dict[str, float] = {}  # sources that this machine does not have
        self._failed_hosts = FailedHosts(clock)
        self._first: OrderedDict[str, int] = OrderedDict()  # by destination: the place of the host to try first

    def known_failure(self, route: Route, policy: TlsPolicy) -> Unreachable | None:
        """Why no host meets the policy, if that was found a moment ago: all waiting mail shares one try."""
        until, _, why = self._unmet.get((route.destination, policy), (0.0, 0, None))
        return why if until > self._clock.seconds() else None

    async def connect(self, route: Route, wanted: ConnectionPreference = ANY) -> OpenConnection:
        """The first session that meets the TLS policy. Raises Unreachable with what happened at each host."""
        policy = wanted.tls_policy
        if not policy.strict:
            return await self._connect(route, wanted)
        key = route.destination, policy
        known = self.known_failure(route, policy)
        if known is not None:
            raise known
        try:
            connection = await self._connect(route, wanted)
        except NoSource:
            raise
        except Unreachable as why:
            failures = self._unmet.get(key, (0.0, 0, None))[1] + 1
            known = attrs.evolve(why, tls=())  # TLS reports count sessions, not emails
            _remember(self._unmet, key, (self._clock.seconds() + self._unmet_seconds(failures), failures, known))
            raise
        self._unmet.pop(key, None)
        return connection

    async def _connect(self, route: Route, wanted: ConnectionPreference) -> OpenConnection:
        tries = _Tries()
        first = self._first.get(route.destination, 0)
        hosts = route.in_order(self._shuffle, first, _HOSTS)
        hosts.sort(key=lambda host: (host.name != wanted.host, self._failed_hosts.failed_at(host.name)))
        each = -(-self._most // max(1, len(hosts)))  # a host with many addresses does not use up the tries of the next
        for host in hosts:
            connection = await self._host(route, host, wanted, each, tries)
            if connection is not None:
                connection.tls_failures = tuple(tries.tls)
                return connection
        if tries.no_source is not None:
            if not tries.reasons:
                raise NoSource(tries.no_source.reason, until=tries.no_source.until, other_family=tries.no_source.other_family)
            tries.temporary(tries.no_source.reason.rstrip("."))
        if len(route.hosts) > _HOSTS:
            following = first + _HOSTS
            tries.left = len(route.hosts) - len(hosts)
            _remember(self._first, route.destination, following if following < len(route.hosts) else 0)
        raise tries.unreachable()

    async def _host(self, route: Route, host: Host, wanted: ConnectionPreference, most: int, tries: _Tries) -> OpenConnection | None:
        policy = wanted.tls_policy
        refused = None if route.operator else policy.refusal(host.name)
        found = await self._names.addresses(host.name)
        if isinstance(found, Temporary):
            tries.temporary(f"the address of {host.name} could not be looked up ({found.reason})")
            return None
        addresses = found.values if isinstance(found, Records) else ()
        if not addresses:
            tries.reasons.append(f"{host.name} has no address")
            return None
        by_dane = self._dane and not route.operator and (route.authenticated or policy.dane)
        options = await self._by_dane(host, found, policy) if by_dane and isinstance(found, Records) else _without_dane(policy, route)
        if isinstance(options, Temporary):
            tries.temporary(f"the TLSA records of {host.name} could not be looked up ({options.reason})")
            tries.tls.append(TlsFailure(host.name, "dnssec-invalid", dane=True))
            return None
        if refused is not None and not (options.mode == "dane" and policy.signed):
            tries.temporary(refused)
            tries.tls.append(TlsFailure(host.name, "validation-failure"))
            return None
        connection = await self._addresses(route, host, attrs.evolve(options, preferred=wanted.source), addresses, most, tries)
        if connection is not None:
            connection.dane = by_dane
        return connection

    async def _addresses(
        self, route: Route, host: Host, options: DialOptions, addresses: Sequence[str], most: int, tries: _Tries
    ) -> OpenConnection | None:
        for address in self._in_order(addresses):
            refused = None if route.operator else self._refusal(address)
            if refused is not None:
                tries.reasons.append(f"{host.name} has an address that mail is not sent to ({refused})")
                continue
            if most == 0:
                tries.permanent = False
                break
            most -= 1
            closed = self._closed.get((host.name, address))
            if closed is not None and closed[0] > self._clock.seconds():
                tries.reasons.append(f"{host.name} ({address}) answered {' '.join(str(closed[1]).split())}")
                tries.refused(host.name, closed[1])
                continue
            connection = await self._from_a_source(route, host, address, options, tries)
            if connection is not None:
                return connection
        return None

    async def _from_a_source(self, route: Route, host: Host, address: str, options: DialOptions, tries: _Tries) -> OpenConnection | None:
        """Connects to one address. If this machine does not have the chosen source, another one is tried."""
        while True:
            left_out = self._left_out()
            chosen = await self._sources.choose(route.destination, address, options.preferred, left_out)
            if isinstance(chosen, Refused):
                tries.no_source = chosen if tries.no_source is None or chosen.before(tries.no_source) else tries.no_source
                return None
            if chosen.source is None and tries.no_source is not None:
                return None  # mail that waits for a source is not sent from an address that the system chooses
            ourselves = route.operator or refusal(address) is not None  # the operator allows it
            opened: OpenConnection | None = None
            began = self._clock.seconds()
            try:
                opened = await self._open(route, host, address, attrs.evolve(options, source=chosen.source, ourselves=ourselves))
                opened.chosen = chosen
                return opened
            except CannotConnect as error:
                if error.unbound and chosen.source is not None and chosen.source.address not in left_out:
                    self._leave_out(chosen.source.address, error.reason)
                    continue
                self._failed(route, host, address, options, error, tries)
                return None
            finally:
                if opened is None:
                    self._sources.give_back(route.destination, chosen, 0)
                    self._failed_hosts.waited(host.name, began)

    def _failed(self, route: Route, host: Host, address: str, options: DialOptions, error: CannotConnect, tries: _Tries) -> None:
        by_dane = error.tls and options.mode in ("dane", "encrypted") and not route.operator
        why = "; its TLSA records require TLS (DANE)" if by_dane else ""
        tries.reasons.append(f"{host.name} ({address}) {error.reason}{why}")
        self._note(host, address, error, tries)
        tries.transcripts.append(f"{address}\n{error.transcript}" if error.transcript else "")
        if error.tls:
            tries.tls.append(TlsFailure(host.name, error.result, options.mode == "dane"))

    def _left_out(self) -> frozenset[str]:
        return frozenset(source for source, until in self._unbound.items() if until > self._clock.seconds())

    def _leave_out(self, source: str, reason: str) -> None:
        self.log.error("the source {source} is not used for a minute: {reason}", source=source, reason=reason)
        self._unbound[source] = self._clock.seconds() + _UNBOUND

    def closed(self, route: Route, connection: OpenConnection) -> None:
        """A connection has ended."""
        if connection.sent:
            self._failed_hosts.note(connection.host, connection.failed)
        self._sources.give_back(route.destination, connection.chosen, connection.sent)

    def may_use(self, route: Route, source: str) -> bool:
        """Whether a connection can come from this source now."""
        return source not in self._left_out() and self._sources.may_send(route.destination, source)

    def _note(self, host: Host, address: str, error: CannotConnect, tries: _Tries) -> None:
        if error.reply is None:
            tries.permanent = False
            return
        tries.refused(host.name, error.reply)
        if classify(error.reply, "greeting", host.name).action == "bounced":
            _remember(self._closed, (host.name, address), (self._clock.seconds() + _CLOSED, error.reply))

    def _refusal(self, address: str) -> str | None:
        if str(ip_address(address)) in self._own:  # 5321 §5.1
            return f"{address} is our own"
        return refusal(address, self._allowed)

    def _in_order(self, addresses: Sequence[str]) -> list[str]:
        """IPv4 first, because more reputation systems know senders by it; shuffled within each family."""
        families: tuple[list[Any], list[Any]] = ([], [])
        for address in addresses:
            families[":" in address].append(address)
        for family in families:
            self._shuffle(family)
        return families[0] + families[1]

    async def _by_dane(self, host: Host, found: Records[str], policy: TlsPolicy) -> DialOptions | Temporary:
        """By DANE if the host publishes TLSA records under DNSSEC (7672 §2.2), otherwise as without DANE."""
        names = await self._tlsa_names(host, found)
        if isinstance(names, Temporary):
            return names  # never downgraded: the host counts as unreachable (7672 §2.1.1)
        for name in names:
            records = await self._names.tlsa(f"_{host.port}._tcp.{name}")
            if isinstance(records, Temporary):
                return records
            if isinstance(records, Records) and records.values and records.authenticated:
                if any(dane.usable(record) for record in records.values):
                    return DialOptions("dane", tlsa=records.values, names=(name, host.name))
                return DialOptions("verified" if policy.verified else "encrypted")
        return _without_dane(policy, None)

    async def _tlsa_names(self, host: Host, found: Records[str]) -> Sequence[str] | Temporary:
        """Names that the host's TLSA records may have (7672 §2.2.2)."""
        if found.authenticated:
            return tuple(dict.fromkeys([found.name, host.name]))  # 7672 §2.1.3: the name at the end of CNAMEs first
        if found.name == host.name:
            return ()
        alias = await self._names.cname(host.name)  # a signed zone may point to a host in one that is not
        if isinstance(alias, Temporary):
            return alias
        return (host.name,) if isinstance(alias, Records) and alias.values and alias.authenticated else ()

    async def _open(self, route: Route, host: Host, address: str, options: DialOptions) -> OpenConnection:
        shown = f"[{address}]:{host.port}" if ":" in address else f"{address}:{host.port}"
        if options.mode == "opportunistic" and self._broken_tls.get(host.name, 0.0) > self._clock.seconds():
            options = attrs.evolve(options, mode="clear")
        try:
            client = await self._dial(address, host.port, host.name, options)
        except CannotConnect as error:
            if options.mode != "opportunistic" or not error.tls:
                raise
            # Opportunistic TLS (7435 §3): a host whose TLS fails is no worse than one without TLS.
            self.log.info("TLS with {host} failed, connecting without TLS: {reason}", host=host.name, reason=error.reason)
            _remember(self._broken_tls, host.name, self._clock.seconds() + _BROKEN_TLS)
            options = attrs.evolve(options, mode="clear")
            client = await self._without_tls(address, host, options, error)
        return OpenConnection(client, host.name, shown, options.mode, operator=route.operator)

    async def _without_tls(self, address: str, host: Host, options: DialOptions, before: CannotConnect) -> SmtpClient:
        """After TLS failed. If this fails too, the error says both."""
        try:
            return await self._dial(address, host.port, host.name, options)
        except CannotConnect as error:
            error.reason = f"{before.reason}; without TLS it {error.reason}"
            error.transcript = "\n".join(filter(None, (before.transcript, error.transcript)))
            raise


def _remember(among: OrderedDict[K, V], key: K, value: V) -> None:
    among[key] = value
    among.move_to_end(key)
    while len(among) > _REMEMBERED:
        among.popitem(last=False)


def _without_dane(policy: TlsPolicy, route: Route | None) -> DialOptions:
    if not policy.verified:
        return DialOptions()
    return DialOptions("encrypted" if route is not None and route.operator else "verified")


def _sentence(reasons: list[str]) -> str:
    """What happened at the first few hosts, as a sentence."""
    if not reasons:
        return "There is no host to connect to."
    more = f"; and {len(reasons) - 4} more" if len(reasons) > 4 else ""
    text = "; ".join(reasons[:4]) + more
    return text[0].upper() + text[1:] + "." if reasons[0].startswith("the ") else text + "."
