"""The control socket: one line of JSON asks, one line answers. It is a Unix socket that only its owner may open.

{"do": "pause", "kind": "destination", "name": "mx.example.com"}   →   {"paused": "mx.example.com", …} or {"error": "a sentence"}
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.protocols.basic import LineOnlyReceiver

from mailsvc.accounts.onboarding import Refused
from mailsvc.settings.reader import SettingsError

MODE = 0o600
_LONGEST = 64 * 1024

Order = Callable[..., Awaitable[Mapping[str, object]]]


class Unanswered(Exception):
    """A sentence: why nobody carried out an order."""


class Control(LineOnlyReceiver):
    """One connection of the operator's."""

    log = Logger()
    delimiter = b"\n"
    MAX_LENGTH = _LONGEST

    def __init__(self, orders: Mapping[str, Order], explain: Callable[[BaseException], str | None]) -> None:
        self._orders, self._explain = orders, explain

    def lineReceived(self, line: bytes) -> None:
        Deferred.fromCoroutine(self._answer(line)).addErrback(
            lambda failure: self.log.failure("an answer was not written", failure=failure)
        )

    async def _answer(self, line: bytes) -> None:
        try:
            answer = await self._carry_out(line)
        except Refused as error:
            answer = {"error": str(error)}
        except Exception as error:
            sentence = self._explain(error)
            if sentence is None:
                self.log.failure("an order of the operator's failed")
            answer = {"error": sentence or f"That failed ({type(error).__name__}); the log has the details."}
        self.sendLine(json.dumps(answer, default=_plain).encode())

    async def _carry_out(self, line: bytes) -> Mapping[str, object]:
        try:
            given = json.loads(line)
            order = self._orders[given.pop("do")]
        except (ValueError, KeyError, AttributeError, TypeError):
            raise Refused(f"An order is a JSON object with `do`: {', '.join(self._orders)}.") from None
        try:
            work = order(**given)
        except TypeError:
            raise Refused("The order has a field that it does not know, or lacks one.") from None
        return await work


class Controls(Factory):
    """`explain` makes a sentence of an error, or None."""

    noisy = False

    def __init__(self, orders: Mapping[str, Order], explain: Callable[[BaseException], str | None]) -> None:
        self._orders, self._explain = orders, explain

    def buildProtocol(self, addr: object) -> Control:
        protocol = Control(self._orders, self._explain)
        protocol.factory = self
        return protocol


def open_socket(reactor: Any, path: Path, controls: Controls) -> Any:
    """A socket that was left behind is taken over, one that somebody listens on is not. It is nobody else's at any moment."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = os.umask(0o777 & ~MODE)
        try:
            return reactor.listenUNIX(str(path), controls, mode=MODE, wantPID=True)
        finally:
            os.umask(before)
    except (OSError, CannotListenError) as error:
        why = error.socketError if isinstance(error, CannotListenError) else error.strerror
        raise SettingsError(f"The setting control.socket is {path}, which cannot be listened on: {why}.") from None


def ask(path: Path, order: Mapping[str, object], seconds: float = 60.0) -> dict[str, Any]:
    """For the command: what the daemon answers. Raises Unanswered."""
    try:
        with socket.socket(socket.AF_UNIX) as wire:
            wire.settimeout(seconds)
            wire.connect(str(path))
            wire.sendall(json.dumps(order).encode() + b"\n")
            answer = json.loads(b"".join(iter(lambda: _some(wire), b"")))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "there was no whole answer"
        raise Unanswered(f"The daemon does not answer at {path}: {why}. Does it run, with this setting control.socket?") from None
    if "error" in answer:
        raise Unanswered(answer["error"])
    return dict(answer)


def _some(wire: socket.socket) -> bytes:
    """Octets up to the end of the line."""
    octets = wire.recv(1 << 16)
    if octets.endswith(b"\n"):
        wire.shutdown(socket.SHUT_RDWR)
    return octets


def _plain(value: object) -> str:
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else str(value)
