"""One request: its admission, its body, its response. What it does is up to the resource that renders it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncGenerator, Coroutine
from functools import partial
from io import BytesIO
from typing import IO, Any, TypeVar
from urllib.parse import unquote_to_bytes

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http, server

from mailsvc.http.gate import Entry, Gate, Head, too_large
from mailsvc.http.problem import JSON, Problem, moved_key, no_endpoint, reason, unavailable
from mailsvc.http.request_log import HUNG_UP
from mailsvc.http.stream import CHUNK, Flow, chunks_of, in_file
from mailsvc.runtime.budget import Hold
from mailsvc.runtime.tracing import Span
from mailsvc.store.cache import MAX_AGE
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.postgres.detach import detached

T = TypeVar("T")
log = Logger()

STREAMED = 512 * 1024  # bytes of memory that a streamed response uses


class Request(server.Request):
    """`begin` is called when the headers have arrived, `process` when the body has. `problem` is why the request is refused."""

    site: Any  # ApiSite
    channel: Any  # Channel
    defaultContentType = None  # it is one of the common header lines
    content_type = JSON
    entry: Entry | None = None
    problem: Problem | None = None
    begun = False
    page = False
    received = chunks = 0  # bytes of the body, and the pieces that they came in
    started = 0.0
    json: object = None  # the JSON of the body, for the request log
    response_json: object = None  # and of the response
    unlogged = False  # the request log gets neither of them
    email_id: str | None = None  # of the email that it sends, for the log
    span: Span | None = None  # of its trace, if requests are traced
    _whole = False
    _works = False
    _announced: int | None = 0
    _hold: Hold | None = None  # what it uses of its budget
    _counted_for: str | None = None  # the client behind a trusted proxy
    _large: bytes | None = None  # a response body that is too large to write at once
    _outgoing: IO[bytes] | None = None  # the same, in a file
    _streams = _recorded = False
    content: IO[bytes] | None = None

    # Admission

    def begin(self, method: bytes, target: bytes, version: bytes, length: int | None) -> None:
        self.begun = True
        self.started = self.channel.site.reactor.seconds()
        self.site = self.channel.site
        self.method, self.uri, self.clientproto = method, target, version
        origin_form, host = _parts(target)
        hosts = len(self.requestHeaders.getRawHeaders(b"host", []))
        if host is not None and (hosts == 1 or (hosts == 0 and version != b"HTTP/1.1")):  # others are refused
            self.requestHeaders.setRawHeaders(b"host", [host])
        path, _, query = origin_form.partition(b"?")
        self.path = path.rstrip(b"/") or b"/"
        self.args = http.parse_qs(query, 1) if query else {}
        self.content = _body_file(length, self.site.limits.spool_above)
        self.page = self.site.is_page(self.path)
        self._announced = length
        if not self._count():
            self._decided(unavailable())
            return
        head = Head(method, self.path, version, self.requestHeaders, self.address, length, self.site.knows(self.path), self.page)
        decision = Deferred.fromCoroutine(self.site.gate.admit(head))
        if not decision.called:
            self.channel.hold()
        decision.addCallbacks(self._entered, self._failed)
        decision.addErrback(self._defective)

    def address(self) -> str:
        """The client's address; of IPv6 its /64."""
        return str(self.site.address(self.client, self.requestHeaders.getRawHeaders(b"x-forwarded-for") or []))

    def _count(self) -> bool:
        """Whether the client is within its limit: behind a trusted proxy, as many requests as it could have connections."""
        if not self.channel.proxied:
            return True
        client = self.address()
        if client == self.site.address(self.client, []):  # the proxy itself
            return True
        if not self.site.connections.begin(client):
            return False
        self._counted_for = client
        return True

    def _entered(self, entry: Entry) -> None:
        if self._disconnected:
            return
        self.entry, self._hold = entry, entry.hold
        if self.site.tracing is not None and entry.caller is not None:
            self.span = self.site.begin_span(self)
        self._decided(entry.problem or self._too_much())

    def _failed(self, failure: Failure) -> None:
        if not self._disconnected:
            self._decided(self.site.translated(failure))

    def _defective(self, failure: Failure) -> None:
        self.processingFailed(failure)

    def _decided(self, problem: Problem | None) -> None:
        self.problem = problem
        if problem is None:
            self.channel.admit(self._expects_continue())
        else:
            self.channel.refuse(self)
        if self._whole:
            self._serve()

    def _expects_continue(self) -> bool:
        expected = self.requestHeaders.getRawHeaders(b"expect") or [b""]
        return not self._whole and not self.received and expected[0].lower() == b"100-continue"

    @property
    def caller(self) -> Caller:
        """The API key. Only for endpoints that require one."""
        assert self.entry is not None and self.entry.caller is not None
        return self.entry.caller

    @property
    def moved(self) -> Problem | None:
        """The answer if the account may have moved to another cell since the request began: what was not found here may be there."""
        gate: Gate = self.site.gate
        if self.entry is None or self.entry.caller is None or gate.moved_to is None:
            return None
        cell = gate.moved_to(self.entry.caller.account_id, self.started)
        return None if cell is None else moved_key(cell)

    # The body

    def gotLength(self, length: int | None) -> None:
        """The file for the body is created in `begin`."""

    def parseCookies(self) -> None:
        """The API has no cookies."""

    def handleContentChunk(self, data: bytes) -> None:
        self.received += len(data)
        self.chunks += 1
        if self.problem is not None:
            return
        assert self.content is not None
        try:
            self.content.write(data)
        except OSError as error:
            log.error("Could not write a request body to disk: {reason}", reason=error.strerror)
            self.problem = unavailable()
            return
        if self.entry is not None:
            self.problem = self._too_much()

    def _too_much(self) -> Problem | None:
        """Count the body as it arrives."""
        assert self.entry is not None and self._hold is not None
        wrong = too_large(self.received, self.entry.body_max)
        if wrong is None and not self._hold.arrived(self.received, self.site.limits.spool_above):
            wrong = unavailable()
        return wrong

    @property
    def late(self) -> bool:
        """Whether its body takes too long for its size."""
        limits, length = self.site.limits, self.received if self._announced is None else self._announced
        return bool(self.channel.site.reactor.seconds() - self.started >= limits.patience + length / limits.average)

    @property
    def matters(self) -> bool:
        """Whether closing its connection would lose work or a response: it is complete, or its key is known."""
        return self._whole or (self.entry is not None and self.entry.caller is not None)

    def reserve(self, size: int) -> bool:
        """Take memory until the request is done; False if there is none."""
        return self._hold is not None and self._hold.memory(size)

    async def turn(self, size: int) -> bool:
        """Wait for memory to work with, which the request keeps until it is done; False if there is none in time."""
        return self._hold is not None and await self._hold.work(size)

    def leave_turn(self) -> bool:
        """Keep only the memory of the body while waiting for another server; False if there is not even that."""
        return self._hold is not None and self._hold.pause(self.received)

    @property
    def reserved(self) -> int:
        """The memory that it has besides its turn."""
        return 0 if self._hold is None else self._hold.in_memory

    @property
    def large(self) -> bool:
        """Whether the body has to be read in a thread."""
        return self.received > int(self.site.limits.spool_above)

    def body(self) -> bytes:
        """The whole body."""
        assert self.content is not None
        self.content.seek(0)
        return self.content.read()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        self._whole = True
        if self.problem is None and self.entry is not None and self._may_be_revoked():
            decision = Deferred.fromCoroutine(self.site.gate.check_key(self.requestHeaders))
            decision.addErrback(self.site.translated)
            decision.addCallback(self._checked_again)
            decision.addErrback(self._defective)
        elif self.entry is not None or self.problem is not None:
            self._serve()

    def _may_be_revoked(self) -> bool:
        """Whether its body took longer than a key is cached, so that its key may have been revoked meanwhile."""
        assert self.entry is not None
        return self.entry.caller is not None and self.channel.site.reactor.seconds() - self.started > MAX_AGE

    def _checked_again(self, problem: Problem | None) -> None:
        if not self._disconnected:
            self.problem = problem
            self._serve()

    # The response

    def setResponseCode(self, code: int, message: bytes | None = None) -> None:
        super().setResponseCode(code, message or reason(code))

    def _serve(self) -> None:
        if self.problem is not None:
            self.answer(self.problem)
            return
        segments = self.path[1:].split(b"/")
        try:
            if b"%" in self.path or not self.path.isascii():
                segments = [unquote_to_bytes(segment) for segment in segments]
                b"/".join(segments).decode()
        except UnicodeDecodeError:
            self.answer(no_endpoint())
            return
        self.prepath, self.postpath = [], segments
        try:
            self.site.resource_for(self.path).render(self)
        except Exception:
            self.processingFailed(Failure())

    def common_lines(self) -> bytes:
        if self.page:
            return bytes(self.site.page_lines())
        return bytes(self.site.common_lines(self.client, None if self.entry is None else self.entry.quota, self.content_type))

    def answer(self, problem: Problem) -> None:
        """Respond with `problem` and finish."""
        body = self.problem_body(problem)
        self.write(body)
        self.finish()

    def problem_body(self, problem: Problem) -> bytes:
        """Set the status and headers of `problem`, and return its body."""
        if problem.status < 500:
            problem = self.moved or problem
        for name, value in problem.headers.items():
            self.setHeader(name, value)
        self.response_json = problem.json()
        self.content_type = JSON
        if self.page:
            self.setHeader(b"content-type", JSON)
        return self.sized(problem.status, problem.body())

    def sized(self, status: int, body: bytes) -> bytes:
        self.setResponseCode(status)
        self.responseHeaders.setRawHeaders(b"content-length", [b"%d" % len(body)])
        return body

    async def stream(self, chunks: AsyncGenerator[bytes, None]) -> bool:
        """Write a body as it is generated, and return whether all of it was written. Set status and headers before.

        The response to HEAD has no body, so nothing is generated for it.
        """
        if self.method == b"HEAD":
            await chunks.aclose()
            return True
        if not self.reserve(STREAMED):
            await chunks.aclose()
            raise unavailable()
        self._streams = True
        return await Flow(self, self.site.reactor).run(chunks)

    def write(self, data: bytes) -> None:
        """A large body is kept in a file until the client reads it, so that slow clients use no memory."""
        if self._streams or len(data) <= CHUNK or self.method == b"HEAD":
            super().write(data)
        else:
            self._large = data

    async def _send_large(self) -> None:
        assert self._large is not None and self._hold is not None
        length = len(self._large)
        try:
            self._outgoing = await self.site.in_thread(partial(in_file, self._large))
        except OSError as error:
            log.error("Could not write a response to a temporary file: {reason}", reason=error.strerror)
        self._large = None
        self._close_body()
        self._hold.worked()
        if self._disconnected:
            return
        if self._outgoing is None or not self._hold.disk(length):
            self.answer(unavailable())
            return
        self._record(self.code)  # now, which frees the JSON of the response
        self._streams = True
        if await Flow(self, self.site.reactor).run(chunks_of(self._outgoing)):
            self.finish()

    def answer_unread(self) -> None:
        """Respond without reading the body; the connection closes."""
        assert self.problem is not None
        self.responseHeaders.setRawHeaders(b"connection", [b"close"])
        self.answer(self.problem)

    def processingFailed(self, reason: Failure) -> Failure:
        if self.finished or self._disconnected:
            log.failure("Error after the response", failure=reason)
        elif self.startedWriting:
            log.failure("Error while writing the response", failure=reason)
            self.loseConnection()
        else:
            self.answer(self.site.translated(reason))
        return reason

    def getRequestHostname(self) -> bytes:
        """The paths are the same on every host."""
        return b"localhost"

    # The end

    def finish(self) -> None:
        if self._large is not None:
            self.detached(self._send_large()).addErrback(self._defective)
            return
        super().finish()
        self._free()
        self._record(self.code)

    def connectionLost(self, reason: Any) -> None:
        super().connectionLost(reason)
        self.producer = None
        if not self._works:
            self._free()
        if not self.finished:
            self._record(HUNG_UP)

    def abort(self) -> None:
        """Close the connection now, because the client doesn't read the response."""
        if self.channel is not None:
            self.channel.abort()

    def detached(self, work: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
        """Work that continues if the client hangs up. The request keeps its memory until it ends."""
        self._works = True
        return detached(self._counted(work))

    async def _counted(self, work: Coroutine[Deferred[Any], Any, T]) -> T:
        try:
            return await work
        finally:
            self._works = False
            if self._disconnected:
                self._free()

    def _free(self) -> None:
        """Free everything that the request uses. Can be called again."""
        self._large = None
        self._close_body()
        if self._outgoing is not None:
            self._outgoing.close()
            self._outgoing = None
        if self._hold is not None:
            self._hold.close()
        if self._counted_for is not None:
            self.site.connections.end(self._counted_for)
            self._counted_for = None

    def _close_body(self) -> None:
        if self.content is not None:
            self.content.close()
            self.content = None

    def _record(self, status: int) -> None:
        """Add the request to the account's log, once."""
        if self.entry is not None and self.entry.caller is not None and not self._recorded:
            self._recorded = True
            self.site.record(self, self.entry.caller, status)
            if self.span is not None:
                self.site.end_span(self.span, self.entry.caller, status)
        self.json = self.response_json = None

    def log_line(self, now: float) -> None:
        """One line for each response, without query, addresses or secrets."""
        log.info(
            "{method} {path} {status} {milliseconds} ms",
            method=self.method.decode("latin-1"),
            path=_public(self.path or b"")[:200].decode("latin-1"),
            status=self.code,
            milliseconds=round((now - self.started) * 1000, 1),
            **({} if self.email_id is None else {"email_id": self.email_id}),
        )


def _body_file(length: int | None, spool_above: int) -> IO[bytes]:
    """A new file for a body of `length` bytes (None: unknown). A body of up to `spool_above` bytes stays in memory."""
    if length is not None and length <= spool_above:
        return BytesIO()  # cheaper than a file that could still move to the disk
    return tempfile.SpooledTemporaryFile(spool_above)


def _public(path: bytes) -> bytes:
    """A path without the token of a tracked link, and without the segments that can contain an address."""
    if path.startswith((b"/c/", b"/o/")):
        return path[:3] + b"*"
    if ord("@") not in path and ord("%") not in path:
        return path
    return b"/".join([b"*" if b"@" in segment or b"%" in segment else segment for segment in path.split(b"/")])


def _parts(target: bytes) -> tuple[bytes, bytes | None]:
    """The path of a request target, and the host of one in the absolute form, which replaces the Host header (9112 §3.2.2)."""
    if target.startswith(b"/"):
        return target, None
    found = re.match(rb"https?://[^/?#]*", target, re.IGNORECASE)
    if found is None:
        return target, None
    return b"/" + target[found.end() :].lstrip(b"/"), found[0].partition(b"//")[2]
