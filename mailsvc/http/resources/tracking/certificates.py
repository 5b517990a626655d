"""Tells a reverse proxy for which hosts it should get a certificate (`GET /tracking/ask?domain=HOST`, as Caddy's on-demand TLS asks)."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from twisted.web.resource import Resource

from mailsvc.accounts.ratelimit import RateLimit
from mailsvc.http import parameters
from mailsvc.http.gate import is_proxy
from mailsvc.http.request import Request
from mailsvc.http.resources.tracking.links import name_of, send
from mailsvc.net.client_address import unmapped
from mailsvc.tracking.hosts import TrackingHosts

PATH = b"/tracking/ask"
PER_SECOND = 50  # for unknown hosts only: with their questions, nobody can keep a customer's host from getting a certificate
# Fields that proxies add to the requests of their clients, who must not ask.
_FORWARDED = (b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip")


class CertificateQuestions(Resource):
    """200 if the proxy should get a certificate for the host in `domain`. Only a proxy can ask, not its clients."""

    isLeaf = True

    def __init__(self, hosts: TrackingHosts, clock: Any) -> None:
        super().__init__()
        self._hosts, self._rate = hosts, RateLimit(clock, PER_SECOND)

    def render(self, request: Request) -> None:
        local = _is_local(request) and not any(request.requestHeaders.hasHeader(name) for name in _FORWARDED)
        if not local or request.path != PATH or request.method not in (b"GET", b"HEAD"):
            send(request, 404, b"")
        elif self._hosts.known(name_of(parameters.one(request, "domain"))):
            send(request, 200, b"")
        else:
            send(request, 404 if self._rate.take("").allowed else 429, b"")


def _is_local(request: Request) -> bool:
    peer = getattr(request.client, "host", "")
    return is_proxy(peer, request.site.trusted) or unmapped(ip_address(peer.partition("%")[0])).is_loopback
