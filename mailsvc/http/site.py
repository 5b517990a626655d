"""The HTTP server: which collection answers which path, and what all connections and responses have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import server
from twisted.web.http import datetimeToString
from twisted.web.resource import Resource

from mailsvc.accounts.ratelimit import Quota
from mailsvc.clock import unix
from mailsvc.http import answer, gate
from mailsvc.http.channel import Channel
from mailsvc.http.gate import Connections, Gate, Limits, Networks
from mailsvc.http.problem import JSON, Problem
from mailsvc.http.request import Request
from mailsvc.http.request_log import Recorder
from mailsvc.runtime.offload import InThread
from mailsvc.runtime.tracing import Span, Tracing
from mailsvc.store.ids import uuid7
from mailsvc.store.logs.requests import NewLog
from mailsvc.store.people.api_keys import Caller

log = Logger()
REFUSED = 100  # connections beyond the limit that are read until their clients have the response; others can see a reset instead


class ApiSite(server.Site):
    """`collections` maps places to resources, each of which gets the whole path. A place is the first segment of a path, or narrower: its
    first two, or the first and third with `*` between them. `pages` are the first segments of the dashboard, which needs no API key and
    sets its own content type.
    """

    protocol = Channel  # type: ignore[assignment]  # for HTTP/1.1 only
    requestFactory = Request
    noisy = False

    def __init__(
        self,
        collections: Mapping[str, Resource],
        gate: Gate,
        reactor: IReactorTime,
        trusted: Networks = (),
        recorder: Recorder | None = None,
        pages: Collection[str] = (),
        in_thread: InThread | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(Resource(), reactor=reactor, timeout=gate.limits.idle, parsePOSTFormSubmission=False)
        self.gate = gate
        self.trusted = trusted
        self.recorder = recorder
        self.tracing = tracing
        self._dated, self._date_text = 0, b""
        self.connections = Connections(gate.limits.connections, gate.limits.connections_per_address)
        self.in_thread: InThread = in_thread or _in_reactor
        self._channels: set[Channel] = set()
        self._drained: Deferred[None] | None = None
        self._collections = {name.encode(): resource for name, resource in collections.items()}
        self._pages = frozenset(name.encode() for name in pages)

    @property
    def limits(self) -> Limits:
        return self.gate.limits

    # For requests

    def knows(self, path: bytes) -> bool:
        return _segments(path)[0] in self._collections

    def is_page(self, path: bytes) -> bool:
        return _segments(path)[0] in self._pages

    def resource_for(self, path: bytes) -> Resource:
        """The resource with the narrowest place. Only for known paths: the gate refuses the others."""
        first, *rest = _segments(path)
        if len(rest) > 1 and (found := self._collections.get(b"%s/*/%s" % (first, rest[1]))):
            return found
        if rest and (found := self._collections.get(b"%s/%s" % (first, rest[0]))):
            return found
        return self._collections[first]

    def address(self, client: IAddress, forwarded: list[bytes]) -> str:
        return gate.address(getattr(client, "host", ""), forwarded, self.trusted)

    def counted_for(self, client: IAddress) -> str | None:
        """The address that a connection counts for. None for a trusted proxy, whose requests count for its clients."""
        host = getattr(client, "host", "")
        return None if gate.is_proxy(host, self.trusted) else gate.address(host, [], ())

    def can_linger(self, refused: Channel) -> bool:
        """Whether a connection beyond the limit is read for a while, so that its client gets the response. Only some are."""
        return len(self._channels) - len(self.connections) <= REFUSED

    def translated(self, failure: Failure) -> Problem:
        return answer.translated(failure)

    def record(self, request: Request, caller: Caller, status: int) -> None:
        """Add a request to the account's log, unless it reads the development inbox."""
        if self.recorder is None or request.path.startswith(b"/sandbox"):
            return
        agent = request.requestHeaders.getRawHeaders(b"user-agent")
        self.recorder.add(
            NewLog(
                account_id=caller.account_id,
                log_id=uuid7(unix(self.reactor)),
                key_id=caller.key_id,
                method=_text(request.method),
                path=_text(request.path),
                status=status,
                user_agent=_text(agent[0]) if agent else None,
                milliseconds=(self.reactor.seconds() - request.started) * 1000,
                request_body=None if request.unlogged else self.recorder.body(request.json),
                response_body=None if request.unlogged else self.recorder.body(request.response_json),
            )
        )

    def begin_span(self, request: Request) -> Span:
        """Named by the collection only, because paths can contain addresses."""
        assert self.tracing is not None
        began = unix(self.reactor) - (self.reactor.seconds() - request.started)
        given = request.requestHeaders.getRawHeaders(b"traceparent") or [b""]
        name = f"{_text(request.method)} /{_text(_segments(request.path)[0])}"
        return self.tracing.begin(name, began, given[0].decode("latin-1"), "server")

    def end_span(self, span: Span, caller: Caller, status: int) -> None:
        error = f"HTTP {status}" if status >= 500 else None
        span.end(unix(self.reactor), {"http.response.status_code": status, "mailsvc.account.id": str(caller.account_id)}, error)

    def common_lines(self, client: IAddress, quota: Quota | None = None, content_type: bytes = JSON) -> bytes:
        """The header lines of every API response. Without a `quota`, that of the client's address is used."""
        quota = quota or self.gate.rate.peek(self.address(client, []))
        return b"%scontent-type: %s\r\n%s" % (self.page_lines(), content_type, quota.lines())

    def page_lines(self) -> bytes:
        """The header lines of every page."""
        return b"server: mailsvc\r\ndate: %s\r\n" % self._date()

    def _date(self) -> bytes:
        second = int(unix(self.reactor))
        if second != self._dated:
            self._dated, self._date_text = second, datetimeToString(second)
        return self._date_text

    # Shutdown

    @property
    def draining(self) -> bool:
        return self._drained is not None

    def drain(self) -> Deferred[None]:
        """Close each connection after its current request; fires when all are closed. Call it after closing the listeners."""
        self._drained = Deferred()
        for channel in list(self._channels):
            channel.drain()
        self._check_drained()
        return self._drained

    def closed(self, channel: Channel) -> None:
        self._channels.discard(channel)
        self._check_drained()

    def _check_drained(self) -> None:
        if self._drained is not None and not self._channels and not self._drained.called:
            self._drained.callback(None)

    # For Twisted

    def buildProtocol(self, addr: IAddress | None) -> Any:
        channel: Any = super().buildProtocol(addr)
        self._channels.add(channel)
        return channel

    def acceptableProtocols(self) -> list[bytes]:
        return [b"http/1.1"]

    def startFactory(self) -> None:
        """No access log to open: it goes where all logs go."""

    def stopFactory(self) -> None:
        """Nothing to close."""

    def log(self, request: Any) -> None:
        request.log_line(self.reactor.seconds())

    def log_raw(self, status: int) -> None:
        log.info("Invalid HTTP request: {status}", status=status)


async def _in_reactor(work: Callable[[], Any]) -> Any:
    return work()


def _text(raw: bytes) -> str:
    return raw[:500].decode("utf-8", "replace").replace("\0", "")


def _segments(path: bytes) -> list[bytes]:
    """The first three segments, and the rest as one. The first is empty for "/", and "/" for a target that is not a path."""
    first, *rest = path[1:].split(b"/", 3) if path.startswith(b"/") else [b""]
    return [first or (b"" if path == b"/" else b"/"), *rest]
