"""The control socket: a Unix socket, open to its owner only, that takes one line of JSON and answers with one. Server and client.

{"do": "pause", "kind": "destination", "name": "mx.example.com"}   →   {"paused": "mx.example.com", …} or {"error": "a message"}

The commands themselves: operator_commands.
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
_MAX_LINE = 64 * 1024

Command = Callable[..., Awaitable[Mapping[str, object]]]


class ControlError(Exception):
    """Why a command was not carried out, as a message for the operator."""


class ControlProtocol(LineOnlyReceiver):
    """A connection to the control socket."""

    log = Logger()
    delimiter = b"\n"
    MAX_LENGTH = _MAX_LINE

    def __init__(self, commands: Mapping[str, Command], explain: Callable[[BaseException], str | None]) -> None:
        self._commands, self._explain = commands, explain

    def lineReceived(self, line: bytes) -> None:
        Deferred.fromCoroutine(self._answer(line)).addErrback(
            lambda failure: self.log.failure("An answer on the control socket could not be written.", failure=failure)
        )

    async def _answer(self, line: bytes) -> None:
        try:
            answer = await self._carry_out(line)
        except Refused as error:
            answer = {"error": str(error)}
        except Exception as error:
            message = self._explain(error)
            if message is None:
                self.log.failure("A command on the control socket failed.")
            answer = {"error": message or f"The command failed ({type(error).__name__}). The log has the details."}
        self.sendLine(json.dumps(answer, default=_plain).encode())

    async def _carry_out(self, line: bytes) -> Mapping[str, object]:
        try:
            given = json.loads(line)
            command = self._commands[given.pop("do")]
        except (ValueError, KeyError, AttributeError, TypeError):
            raise Refused(f"Expected a JSON object with `do`, one of: {', '.join(self._commands)}.") from None
        try:
            work = command(**given)
        except TypeError:
            raise Refused("The command has an unknown field, or a field is missing.") from None
        return await work


class ControlFactory(Factory):
    """`explain` returns a message for an expected error, or None."""

    noisy = False

    def __init__(self, commands: Mapping[str, Command], explain: Callable[[BaseException], str | None]) -> None:
        self._commands, self._explain = commands, explain

    def buildProtocol(self, addr: object) -> ControlProtocol:
        protocol = ControlProtocol(self._commands, self._explain)
        protocol.factory = self
        return protocol


def open_socket(reactor: Any, path: Path, factory: ControlFactory) -> Any:
    """Listens on the socket. Replaces a stale socket file, but not one in use. Other users can never connect."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = os.umask(0o777 & ~MODE)
        try:
            return reactor.listenUNIX(str(path), factory, mode=MODE, wantPID=True)
        finally:
            os.umask(before)
    except (OSError, CannotListenError) as error:
        if isinstance(error, CannotListenError) and isinstance(error.socketError, str):  # Twisted: the lock file of the socket is taken
            raise SettingsError(
                f"The setting control.socket is {path}, which a running mailsvc uses: stop that one, or set another socket."
            ) from None
        why = error.socketError if isinstance(error, CannotListenError) else error.strerror
        raise SettingsError(f"The setting control.socket is {path}; cannot listen there: {why}.") from None


def send(path: Path, command: Mapping[str, object], seconds: float = 60.0) -> dict[str, Any]:
    """Sends a command to the daemon and returns its answer. Raises ControlError."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(str(path))
            connection.sendall(json.dumps(command).encode() + b"\n")
            answer = json.loads(b"".join(iter(lambda: _receive(connection), b"")))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "the answer was incomplete"
        remedy = "Make sure that it is running with the same control.socket."
        if isinstance(error, PermissionError):
            remedy = "Run this command as the user of the daemon."
        raise ControlError(f"The daemon does not answer at {path}: {why}. {remedy}") from None
    if "error" in answer:
        raise ControlError(answer["error"])
    return dict(answer)


def problem(path: Path) -> str | None:
    """Why no daemon can be reached at the socket; None if one listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2.0)
        try:
            connection.connect(str(path))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _receive(connection: socket.socket) -> bytes:
    """Reads up to the end of the line."""
    data = connection.recv(1 << 16)
    if data.endswith(b"\n"):
        connection.shutdown(socket.SHUT_RDWR)
    return data


def _plain(value: object) -> str:
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else str(value)
