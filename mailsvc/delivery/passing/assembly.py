"""Starts both ends: in a process that delivers the receiver, in one that only accepts the sender; and what paces accepting in both."""

from __future__ import annotations

import os
from functools import partial
from time import monotonic
from typing import Any

import attrs

from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.handoff import QueueOnly
from mailsvc.delivery.passing import sockets
from mailsvc.delivery.passing.handoff import PassingHandoff
from mailsvc.delivery.passing.receiver import Receiver
from mailsvc.delivery.passing.sender import Sender
from mailsvc.delivery.service import Delivery
from mailsvc.runtime.database import Database
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.pacing import Load, Pace
from mailsvc.runtime.polling import every
from mailsvc.store.postgres.notifications import Notifications
from mailsvc.store.queue.processes import CHANNEL, HEARTBEAT, ProcessRegistration, running

_PURPOSE = "passing"


@attrs.define(eq=False)
class Passing:
    """`pace` is for acceptance."""

    reactor: Any
    process: ProcessRegistration
    database: Database
    notifications: Notifications
    opened: Opened
    pace: Pace = attrs.field(default=attrs.Factory(lambda self: Pace(self.reactor), takes_self=True), init=False)

    def take(self, delivery: Delivery) -> None:
        """In a process that delivers."""
        receiver = Receiver(delivery.handed_over)

        def changed(behind: bool) -> None:
            self.pace.set(behind)
            receiver.set(behind)

        load = Load(self.reactor, monotonic, lambda: delivery.emails, changed)
        load.start()
        self.opened.add("load", load.stop)
        if sockets.SUPPORTED:
            receiver.listen(self.reactor, self._address(os.getpid()))
            self.opened.add("messages of other processes", receiver.stop)
            self.notifications.notify(CHANNEL)  # those that accept look again, and find the socket

    def handoff(self, routes: Routes) -> QueueOnly | PassingHandoff:
        """In a process that does not deliver."""
        if not sockets.SUPPORTED:
            return QueueOnly(routes)
        sender = Sender(self.reactor, lambda: self.process.id, partial(running, self.database.pool), self._address, self.pace.set)
        self.notifications.listen(CHANNEL, sender.look_again)
        self.opened.add("passing messages on", sender.stop)
        self.opened.add("processes of this machine", every(self.reactor, HEARTBEAT, "looking for processes", sender.look))
        return PassingHandoff(QueueOnly(routes), sender)

    def _address(self, process: int) -> str:
        return sockets.name(self.database.encryption.secrets_for(_PURPOSE)[0], process)
