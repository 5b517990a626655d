"""Where Prometheus reads the figures (GET /metrics) and people see them (GET /): endpoints of their own, which customers do not reach."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from mailsvc.monitoring.overview import HEADERS

IDLE = 60.0  # seconds

log = Logger()


class Page(Resource):
    """`token`: who does not show it is turned away; None: everybody who reaches the endpoint may read.

    A browser shows it as a password (7617 §2), with any name. `page` makes of the text what people see.
    """

    isLeaf = True

    def __init__(self, text: Callable[[], Awaitable[bytes]], token: str | None, page: Callable[[bytes], bytes] | None = None) -> None:
        super().__init__()
        self._text, self._page = text, page
        self._token = None if token is None else token.encode()

    def render_GET(self, request: Any) -> Any:
        if self._token is not None and not hmac.compare_digest(_shown(request.getHeader(b"authorization") or b""), self._token):
            request.responseHeaders.setRawHeaders(b"www-authenticate", [b"Bearer", b'Basic realm="mailsvc", charset="UTF-8"'])
            return _plain(request, 401, b"A bearer token is needed: the setting metrics.token.\n")
        if request.path != b"/metrics" and (request.path != b"/" or self._page is None):
            return _plain(request, 404, b"The figures are at /metrics.\n")
        left: list[object] = []
        request.notifyFinish().addErrback(left.append)
        Deferred.fromCoroutine(self._answer(request, left)).addErrback(lambda failure: log.failure("no figures", failure=failure))
        return NOT_DONE_YET

    async def _answer(self, request: Any, left: list[object]) -> None:
        try:
            status, kind, text = 200, CONTENT_TYPE_LATEST, await self._text()
            if request.path == b"/" and self._page is not None:
                kind, text = "text/html; charset=utf-8", self._page(text)
                for name, value in HEADERS.items():
                    request.setHeader(name, value)
        except Exception:
            log.failure("the figures could not be written")
            status, kind, text = 500, "text/plain", b"The figures could not be written; the log says why.\n"
        if not left:
            request.setResponseCode(status)
            request.setHeader(b"content-type", kind.encode())
            request.write(text)
            request.finish()


class MetricsSite(Site):
    """Without an access log."""

    noisy = False

    def __init__(self, page: Page, reactor: Any) -> None:
        super().__init__(page, reactor=reactor, timeout=IDLE)

    def startFactory(self) -> None:
        """Nothing to open."""

    def stopFactory(self) -> None:
        """Nothing to close."""

    def log(self, request: Any) -> None:
        """Who reads figures is of no interest."""


def private(endpoint: str) -> str:
    """A Unix socket is its owner's alone unless its mode is given, and takes the place of one that a dead process left."""
    if not endpoint.startswith("unix:"):
        return endpoint
    mode = "" if ":mode=" in endpoint else ":mode=600"
    return f"{endpoint}{mode}" if ":lockfile=" in endpoint else f"{endpoint}{mode}:lockfile=1"


def _shown(authorization: bytes) -> bytes:
    """The token in a header: after Bearer, or as the password of Basic."""
    scheme, _, value = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return value
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2] if scheme.lower() == b"basic" else b""
    except ValueError:
        return b""


def _plain(request: Any, status: int, text: bytes) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"text/plain; charset=utf-8")
    return text
