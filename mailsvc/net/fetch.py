"""Requests to web addresses that strangers gave us: webhook endpoints and linked attachments.

Each request looks the name up, checks every address that it has, and goes to one of those that were checked: what the name
leads to a moment later does not matter. Certificates are verified for the name. Redirects are not followed, proxies of the
environment not used; a connection serves one request, or those of one Line to one place. What an answer may cost is bounded in time,
octets of its head and octets of its body.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
from OpenSSL.SSL import Error as TlsError
from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, wrapClientTLS
from twisted.internet.error import ConnectError, ConnectingCancelledError, ConnectionClosed, ConnectionRefusedError
from twisted.internet.error import TimeoutError as ConnectTimeout
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.protocol import Protocol as Wire
from twisted.internet.ssl import optionsForClientTLS
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.client import (  # type: ignore[attr-defined]
    URI,
    Agent,
    HTTPConnectionPool,
    RequestNotSent,
    RequestTransmissionFailed,
    ResponseDone,
    ResponseFailed,
    ResponseNeverReceived,
)
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer

from mailsvc.net import urls
from mailsvc.net.dns import NxDomain, Records, Temporary
from mailsvc.net.urls import BadUrl, Rules, Target

HEAD = 64 * 1024  # octets of an answer besides the part of its body that is wanted
ADDRESSES = 3  # of a name that are tried
HOSTS = 50  # whose TLS contexts are kept; each is most of a megabyte
CONNECT = 5.0  # seconds for one of them
DETAIL = 200  # characters of a parser's complaint that are kept

log = Logger()


class NoAnswer(Exception):
    """A sentence: why there is no answer, or none that we may have."""


@attrs.frozen
class Reply:
    """`body` holds no more than was asked for; `whole`: it is all of it. `coded`: it came compressed, and is as it came."""

    status: int
    headers: Headers
    body: bytes = attrs.field(repr=False)
    whole: bool
    coded: bool = False

    def header(self, name: str) -> str | None:
        values = self.headers.getRawHeaders(name.encode("ascii"))
        return values[0].decode("utf-8", "replace") if values else None


class Addresses(Protocol):
    """dns.Resolver"""

    async def addresses(self, host: str) -> Records[str] | NxDomain | Temporary: ...


class Asking(Protocol):
    """A Fetcher, or one of its lines."""

    async def ask(
        self,
        method: str,
        url: str,
        *,
        seconds: float,
        keep: int,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        room: Callable[[int], bool] = lambda octets: True,
    ) -> Reply: ...


@attrs.define(eq=False)
class Fetcher:
    """`trust`: the certificate authorities, None: those of this machine."""

    reactor: Any
    resolver: Addresses
    rules: Rules
    trust: Any = None
    _tls: OrderedDict[str, Any] = attrs.field(factory=OrderedDict, init=False, repr=False)

    async def ask(
        self,
        method: str,
        url: str,
        *,
        seconds: float,
        keep: int,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        room: Callable[[int], bool] = lambda octets: True,
    ) -> Reply:
        """One request over a connection of its own, and its answer within `seconds`, with the first `keep` octets of its body.

        `room` is asked before octets are kept, and may refuse. Raises NoAnswer.
        """
        return await Line(self, again=False).ask(method, url, seconds=seconds, keep=keep, headers=headers, body=body, room=room)

    def line(self) -> Line:
        """A connection for one request after another to one place; to be closed."""
        return Line(self, again=True)

    def tls(self, host: str) -> Any:
        """How to verify `host`. Kept for the hosts of late: reading the certificate authorities takes longer than all the rest."""
        options = self._tls.pop(host, None)
        if options is None:
            more = {} if self.trust is None else {"trustRoot": self.trust}
            options = optionsForClientTLS(host, **more)
        self._tls[host] = options
        while len(self._tls) > HOSTS:
            self._tls.popitem(last=False)
        return options


@implementer(IAgent, IAgentEndpointFactory, IStreamClientEndpoint)
class Line:
    """A connection for one request after the other: an agent, and the endpoint that it connects to.

    It is made with the first request. It is used `again` when its answer came whole, the other end keeps it open, and the name, looked up
    and checked anew, still has the address that it leads to.
    """

    def __init__(self, fetcher: Fetcher, *, again: bool) -> None:
        self.fetcher = fetcher
        self.why: str | None = None
        self.most = self.received = 0  # octets of the answer under way
        self._coded = False
        self._url: str | None = None
        self._target: Target | None = None  # what it means
        self._address: str | None = None
        self._wire: Any = None
        self._pool = HTTPConnectionPool(fetcher.reactor, persistent=again)
        self._pool.retryAutomatically, self._pool.maxPersistentPerHost = False, 1
        self._agent = Agent.usingEndpointFactory(fetcher.reactor, self, self._pool)

    async def ask(
        self,
        method: str,
        url: str,
        *,
        seconds: float,
        keep: int,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        room: Callable[[int], bool] = lambda octets: True,
    ) -> Reply:
        """As Fetcher.ask."""
        target = self._target if url == self._url and self._target is not None else self._read(url)
        self.why, self.most, self.received = None, keep + HEAD, 0
        asking = Deferred.fromCoroutine(self._ask(method, target, headers or {}, body, keep, room))
        timer = self.fetcher.reactor.callLater(seconds, self._give_up, asking, f"There was no whole answer within {seconds:g} s.")
        try:
            return await asking
        except (CancelledError, ConnectingCancelledError):
            if self.why is None:  # nobody waits for it any more
                raise
            raise NoAnswer(self.why) from None
        finally:
            if self.why is not None or not self._idle():
                self.close()
            if timer.active():
                timer.cancel()

    def close(self, why: str | None = None) -> None:
        """Let go of the connection, at once and for good. The next request makes another."""
        self.why = self.why or why
        wire, self._wire = self._wire, None
        if wire is not None and wire.transport is not None:
            wire.transport.abortConnection()
        self._pool.closeCachedConnections()

    def _read(self, url: str) -> Target:
        try:
            target = urls.read(url, self.fetcher.rules)
        except BadUrl as error:
            raise NoAnswer(f"The URL {error}.") from None
        if self._target is not None and _place(self._target) != _place(target):
            self.close()
        self._url, self._target = url, target
        return target

    async def _ask(
        self, method: str, target: Target, headers: Mapping[str, str], body: bytes | None, keep: int, room: Callable[[int], bool]
    ) -> Reply:
        try:
            again = await self._usable_again()
            try:
                return await self._request(method, target, headers, body, keep, room)
            except (ResponseNeverReceived, RequestNotSent, RequestTransmissionFailed) as error:
                if not again or self.received or self.why is not None or _cancelled(error):
                    raise
            self.close()  # the other end had closed it, as it may at any time between two requests: nothing is wrong with it
            return await self._request(method, target, headers, body, keep, room)
        except (ConnectionClosed, ConnectError, TlsError, ResponseFailed, RequestNotSent, RequestTransmissionFailed, OSError) as error:
            raise NoAnswer(self.why or _why(error)) from None
        except (NoAnswer, CancelledError, ConnectingCancelledError):
            raise
        except Exception:  # whatever an answer does to the code that reads it, it is no answer
            log.failure("the answer of {host} could not be read", host=target.host)
            raise NoAnswer("The answer could not be read.") from None

    async def _request(
        self, method: str, target: Target, headers: Mapping[str, str], body: bytes | None, keep: int, room: Callable[[int], bool]
    ) -> Reply:
        given = Headers({name: [value] for name, value in headers.items()})
        response = await HTTPClient(self).request(method, target.text, headers=given, data=body, allow_redirects=False, unbuffered=True)
        kept = _Kept(keep, room)
        response.deliverBody(kept)
        await kept.done
        if self.why is not None:
            raise NoAnswer(self.why)
        if not 100 <= response.code <= 599:  # 9110 §15: everything else is invalid
            raise NoAnswer("The answer is not valid HTTP: its status code is not between 100 and 599.")
        return Reply(response.code, response.headers, bytes(kept.octets), kept.whole, self._coded)

    def _idle(self) -> bool:
        """Whether the last answer came whole, and the connection stays open."""
        return self._wire is not None and self._pool.persistent and self._wire.wrappedProtocol.state == "QUIESCENT"

    async def _usable_again(self) -> bool:
        if not self._idle():
            return False
        if self._address in await self._addresses():
            return True
        self.close()
        return False

    def request(self, method: bytes, uri: bytes, headers: Headers | None = None, producer: IBodyProducer | None = None) -> Any:
        """What is compressed could unfold to anything: it is neither asked for nor unfolded."""
        headers = headers or Headers()
        headers.setRawHeaders(b"accept-encoding", [b"identity"])
        asked = self._agent.request(method, uri, headers, producer)

        def plain(response: IResponse) -> IResponse:
            self._coded = response.headers.hasHeader(b"content-encoding")
            for name in (b"content-encoding", b"set-cookie"):  # nothing is decompressed, no cookie is read or kept
                response.headers.removeHeader(name)
            return response

        return asked.addCallback(plain)

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        return self

    def connect(self, factory: Any) -> Deferred[Any]:
        return Deferred.fromCoroutine(self._connect(factory))

    async def _connect(self, factory: Any) -> Any:
        assert self._target is not None
        last = NoAnswer(f"{self._target.host} has no address.")
        for address in (await self._addresses())[:ADDRESSES]:
            bounded = _Bounded(factory, self)
            try:
                self._wire = await self._endpoint(self._target, address).connect(bounded)
            except (ConnectError, OSError) as error:
                last = NoAnswer(_why(error))
                continue
            self._address = address
            return self._wire.wrappedProtocol
        self.why = str(last)
        raise ConnectError(string=str(last))

    async def _addresses(self) -> tuple[str, ...]:
        """All that the name has, each of them one that we may connect to."""
        assert self._target is not None
        host = self._target.host
        found = await self.fetcher.resolver.addresses(host)
        if not isinstance(found, Records):
            self.why = f"{host} was not found: {found.reason if isinstance(found, Temporary) else 'there is no such name'}."
            raise ConnectError(string=self.why)
        for address in found.values:
            why = self.fetcher.rules.refusal(address)
            if why is not None:
                self.why = f"{host} leads to an address that may not be connected to: {why}."
                raise ConnectError(string=self.why)
        return found.values

    def _endpoint(self, target: Target, address: str) -> Any:
        kind = TCP6ClientEndpoint if ":" in address else TCP4ClientEndpoint
        endpoint = kind(self.fetcher.reactor, address, target.port, timeout=CONNECT)
        return wrapClientTLS(self.fetcher.tls(target.host), endpoint) if target.secure else endpoint

    def _give_up(self, asking: Deferred[Reply], why: str) -> None:
        self.why = self.why or why
        asking.cancel()


def _place(target: Target) -> tuple[bool, str, int]:
    return target.secure, target.host, target.port


def _cancelled(error: Exception) -> bool:
    return any(reason.check(CancelledError) for reason in getattr(error, "reasons", ()))


class _Counting(ProtocolWrapper):
    """Cuts the line of whoever says more than was asked for."""

    def dataReceived(self, data: bytes) -> None:
        line = self.factory.line
        line.received += len(data)
        if line.received > line.most:
            line.close(f"The answer has more than {line.most} octets.")
        else:
            super().dataReceived(data)


class _Bounded(WrappingFactory):
    protocol = _Counting
    noisy = False

    def __init__(self, factory: Factory, line: Line) -> None:
        super().__init__(factory)
        self.line = line


class _Kept(Wire):
    """The first octets of a body; what comes after them is not waited for."""

    def __init__(self, most: int, room: Callable[[int], bool]) -> None:
        self.octets = bytearray()
        self.whole = True
        self.done: Deferred[None] = Deferred()
        self._most, self._room = most, room

    def dataReceived(self, data: bytes) -> None:
        if self.done.called:
            return
        part = data[: self._most - len(self.octets)]
        if part and not self._room(len(part)):
            self.done.errback(NoAnswer("There is no room for the answer just now."))
            return
        self.octets += part
        if len(part) < len(data):
            self.whole = False
            self.done.callback(None)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.done.called:
            return
        if reason.check(ResponseDone, PotentialDataLoss):
            self.done.callback(None)
        else:
            self.done.errback(reason)


def _why(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "The connection was refused."
    if isinstance(error, ConnectTimeout | CancelledError):
        return "The connection was not answered in time."
    reasons = getattr(error, "reasons", None)
    if reasons:
        return _why(reasons[0].value)
    if isinstance(error, TlsError):
        reasons = [str(part[-1]) for part in (error.args[0] if error.args else ()) if part]
        return f"TLS failed: {'; '.join(reasons) or 'no handshake'}."
    detail = " ".join(str(error).split())[:DETAIL].rstrip(".")
    if not isinstance(error, ConnectionClosed | ConnectError | OSError):
        return f"The answer is not valid HTTP: {detail}."
    return f"The connection failed: {detail}."
