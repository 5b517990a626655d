"""HTTP requests to URLs from customers: webhook endpoints and attachments.

Each request looks up the host, checks all of its addresses, and connects to one that was checked, so a DNS change in between has no
effect. Certificates are verified for the host. Redirects are not followed and proxy variables are ignored. A connection serves one
request, or several to the same host and port (HttpConnection). Time, header size and body size are limited.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Protocol, Required, TypedDict, Unpack

import attrs
from OpenSSL.SSL import Error as TlsError
from service_identity.exceptions import VerificationError
from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, wrapClientTLS
from twisted.internet.error import ConnectError, ConnectingCancelledError, ConnectionClosed, ConnectionDone, ConnectionRefusedError
from twisted.internet.error import TimeoutError as ConnectTimeout
from twisted.internet.interfaces import IDelayedCall, IStreamClientEndpoint
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.protocol import Protocol as TwistedProtocol
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

from mailsvc.net import closing, urls
from mailsvc.net.dns import Records, Resolver, Temporary
from mailsvc.net.urls import BadUrl, Rules, Target

SECONDS = 0.005  # of a turn of the reactor for one connection
HEAD = 64 * 1024  # bytes of a response besides the body
PIECE = 4096  # bytes that are parsed at a time; a slice ends between two pieces
ADDRESSES = 3  # that are tried for each request
HOSTS = 50  # whose TLS contexts are cached; each takes almost a megabyte
CONNECT = 5.0  # seconds for each address
DETAIL = 200  # characters of a parser's error message
_HOST = "host.invalid"  # in the URL that treq gets; the request has the real host, which IDNA may not have, such as my_shop.example

log = Logger()


class FetchError(Exception):
    """Why there is no usable response, as a sentence for people."""


class CertificateError(FetchError):
    """The server's certificate is not valid, or is for another host."""


@attrs.frozen
class Reply:
    """A response. `whole`: the body is complete, not cut at `keep`. `coded`: the body is still compressed."""

    status: int
    headers: Headers
    body: bytes = attrs.field(repr=False)
    whole: bool
    coded: bool = False

    def header(self, name: str) -> str | None:
        values = self.headers.getRawHeaders(name.encode("ascii"))
        return values[0].decode("utf-8", "replace") if values else None


class Options(TypedDict, total=False):
    """The options of a request: a timeout, and how many bytes of the body to `keep`.

    `reserve` is called before bytes are kept, and can refuse them.
    """

    seconds: Required[float]
    keep: Required[int]
    headers: Mapping[str, str | Sequence[str]] | None
    body: bytes | None
    reserve: Callable[[int], bool]


class HttpClient(Protocol):
    """A Fetcher or an HttpConnection."""

    async def fetch(self, method: str, url: str, **options: Unpack[Options]) -> Reply: ...


@attrs.define(eq=False)
class Fetcher:
    """Makes requests. `trust`: the certificate authorities; None: those of this machine."""

    reactor: Any
    resolver: Resolver
    rules: Rules
    trust: Any = None
    _tls: OrderedDict[str, Any] = attrs.field(factory=OrderedDict, init=False, repr=False)

    async def fetch(self, method: str, url: str, **options: Unpack[Options]) -> Reply:
        """Makes a request over its own connection. Raises FetchError."""
        return await HttpConnection(self, persistent=False).fetch(method, url, **options)

    def connection(self) -> HttpConnection:
        """Returns a connection for several requests. The caller closes it."""
        return HttpConnection(self, persistent=True)

    def tls(self, host: str) -> Any:
        """Returns the TLS options that verify `host`. Cached, because loading the certificate authorities is slow."""
        options = self._tls.pop(host, None)
        if options is None:
            options = _tls_options(host, {} if self.trust is None else {"trustRoot": self.trust})
        self._tls[host] = options
        while len(self._tls) > HOSTS:
            self._tls.popitem(last=False)
        return options


@implementer(IAgent, IAgentEndpointFactory, IStreamClientEndpoint)
class HttpConnection:
    """A connection for one or more requests. It implements both the agent and the endpoint that the agent connects to.

    The first request connects. A `persistent` connection is reused if the last response was complete, the server kept the connection
    open, and the host, looked up and checked again, still has the same address.
    """

    def __init__(self, fetcher: Fetcher, *, persistent: bool) -> None:
        self.fetcher = fetcher
        self.failure: str | None = None
        self.limit = self.received = 0  # bytes of the current response
        self.header_complete = False
        self._coded = False
        self._url: str | None = None
        self._target: Target | None = None  # the parsed URL
        self._address: str | None = None
        self._open: Any = None
        self._pool = HTTPConnectionPool(fetcher.reactor, persistent=persistent)
        self._pool.retryAutomatically, self._pool.maxPersistentPerHost = False, 1
        self._agent = Agent.usingEndpointFactory(fetcher.reactor, self, self._pool)

    async def fetch(self, method: str, url: str, **options: Unpack[Options]) -> Reply:
        """Makes a request. Raises FetchError."""
        target = self._target if url == self._url and self._target is not None else self._read(url)
        seconds = options["seconds"]
        self.failure, self.limit, self.received, self.header_complete = None, options["keep"] + HEAD, 0, False
        fetching = Deferred.fromCoroutine(self._fetch(method, target, options))
        timer = self.fetcher.reactor.callLater(seconds, self._give_up, fetching, f"There was no complete response within {seconds:g} s.")
        try:
            return await fetching
        except (CancelledError, ConnectingCancelledError):
            if self.failure is None:  # cancelled by the caller
                raise
            raise FetchError(self.failure) from None
        finally:
            if self.failure is not None or not self._idle():
                self.close()
            if timer.active():
                timer.cancel()

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def close(self, failure: str | None = None) -> None:
        """Closes the connection, by force unless the last response was complete. The next request makes a new one."""
        self.failure = self.failure or failure
        complete = self.failure is None and self._complete()
        open_, self._open = self._open, None
        if open_ is not None and open_.transport is not None:
            closing.close(open_.transport, self.fetcher.reactor, complete=complete)
        self._pool.closeCachedConnections()

    def _read(self, url: str) -> Target:
        try:
            target = urls.read(url, self.fetcher.rules)
        except BadUrl as error:
            raise FetchError(f"The URL {error}.") from None
        if self._target is not None and _origin(self._target) != _origin(target):
            self.close()
        self._url, self._target = url, target
        return target

    async def _fetch(self, method: str, target: Target, options: Options) -> Reply:
        try:
            reused = await self._can_reuse()
            try:
                return await self._request(method, target, options)
            except (ResponseNeverReceived, RequestNotSent, RequestTransmissionFailed) as error:
                if not reused or self.received or self.failure is not None or _cancelled(error):
                    raise
            self.close()  # the server closed the idle connection, as it may at any time: connect again
            return await self._request(method, target, options)
        except (ConnectionClosed, ConnectError, TlsError, ResponseFailed, RequestNotSent, RequestTransmissionFailed, OSError) as error:
            raise (_error(error) if self.failure is None else FetchError(self.failure)) from None
        except (FetchError, CancelledError, ConnectingCancelledError):
            raise
        except Exception:  # whatever a response does to the code that parses it
            log.failure("The response of {host} could not be parsed.", host=target.host)
            raise FetchError("The response could not be parsed.") from None

    async def _request(self, method: str, target: Target, options: Options) -> Reply:
        headers, body = _headers(options.get("headers") or {}), options.get("body")
        url = attrs.evolve(target, host=_HOST).text
        response = await HTTPClient(self).request(method, url, headers=headers, data=body, allow_redirects=False, unbuffered=True)
        kept = _Body(options["keep"], options.get("reserve", lambda size: True))
        response.deliverBody(kept)
        await kept.done
        if self.failure is not None:
            raise FetchError(self.failure)
        if not 100 <= response.code <= 599:  # 9110 §15: everything else is invalid
            raise FetchError("The response is not valid HTTP: its status code is not between 100 and 599.")
        return Reply(response.code, response.headers, bytes(kept.data), kept.whole, self._coded)

    def _complete(self) -> bool:
        """Whether the last response was complete."""
        return self._open is not None and self._open.wrappedProtocol.state == "QUIESCENT"

    def _idle(self) -> bool:  # it can be used again
        return self._pool.persistent and self._complete()

    async def _can_reuse(self) -> bool:
        if not self._idle():
            return False
        if self._address in await self._addresses():
            return True
        self.close()
        return False

    def request(self, method: bytes, uri: bytes, headers: Headers | None = None, producer: IBodyProducer | None = None) -> Any:
        """Neither requests nor decompresses compressed responses: their size could be anything."""
        assert self._target is not None
        headers, host = headers or Headers(), self._target.authority.encode("ascii")
        uri = uri.replace(attrs.evolve(self._target, host=_HOST).authority.encode("ascii"), host, 1)
        headers.setRawHeaders(b"host", [host])
        headers.setRawHeaders(b"accept-encoding", [b"identity"])
        requested = self._agent.request(method, uri, headers, producer)

        def plain(response: IResponse) -> IResponse:
            self.header_complete = True
            self._coded = response.headers.hasHeader(b"content-encoding")
            for name in (b"content-encoding", b"set-cookie"):  # treq then neither decompresses nor reads cookies
                response.headers.removeHeader(name)
            return response

        return requested.addCallback(plain)

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        return self

    def connect(self, factory: Any) -> Deferred[Any]:
        return Deferred.fromCoroutine(self._connect(factory))

    async def _connect(self, factory: Any) -> Any:
        assert self._target is not None
        last = FetchError(f"{self._target.host} has no address.")
        for address in (await self._addresses())[:ADDRESSES]:
            limited = _LimitedFactory(factory, self)
            try:
                self._open = await self._endpoint(self._target, address).connect(limited)
            except (ConnectError, OSError) as error:
                last = FetchError(_describe(error))
                continue
            self._address = address
            return self._open.wrappedProtocol
        self.failure = str(last)
        raise ConnectError(string=str(last))

    async def _addresses(self) -> tuple[str, ...]:
        """Returns all addresses of the host. Raises ConnectError if any of them may not be connected to."""
        assert self._target is not None
        host = self._target.host
        found = await self.fetcher.resolver.addresses(host)
        if not isinstance(found, Records):
            self.failure = f"{host} was not found: {found.reason if isinstance(found, Temporary) else 'the name does not exist'}."
            raise ConnectError(string=self.failure)
        for address in found.values:
            refusal = self.fetcher.rules.refusal(address)
            if refusal is not None:
                self.failure = f"{host} has an address that may not be connected to: {refusal}."
                raise ConnectError(string=self.failure)
        return found.values

    def _endpoint(self, target: Target, address: str) -> Any:
        kind = TCP6ClientEndpoint if ":" in address else TCP4ClientEndpoint
        endpoint = kind(self.fetcher.reactor, address, target.port, timeout=CONNECT)
        return wrapClientTLS(self.fetcher.tls(target.host), endpoint) if target.secure else endpoint

    def _give_up(self, fetching: Deferred[Reply], failure: str) -> None:
        self.failure = self.failure or failure
        fetching.cancel()


def _tls_options(host: str, more: Mapping[str, Any]) -> Any:
    """Twisted's options that verify `host`. A name that IDNA does not have is set afterwards: DNS and certificates can have it."""
    try:
        return optionsForClientTLS(host, **more)
    except UnicodeError:
        options: Any = optionsForClientTLS(_HOST, **more)
        options._hostname = options._hostnameASCII = host
        options._hostnameBytes = host.encode("ascii")
        return options


def _headers(given: Mapping[str, str | Sequence[str]]) -> Headers:
    """A field with several values is repeated."""
    return Headers({name: [value] if isinstance(value, str) else list(value) for name, value in given.items()})


def _origin(target: Target) -> tuple[bool, str, int]:
    return target.secure, target.host, target.port


def _cancelled(error: Exception) -> bool:
    return any(reason.check(CancelledError) for reason in getattr(error, "reasons", ()))


class _LimitedProtocol(ProtocolWrapper):
    """Closes the connection if a response or its header is too large. Parses in slices, so that other connections go on meanwhile."""

    transport: Any
    _unparsed = b""
    _turn: IDelayedCall | None = None
    _paused = False  # by the parser

    def dataReceived(self, data: bytes) -> None:
        connection = self.factory.connection
        connection.received += len(data)
        if connection.received > connection.limit:
            connection.close(f"The response has more than {connection.limit} bytes.")
            return
        self._unparsed += data
        if self._turn is None:
            self._parse()

    def _parse(self) -> None:
        """Parse what arrived, or as much as fits into a slice."""
        connection, resumed, self._turn = self.factory.connection, self._turn is not None, None
        until = monotonic() + SECONDS
        data, at = self._unparsed, 0
        while at < len(data) and connection.is_open:
            if not connection.header_complete and connection.received - len(data) + at >= HEAD:
                connection.close(f"The header of the response has more than {HEAD} bytes.")
                return
            super().dataReceived(data[at : at + PIECE])
            at += PIECE
            if monotonic() >= until:
                break
        self._unparsed = data[at:]
        if self._unparsed and connection.is_open:
            self.transport.pauseProducing()
            self._turn = connection.fetcher.reactor.callLater(0, self._parse)
        elif resumed and not self._paused:
            self.transport.resumeProducing()

    def pauseProducing(self) -> None:
        self._paused = True
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        self._paused = False
        if self._turn is None:
            self.transport.resumeProducing()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._turn is not None:
            self._turn.cancel()
        self._turn, self._unparsed = None, b""
        super().connectionLost(reason)


class _LimitedFactory(WrappingFactory):
    protocol = _LimitedProtocol
    noisy = False

    def __init__(self, factory: Factory, connection: HttpConnection) -> None:
        super().__init__(factory)
        self.connection = connection


class _Body(TwistedProtocol):
    """Keeps the first bytes of a body, and does not wait for the rest."""

    def __init__(self, keep: int, reserve: Callable[[int], bool]) -> None:
        self.data = bytearray()
        self.whole = True
        self.done: Deferred[None] = Deferred()
        self._keep, self._reserve = keep, reserve

    def dataReceived(self, data: bytes) -> None:
        if self.done.called:
            return
        part = data[: self._keep - len(self.data)]
        if part and not self._reserve(len(part)):
            self.done.errback(FetchError("There is not enough memory for the response at the moment."))
            return
        self.data += part
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


def _error(error: BaseException) -> FetchError:
    cause = error
    while reasons := getattr(cause, "reasons", None):
        cause = reasons[0].value
    invalid = isinstance(cause, VerificationError) or (isinstance(cause, TlsError) and "certificate verify failed" in str(cause))
    return (CertificateError if invalid else FetchError)(_describe(error))


def _describe(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "The connection was refused."
    if isinstance(error, ConnectTimeout | CancelledError):
        return "The connection timed out."
    if isinstance(error, ConnectionDone):
        return "The connection was closed before the response was complete."
    reasons = getattr(error, "reasons", None)
    if reasons:
        return _describe(reasons[0].value)
    if isinstance(error, TlsError):
        reasons = [str(part[-1]) for part in (error.args[0] if error.args else ()) if part]
        return f"TLS failed: {'; '.join(reasons) or 'the handshake failed'}."
    if isinstance(error, VerificationError):
        return "TLS failed: the certificate is not for this host."
    detail = " ".join(str(error).split())[:DETAIL].rstrip(".")
    if not isinstance(error, ConnectionClosed | ConnectError | OSError):
        return f"The response is not valid HTTP: {detail}."
    return f"The connection failed: {detail}."
