"""Opens listeners on the endpoints of a setting, and reports the addresses they got."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs
from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from mailsvc.runtime.lifecycle import Opened, awaited
from mailsvc.settings.reader import SettingsError

log = Logger()


@attrs.frozen
class Listening:
    """Listeners opened here are closed by `opened`."""

    reactor: Any
    opened: Opened

    async def open(self, where: str, endpoints: Sequence[str], factory: Any) -> Sequence[Any]:
        """Open a listener for `factory` on each endpoint of the setting `where`."""
        ports = []
        for text in endpoints:
            try:
                endpoint = serverFromString(self.reactor, text)
            except LookupError:
                raise SettingsError(f"The setting {where} contains {text!r}, but systemd passed no such socket.") from None
            except Exception as error:  # also of a certificate that it names, and of plugins
                raise SettingsError(f"The setting {where} contains {text!r}, which is not a valid endpoint: {error}.") from None
            try:
                port = await endpoint.listen(factory)
            except CannotListenError as error:
                raise SettingsError(_refused(error, where)) from None
            ports.append(port)
            self.opened.add(where, awaited(port.stopListening))
            log.info("{where}: listening on {address}", where=where, address=_printed(port.getHost()))
        return ports


def _refused(error: CannotListenError, where: str) -> str:
    """Why a port cannot be opened, and what to do."""
    why = getattr(error.socketError, "strerror", None) or str(error.socketError)
    remedies = {
        errno.EADDRINUSE: f"stop the program that uses it (`ss -ltnp` lists them), or choose another port in {where}",
        errno.EACCES: f"start mailsvc with its systemd unit, or choose a port above 1023 in {where}",
        errno.EADDRNOTAVAIL: f"choose an address of this machine in {where}",
    }
    remedy = remedies.get(getattr(error.socketError, "errno", 0), f"choose another endpoint in {where}")
    return f"Cannot listen on {error.interface or 'any address'}, port {error.port} ({why}): {remedy}."


def address(base: str, ports: Sequence[Any]) -> str:
    """The URL of the API: `base`, or the local port if that is a different one."""
    real = [port.getHost().port for port in ports if hasattr(port.getHost(), "port")]
    return f"http://127.0.0.1:{real[0]}" if real and urlsplit(base).port not in real else base


async def within(seconds: float, waiting: Deferred[None], reactor: Any) -> None:
    """Wait for requests in progress, for `seconds` at most."""
    try:
        await waiting.addTimeout(seconds, reactor)
    except TimeoutError:
        log.warn("some requests are still in progress after {seconds:g} s; not waiting for them any longer", seconds=seconds)


def _printed(address: Any) -> str:
    return f"{address.host}:{address.port}" if hasattr(address, "port") else str(address)
