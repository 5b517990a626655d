"""Serves tracked links (`/c/…`) and pixels (`/o/…`).

Everything that a link needs is in its token, so this reads no table. A token that is not valid never leads anywhere.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from twisted.web.resource import Resource

from mailsvc.clock import unix, utc
from mailsvc.http.request import Request
from mailsvc.mail.tracking.token import CLICKS, Tracked, day_of, read
from mailsvc.store.broadcasts.images import Images
from mailsvc.tracking.hits import HitRecorder, Seen
from mailsvc.tracking.hosts import TrackingHosts

PIXEL = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")  # a transparent GIF of 1 × 1
_COMMON = {b"cache-control": b"no-store, private", b"x-robots-tag": b"noindex, nofollow", b"x-content-type-options": b"nosniff"}
_WRONG = b"This link is not valid or has expired.\n"
_PURPOSES = (b"sec-purpose", b"purpose", b"x-purpose", b"x-moz")


@attrs.frozen
class Tracking:
    """What answering links needs. `secrets`: of tokens, by number. `days`: how long links lead to their targets."""

    secrets: Callable[[], Mapping[int, bytes]]
    hosts: TrackingHosts
    recorder: HitRecorder
    days: int
    clock: Any
    images: Images | None = None

    def valid(self, token: str, host: str) -> Tracked | None:
        """What a token stands for, unless it has expired or this host does not serve its account."""
        tracked = read(token, self.secrets())
        if tracked is None or not self.hosts.serves(host, tracked.account_id):
            return None
        return tracked if day_of(unix(self.clock)) - tracked.day <= self.days else None


class TrackedLinks(Resource):
    isLeaf = True

    def __init__(self, tracking: Tracking, *, clicks: bool) -> None:
        super().__init__()
        self._tracking, self._clicks = tracking, clicks

    def render(self, request: Request) -> None:
        host = host_of(request)
        if not self._tracking.hosts.known(host):
            send(request, 404, _WRONG)
        elif request.method not in (b"GET", b"HEAD"):
            request.setHeader(b"allow", b"GET, HEAD")
            send(request, 405, b"")
        else:
            tracked = self._tracking.valid(request.path[len(CLICKS) :].decode("latin-1"), host)
            if tracked is not None and (tracked.url is not None) == self._clicks:
                self._record(request, tracked)
                self._answer(request, tracked.url)
            else:
                self._answer(request, None)

    def _answer(self, request: Request, url: str | None) -> None:
        """`url`: the target of a link."""
        if not self._clicks:
            send(request, 200, PIXEL, b"image/gif")
        elif url is None:
            send(request, 404, _WRONG)
        else:
            request.setHeader(b"location", url.encode("ascii"))
            send(request, 302, b"")

    def _record(self, request: Request, tracked: Tracked) -> None:
        purpose = " ".join(_header(request, name) for name in _PURPOSES).strip()
        agent, method = _header(request, b"user-agent"), request.method.decode("ascii")
        self._tracking.recorder.add(Seen(tracked, utc(self._tracking.clock), method, request.address(), agent, purpose))


def host_of(request: Request) -> str:
    """The host that the client asked for, without its port."""
    return name_of((request.requestHeaders.getRawHeaders(b"host") or [b""])[0].decode("latin-1").partition(":")[0])


def name_of(host: str) -> str:
    """A host name as it is compared."""
    return host.lower().removesuffix(".")


def _header(request: Request, name: bytes) -> str:
    values = request.requestHeaders.getRawHeaders(name) or [b""]
    return values[0].decode("utf-8", "replace").replace("\0", "")


def send(
    request: Request, status: int, body: bytes, kind: bytes = b"text/plain; charset=utf-8", headers: Mapping[bytes, bytes] | None = None
) -> None:
    """Answer, and finish. `headers` are added to those of all answers, or replace them."""
    for name, value in {**_COMMON, **(headers or {})}.items():
        request.setHeader(name, value)
    if body:
        request.setHeader(b"content-type", kind)
    request.write(request.sized(status, body))
    request.finish()
