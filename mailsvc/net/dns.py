"""The one resolver: dnspython's messages over the reactor's sockets, cached, each question asked once at a time, none without
a deadline. Answers and failures are values. How octets travel: dnswire. What a domain should publish: domains/.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import attrs
import dns.exception
import dns.message
import dns.rcode
import dns.rdatatype
import dns.resolver
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore, TimeoutError, gatherResults
from twisted.logger import Logger

from mailsvc.net import dns_query
from mailsvc.net.dns_query import Nameserver, Unanswered

T = TypeVar("T")


@attrs.frozen
class Mx:
    """A mail exchanger. `host` in lower case without the last dot; empty for the root, which says "no mail" (7505)."""

    preference: int
    host: str


@attrs.frozen
class Tlsa:
    """Which certificate a server has (6698 §2.1)."""

    usage: int
    selector: int
    matching: int
    data: bytes


@attrs.frozen
class Records(Generic[T]):
    """What a name has of the kind asked for; no values when it exists without any. `name` is where CNAMEs led."""

    name: str
    values: tuple[T, ...] = ()
    authenticated: bool = False


@attrs.frozen
class NxDomain:
    """The name does not exist."""

    name: str


@attrs.frozen
class Temporary:
    """Nobody could say now; `reason` is a phrase for people."""

    reason: str


Result = Records[Any] | NxDomain | Temporary
Exchange = Callable[[Nameserver, dns.message.QueryMessage, float], Awaitable[dns.message.QueryMessage]]

_FLOOR, _CEILING = 60.0, 86400.0  # seconds that an answer is kept, whatever its TTL
_NEGATIVE = 900.0  # at most, for "does not exist" and "has none" (2308 §5 allows more)
_FAILED = 15.0  # for a failure, so that a thousand mails to one broken domain ask once (2308 §7)
_HOPS = 8  # CNAMEs in a row


@attrs.frozen
class _Kept:
    result: Result
    until: float


def configured(texts: Sequence[str] = ()) -> tuple[Nameserver, ...]:
    """The nameservers of a setting like `["127.0.0.1:5353"]`, or those of /etc/resolv.conf when it is empty."""
    if texts:
        return tuple(Nameserver.parse(text) for text in texts)
    try:
        return tuple(Nameserver.parse(str(host)) for host in dns.resolver.Resolver().nameservers)
    except (dns.exception.DNSException, OSError):
        return (Nameserver("127.0.0.1"),)


class Resolver:
    """Look-ups with a cache in front.

    `seconds` bounds a whole look-up, `tries_after` is how long one nameserver gets before the next is asked,
    `size` how many answers are kept, `concurrent` how many questions may be on the wire.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        nameservers: Sequence[str] = (),
        *,
        seconds: float = 10.0,
        tries_after: float = 2.0,
        size: int = 20_000,
        concurrent: int = 200,
        exchange: Exchange | None = None,
    ) -> None:
        self._clock = reactor
        self._servers = configured(nameservers)
        self._seconds, self._tries_after, self._size = seconds, tries_after, size
        self._exchange: Exchange = exchange or (lambda server, query, left: dns_query.exchange(reactor, server, query, left))
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._flights: dict[tuple[str, str], list[Deferred[Result]]] = {}
        self._slots = DeferredSemaphore(concurrent)

    async def mx(self, domain: str) -> Records[Mx] | NxDomain | Temporary:
        """Mail exchangers in the order the server gave them; sorting is routing's."""
        answer: Records[Mx] | NxDomain | Temporary = await self._shared(domain, "MX")
        return answer

    def known_mx(self, domain: str) -> Records[Mx] | NxDomain | Temporary | None:
        """What `mx` would answer without asking anybody."""
        kept = self._kept.get((_plain(domain), "MX"))
        return kept.result if kept is not None and kept.until > self._clock.seconds() else None

    async def txt(self, name: str) -> Records[str] | NxDomain | Temporary:
        """TXT records, the strings of each joined."""
        answer: Records[str] | NxDomain | Temporary = await self._shared(name, "TXT")
        return answer

    async def cname(self, name: str) -> Records[str] | NxDomain | Temporary:
        """The name's own CNAME, not followed."""
        answer: Records[str] | NxDomain | Temporary = await self._shared(name, "CNAME")
        return answer

    async def ns(self, name: str) -> Records[str] | NxDomain | Temporary:
        """The nameservers of a zone."""
        answer: Records[str] | NxDomain | Temporary = await self._shared(name, "NS")
        return answer

    async def tlsa(self, name: str) -> Records[Tlsa] | NxDomain | Temporary:
        """The certificates of `_25._tcp.host`. Only what is authenticated says anything."""
        answer: Records[Tlsa] | NxDomain | Temporary = await self._shared(name, "TLSA")
        return answer

    async def ptr(self, address: str) -> Records[str] | NxDomain | Temporary:
        """The names that an address has."""
        answer: Records[str] | NxDomain | Temporary = await self._shared(ipaddress.ip_address(address).reverse_pointer, "PTR")
        return answer

    async def addresses(self, host: str) -> Records[str] | NxDomain | Temporary:
        """IPv4 and then IPv6 addresses. A literal address is its own answer; localhost needs no server (6761 §6.3)."""
        try:
            return Records(host, (str(ipaddress.ip_address(host)),))
        except ValueError:
            pass
        if _plain(host) == "localhost" or _plain(host).endswith(".localhost"):
            return Records("localhost", ("127.0.0.1", "::1"))
        four, six = await gatherResults([self._shared(host, "A"), self._shared(host, "AAAA")])
        found = [answer for answer in (four, six) if isinstance(answer, Records)]
        values = tuple(value for answer in found for value in answer.values)
        if values:
            return Records(found[0].name, values, all(answer.authenticated for answer in found))
        for answer in (four, six):
            if isinstance(answer, Temporary):
                return answer
        return found[0] if found else four

    def _shared(self, name: str, kind: str) -> Deferred[Any]:
        """From the cache, or a place among those who wait for the same answer. Cancelling one leaves the others alone."""
        key = (_plain(name), kind)
        mine: Deferred[Result] = Deferred()
        kept = self._kept.get(key)
        if kept is not None and kept.until > self._clock.seconds():
            self._kept.move_to_end(key)
            mine.callback(kept.result)
        elif key in self._flights:
            self._flights[key].append(mine)
        else:
            self._flights[key] = [mine]
            Deferred.fromCoroutine(self._fly(key))
        return mine

    async def _fly(self, key: tuple[str, str]) -> None:
        result: Result
        try:
            result, seconds = await self._look_up(*key)
        except Exception:  # whatever it was, those who wait get an answer
            self.log.failure("look-up of {name} {kind} failed", name=key[0], kind=key[1])
            result, seconds = Temporary(f"the look-up of {key[0]} failed"), _FAILED
        self._kept[key] = _Kept(result, self._clock.seconds() + seconds)
        self._kept.move_to_end(key)
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)
        for waiting in self._flights.pop(key):
            if not waiting.called:
                waiting.callback(result)

    async def _look_up(self, name: str, kind: str) -> tuple[Result, float]:
        """The answer and how long to keep it, CNAMEs followed also where the server leaves that to us."""
        deadline = self._clock.seconds() + self._seconds
        target, ttl = name, _CEILING
        for _ in range(_HOPS):
            try:
                response = await self._respond(target, kind, deadline)
                chain = response.resolve_chaining()
            except Unanswered as error:
                return Temporary(str(error)), _FAILED
            except dns.exception.DNSException as error:
                if isinstance(error, dns.name.LabelTooLong | dns.name.NameTooLong | dns.name.EmptyLabel | dns.name.BadEscape):
                    return NxDomain(name), _NEGATIVE  # such a name cannot exist (1035 §2.3.4)
                return Temporary(f"the answer about {target} makes no sense"), _FAILED
            ttl = min(ttl, chain.minimum_ttl)
            if response.rcode() == dns.rcode.NXDOMAIN:
                return NxDomain(name), _between(ttl, _NEGATIVE)
            canonical = chain.canonical_name.to_text(omit_final_dot=True).lower()
            if chain.answer is not None:
                values = tuple(value(kind, rdata) for rdata in chain.answer)
                return Records(canonical, values, bool(response.flags & dns.flags.AD)), _between(ttl, _CEILING)
            if kind == "CNAME" or canonical == target or _has_soa(response):
                return Records(canonical), _between(ttl, _NEGATIVE)
            target = canonical
        return Temporary(f"{name} leads through too many CNAME records"), _FAILED

    async def _respond(self, name: str, kind: str, deadline: float) -> dns.message.QueryMessage:
        """The first usable response of any nameserver, asked in turn until the deadline."""
        query = dns_query.question(name, kind)
        last = "no nameserver is configured"
        turn = 0
        while self._servers and turn < 2 * len(self._servers):
            left = deadline - self._clock.seconds()
            if left <= 0:
                break
            server = self._servers[turn % len(self._servers)]
            turn += 1
            try:
                return await self._one(server, query, min(left, self._tries_after), deadline)
            except Unanswered as error:
                last = str(error)
        raise Unanswered(last)

    async def _one(self, server: Nameserver, query: dns.message.QueryMessage, seconds: float, deadline: float) -> dns.message.QueryMessage:
        try:
            await self._slots.acquire().addTimeout(max(0.0, deadline - self._clock.seconds()), self._clock)
        except (TimeoutError, CancelledError):
            raise Unanswered("too many DNS look-ups are under way") from None
        try:
            response = await self._exchange(server, query, seconds)
        finally:
            self._slots.release()
        if response.rcode() in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
            return response
        about = query.question[0].name.to_text(omit_final_dot=True)
        raise Unanswered(f"nameserver {server} answered {dns.rcode.to_text(response.rcode())} for {about}")


def _plain(name: str) -> str:
    return name.rstrip(".").lower()


def _between(ttl: float, most: float) -> float:
    return max(_FLOOR, min(ttl, most))


def _has_soa(response: dns.message.QueryMessage) -> bool:
    """A negative answer carries the SOA (2308 §2.2); without one the server has merely not followed the CNAME."""
    return any(rrset.rdtype == dns.rdatatype.SOA for rrset in response.authority)


def value(kind: str, rdata: Any) -> Any:
    """What `Records` has of a record: an Mx, or a text."""
    return _VALUES[kind](rdata)


def reversed_name(address: str) -> str:
    """The labels of an IP address in reverse order, as DNS block lists look it up (5782 §2.1, §2.4)."""
    return ipaddress.ip_address(address).reverse_pointer.removesuffix(".in-addr.arpa").removesuffix(".ip6.arpa")


def _target(name: Any) -> str:
    return str(name.to_text(omit_final_dot=True)).lower() if len(name.labels) > 1 else ""


_VALUES: dict[str, Callable[[Any], Any]] = {
    "A": lambda rdata: rdata.address,
    "AAAA": lambda rdata: rdata.address,
    "MX": lambda rdata: Mx(rdata.preference, _target(rdata.exchange)),
    "TXT": lambda rdata: b"".join(rdata.strings).decode("utf-8", "replace"),
    "CNAME": lambda rdata: _target(rdata.target),
    "NS": lambda rdata: _target(rdata.target),
    "PTR": lambda rdata: _target(rdata.target),
    "TLSA": lambda rdata: Tlsa(rdata.usage, rdata.selector, rdata.mtype, rdata.cert),
}
