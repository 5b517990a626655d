"""What all lanes of a process share, and the state of one connection worker."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred

from mailsvc.delivery.admission.decision import Admission
from mailsvc.delivery.admission.slots import Slots
from mailsvc.delivery.attempt import Attempts
from mailsvc.delivery.connection.connect import Connector, OpenConnection
from mailsvc.delivery.leases import LeaseBook
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.reactions import Reactions


@attrs.frozen
class LaneContext:
    """Passed to every lane."""

    clock: Any
    limits: DeliveryLimits
    admission: Admission
    connector: Connector
    attempts: Attempts
    slots: Slots
    leases: LeaseBook
    reactions: Reactions


@attrs.define(eq=False)
class ConnectionWorker:
    """One connection of a lane, from its first dial until its slot is given back. `given_up`: others needed the slot."""

    dial: Deferred[OpenConnection] | None = None
    connection: OpenConnection | None = None
    given_up: bool = False

    def give_up(self) -> None:
        """Called for other lanes that wait. A message that was sent completely keeps its time for a reply."""
        self.given_up = True
        if self.dial is not None:
            self.dial.cancel()
        elif self.connection is not None:
            self.connection.client.give_up("others waited for the connection")
