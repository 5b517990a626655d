"""Dialling one address: a TCP connection with an SMTP client on it. Implements connect.Dial."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from errno import EMFILE, ENFILE
from typing import Any

from twisted.internet.defer import CancelledError, TimeoutError
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, connectProtocol
from twisted.internet.error import ConnectBindError, ConnectError, ConnectionRefusedError, NoRouteError
from twisted.internet.error import TimeoutError as ConnectTimeout

from mailsvc.delivery.connection.connect import CannotConnect
from mailsvc.delivery.connection.tls_counts import result_of
from mailsvc.delivery.connection.tls_policy import DialOptions
from mailsvc.smtp.client import tls
from mailsvc.smtp.client.client import Canceled, GreetingRefused, NotReady, SmtpClient, Timeouts, TlsFailed, TlsPolicy
from mailsvc.smtp.client.tls import ClientTls


def dialer(reactor: Any, ehlo_name: str, seconds: float, timeouts: Timeouts | None = None) -> Callable[..., Awaitable[SmtpClient]]:
    """A function that dials. `seconds`: for the TCP connection."""

    async def dial(address: str, port: int, host: str, options: DialOptions) -> SmtpClient:
        kind = TCP6ClientEndpoint if ":" in address else TCP4ClientEndpoint
        bind = None if options.source is None else (options.source.address, 0)
        endpoint = kind(reactor, address, port, timeout=seconds, bindAddress=bind)
        name = ehlo_name if options.source is None else options.source.ehlo
        policy, tls_options = _security(host, options)
        client = SmtpClient(reactor, name, host=host, tls=policy, tls_options=tls_options, timeouts=timeouts)
        try:
            await connectProtocol(endpoint, client)
        except (ConnectError, OSError, TimeoutError) as error:
            raise CannotConnect(_why(error), unbound=_is_unbound(error)) from None
        if not options.ourselves and _is_ourselves(client.transport):
            client.ready.addErrback(lambda _: None)
            client.abort("it is this machine")
            raise CannotConnect("is an address of this machine: the mail would come back")  # 5321 §5.1
        try:
            await client.ready
        except GreetingRefused as error:
            raise CannotConnect(f"answered {_line(str(error.reply))}", error.transcript, reply=error.reply) from None
        except TlsFailed as error:
            why = f"failed at TLS: {_line(error.reason)}"
            raise CannotConnect(why, error.transcript, tls=True, result=result_of(error.reason)) from None
        except Canceled:
            raise CancelledError from None
        except NotReady as error:
            raise CannotConnect(f"gave no session: {_line(error.reason)}", error.transcript) from None
        return client

    return dial


def _line(text: str) -> str:
    """In one line: a reply can have several."""
    return " ".join(text.split())


def _is_ourselves(transport: Any) -> bool:
    """A connection to an address of this machine comes from the same address."""
    return bool(transport.getHost().host == transport.getPeer().host)


def _security(host: str, options: DialOptions) -> tuple[TlsPolicy, ClientTls | None]:
    match options.mode:
        case "clear":
            return "none", None
        case "opportunistic":
            return "opportunistic", tls.unverified(host)
        case "encrypted":
            return "required", None
        case "verified":
            return "required", tls.verified(host)
        case "dane":
            return "required", tls.by_dane(options.tlsa, options.names)


def _has_no_descriptor(error: BaseException) -> bool:
    return isinstance(error, ConnectError) and error.osError in (EMFILE, ENFILE)


def _is_unbound(error: BaseException) -> bool:
    return isinstance(error, ConnectBindError) and not _has_no_descriptor(error)


def _why(error: BaseException) -> str:
    if _has_no_descriptor(error):
        return "cannot be connected to: this machine has too many open files"
    if isinstance(error, ConnectionRefusedError):
        return "refused the connection"
    if isinstance(error, ConnectTimeout | TimeoutError):
        return "did not answer the connection in time"
    if isinstance(error, ConnectBindError):
        return f"cannot be connected to from this source address ({error})"
    if isinstance(error, NoRouteError):
        return "cannot be reached from here (no route)"
    return f"cannot be connected to ({error})"
