"""Whether a request may come in: decided from its headers, before its body is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Protocol

import attrs
from twisted.web.http_headers import Headers

from mailsvc.accounts.ratelimit import Quota, RateLimit
from mailsvc.http import caller, problem
from mailsvc.http.caller import Caller, Keys
from mailsvc.runtime.budget import Budgets, Hold

Networks = Collection[IPv4Network | IPv6Network]

WITH_BODY = frozenset({b"POST", b"PATCH", b"PUT"})
_JSON = re.compile(rb"\s*(application|text)/([\w.-]+\+)?json\s*(;|\Z)", re.IGNORECASE)
# What is answered 501 is none of these; CONNECT and TRACE are known, and allowed nowhere (9110 §9.1).
METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"CONNECT", b"TRACE"})
UNGUARDED = frozenset({b"/healthz", b"/readyz"})


@attrs.frozen
class Limits:
    """What one connection and one process take. Sizes in octets, times in seconds."""

    body: int = 160 * 1024 * 1024  # of a request that sends mail
    other_body: int = 1024 * 1024  # of any other request
    form: int = 64 * 1024  # of a page's form, sent by anybody
    spool_above: int = 1024 * 1024  # from here on a body waits on disk and is read in a thread
    idle: float = 60.0
    patience: float = 20.0  # how often the pace of an unfinished request is looked at
    slowest: int = 4096  # octets a second that it must have then
    average: int = 32 * 1024  # bytes a second that a whole body must have on average, after the first `patience` seconds
    linger: float = 5.0  # how long more of a refused body is waited for
    linger_most: float = 30.0  # and how long it is read at all
    unread: float = 60.0  # seconds after which a client that reads nothing of a response is disconnected
    connections: int = 4000  # in all
    connections_per_address: int = 250  # and requests at once, where a proxy is trusted to say for whom they are
    last: float = 1.0  # at a shutdown: how long a silent connection may still bring a request that is on its way


@attrs.frozen
class Asked:
    """The part of a request that the gate looks at. `length`: of the body, None when it is chunked."""

    method: bytes
    path: bytes
    version: bytes
    headers: Headers
    address: Callable[[], str]
    length: int | None
    known: bool
    page: bool = False  # for people: it asks for no key


@attrs.frozen
class Entry:
    """How a request stands: who calls, what the rate limit headers say, how large the body may be, or why it may not come in."""

    quota: Quota
    caller: Caller | None = None
    body_max: int = 0
    problem: problem.Problem | None = None
    hold: Hold | None = None  # what the request uses of its budget; None when it may not come in


@attrs.define(eq=False)
class Gate:
    keys: Keys
    rate: RateLimit
    limits: Limits
    budgets: Budgets
    well_formed: Callable[[str], bool]  # whether a text can be a key at all; what cannot is never looked up

    async def ask(self, asked: Asked) -> Entry:
        """Count the request, know its key, look at what it announces. Never raises a Problem: the entry has it."""
        if asked.method not in METHODS:
            return self._counted(asked, problem.not_implemented())
        if asked.path in UNGUARDED or asked.page:
            return self._announced(asked, Entry(self.rate.peek(asked.address()), body_max=self.limits.form))
        if asked.method == b"OPTIONS":
            return self._counted(asked, None if asked.known else problem.no_endpoint())
        if asked.known and asked.method in (b"GET", b"HEAD") and caller.PUBLIC.match(asked.path):
            return self._counted(asked, None)
        try:
            found = await caller.find(self.keys, caller.bearer(asked.headers, self.well_formed))
        except problem.Problem as wrong:
            return self._counted(asked, wrong if asked.known else problem.no_endpoint())
        quota = await self.rate.take_shared(found.account_id, found.rate_limit)
        if not quota.allowed:
            return Entry(quota, found, problem=problem.too_many_requests(quota.reset))
        if not asked.known:
            return Entry(quota, found, problem=problem.no_endpoint())
        if not caller.opens(found, asked.method, asked.path):
            return Entry(quota, found, problem=problem.restricted_key())
        sends = asked.method == b"POST" and asked.path in caller.SENDING
        return self._announced(asked, Entry(quota, found, self.limits.body if sends else self.limits.other_body))

    def _counted(self, asked: Asked, wrong: problem.Problem | None) -> Entry:
        """A request without a good key counts against its address."""
        quota = self.rate.take(asked.address())
        if not quota.allowed:
            wrong = problem.too_many_requests(quota.reset)
        entry = Entry(quota, body_max=self.limits.form, problem=wrong)
        return entry if wrong else self._announced(asked, entry)

    def _announced(self, asked: Asked, entry: Entry) -> Entry:
        """What the headers say of the body. Nothing is reserved for what has not arrived; what could not fit now is refused at once."""
        if entry.caller is None:
            hold = Hold(self.budgets.pages, asked.address())
        else:
            hold = Hold(self.budgets.api, entry.caller.account_id)
        wrong = _wrong(asked) or too_large(asked.length, entry.body_max)
        if wrong is None and asked.length and not hold.room(asked.length, self.limits.spool_above):
            wrong = problem.unavailable()
        return attrs.evolve(entry, problem=wrong) if wrong else attrs.evolve(entry, hold=hold)


def _wrong(asked: Asked) -> problem.Problem | None:
    hosts = asked.headers.getRawHeaders(b"host") or []
    if len(hosts) > 1 or (not hosts and asked.version == b"HTTP/1.1"):  # 9112 §3.2
        return problem.invalid("The request needs one Host header.", 400)
    kinds = asked.headers.getRawHeaders(b"content-type") or []
    if not asked.page and asked.length != 0 and asked.method in WITH_BODY and kinds and not _JSON.match(kinds[-1]):
        return problem.Problem(415, "validation_error", "The request body must be sent with `Content-Type: application/json`.")
    codings = asked.headers.getRawHeaders(b"content-encoding") or []
    if any(coding.strip().lower() not in (b"", b"identity") for coding in codings):  # 9110 §15.5.16
        return problem.Problem(415, "validation_error", "The request body must not be compressed.", {"Accept-Encoding": "identity"})
    return None


def too_large(length: int | None, most: int) -> problem.Problem | None:
    if length is None or length <= most:
        return None
    return problem.invalid(f"The request body may have at most {most} bytes.", 413)


def address(peer: str, forwarded: list[bytes], trusted: Networks) -> str:
    """Whose request it is: the nearest address that is not one of our own proxies; of IPv6, its /64, which is one subscriber.

    `peer` is empty for a Unix socket: whoever may connect to that is ours.
    """
    hops = [hop.strip().decode("latin-1") for value in forwarded for hop in value.split(b",")] if trusted else []
    client = _parsed(peer)
    while hops and (client is None or any(client in network for network in trusted)):
        found = _parsed(hops.pop())
        if found is None:
            break
        client = found
    if isinstance(client, IPv6Address):
        return str(IPv6Network((int(client) >> 64 << 64, 64)))
    return str(client or "local")


def is_proxy(peer: str, trusted: Networks) -> bool:
    """Whether the connection comes from a trusted proxy; `peer` is empty for a Unix socket."""
    client = _parsed(peer)
    return client is None or any(client in network for network in trusted)


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


class Connection(Protocol):
    """What `Connections` asks of one (channel)."""

    @property
    def idle(self) -> bool:
        """Whether it waits for a request: none has been let in."""

    def evict(self) -> None:
        """Close it, to make room for another."""


@attrs.define(eq=False)
class Connections:
    """The open connections, limited in all and per client address; and the requests in progress per address behind trusted proxies.

    The connections of trusted proxies have the same total for themselves and no limit per address: a proxy brings many clients, and
    clients that connect directly cannot lock it out. When all are taken, the address with the most idle connections loses one.
    """

    most: int
    per_address: int
    refused: int = 0
    evicted: int = 0
    _direct: dict[str, dict[Connection, None]] = attrs.field(factory=dict)
    _proxied: dict[Connection, None] = attrs.field(factory=dict)
    _requests: Counter[str] = attrs.field(factory=Counter)
    _count: int = 0

    def __len__(self) -> int:
        return self._count + len(self._proxied)

    def enter(self, connection: Connection, client: str | None) -> bool:
        """`client` is None for a trusted proxy. Whoever entered has to leave."""
        if client is None:
            if len(self._proxied) >= self.most:
                return self._refuse()
            self._proxied[connection] = None
            return True
        if len(self._direct.get(client, ())) >= self.per_address:
            return self._refuse()
        if self._count >= self.most and not self._evict():
            return self._refuse()
        self._direct.setdefault(client, {})[connection] = None
        self._count += 1
        return True

    def leave(self, connection: Connection, client: str | None) -> None:
        if client is None:
            self._proxied.pop(connection, None)
            return
        found = self._direct.get(client, {})
        if connection in found:
            self._count -= 1
            del found[connection]
            if not found:
                del self._direct[client]

    def begin(self, client: str) -> bool:
        """A request that a proxy brings for `client` begins; whether it may."""
        if self._requests[client] >= self.per_address:
            return self._refuse()
        self._requests[client] += 1
        return True

    def end(self, client: str) -> None:
        self._requests[client] -= 1
        if not self._requests[client]:
            del self._requests[client]

    def _refuse(self) -> bool:
        self.refused += 1
        return False

    def _evict(self) -> bool:
        idle = [(len(each), client) for client, each in self._direct.items() if any(one.idle for one in each)]
        if not idle:
            return False
        client = max(idle)[1]
        connection = next(one for one in self._direct[client] if one.idle)
        self.leave(connection, client)
        self.evicted += 1
        connection.evict()
        return True
