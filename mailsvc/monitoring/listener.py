"""Serves metrics to Prometheus (GET /metrics), on endpoints separate from the API."""

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

IDLE = 60.0  # seconds

log = Logger()


class MetricsPage(Resource):
    """If `token` is set, requests need it: as a bearer token, or from a browser as the password with any user name (7617 §2)."""

    isLeaf = True

    def __init__(self, text: Callable[[], Awaitable[bytes]], token: str | None) -> None:
        super().__init__()
        self._text = text
        self._token = None if token is None else token.encode()

    def render_GET(self, request: Any) -> Any:
        if self._token is not None and not hmac.compare_digest(_token_of(request.getHeader(b"authorization") or b""), self._token):
            request.responseHeaders.setRawHeaders(b"www-authenticate", [b"Bearer", b'Basic realm="mailsvc", charset="UTF-8"'])
            return _plain(request, 401, b"A bearer token is required: see the setting metrics.token.\n")
        if request.path != b"/metrics":
            return _plain(request, 404, b"The metrics are at /metrics.\n")
        disconnected: list[object] = []
        request.notifyFinish().addErrback(disconnected.append)
        Deferred.fromCoroutine(self._answer(request, disconnected)).addErrback(
            lambda failure: log.failure("The metrics could not be sent.", failure=failure)
        )
        return NOT_DONE_YET

    async def _answer(self, request: Any, disconnected: list[object]) -> None:
        try:
            status, kind, text = 200, CONTENT_TYPE_LATEST, await self._text()
        except Exception:
            log.failure("The metrics could not be collected.")
            status, kind, text = 500, "text/plain", b"The metrics could not be collected. See the log.\n"
        if not disconnected:
            request.setResponseCode(status)
            request.setHeader(b"content-type", kind.encode())
            request.write(text)
            request.finish()


class QuietSite(Site):
    """A site without an access log."""

    noisy = False

    def __init__(self, page: Resource, reactor: Any) -> None:
        super().__init__(page, reactor=reactor, timeout=IDLE, parsePOSTFormSubmission=False)

    def startFactory(self) -> None:
        """Does not open an access log."""

    def stopFactory(self) -> None:
        """Has no access log to close."""

    def log(self, request: Any) -> None:
        """Requests are not logged."""


def private(endpoint: str) -> str:
    """Makes a Unix socket accessible to its owner only unless a mode is given, and lets it replace a stale socket file."""
    if not endpoint.startswith("unix:"):
        return endpoint
    mode = "" if ":mode=" in endpoint else ":mode=600"
    return f"{endpoint}{mode}" if ":lockfile=" in endpoint else f"{endpoint}{mode}:lockfile=1"


def _token_of(authorization: bytes) -> bytes:
    """Returns the token of an Authorization header: after Bearer, or the password of Basic."""
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
