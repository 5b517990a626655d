"""What all lanes share, and what they ask of others: connections, attempts, slots, and whoever keeps the lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs
from twisted.internet.defer import Deferred

from mailsvc.delivery.admission.slots import Slots
from mailsvc.delivery.attempt import Report
from mailsvc.delivery.connection.connect import OpenConnection, Unreachable
from mailsvc.delivery.connection.route import Route
from mailsvc.delivery.connection.tls_policy import ConnectionPreference, TlsPolicy
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.transaction import Transaction
from mailsvc.mail.reply import Reply

if TYPE_CHECKING:
    from mailsvc.delivery.lane import Lane


class Connecting(Protocol):
    async def connect(self, route: Route, wish: ConnectionPreference) -> OpenConnection: ...

    def unmet(self, route: Route, demand: TlsPolicy) -> Unreachable | None: ...


class Attempting(Protocol):
    async def run(self, line: OpenConnection, parcel: Transaction) -> Report: ...

    async def unmet(self, parcel: Transaction, demand: TlsPolicy, why: Unreachable) -> None: ...


class Owner(Protocol):
    """Whoever keeps the lanes: dispatch."""

    def drained(self, lane: Lane) -> None:
        """There is room for more."""

    def over(self, lane: Lane) -> None:
        """The lane holds nothing any more."""

    def succeeded(self, lane: Lane) -> None:
        """The destination did its work."""

    def down(self, lane: Lane, why: Unreachable, parcels: list[Transaction]) -> None:
        """The destination cannot be used now; here is what waited for it. The lane takes nothing any more."""

    def answered(self, lane: Lane, replies: tuple[Reply, ...]) -> None:
        """What the destination refused with; there may be a rule for it."""

    def returned(self, parcel: Transaction, pause: float = 0.0) -> None:
        """A parcel that was not sent; its lease goes back, for no use within `pause` seconds."""


@attrs.frozen
class LaneContext:
    """What all lanes share."""

    clock: Any
    terms: DeliveryLimits
    connector: Connecting
    attempts: Attempting
    slots: Slots
    owner: Owner


@attrs.define(eq=False)
class ConnectionWorker:
    """One place for a connection, from its first dial until it is given back. `weary`: others would not wait for it any longer."""

    dial: Deferred[OpenConnection] | None = None
    line: OpenConnection | None = None
    weary: bool = False

    def give_up(self) -> None:
        """For others who wait; a message that was sent whole keeps its time to be answered."""
        self.weary = True
        if self.dial is not None:
            self.dial.cancel()
        elif self.line is not None:
            self.line.courier.give_up("others waited for the connection")
