"""HTTP for the console: small requests from operators, without API keys, budgets and logs of requests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.server import NOT_DONE_YET, Request

from mailsvc.monitoring.listener import QuietSite

T = TypeVar("T")
LONGEST = 64 * 1024  # bytes of a form
log = Logger()


class ConsoleRequest(Request):
    """A request as pages use it (dashboard/http_request)."""

    large = False
    _refused = False

    def gotLength(self, length: int | None) -> None:
        self._refused = (length or 0) > LONGEST
        super().gotLength(0 if self._refused else length)

    def handleContentChunk(self, data: bytes) -> None:
        assert self.content is not None
        self._refused = self._refused or self.content.tell() + len(data) > LONGEST
        if not self._refused:
            super().handleContentChunk(data)

    @property
    def too_large(self) -> bool:
        return self._refused

    def address(self) -> str:
        return getattr(self.getClientAddress(), "host", None) or "unix"

    def body(self) -> bytes:
        assert self.content is not None
        self.content.seek(0)
        read: bytes = self.content.read()
        return read

    async def turn(self, size: int) -> bool:
        return True

    async def stream(self, chunks: AsyncGenerator[bytes, None]) -> bool:
        raise AssertionError("no page of the console is a download")

    def detached(self, work: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
        return Deferred.fromCoroutine(work)


class ConsoleSite(QuietSite):
    """The factory to listen with."""

    requestFactory = ConsoleRequest


def answered(request: Any, work: Coroutine[Deferred[Any], Any, bytes]) -> int:
    """Send what `work` returns, unless the client has gone."""
    gone: list[Failure] = []
    request.notifyFinish().addErrback(gone.append)

    def send(body: bytes) -> None:
        if not gone:
            request.write(b"" if request.method == b"HEAD" else body)
            request.finish()

    Deferred.fromCoroutine(work).addCallback(send).addErrback(lambda failure: log.failure("A page could not be sent.", failure=failure))
    return int(NOT_DONE_YET)
