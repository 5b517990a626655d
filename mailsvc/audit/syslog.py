"""Syslog messages (RFC 5424), and sending them over TLS (RFC 5425)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.endpoints import HostnameEndpoint, connectProtocol, wrapClientTLS
from twisted.internet.error import ConnectingCancelledError, ConnectionDone
from twisted.internet.protocol import Protocol
from twisted.internet.ssl import Certificate, optionsForClientTLS, trustRootFromCertificates
from twisted.python.failure import Failure

PRIORITY = 13 * 8 + 5  # 5424 §6.2.1: facility "log audit", severity "notice"


class NotSent(Exception):
    """Why messages could not be sent, as a sentence."""


def message(host: str, at: str, kind: str, document: Mapping[str, Any]) -> bytes:
    """`at`: the time in ISO 8601 with an offset and at most six digits of a second. The text is JSON in ASCII, so it needs no BOM."""
    # 5424 §6: HEADER SP STRUCTURED-DATA SP MSG
    name = "".join(character for character in host if "!" <= character <= "~")[:255] or "-"
    return f"<{PRIORITY}>1 {at} {name} mailsvc - {kind} - {json.dumps(document)}".encode("ascii")


def frame(messages: Sequence[bytes]) -> bytes:
    """5425 §4.3: each message after its length in octets."""
    return b"".join(b"%d %b" % (len(each), each) for each in messages)


class _Sender(Protocol):
    """Writes and closes. 5425 §4.4: the receiver answers the closure alert, after it has read everything before it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.closed: Deferred[str | None] = Deferred()  # why, unless it was closed properly

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.write(self.data)
        self.transport.loseConnection()

    def connectionLost(self, reason: Failure = Failure(ConnectionDone())) -> None:  # noqa: B008
        if not self.closed.called:
            why = reason.getErrorMessage() or type(reason.value).__name__
            self.closed.callback(None if reason.check(ConnectionDone) else why)


@attrs.frozen
class SyslogServer:
    """`trust`: certificate authorities (PEM); None: those of this machine."""

    reactor: Any
    host: str
    port: int
    seconds: float
    trust: bytes | None = None

    async def send(self, messages: Sequence[bytes]) -> None:
        """Over a connection of its own. Raises NotSent; then some of them may have arrived."""
        sending = Deferred.fromCoroutine(self._send(frame(messages)))
        try:
            await sending.addTimeout(self.seconds, self.reactor)
        except TimeoutError:
            raise NotSent(f"{self.host} did not take the messages within {self.seconds:g} s.") from None

    async def _send(self, data: bytes) -> None:
        more = {} if self.trust is None else {"trustRoot": trustRootFromCertificates(_certificates(self.trust))}
        endpoint = wrapClientTLS(optionsForClientTLS(self.host, **more), HostnameEndpoint(self.reactor, self.host, self.port))
        sender = _Sender(data)
        try:
            await connectProtocol(endpoint, sender)
            why = await sender.closed
        except (CancelledError, ConnectingCancelledError):
            raise CancelledError from None
        except Exception as error:
            raise NotSent(f"{self.host} cannot be reached: {error or type(error).__name__}.") from None
        finally:
            if sender.transport is not None:
                sender.transport.abortConnection()  # type: ignore[attr-defined]
        if why is not None:
            raise NotSent(f"{self.host} closed the connection: {why}.")


def _certificates(pem: bytes) -> list[Certificate]:
    end = b"-----END CERTIFICATE-----"
    return [Certificate.loadPEM(each + end) for each in pem.split(end)[:-1]]
