"""The API put together: which collection answers which path, and what every connection and response has in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import server
from twisted.web.http import datetimeToString
from twisted.web.resource import Resource

from mailsvc.http import answer, gate
from mailsvc.http.channel import Channel
from mailsvc.http.gate import Gate, Limits, Networks
from mailsvc.http.problem import Problem
from mailsvc.http.request import JSON, Request
from mailsvc.ratelimit import Quota

log = Logger()


class ApiSite(server.Site):
    """`collections` maps the first segment of a path to the resource that answers; each gets the whole path.

    `pages` names those that are for people: they have no key, and say themselves what they answer with.
    """

    protocol = Channel  # type: ignore[assignment]  # made for HTTP/1.1 alone, not for either version
    requestFactory = Request
    noisy = False

    def __init__(
        self, collections: Mapping[str, Resource], gate: Gate, reactor: IReactorTime, trusted: Networks = (), pages: Collection[str] = ()
    ) -> None:
        super().__init__(Resource(), reactor=reactor, timeout=gate.limits.idle, parsePOSTFormSubmission=False)
        self.gate = gate
        self.trusted = trusted
        self._dated, self._date_text = 0, b""
        self._channels: set[Channel] = set()
        self._drained: Deferred[None] | None = None
        self._collections = {name.encode(): resource for name, resource in collections.items()}
        self._pages = frozenset(name.encode() for name in pages)

    @property
    def limits(self) -> Limits:
        return self.gate.limits

    # For requests

    def knows(self, path: bytes) -> bool:
        return _first(path) in self._collections

    def is_page(self, path: bytes) -> bool:
        return _first(path) in self._pages

    def resource_for(self, path: bytes) -> Resource:
        """Only asked for paths that it knows: the gate turns the others away."""
        return self._collections[_first(path)]

    def address(self, client: IAddress, forwarded: list[bytes]) -> str:
        return gate.address(getattr(client, "host", ""), forwarded, self.trusted)

    def translated(self, failure: Failure) -> Problem:
        return answer.translated(failure)

    def common_lines(self, client: IAddress, quota: Quota | None = None) -> bytes:
        """The header lines that every response has. Without a `quota`, that of the client's address."""
        quota = quota or self.gate.rate.peek(self.address(client, []))
        return b"%scontent-type: %s\r\n%s" % (self.page_lines(), JSON, quota.lines())

    def page_lines(self) -> bytes:
        """Those that the responses of pages have."""
        return b"server: mailsvc\r\ndate: %s\r\n" % self._date()

    def _date(self) -> bytes:
        second = int(self.reactor.seconds())
        if second != self._dated:
            self._dated, self._date_text = second, datetimeToString(second)
        return self._date_text

    # The end

    @property
    def draining(self) -> bool:
        return self._drained is not None

    def drain(self) -> Deferred[None]:
        """Close each connection as soon as nothing is in work on it; fires when all are closed. To be called after listening ends."""
        self._drained = Deferred()
        for channel in list(self._channels):
            channel.drain()
        self._look_if_drained()
        return self._drained

    def gone(self, channel: Channel) -> None:
        self._channels.discard(channel)
        self._look_if_drained()

    def _look_if_drained(self) -> None:
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
        """Nothing to open: the access log goes where all logs go."""

    def stopFactory(self) -> None:
        """Nothing to close."""

    def log(self, request: Any) -> None:
        request.log_line(self.reactor.seconds())

    def log_raw(self, status: int) -> None:
        log.info("unreadable request {status}", status=status)


def _first(path: bytes) -> bytes:
    """The first segment; that of "/" is empty, and what is no path, or has an empty one before others, has one that no resource has."""
    return b"" if path == b"/" else path[1:].partition(b"/")[0] or path if path.startswith(b"/") else path or b"?"
