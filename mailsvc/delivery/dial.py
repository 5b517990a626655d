"""`connect.Dial` in earnest: a TCP connection to one address and the SMTP client on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import CancelledError, TimeoutError
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, connectProtocol
from twisted.internet.error import ConnectError, ConnectionRefusedError, NoRouteError
from twisted.internet.error import TimeoutError as ConnectTimeout

from mailsvc.delivery.connect import CannotConnect
from mailsvc.smtp.client import Courier, GreetingRefused, NotReady, Timeouts, TlsFailed


def dialer(reactor: Any, ehlo_name: str, seconds: float, timeouts: Timeouts | None = None) -> Callable[..., Awaitable[Courier]]:
    """Dials from `reactor` under the name `ehlo_name`; one address gets `seconds` to be connected to."""

    async def dial(address: str, port: int, host: str, *, clear: bool) -> Courier:
        endpoint = (TCP6ClientEndpoint if ":" in address else TCP4ClientEndpoint)(reactor, address, port, timeout=seconds)
        courier = Courier(reactor, ehlo_name, host=host, tls="none" if clear else "opportunistic", timeouts=timeouts)
        try:
            await connectProtocol(endpoint, courier)
        except (ConnectError, OSError, TimeoutError) as error:
            raise CannotConnect(_why(error)) from None
        try:
            await courier.ready
        except GreetingRefused as error:
            raise CannotConnect(f"answered {' '.join(str(error.reply).split())}", error.transcript, reply=error.reply) from None
        except NotReady as error:
            what = "failed at TLS" if isinstance(error, TlsFailed) else "gave no session"
            raise CannotConnect(f"{what}: {error.reason}", error.transcript, tls=isinstance(error, TlsFailed)) from None
        except CancelledError:
            courier.abort("given up")
            raise
        return courier

    return dial


def _why(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused the connection"
    if isinstance(error, ConnectTimeout | TimeoutError):
        return "did not answer the connection in time"
    if isinstance(error, NoRouteError):
        return "cannot be reached from here (no route)"
    return f"cannot be connected to ({error})"
