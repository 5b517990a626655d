"""The five ports of the relay: what each offers and demands, by its standard number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.protocols.tls import TLSMemoryBIOFactory

from mailsvc.smtp.server.listener import ServerFactory
from mailsvc.smtp.server.proxy_protocol import Networks, Proxied
from mailsvc.smtp.server.session import Limits, Listener, Welcome

Kind = Literal["exchange", "starttls", "tls"]

# 25 is where other mail servers come, the others are for submission (6409, 8314 §3.3).
KINDS: Final[Mapping[str, Kind]] = {"25": "exchange", "587": "starttls", "2587": "starttls", "465": "tls", "2465": "tls"}
PROXIED = "haproxy:"  # before an endpoint: a load balancer in front of it tells who connected


def listener(number: str, host: str, limits: Limits, context: object) -> Listener:
    exchange = KINDS[number] == "exchange"
    return Listener(host, limits, context, tls_required=not exchange, login_offered=True, login_required=not exchange)


@attrs.frozen
class Port:
    """An endpoint to listen on, and what listens."""

    number: str
    endpoint: str
    receivers: ServerFactory
    factory: Any


async def stop_sessions(ports: Sequence[Port]) -> None:
    """Of all ports at once; none of them listens any more."""
    await gatherResults([Deferred.fromCoroutine(port.receivers.stop()) for port in ports])


@attrs.frozen
class Ports:
    """Makes them. `context` makes TLS connections; `trusted` are the load balancers that are believed."""

    host: str
    limits: Limits
    context: Any
    welcome: Welcome
    clock: IReactorTime
    trusted: Networks = ()

    def make(self, listen: Mapping[str, str]) -> list[Port]:
        """`listen` has endpoints by standard port, several separated by spaces."""
        return [self._port(number, endpoint) for number, endpoints in listen.items() for endpoint in endpoints.split()]

    def _port(self, number: str, endpoint: str) -> Port:
        receivers = ServerFactory(listener(number, self.host, self.limits, self.context), self.welcome, self.clock)
        factory: Any = receivers
        if KINDS[number] == "tls":
            factory = TLSMemoryBIOFactory(self.context, False, receivers, self.clock)
        if endpoint.startswith(PROXIED):
            endpoint, factory = endpoint.removeprefix(PROXIED), Proxied(factory, self.trusted, self.clock)
        return Port(number, endpoint, receivers, factory)
