"""The five ports of the relay, by their standard numbers: what each offers and requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.protocols.tls import TLSMemoryBIOFactory

from mailsvc.smtp.server.listener import ServerFactory
from mailsvc.smtp.server.proxy_protocol import Networks, ProxyProtocolFactory
from mailsvc.smtp.server.session import Limits, Listener, SessionFactory

Kind = Literal["exchange", "starttls", "tls"]

# Other mail servers connect to 25; the others are for submission (6409, 8314 §3.3).
KINDS: Final[Mapping[str, Kind]] = {"25": "exchange", "587": "starttls", "2587": "starttls", "465": "tls", "2465": "tls"}
PROXIED = "haproxy:"  # before an endpoint: a load balancer in front of it announces the client's address


def listener(number: str, host: str, limits: Limits, context: object) -> Listener:
    exchange = KINDS[number] == "exchange"
    return Listener(host, limits, context, tls_required=not exchange, login_offered=True, login_required=not exchange)


@attrs.frozen
class Port:
    """An endpoint to listen on. `factory` may wrap `connections` in TLS or the PROXY protocol."""

    number: str
    endpoint: str
    connections: ServerFactory
    factory: Any


async def stop_sessions(ports: Sequence[Port]) -> None:
    """End the sessions of all ports together. Stop listening first."""
    for stopping in [Deferred.fromCoroutine(port.connections.stop()) for port in ports]:
        await stopping


@attrs.frozen
class Ports:
    """`context` makes TLS connections; `trusted` are the load balancers whose PROXY header is believed."""

    host: str
    limits: Limits
    context: Any
    open_session: SessionFactory
    clock: IReactorTime
    trusted: Networks = ()

    def make(self, listen: Mapping[str, str]) -> list[Port]:
        """`listen` has endpoints by standard port, several separated by spaces."""
        return [self._port(number, endpoint) for number, endpoints in listen.items() for endpoint in endpoints.split()]

    def _port(self, number: str, endpoint: str) -> Port:
        connections = ServerFactory(listener(number, self.host, self.limits, self.context), self.open_session, self.clock)
        factory: Any = connections
        if KINDS[number] == "tls":
            factory = TLSMemoryBIOFactory(self.context, False, connections, self.clock)
        if endpoint.startswith(PROXIED):
            endpoint, factory = endpoint.removeprefix(PROXIED), ProxyProtocolFactory(factory, self.trusted, self.clock)
        return Port(number, endpoint, connections, factory)
