"""Whether a request is admitted: decided from its headers, before its body is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Protocol
from uuid import UUID

import attrs
from twisted.web.http_headers import Headers

from mailsvc.accounts.ratelimit import Quota, RateLimit
from mailsvc.http import caller, problem
from mailsvc.net import allow_list
from mailsvc.net.client_address import unmapped
from mailsvc.runtime.budget import Budgets, Hold
from mailsvc.store.people.api_keys import Caller, Keys

Networks = Collection[IPv4Network | IPv6Network]
MovedTo = Callable[[UUID, float], str | None]  # the cell that an account may have moved to after a time of the reactor
Uploader = Callable[[Headers, str], Awaitable[UUID | None]]  # the account of a page's session, from its headers and the client's address

ADDRESS_MAX = 100  # characters of a text that can be an address, with a zone; longer ones are not kept in memory
FORM = 1024 * 1024  # bytes of an upload besides the file
WITH_BODY = frozenset({b"POST", b"PATCH", b"PUT"})
_JSON = re.compile(rb"\s*(application|text)/([\w.-]+\+)?json\s*(;|\Z)", re.IGNORECASE)
# Other methods get 501. CONNECT and TRACE are known and not allowed anywhere (9110 §9.1).
METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"CONNECT", b"TRACE"})
IMAGES = b"/dashboard/images"
UPLOADS = frozenset({b"/contacts/imports", b"/dashboard/audience/imports", IMAGES})  # take a form with a file
EDITOR, SAVE = b"/dashboard/broadcasts/", b"/edit/save"  # how the path begins and ends at which the broadcast editor saves
CELL = b"/cell"  # whether this process's cell has the account of the key
UNGUARDED = frozenset({b"/healthz", b"/readyz"})


@attrs.frozen
class Limits:
    """The limits of a connection and of a process. Sizes in bytes, times in seconds."""

    body: int = 160 * 1024 * 1024  # of a request that sends mail
    upload: int = 200 * 1024 * 1024  # of a file with contacts
    image: int = 10 * 1024 * 1024  # of an image for a broadcast
    other_body: int = 1024 * 1024  # of any other request
    form: int = 64 * 1024  # of a form on a page, for everybody
    draft: int = 4 * 1024 * 1024  # of the form of the broadcast editor
    spool_above: int = 1024 * 1024  # larger bodies are kept on disk and read in a thread
    idle: float = 60.0
    patience: float = 20.0  # how often the speed of an unfinished request is checked
    slowest: int = 4096  # bytes per second that it needs then
    average: int = 32 * 1024  # bytes per second that a whole body needs on average, after the first `patience` seconds
    linger: float = 5.0  # how long to wait for more of a refused body
    linger_most: float = 30.0  # how long to read a refused body in total
    unread: float = 60.0  # seconds after which a client that reads nothing of a response is disconnected
    connections: int = 4000  # in total
    connections_per_address: int = 250  # also concurrent requests of a client behind a trusted proxy
    last: float = 1.0  # at shutdown: how long to wait on an idle connection for a request that is on its way


@attrs.frozen
class Head:
    """The head of a request. `length`: of the body, None if it is chunked."""

    method: bytes
    path: bytes
    version: bytes
    headers: Headers
    address: Callable[[], str]
    length: int | None
    known: bool
    page: bool = False  # of the dashboard, which needs no API key


@attrs.frozen
class Entry:
    """The decision about a request: its API key, its rate limit, the maximum size of its body, or why it is refused."""

    quota: Quota
    caller: Caller | None = None
    body_max: int = 0
    problem: problem.Problem | None = None
    hold: Hold | None = None  # what the request uses of its budget; None if it is refused


@attrs.define(eq=False)
class Gate:
    keys: Keys
    rate: RateLimit
    limits: Limits
    budgets: Budgets
    well_formed: Callable[[str], bool]  # whether a text can be a key; others are never looked up
    uploader: Uploader | None = None  # who may upload a file on a page
    moved_to: MovedTo | None = None

    async def admit(self, head: Head) -> Entry:
        """Count the request, check its key and its headers. Never raises a Problem: the entry has it."""
        if head.method not in METHODS:
            return self._counted(head, problem.not_implemented())
        if head.page and _uploads(head):
            return await self._page_upload(head)
        if head.path in UNGUARDED or head.page:
            most = self.limits.draft if head.path.startswith(EDITOR) and head.path.endswith(SAVE) else self.limits.form
            return self._checked(head, Entry(self.rate.peek(head.address()), body_max=most))
        if head.method == b"OPTIONS":
            return self._counted(head, None if head.known else problem.no_endpoint())
        if head.known and head.method in (b"GET", b"HEAD") and caller.PUBLIC.match(head.path):
            return self._counted(head, None)
        try:
            found = await caller.find(self.keys, caller.bearer(head.headers, self.well_formed))
        except problem.Problem as wrong:
            return self._counted(head, wrong if head.known else problem.no_endpoint())
        if found.networks and not allow_list.allows(head.address(), found.networks):
            return self._foreign(head, found)
        if head.path == CELL:  # asked by a proxy for each SMTP session, for which there are other limits
            return self._checked(head, Entry(self.rate.peek(head.address()), body_max=self.limits.form))
        quota = await self.rate.take_shared(found.account_id, found.rate_limit)
        if not quota.allowed:
            return Entry(quota, found, problem=problem.too_many_requests(quota.reset))
        if not head.known:
            return Entry(quota, found, problem=problem.no_endpoint())
        if not caller.permits(found, head.method, head.path):
            return Entry(quota, found, problem=problem.restricted_key())
        sends = head.method == b"POST" and head.path in caller.SENDING
        most = self.limits.body if sends else self.limits.other_body
        return self._checked(head, Entry(quota, found, self.limits.upload + FORM if _uploads(head) else most))

    async def check_key(self, headers: Headers) -> problem.Problem | None:
        """What is wrong now with the key of an admitted request. A large body can take more than an hour to arrive."""
        try:
            await caller.find(self.keys, caller.bearer(headers, self.well_formed))
        except problem.Problem as wrong:
            return wrong
        return None

    async def _page_upload(self, head: Head) -> Entry:
        """A member of an account can send as much as its API keys. Everybody else can send what fits into any form."""
        quota, account_id = self.rate.peek(head.address()), None
        if self.uploader is not None:
            account_id = await self.uploader(head.headers, head.address())
        if account_id is None:
            return self._checked(head, Entry(quota, body_max=self.limits.form))
        most = self.limits.image if head.path == IMAGES else self.limits.upload
        return self._checked(head, Entry(quota, body_max=most + FORM), Hold(self.budgets.api, account_id))

    def _foreign(self, head: Head, found: Caller) -> Entry:
        """Whoever has a key that is not for their network cannot use up the limit of its account. The account's log has the request."""
        quota = self.rate.take(head.address())
        if not quota.allowed:
            return Entry(quota, problem=problem.too_many_requests(quota.reset))
        return Entry(quota, found, problem=problem.foreign_network())

    def _counted(self, head: Head, wrong: problem.Problem | None) -> Entry:
        """A request without a valid key counts towards the limit of its address. The key of an account that moves is valid."""
        moved = wrong is not None and wrong.status in (421, 503)
        quota = self.rate.peek(head.address()) if moved else self.rate.take(head.address())
        if not quota.allowed and not moved:
            wrong = problem.too_many_requests(quota.reset)
        entry = Entry(quota, body_max=self.limits.form, problem=wrong)
        return entry if wrong else self._checked(head, entry)

    def _checked(self, head: Head, entry: Entry, hold: Hold | None = None) -> Entry:
        """Check the headers. Nothing is reserved before the body arrives, but one that would not fit now is refused immediately."""
        if hold is None and entry.caller is not None:
            hold = Hold(self.budgets.api, entry.caller.account_id)
        hold = hold or Hold(self.budgets.pages, head.address())
        wrong = _wrong(head) or too_large(head.length, entry.body_max)
        if wrong is None and head.length and not hold.room(head.length, self.limits.spool_above):
            wrong = problem.unavailable()
        return Entry(entry.quota, entry.caller, entry.body_max, wrong, None if wrong else hold)


def _wrong(head: Head) -> problem.Problem | None:
    hosts = head.headers.getRawHeaders(b"host") or []
    if len(hosts) > 1 or (not hosts and head.version == b"HTTP/1.1"):  # 9112 §3.2
        return problem.invalid("The request needs one Host header.", 400)
    kinds = head.headers.getRawHeaders(b"content-type") or []
    as_json = not head.page and not _uploads(head)
    if as_json and head.length != 0 and head.method in WITH_BODY and kinds and not _JSON.match(kinds[-1]):
        return problem.Problem(415, "validation_error", "The request body must be sent with `Content-Type: application/json`.")
    codings = head.headers.getRawHeaders(b"content-encoding") or []
    if head.length != 0 and any(coding.strip().lower() not in (b"", b"identity") for coding in codings):  # 9110 §15.5.16
        return problem.Problem(415, "validation_error", "The request body must not be compressed.", {"Accept-Encoding": "identity"})
    return None


def _uploads(head: Head) -> bool:
    return head.method == b"POST" and head.path in UPLOADS


def too_large(length: int | None, most: int) -> problem.Problem | None:
    if length is None or length <= most:
        return None
    return problem.invalid(f"The request body can have at most {most} bytes.", 413)


def address(peer: str, forwarded: list[bytes], trusted: Networks) -> str:
    """The client's address: the nearest one that is not a trusted proxy. Of IPv6 its /64, which is one subscriber.

    `peer` is empty for a Unix socket, whose clients are trusted.
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
    return _address(text) if len(text) <= ADDRESS_MAX else None


@lru_cache(4096)
def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return unmapped(ip_address(text.partition("%")[0]))
    except ValueError:
        return None


class EvictableConnection(Protocol):
    """A connection, for `Connections`; see `channel`."""

    @property
    def idle(self) -> bool:
        """Whether it has no admitted request."""

    def evict(self) -> None:
        """Close it, to make room for another."""


@attrs.define(eq=False)
class Connections:
    """The open connections, limited in total and per client address; and the concurrent requests per client of trusted proxies.

    Connections of trusted proxies have a limit of their own, and none per address: a proxy has many clients, and direct clients cannot
    lock it out. If the limit is reached, the address with the most idle connections loses one.
    """

    most: int
    per_address: int
    refused: int = 0
    evicted: int = 0
    _direct: dict[str, dict[EvictableConnection, None]] = attrs.field(factory=dict)
    _proxied: dict[EvictableConnection, None] = attrs.field(factory=dict)
    _requests: Counter[str] = attrs.field(factory=Counter)
    _count: int = 0

    def __len__(self) -> int:
        return self._count + len(self._proxied)

    def enter(self, connection: EvictableConnection, client: str | None) -> bool:
        """Whether there is room; if so, call `leave` later. `client` is None for a trusted proxy."""
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

    def leave(self, connection: EvictableConnection, client: str | None) -> None:
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
        """Whether a request of a proxy's client is admitted; if so, call `end` later."""
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
