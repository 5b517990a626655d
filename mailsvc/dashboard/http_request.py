"""What pages use of a request of the HTTP server. The request itself: http/request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from typing import IO, Any, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.web.http_headers import Headers

from mailsvc.dashboard import safety

T = TypeVar("T")


class HttpRequest(Protocol):
    """The part of http/request.Request that pages use."""

    method: bytes
    path: bytes
    uri: bytes
    args: dict[bytes, list[bytes]]
    content: IO[bytes] | None
    requestHeaders: Headers
    responseHeaders: Headers

    def setResponseCode(self, code: int) -> None: ...
    def address(self) -> str: ...
    def body(self) -> bytes: ...
    @property
    def large(self) -> bool: ...
    async def turn(self, size: int) -> bool: ...
    async def stream(self, chunks: AsyncGenerator[bytes, None]) -> bool: ...
    def detached(self, work: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]: ...


def text_of(given: bytes) -> str:
    """Text from a browser, without NUL, which the database cannot store."""
    return given.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def cookies_of(http: HttpRequest) -> dict[str, str]:
    return safety.cookies(value.decode("latin-1") for value in http.requestHeaders.getRawHeaders(b"cookie") or [])
