"""Opens doors: what listens, on the endpoints of which setting, and where it really is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs
from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.endpoints import serverFromString
from twisted.logger import Logger

from mailsvc.runtime.lifecycle import Opened, awaited
from mailsvc.settings.reader import SettingsError

log = Logger()


@attrs.frozen
class Listening:
    """`opened` closes in the end what is opened here."""

    reactor: Any
    opened: Opened

    async def open(self, where: str, endpoints: Sequence[str], factory: Any) -> Sequence[Any]:
        """Open `factory` on the endpoints of the setting `where`."""
        ports = []
        for text in endpoints:
            try:
                endpoint = serverFromString(self.reactor, text)
            except LookupError:
                raise SettingsError(f"The setting {where} has {text!r}, but systemd passed no such socket.") from None
            except (ValueError, TypeError) as error:
                raise SettingsError(f"The setting {where} has {text!r}, which is no endpoint: {error}.") from None
            port = await endpoint.listen(factory)
            ports.append(port)
            self.opened.add(where, awaited(port.stopListening))
            log.info("{where}: {at}", where=where, at=_place(port.getHost()))
        return ports


def address(base: str, ports: Sequence[Any]) -> str:
    """Where the API is: `base`, or the port that was really taken."""
    real = [port.getHost().port for port in ports if hasattr(port.getHost(), "port")]
    return f"http://127.0.0.1:{real[0]}" if real and urlsplit(base).port not in real else base


async def within(seconds: float, waiting: Deferred[None], reactor: Any) -> None:
    """Wait for the requests in work, but not longer than that."""
    try:
        await waiting.addTimeout(seconds, reactor)
    except TimeoutError:
        log.warn("after {seconds:g} s some requests are still in work; they are cut off", seconds=seconds)


def _place(address: Any) -> str:
    return f"{address.host}:{address.port}" if hasattr(address, "port") else str(address)
