"""Requests to web addresses that strangers gave us: webhook endpoints and linked attachments.

Each request looks the name up, checks every address that it has, and connects to one of those that were checked: what the name
leads to a moment later does not matter. Certificates are verified for the name. Redirects are not followed, proxies of the
environment not used, connections not shared. What an answer may cost is bounded in time, octets of its head and octets of its body.
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
)
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer

from mailsvc import weburl
from mailsvc.dns import NxDomain, Records, Temporary
from mailsvc.weburl import BadUrl, Rules, Target

HEAD = 64 * 1024  # octets of an answer besides the part of its body that is wanted
ADDRESSES = 3  # of a name that are tried
HOSTS = 50  # whose TLS contexts are kept; each is most of a megabyte
CONNECT = 5.0  # seconds for one of them


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
        values = self.headers.getRawHeaders(name)
        return values[0] if values else None


class Addresses(Protocol):
    """dns.Resolver"""

    async def addresses(self, host: str) -> Records[str] | NxDomain | Temporary: ...


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
        """One request and its answer within `seconds`, with the first `keep` octets of its body. Raises NoAnswer.

        `room` is asked before octets are kept, and may refuse.
        """
        try:
            target = weburl.read(url, self.rules)
        except BadUrl as error:
            raise NoAnswer(f"The URL {error}.") from None
        line = _Line(self, target, keep)
        asking = Deferred.fromCoroutine(self._ask(line, method, headers or {}, body, keep, room))
        timer = self.reactor.callLater(seconds, line.give_up, asking, f"There was no whole answer within {seconds:g} s.")
        try:
            return await asking
        except (CancelledError, ConnectingCancelledError):
            if line.why is None:  # nobody waits for it any more
                raise
            raise NoAnswer(line.why) from None
        finally:
            line.cut()
            if timer.active():
                timer.cancel()

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

    async def _ask(
        self, line: _Line, method: str, headers: Mapping[str, str], body: bytes | None, keep: int, room: Callable[[int], bool]
    ) -> Reply:
        given = Headers({name: [value] for name, value in headers.items()})
        try:
            response = await HTTPClient(line).request(
                method, line.target.text, headers=given, data=body, allow_redirects=False, unbuffered=True
            )
            kept = _Kept(keep, room)
            response.deliverBody(kept)
            await kept.done
        except (ConnectionClosed, ConnectError, TlsError, ResponseFailed, RequestNotSent, RequestTransmissionFailed, OSError) as error:
            raise NoAnswer(line.why or _why(error)) from None
        if line.why is not None:
            raise NoAnswer(line.why)
        return Reply(response.code, response.headers, bytes(kept.octets), kept.whole, line.coded)


@implementer(IAgent, IAgentEndpointFactory, IStreamClientEndpoint)
class _Line:
    """One connection for one request: an agent, and the endpoint that it connects to."""

    def __init__(self, fetcher: Fetcher, target: Target, keep: int) -> None:
        self.fetcher, self.target, self.most = fetcher, target, keep + HEAD
        self.why: str | None = None
        self.coded = False
        self._wire: Any = None
        self._agent = Agent.usingEndpointFactory(fetcher.reactor, self, HTTPConnectionPool(fetcher.reactor, persistent=False))

    def request(self, method: bytes, uri: bytes, headers: Headers | None = None, producer: IBodyProducer | None = None) -> Any:
        """What is compressed could unfold to anything: it is neither asked for nor unfolded."""
        headers = headers or Headers()
        headers.setRawHeaders(b"accept-encoding", [b"identity"])
        asked = self._agent.request(method, uri, headers, producer)

        def plain(response: IResponse) -> IResponse:
            self.coded = response.headers.hasHeader(b"content-encoding")
            response.headers.removeHeader(b"content-encoding")
            return response

        return asked.addCallback(plain)

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        return self

    def connect(self, factory: Any) -> Deferred[Any]:
        return Deferred.fromCoroutine(self._connect(factory))

    async def _connect(self, factory: Any) -> Any:
        last = NoAnswer(f"{self.target.host} has no address.")
        for address in (await self._addresses())[:ADDRESSES]:
            bounded = _Bounded(factory, self)
            try:
                self._wire = await self._endpoint(address).connect(bounded)
            except (ConnectError, OSError) as error:
                last = NoAnswer(_why(error))
                continue
            return self._wire.wrappedProtocol
        self.why = str(last)
        raise ConnectError(string=str(last))

    async def _addresses(self) -> tuple[str, ...]:
        """All that the name has, each of them one that we may connect to."""
        found = await self.fetcher.resolver.addresses(self.target.host)
        if not isinstance(found, Records):
            self.why = f"{self.target.host} was not found: {found.reason if isinstance(found, Temporary) else 'there is no such name'}."
            raise ConnectError(string=self.why)
        for address in found.values:
            why = self.fetcher.rules.refusal(address)
            if why is not None:
                self.why = f"{self.target.host} leads to an address that may not be connected to: {why}."
                raise ConnectError(string=self.why)
        return found.values

    def _endpoint(self, address: str) -> Any:
        kind = TCP6ClientEndpoint if ":" in address else TCP4ClientEndpoint
        endpoint = kind(self.fetcher.reactor, address, self.target.port, timeout=CONNECT)
        if not self.target.secure:
            return endpoint
        return wrapClientTLS(self.fetcher.tls(self.target.host), endpoint)

    def give_up(self, asking: Deferred[Reply], why: str) -> None:
        self.why = self.why or why
        asking.cancel()

    def cut(self, why: str | None = None) -> None:
        """Let go of the connection, at once and for good."""
        self.why = self.why or why
        if self._wire is not None and self._wire.transport is not None:
            self._wire.transport.abortConnection()


class _Counting(ProtocolWrapper):
    """Cuts the line of whoever says more than was asked for."""

    received = 0

    def dataReceived(self, data: bytes) -> None:
        line = self.factory.line
        self.received += len(data)
        if self.received > line.most:
            line.cut(f"The answer has more than {line.most} octets.")
        else:
            super().dataReceived(data)


class _Bounded(WrappingFactory):
    protocol = _Counting
    noisy = False

    def __init__(self, factory: Factory, line: _Line) -> None:
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
    return f"The connection failed: {' '.join(str(error).split()).rstrip('.')}."
