"""How customers reach the SMTP relay: host, user name and ports, for the pages that show them."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mailsvc.settings.region import Region
from mailsvc.settings.regions import all_regions
from mailsvc.settings.schema import Settings

IMPLICIT = "Implicit TLS"
_KINDS = {
    "465": (IMPLICIT, "recommended"),
    "2465": (IMPLICIT, "if port 465 is blocked"),
    "587": ("STARTTLS", "TLS required"),
    "2587": ("STARTTLS", "TLS required; if port 587 is blocked"),
    "25": ("STARTTLS", "TLS recommended; many networks block this port"),
}


@attrs.frozen
class Port:
    """A port of the relay. `tls` and `note` describe its security."""

    number: int
    tls: str
    note: str


@attrs.frozen
class RelayAccess:
    """How customers reach the SMTP relay. `ports` maps standard ports to actual ones. `regions`: all regions, if there are several."""

    host: str
    user: str
    ports: Mapping[str, int]
    regions: Mapping[str, Region] = attrs.field(factory=dict)

    @classmethod
    def of(cls, settings: Settings, opened: Mapping[str, int]) -> RelayAccess:
        """`opened`: ports that this process listens on. Empty if another process does; then the standard ones."""
        ports = opened or {number: int(number) for number in settings.smtp.listen}
        found = all_regions(settings)
        host = found[settings.region].smtp or "localhost"
        return cls(host, settings.smtp.username, ports, found if len(found) > 1 else {})

    @property
    def listed(self) -> list[Port]:
        """The ports for customers, best first."""
        return [Port(self.ports[number], *kind) for number, kind in _KINDS.items() if number in self.ports]

    @property
    def best(self) -> Port:
        """The port for clients that support both implicit TLS and STARTTLS."""
        return next(iter(self.listed), Port(465, *_KINDS["465"]))

    @property
    def starttls(self) -> Port:
        """The port for clients without implicit TLS; the best port if there is none."""
        return next((port for port in self.listed if port.tls == "STARTTLS"), self.best)
