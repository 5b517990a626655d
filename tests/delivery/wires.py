"""TCP in memory with a fake clock: the real dialer and SMTP client talk to scripted servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from mailsvc.delivery.connection.dial import dialer
from mailsvc.smtp.client.client import Timeouts
from tests.delivery.fakes import LATENCY, DeliveryRig

# What a server does: says these data, or breaks the connection ("close", "reset"), or nothing at all ("silence").
# Several of these in a tuple are done one after another, each in a segment of its own.
Does = bytes | str | tuple[bytes | str, ...]


class Script:
    """What a server does at each place: `greeting`, each command in upper case, `message`. `else` is for other commands.

    `MAIL with parameters` and the like are for these.
    """

    def __init__(self, **does: Does) -> None:
        self.does: dict[str, Does] = {
            "greeting": b"220 mx\r\n",
            "EHLO": b"250 mx\r\n",
            "DATA": b"354 go\r\n",
            "message": b"250 2.0.0 queued\r\n",
            "QUIT": (b"221 bye\r\n", "close"),
            "else": b"250 ok\r\n",
        } | does


class Session:
    """The server's side of one connection; it reads commands as they come, so it can be pipelined to."""

    def __init__(self, host: Host, client: Wire) -> None:
        self.host, self.client = host, client
        self.script = host.script
        self._buffer = b""
        self._message = False
        self._chunk = 0
        self._counts: dict[str, int] = {}
        self._over = False  # it reads no more

    def begin(self) -> None:
        self._do("greeting")

    def receive(self, data: bytes) -> None:
        self._buffer += data
        while not self._over and self._step():
            pass

    def _step(self) -> bool:
        if self._chunk:
            if len(self._buffer) < self._chunk:
                return False
            self._buffer, self._chunk = self._buffer[self._chunk :], 0
            self._take_mail()
            return True
        if self._message:
            end = self._buffer.find(b"\r\n.\r\n")
            if end < 0:
                return False
            self._buffer, self._message = self._buffer[end + 5 :], False
            self._take_mail()
            return True
        line, found, rest = self._buffer.partition(b"\r\n")
        if not found:
            return False
        self._buffer = rest
        verb = line.split(b" ")[0].decode().upper()
        if verb == "BDAT":
            self._chunk = int(line.split(b" ")[1])
            return True
        loaded = f"{verb} with parameters"
        answer = self._do(loaded if loaded in self.script.does and not line.endswith(b">") else verb)
        self._message = verb == "DATA" and answer.startswith(b"354")
        return True

    def _take_mail(self) -> None:
        self.host.mails += 1
        self._do("message")

    def _do(self, place: str) -> bytes:
        """`EHLO2` is for the second EHLO of a connection, and so on."""
        count = self._counts[place] = self._counts.get(place, 0) + 1
        does = self.script.does
        what = does.get(f"{place}{count}", does.get(place, does["else"]))
        for number, each in enumerate(what if isinstance(what, tuple) else (what,)):
            self._over = self._over or isinstance(each, str)
            self.host.clock.callLater(LATENCY * (1 + number), self._act, each)
        return what if isinstance(what, bytes) else b""

    def _act(self, what: bytes | str) -> None:
        if isinstance(what, bytes):
            self.client.receive(what)
        elif what == "close":
            self.client.end(ConnectionDone())
        elif what == "reset":
            self.client.end(ConnectionLost("reset"))


class Wire(StringTransport):
    """The client's side."""

    def __init__(self, host: Host, protocol: Any) -> None:
        super().__init__(hostAddress=IPv4Address("TCP", "192.0.2.200", 40000), peerAddress=IPv4Address("TCP", host.address, 25))
        self.host, self.protocol, self.over = host, protocol, False
        self.session = Session(host, self)

    def setTcpNoDelay(self, enabled: bool) -> None:
        pass

    def write(self, data: bytes) -> None:
        if not self.over:
            self.host.clock.callLater(LATENCY, self.session.receive, data)

    def receive(self, data: bytes) -> None:
        if not self.over:
            self.protocol.dataReceived(data)

    def end(self, error: Exception) -> None:
        if not self.over:
            self.over = True
            self.host.open -= 1
            self.protocol.connectionLost(Failure(error))

    def loseConnection(self) -> None:
        self.disconnecting = True
        self.host.clock.callLater(LATENCY, self.end, ConnectionDone())

    def abortConnection(self) -> None:
        self.disconnecting = True
        self.host.clock.callLater(0, self.end, ConnectionLost("aborted"))


class Host:
    """A mail server at an address; `dials` are the times of its connections."""

    def __init__(self, clock: Any, address: str, script: Script) -> None:
        self.clock, self.address, self.script = clock, address, script
        self.dials: list[float] = []
        self.mails = 0
        self.open = 0

    def most_in_a_minute(self) -> int:
        return max((sum(start <= at < start + 60 for at in self.dials) for start in self.dials), default=0)


class Net:
    """What the dialer takes for a reactor."""

    def __init__(self, rig: DeliveryRig) -> None:
        self.rig = rig
        self.hosts: dict[str, Host] = {}

    def seconds(self) -> float:
        return self.rig.clock.seconds()

    def callLater(self, delay: float, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return self.rig.clock.callLater(delay, work, *arguments, **named)

    def connectTCP(self, address: str, port: int, factory: Any, timeout: float = 30, bindAddress: Any = None) -> None:
        host = self.hosts[address]
        host.dials.append(self.seconds())
        assert len(host.dials) < 500, "connections without end"
        self.callLater(LATENCY, self._connected, host, factory)

    def _connected(self, host: Host, factory: Any) -> None:
        protocol = factory.buildProtocol(None)
        wire = Wire(host, protocol)
        host.open += 1
        protocol.makeConnection(wire)
        wire.session.begin()


class WiredRig(DeliveryRig):
    """A DeliveryRig whose connections are real dialogues of the SMTP client."""

    def __init__(self, timeouts: Timeouts | None = None, **settings: Any) -> None:
        super().__init__(**{"poll_seconds": 20.0} | settings)
        self.net = Net(self)
        self._real = dialer(self.net, "out.example", 30, timeouts)

    async def dial(self, address: str, port: int, host: str, how: Any) -> Any:
        return await self._real(address, port, host, how)

    def host(self, domain: str, address: str, *, preference: int = 10, **does: Does) -> Host:
        """A mail server for a domain, found by MX."""
        name = f"mx{preference}.{domain}"
        self.names.mxs.setdefault(domain, []).append((preference, name))  # type: ignore[union-attr]
        self.names.hosts[name] = [address]
        host = self.net.hosts[address] = Host(self.clock, address, Script(**does))
        return host
