"""The DNS resolver: cached lookups with deadlines. Concurrent lookups of one name share a query. Failures are return values.

One query to one nameserver: dns_query. What a sending domain should publish: domains/.
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
from twisted.internet.defer import CancelledError, Deferred, TimeoutError, gatherResults
from twisted.logger import Logger

from mailsvc.net import dns_query
from mailsvc.net.dns_query import Nameserver, NameserverError
from mailsvc.semaphore import Semaphore

T = TypeVar("T")


@attrs.frozen
class Mx:
    """An MX record. `host` is lowercase without the final dot; empty for the root, which means that the domain takes no mail (7505)."""

    preference: int
    host: str


@attrs.frozen
class Tlsa:
    """A TLSA record: the certificate that a server should have (6698 §2.1)."""

    usage: int
    selector: int
    matching: int
    data: bytes


@attrs.frozen(order=True)
class Caa:
    """A CAA record: which certificate authorities may issue certificates (8659 §4.1)."""

    flags: int
    tag: str
    value: str


@attrs.frozen
class Records(Generic[T]):
    """The records of a name. No values: the name exists, without such records. `name` is the canonical name.

    `authenticated`: the resolver validated them, or that there are none, with DNSSEC, and so all CNAMEs before them (7672 §2.1.1, §2.2.2).
    """

    name: str
    values: tuple[T, ...] = ()
    authenticated: bool = False


@attrs.frozen
class NxDomain:
    """The name does not exist."""

    name: str


@attrs.frozen
class Temporary:
    """The lookup failed temporarily. `reason` is a phrase for people."""

    reason: str


Result = Records[Any] | NxDomain | Temporary
Exchange = Callable[[Nameserver, dns.message.QueryMessage, float], Awaitable[dns.message.QueryMessage]]

_MIN_TTL, _MAX_TTL = 60.0, 86400.0  # seconds
_NEGATIVE_TTL = 900.0  # maximum for missing names and records (2308 §5 allows more)
_FAILURE_TTL = 15.0  # so that many emails to a broken domain cause one query (2308 §7)
_MAX_CNAMES = 8  # in a chain


_VALUE = 200  # bytes of memory that a value of an answer takes besides its text
_WEIGHT = 2000  # bytes of memory for each of the cached answers, on average


@attrs.frozen
class _Cached:
    result: Result
    expires: float
    weight: int


def configured(texts: Sequence[str] = ()) -> tuple[Nameserver, ...]:
    """Parses nameservers such as `["127.0.0.1:5353"]`. If empty, returns those in /etc/resolv.conf."""
    if texts:
        return tuple(Nameserver.parse(text) for text in texts)
    try:
        return tuple(Nameserver.parse(str(host)) for host in dns.resolver.Resolver().nameservers)
    except (dns.exception.DNSException, OSError):
        return (Nameserver("127.0.0.1"),)


class Resolver:
    """Looks up records, with a cache.

    `seconds` is the timeout of a lookup, `retry_after` the timeout of one nameserver before the next is tried, `size` the number of
    cached answers (fewer if they are large), `concurrent` the maximum number of queries in progress.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        nameservers: Sequence[str] = (),
        *,
        seconds: float = 10.0,
        retry_after: float = 2.0,
        size: int = 20_000,
        concurrent: int = 200,
        exchange: Exchange | None = None,
    ) -> None:
        self._clock = reactor
        self._servers = configured(nameservers)
        self._seconds, self._retry_after, self._size = seconds, retry_after, size
        self._exchange: Exchange = exchange or (lambda server, query, left: dns_query.exchange(reactor, server, query, left))
        self._cache: OrderedDict[tuple[str, str], _Cached] = OrderedDict()
        self._weight = 0  # of all cached answers, in bytes
        self._pending: dict[tuple[str, str], list[Deferred[Result]]] = {}
        self._slots = Semaphore(concurrent)

    async def mx(self, domain: str) -> Records[Mx] | NxDomain | Temporary:
        """MX records, in the order of the answer. delivery/connection/route sorts them."""
        answer: Records[Mx] | NxDomain | Temporary = await self._shared(domain, "MX")
        return answer

    def known_mx(self, domain: str) -> Records[Mx] | NxDomain | Temporary | None:
        """The cached answer of `mx`, if there is one."""
        cached = self._cache.get((_normalized(domain), "MX"))
        return cached.result if cached is not None and cached.expires > self._clock.seconds() else None

    async def txt(self, name: str) -> Records[str] | NxDomain | Temporary:
        """TXT records, with the strings of each joined."""
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
        """TLSA records of `_25._tcp.host`. Only authenticated ones can be relied on."""
        answer: Records[Tlsa] | NxDomain | Temporary = await self._shared(name, "TLSA")
        return answer

    async def caa(self, name: str) -> Records[Caa] | NxDomain | Temporary:
        """CAA records of exactly this name, or of what its CNAME points to."""
        answer: Records[Caa] | NxDomain | Temporary = await self._shared(name, "CAA")
        return answer

    async def ptr(self, address: str) -> Records[str] | NxDomain | Temporary:
        """The host names of an address."""
        answer: Records[str] | NxDomain | Temporary = await self._shared(ipaddress.ip_address(address).reverse_pointer, "PTR")
        return answer

    async def addresses(self, host: str) -> Records[str] | NxDomain | Temporary:
        """IPv4 addresses, then IPv6 addresses. IP addresses and localhost (6761 §6.3) need no query."""
        try:
            return Records(host, (str(ipaddress.ip_address(host)),))
        except ValueError:
            pass
        if _normalized(host) == "localhost" or _normalized(host).endswith(".localhost"):
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
        """Answers from the cache, or waits for a query that others share. Cancelling one waiter does not affect the others."""
        key = (_normalized(name), kind)
        result: Deferred[Result] = Deferred()
        cached = self._cache.get(key)
        if cached is not None and cached.expires > self._clock.seconds():
            self._cache.move_to_end(key)
            result.callback(cached.result)
        elif key in self._pending:
            self._pending[key].append(result)
        else:
            self._pending[key] = [result]
            Deferred.fromCoroutine(self._resolve(key))
        return result

    async def _resolve(self, key: tuple[str, str]) -> None:
        result: Result
        try:
            result, seconds = await self._look_up(*key)
        except Exception:  # all who wait must get an answer
            self.log.failure("DNS lookup of {name} {kind} failed", name=key[0], kind=key[1])
            result, seconds = Temporary(f"the DNS lookup of {key[0]} failed"), _FAILURE_TTL
        self._keep(key, _Cached(result, self._clock.seconds() + seconds, _weight(result)))
        for waiting in self._pending.pop(key):
            if not waiting.called:
                waiting.callback(result)

    def _keep(self, key: tuple[str, str], answer: _Cached) -> None:
        former = self._cache.pop(key, None)
        self._cache[key] = answer
        self._weight += answer.weight - (former.weight if former is not None else 0)
        while len(self._cache) > self._size or (self._weight > self._size * _WEIGHT and len(self._cache) > 1):
            self._weight -= self._cache.popitem(last=False)[1].weight

    async def _look_up(self, name: str, kind: str) -> tuple[Result, float]:
        """Returns the answer and how long to cache it. Follows CNAMEs if the server does not."""
        deadline = self._clock.seconds() + self._seconds
        target, ttl, authenticated = name, _MAX_TTL, True
        for _ in range(_MAX_CNAMES):
            try:
                response = await self._respond(target, kind, deadline)
                chain = response.resolve_chaining()
            except NameserverError as error:
                return Temporary(str(error)), _FAILURE_TTL
            except dns.exception.DNSException as error:
                if isinstance(error, dns.name.LabelTooLong | dns.name.NameTooLong | dns.name.EmptyLabel | dns.name.BadEscape):
                    return NxDomain(name), _NEGATIVE_TTL  # such a name cannot exist (1035 §2.3.4)
                return Temporary(f"the DNS answer for {target} is invalid"), _FAILURE_TTL
            ttl = min(ttl, chain.minimum_ttl)
            authenticated = authenticated and bool(response.flags & dns.flags.AD)
            if response.rcode() == dns.rcode.NXDOMAIN:
                return NxDomain(name), _bounded(ttl, _NEGATIVE_TTL)
            canonical = chain.canonical_name.to_text(omit_final_dot=True).lower()
            if chain.answer is not None:
                values = tuple(value(kind, rdata) for rdata in chain.answer)
                return Records(canonical, values, authenticated), _bounded(ttl, _MAX_TTL)
            if kind == "CNAME" or canonical == target or _has_soa(response):
                return Records(canonical, (), authenticated), _bounded(ttl, _NEGATIVE_TTL)
            target = canonical
        return Temporary(f"{name} has too many CNAME records in a chain"), _FAILURE_TTL

    async def _respond(self, name: str, kind: str, deadline: float) -> dns.message.QueryMessage:
        """Returns the first usable response. Asks the nameservers in turn until the deadline."""
        query = dns_query.question(name, kind)
        last = "no nameserver is configured"
        attempt = 0
        while self._servers and attempt < 2 * len(self._servers):
            left = deadline - self._clock.seconds()
            if left <= 0:
                break
            server = self._servers[attempt % len(self._servers)]
            attempt += 1
            try:
                return await self._query(server, query, min(left, self._retry_after), deadline)
            except NameserverError as error:
                last = str(error)
        raise NameserverError(last)

    async def _query(
        self, server: Nameserver, query: dns.message.QueryMessage, seconds: float, deadline: float
    ) -> dns.message.QueryMessage:
        try:
            await self._slots.acquire().addTimeout(max(0.0, deadline - self._clock.seconds()), self._clock)
        except (TimeoutError, CancelledError):
            raise NameserverError("too many DNS lookups are in progress") from None
        try:
            response = await self._exchange(server, query, seconds)
        finally:
            self._slots.release()
        if response.rcode() in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
            return response
        name = query.question[0].name.to_text(omit_final_dot=True)
        raise NameserverError(f"nameserver {server} answered {dns.rcode.to_text(response.rcode())} for {name}")


def _weight(result: Result) -> int:
    """About how many bytes of memory an answer takes."""
    return _VALUE + (sum(_VALUE + len(repr(each)) for each in result.values) if isinstance(result, Records) else 0)


def _normalized(name: str) -> str:
    return name.rstrip(".").lower()


def _bounded(ttl: float, highest: float) -> float:
    return max(_MIN_TTL, min(ttl, highest))


def _has_soa(response: dns.message.QueryMessage) -> bool:
    """Whether an answer without records is final: it then has an SOA record (2308 §2.2). Otherwise, the CNAME was not followed."""
    return any(rrset.rdtype == dns.rdatatype.SOA for rrset in response.authority)


def value(kind: str, rdata: Any) -> Any:
    """Converts a record to its value in `Records`: an Mx, a Tlsa or a string."""
    return _VALUES[kind](rdata)


def reversed_name(address: str) -> str:
    """Returns an IP address in reverse order, for DNS blocklists (5782 §2.1, §2.4)."""
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
    "CAA": lambda rdata: Caa(rdata.flags, rdata.tag.decode("ascii", "replace").lower(), rdata.value.decode("utf-8", "replace")),
    "TLSA": lambda rdata: Tlsa(rdata.usage, rdata.selector, rdata.mtype, rdata.cert),
}
