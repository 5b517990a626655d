"""One HTTP/1.1 connection: what Twisted's channel leaves to its user.

Every refusal is JSON with the headers that each response has. A body is not read before its request is let in. A client that
sends too slowly is asked to leave. A refused body is read to nowhere for a while, so that the answer is not lost with it.
"""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.http_headers import Headers

from mailsvc.http.problem import Problem, invalid, reason, unavailable
from mailsvc.http.request import Request

LENGTH_LINE_MAX = 1000
PIPELINED_AT_ONCE = 10  # requests of one connection that are answered before others have their turn


class Channel(http.HTTPChannel):
    """Made by the site for each connection. `site` and the time-outs come from there."""

    site: Any  # ApiSite
    transport: Any
    totalHeadersSize = 16_384
    maxHeaders = 100
    _held = False
    _refusing = False
    _pace: IDelayedCall | None = None
    _paced = 0  # octets since the pace was last looked at
    _lingering: IDelayedCall | None = None
    _last: IDelayedCall | None = None
    _untaken: Request | None = None  # answered, and the client has not taken the answer yet
    _client: str | None = None  # the address that the connection counts for; None: a trusted proxy
    _entered = _lost = False
    _answered = 0  # requests since others last had their turn
    _next_turn: IDelayedCall | None = None

    # The beginning

    def connectionMade(self) -> None:
        super().connectionMade()
        self._client = self.site.counted_for(self.transport.getPeer())
        self._entered = self.site.connections.enter(self, self._client)
        if not self._entered:
            self._refuse_raw(unavailable(5), linger=self.site.may_linger(self))

    @property
    def idle(self) -> bool:
        """Whether nobody would lose an answer with it: no request with a key has come in, and none is complete."""
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
            self._watch_pace()
        elif self._pace is not None:
            self._pace.cancel()
            self._pace = None

    def lineReceived(self, line: bytes) -> None:
        if not self._refusing:
            super().lineReceived(line)

    def rawDataReceived(self, data: bytes) -> None:
        if not self._refusing:
            super().rawDataReceived(data)

    def headerReceived(self, line: bytes) -> bool:
        if len(line) > LENGTH_LINE_MAX and line.lower().startswith(b"content-length:"):
            self._respondToBadRequestAndDisconnect()  # Python does not convert numbers of more than 4300 digits
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
        """The request whose headers are here and whose body is not."""
        if self._handlingRequest or not self.requests:
            return None
        request = cast(Request, self.requests[-1])
        return request if request.begun else None

    # Writing

    def writeHeaders(self, version: bytes, code: bytes, reason: bytes, headers: Headers) -> None:
        """What is the same in every response never becomes a header object."""
        request = cast(Request, self.requests[0])
        lines = [b"%s %s %s\r\n" % (version, code, reason), request.common_lines()]
        lines += [b"%s: %s\r\n" % (name, value) for name, values in headers.getAllRawHeaders() for value in values]
        self.transport.write(b"".join([*lines, b"\r\n"]))

    # Waiting for the gate

    def hold(self) -> None:
        """Read no further: it is not known yet whether the request may come in."""
        self._held = True
        self._networkProducer.pauseProducing()

    def let_in(self, expects_continue: bool) -> None:
        """The request may come in; 9110 §10.1.1: tell a client that waits for it."""
        if expects_continue and self._version_allows_continue():
            self._send100Continue()
        self._go_on()

    def keep_out(self, request: Request) -> None:
        """The request may not come in. When its body is still on its way, the connection ends with the answer."""
        held = self._held
        self._go_on()
        if held and self._unfinished() is request:
            self._refuse(request)

    def _go_on(self) -> None:
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

    # Too slow

    def _watch_pace(self) -> None:
        if self._pace is None:
            self._paced = 0
            self._pace = self.callLater(self.site.limits.patience, self._look_at_pace)

    def _look_at_pace(self) -> None:
        """A body needs a pace all the time, and an average that bounds how long all of it may take."""
        self._pace = None
        limits, request = self.site.limits, self._unfinished()
        late = request is not None and request.late
        if self._held or (self._paced >= limits.patience * limits.slowest and not late):
            self._watch_pace()
            return
        problem = invalid("The request did not arrive in time.", 408)  # 9110 §15.5.9
        if request is None:
            self._refuse_raw(problem)
        else:
            request.problem = problem
            self._refuse(request)

    # Refusing

    def _refuse(self, request: Request) -> None:
        """Answer a request whose body has not arrived whole, and read no other one."""
        self._stop_reading()
        request.answer_unread()

    def _respondToBadRequestAndDisconnect(self) -> None:
        """Called by the parser; which rule was broken shows in its counters."""
        if self._refusing:
            return
        if self._receivedHeaderSize > self.totalHeadersSize:
            self._refuse_raw(invalid(f"The request line and the headers have more than {self.totalHeadersSize} bytes.", 431))  # 6585 §5
        elif self._receivedHeaderCount > self.maxHeaders:
            self._refuse_raw(invalid(f"The request has more than {self.maxHeaders} headers.", 431))
        else:
            self._refuse_raw(invalid("The request is not valid HTTP/1.1.", 400))

    def _refuse_raw(self, problem: Problem, *, linger: bool = True) -> None:
        """Answer what never became a request."""
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
        self._go_on()
        if self._pace is not None:
            self._pace.cancel()
            self._pace = None
        self.setRawMode()

    def _linger(self) -> None:
        """Closing over unread octets would reset the connection and could take the answer with it (9112 §9.6)."""
        self.setTimeout(self.site.limits.linger)
        self._lingering = self.callLater(self.site.limits.linger_most, self._leave)

    def _leave(self) -> None:
        self._lingering = None
        self.timeoutConnection()

    def timeoutConnection(self) -> None:
        """Silent for too long: close, by force when the client does not read what it still gets."""
        if self._untaken is not None:
            self.abort()
        elif self._abortingCall is None:
            self._abortingCall = self.callLater(self.abortTimeout, self.forceAbortClient)
            self.loseConnection()

    def requestDone(self, request: Request) -> None:
        """The next request is not begun before the client has taken the answer to this one: only one answer waits in memory."""
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
        """Begin the next request of this connection, after others had their turn if many came together."""
        self._answered += 1
        if self._answered < PIPELINED_AT_ONCE or not (self._buffer or self._dataBuffer):
            super().requestDone(request)
            return
        self.paused = True  # what is here stays in the buffer of the line receiver, and so does what still comes
        super().requestDone(request)
        self._networkProducer.pauseProducing()
        self._next_turn = self.callLater(0, self._take_turn)

    def _take_turn(self) -> None:
        """Go on with requests that were sent together with others."""
        self._next_turn, self._answered, self.paused = None, 0, False
        if not (self._held or self._waitingForTransport):
            self._networkProducer.resumeProducing()
        self.dataReceived(b"")

    def loseConnection(self) -> None:
        """Close once the client has taken everything, or by force when it does not in time."""
        if self._abortingCall is None and not self._lost:
            self._abortingCall = self.callLater(self.site.limits.unread, self.forceAbortClient)
        super().loseConnection()

    def abort(self) -> None:
        """Close now; what the client has not taken is thrown away."""
        if self._abortingCall is not None:
            self._abortingCall.cancel()
            self._abortingCall = None
        self.transport.abortConnection()

    # The end

    def drain(self) -> None:
        """The request in work gets its answer and is the last; so does one that is on its way already."""
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
        self.requests.clear()  # each knows its channel: nothing is to wait for the garbage collector
        self._requestProducer = None
        self.site.gone(self)
