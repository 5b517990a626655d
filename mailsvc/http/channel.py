"""One HTTP/1.1 connection: what Twisted's channel leaves to its user.

Every refusal is JSON with the headers of all responses. A body is not read before its request is admitted. Clients that send too slowly are
disconnected. A refused body is read and discarded for a while, so that its client gets the response.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from twisted.internet.interfaces import IAddress, IDelayedCall
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.http_headers import Headers

from mailsvc.http.problem import Problem, invalid, reason, unavailable
from mailsvc.http.request import Request
from mailsvc.net.writing import write

LENGTH_LINE_MAX = 1000
PIPELINED_AT_ONCE = 10  # requests of one connection that are answered in a row
CHUNKS_AT_ONCE = 200  # chunks of a body that are decoded in a row, and as many more as fit into a piece
PIECE = 2048  # bytes of a body that are decoded at a time


class Channel(http.HTTPChannel):
    """Created by the site for each connection. `site` and the timeouts come from there."""

    site: Any  # ApiSite
    transport: Any
    totalHeadersSize = 16_384
    maxHeaders = 100
    _held = False
    _refusing = False
    _pace: IDelayedCall | None = None
    _paced = 0  # bytes since the last check of the speed
    _lingering: IDelayedCall | None = None
    _last: IDelayedCall | None = None
    _header = b""  # of the response, until its body follows or it ends
    _host: IAddress | None = None
    _untaken: Request | None = None  # answered, and the client hasn't read the response yet
    _client: str | None = None  # the address that the connection counts for; None: a trusted proxy
    _entered = _lost = False
    _answered = 0  # requests since other connections had their turn
    _next_turn: IDelayedCall | None = None

    # Opening

    def connectionMade(self) -> None:
        super().connectionMade()
        self._client = self.site.counted_for(self.transport.getPeer())
        self._entered = self.site.connections.enter(self, self._client)
        if not self._entered:
            self._refuse_raw(unavailable(5), linger=self.site.can_linger(self))

    @property
    def idle(self) -> bool:
        """Whether closing it loses no response: it has neither a complete request nor one with an API key."""
        return not any(cast(Request, request).matters for request in self.requests)

    @property
    def proxied(self) -> bool:
        return self._client is None

    def evict(self) -> None:
        self._stop_reading()
        self.abort()

    # Reading

    def dataReceived(self, data: bytes) -> None:
        if self._refusing:
            self.resetTimeout()
            return
        self._paced += len(data)
        super().dataReceived(data)
        if self._refusing:
            return
        unfinished = self._unfinished()
        if unfinished is not None and unfinished.problem is not None:
            self._refuse(unfinished)
        elif not self._handlingRequest and (self.requests or self._buffer):
            self._start_pace()
        elif self._pace is not None:
            self._pace.cancel()
            self._pace = None

    def lineReceived(self, line: bytes) -> None:
        if not self._refusing:
            super().lineReceived(line)

    def rawDataReceived(self, data: bytes) -> None:
        """Decode a body in pieces. After many small chunks, other connections go first."""
        unfinished = self._unfinished()
        enough = 0 if unfinished is None else unfinished.chunks + CHUNKS_AT_ONCE
        at = 0
        while at < len(data) and not self._refusing:
            piece = data[at : at + PIECE] if self.length is None else data
            at += len(piece)
            super().rawDataReceived(piece)
            if self.line_mode or unfinished is None or unfinished.chunks > enough:
                break
        if at < len(data) and not self._refusing:
            self._buffer += data[at:]
            if not self.line_mode:
                self._wait_for_turn()

    def headerReceived(self, line: bytes) -> bool:
        if len(line) > LENGTH_LINE_MAX and line.lower().startswith(b"content-length:"):
            self._respondToBadRequestAndDisconnect()  # Python doesn't convert numbers with more than 4300 digits
            return False
        return bool(super().headerReceived(line))

    def lineLengthExceeded(self, line: bytes) -> None:
        self._receivedHeaderSize = self.totalHeadersSize + 1
        self._respondToBadRequestAndDisconnect()

    def allHeadersReceived(self) -> None:
        request = self.requests[-1]
        self.persistent = self.checkPersistence(request, self._version)
        request.begin(self._command, self._path, self._version, self.length)

    def _unfinished(self) -> Request | None:
        """The request whose headers have arrived and whose body has not."""
        if self._handlingRequest or not self.requests:
            return None
        request = cast(Request, self.requests[-1])
        return request if request.begun else None

    # Writing

    def writeHeaders(self, version: bytes, code: bytes, reason: bytes, headers: Headers) -> None:
        """Write the header, together with what follows it. For speed, the common lines never become header objects."""
        request = cast(Request, self.requests[0])
        lines = [b"%s %s %s\r\n" % (version, code, reason), request.common_lines()]
        lines += [b"%s: %s\r\n" % (name, value) for name, values in headers.getAllRawHeaders() for value in values]
        self._header = b"".join([*lines, b"\r\n"])

    def write(self, data: bytes) -> None:
        """A streamed response waits in the transport, which lets other connections have their turns however fast this client reads."""
        header, self._header = self._header, b""
        data = header + data if header else data
        if self._requestProducer is None:
            write(self.transport, data)
        else:
            self.transport.write(data)

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        self.write(b"".join(iovec))

    def getHost(self) -> IAddress:
        """The server's address of this connection. Finding it out takes a system call, so it is done once."""
        if self._host is None:
            self._host = super().getHost()
        return self._host

    # Admission

    def hold(self) -> None:
        """Stop reading until the gate has decided."""
        self._held = True
        self._networkProducer.pauseProducing()

    def admit(self, expects_continue: bool) -> None:
        """The request is admitted: tell a client that waits for that (9110 §10.1.1), and read on."""
        if expects_continue and self._version_allows_continue():
            self._send100Continue()
        self._read_on()

    def refuse(self, request: Request) -> None:
        """The request is refused. If its body hasn't arrived yet, the connection closes after the response."""
        held = self._held
        self._read_on()
        if held and self._unfinished() is request:
            self._refuse(request)

    def _read_on(self) -> None:
        if self._held:
            self._held = False
            self._paced = 0
            if not self._waitingForTransport:
                self._networkProducer.resumeProducing()

    def _version_allows_continue(self) -> bool:
        return getattr(self, "_version", b"") == b"HTTP/1.1"

    def resumeProducing(self) -> None:
        if not self._held:
            super().resumeProducing()
            untaken, self._untaken = self._untaken, None
            if untaken is not None:
                self._proceed(untaken)
            return
        self._waitingForTransport = False
        if self._requestProducer is not None:
            self._requestProducer.resumeProducing()

    # Slow clients

    def _start_pace(self) -> None:
        if self._pace is None:
            self._paced = 0
            self._pace = self.callLater(self.site.limits.patience, self._check_pace)

    def _check_pace(self) -> None:
        """A body needs a minimum speed at all times, and an average that limits how long it can take."""
        self._pace = None
        limits, request = self.site.limits, self._unfinished()
        late = request is not None and request.late
        if self._held or (self._paced >= limits.patience * limits.slowest and not late):
            self._start_pace()
            return
        problem = invalid("The request did not arrive in time.", 408)  # 9110 §15.5.9
        if request is None:
            self._refuse_raw(problem)
        else:
            request.problem = problem
            self._refuse(request)

    # Refusing

    def _refuse(self, request: Request) -> None:
        """Respond to a request whose body hasn't arrived completely, and read no further request."""
        self._stop_reading()
        request.answer_unread()

    def _respondToBadRequestAndDisconnect(self) -> None:
        """Called by the parser. Its counters show which rule was broken."""
        if self._refusing:
            return
        if self._receivedHeaderSize > self.totalHeadersSize:
            self._refuse_raw(invalid(f"The request line and the headers have more than {self.totalHeadersSize} bytes.", 431))  # 6585 §5
        elif self._receivedHeaderCount > self.maxHeaders:
            self._refuse_raw(invalid(f"The request has more than {self.maxHeaders} headers.", 431))
        else:
            self._refuse_raw(invalid("The request is not valid HTTP/1.1.", 400))

    def _refuse_raw(self, problem: Problem, *, linger: bool = True) -> None:
        """Respond to bytes that never became a request."""
        self._stop_reading()
        body = problem.body()
        first = b"HTTP/1.1 %d %s\r\n" % (problem.status, reason(problem.status))
        common = self.site.common_lines(self.getPeer())
        common += b"".join(b"%s: %s\r\n" % (name.lower().encode(), value.encode()) for name, value in problem.headers.items())
        self.transport.write(b"%s%sconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (first, common, len(body), body))
        self.site.log_raw(problem.status)
        if linger:
            self._linger()
        else:
            self.loseConnection()

    def _stop_reading(self) -> None:
        self._refusing = True
        self.persistent = False
        self.setTimeout(None)
        self._read_on()
        if self._pace is not None:
            self._pace.cancel()
            self._pace = None
        self.setRawMode()

    def _linger(self) -> None:
        """Read on for a while: closing with unread bytes would reset the connection and could lose the response (9112 §9.6)."""
        self.setTimeout(self.site.limits.linger)
        self._lingering = self.callLater(self.site.limits.linger_most, self._leave)

    def _leave(self) -> None:
        self._lingering = None
        self.timeoutConnection()

    def timeoutConnection(self) -> None:
        """Idle for too long: close, by force if the client doesn't read the rest."""
        if self._untaken is not None:
            self.abort()
        elif self._abortingCall is None:
            self._abortingCall = self.callLater(self.abortTimeout, self.forceAbortClient)
            self.loseConnection()

    def requestDone(self, request: Request) -> None:
        """Start the next request after the client has read this response, so that only one response is in memory."""
        if self._header:
            self.write(b"")
        if self._refusing:
            self.requests.remove(request)
            self._linger()
            return
        if self._waitingForTransport and self.persistent:
            self._untaken = request
            self.setTimeout(self.site.limits.unread)
            return
        self._proceed(request)

    def _proceed(self, request: Request) -> None:
        """Start the next request; after several in a row, other connections go first."""
        self._answered += 1
        if self._answered < PIPELINED_AT_ONCE or not (self._buffer or self._dataBuffer):
            super().requestDone(request)
            return
        self._wait_for_turn()
        super().requestDone(request)

    def _wait_for_turn(self) -> None:
        """Let other connections go first. Everything stays in the buffer of the line receiver."""
        self.paused = True
        self._networkProducer.pauseProducing()
        if self._next_turn is None:
            self._next_turn = self.callLater(0, self._take_turn)

    def _take_turn(self) -> None:
        """Continue with what is in the buffer."""
        self._next_turn, self._answered, self.paused = None, 0, False
        if not (self._held or self._waitingForTransport):
            self._networkProducer.resumeProducing()
        self.dataReceived(b"")

    def loseConnection(self) -> None:
        """Close when the client has read everything, or by force if it takes too long."""
        if self._abortingCall is None and not self._lost:
            self._abortingCall = self.callLater(self.site.limits.unread, self.forceAbortClient)
        super().loseConnection()

    def abort(self) -> None:
        """Close now and discard what the client hasn't read."""
        if self._abortingCall is not None:
            self._abortingCall.cancel()
            self._abortingCall = None
        self.transport.abortConnection()

    # Shutdown

    def drain(self) -> None:
        """Close after the current request, or after one that is already on its way."""
        if not self.requests:
            self._last = self.callLater(self.site.limits.last, self._give_up)
            return
        self.persistent = False
        for request in self.requests:
            request.responseHeaders.setRawHeaders(b"connection", [b"close"])

    def _give_up(self) -> None:
        self._last = None
        if not (self.requests or self.transport.disconnecting):
            self.loseConnection()

    def checkPersistence(self, request: Request, version: bytes) -> bool:
        if self.site.draining:
            request.responseHeaders.setRawHeaders(b"connection", [b"close"])
            return False
        return bool(super().checkPersistence(request, version))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        for call in (self._pace, self._lingering, self._last, self._next_turn):
            if call is not None:
                call.cancel()
        self._pace = self._lingering = self._last = self._next_turn = self._untaken = None
        self._lost = True
        if self._entered:
            self.site.connections.leave(self, self._client)
        super().connectionLost(reason)
        self.requests.clear()  # breaks reference cycles
        self._requestProducer = None
        self.site.closed(self)
