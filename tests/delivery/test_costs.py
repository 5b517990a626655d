"""What the way out of a mail costs, counted and not timed: calls of Python functions and writes, from its seat to its settlement.

Sockets, Postgres and threads are left out; what they are asked is answered in a later turn. The bounds are a tenth above what was counted
with Python 3.11; later versions call less.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from types import FrameType
from typing import Any
from uuid import UUID

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater
from twisted.internet.testing import StringTransport

from mailsvc.delivery.connection.connect import Connector
from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.dispatch import Dispatch
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.sending_domain import SendingDomains
from mailsvc.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.outcome import Delivered
from mailsvc.smtp.client.client import SmtpClient
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.values import NewRecipient
from mailsvc.store.queue.settle import Settlement
from tests.delivery.fakes import START, Names, Process, Store, number

MAILS, CONNECTIONS = 200, 10
BODY = b"Subject: x\r\n\r\n" + (b"y" * 70 + b"\r\n") * 50
APART = ("/tests/", "/twisted/internet/task.py", "/twisted/internet/base.py", "/twisted/internet/testing.py")


class Wire(StringTransport):
    """A connection to a server that takes everything; what it says is there in the next turn."""

    def __init__(self, way: Way, courier: SmtpClient) -> None:
        super().__init__()
        self.way, self.courier = way, courier

    def setTcpNoDelay(self, enabled: bool) -> None:
        """There is no delay."""

    def write(self, octets: bytes) -> None:
        self.way.writes += 1
        self.way.clock.callLater(0, self.courier.dataReceived, self.reply(octets))

    def reply(self, octets: bytes) -> bytes:
        if octets.startswith(b"EHLO"):
            return b"250-mx\r\n250-PIPELINING\r\n250-CHUNKING\r\n250 8BITMIME\r\n"
        if not octets.startswith(b"MAIL"):
            return b"250 2.0.0 Ok\r\n"
        last = b"354 go\r\n" if octets.endswith(b"\r\nDATA\r\n") else b"250 2.0.0 Ok\r\n" if b"\r\nBDAT " in octets else b""
        return b"250 2.1.0 Ok\r\n250 2.1.5 Ok\r\n" + last


@attrs.frozen
class Sender:
    name: str = "sender.example"
    return_path: str = "rp"
    tls: str = "opportunistic"
    lost: None = None


@attrs.frozen
class Account:
    number: int = 7


class Side:
    """What the sending domain's side reads of the store."""

    def __init__(self, found: Any) -> None:
        self.found = found

    async def get(self, _: UUID) -> Any:
        return self.found

    async def signing_keys(self, _: UUID) -> tuple[str, ...]:
        return ("key",)


@attrs.frozen
class Email:
    email_id: UUID
    account_id: UUID = number(1)
    domain_id: UUID = number(9)
    region: str = "eu"
    message: bytes = BODY
    envelope: StoredEnvelope = EMPTY
    recipients: tuple[NewRecipient, ...] = (NewRecipient("bob@example.com", "mx.example.com", True),)
    expires_at: datetime = datetime.fromtimestamp(START + 86400, UTC)
    bulk: bool = False
    scheduled_at: None = None


class Way:
    """Everything of delivery but sockets, Postgres and threads."""

    def __init__(self, chunking: bool) -> None:
        self.clock = Clock()
        self.clock.advance(START)
        self.settled: list[Settlement] = []
        self.calls = self.writes = 0
        names: Any = Names()
        names.mxs["example.com"], names.hosts["mx.example.com"] = [(10, "mx.example.com")], ["1.1.1.1"]
        terms = DeliveryLimits(
            connections_max=CONNECTIONS, connections_initial=CONNECTIONS, messages_per_connection=10**6, idle_seconds=300, chunking=chunking
        )
        store: Any = Store(self.clock)
        routes = Routes(self.clock, names, terms.routes, port=25, own=())
        sending: Any = SendingDomains(Side(Sender()), Side(Account()), lambda: [b"secret"], self._later)  # type: ignore[arg-type]
        settling: Any = self
        self.dispatch = Dispatch(
            self.clock, terms, "eu", Process(), store, routes, Connector(self.clock, names, self._dial, terms), store, settling, sending,
            lambda: uuid7(self.clock.seconds()),
        )  # fmt: skip
        self.dispatch.startService()
        Deferred.fromCoroutine(routes.resolve("example.com"))

    async def _dial(self, *_: object) -> Any:
        courier = SmtpClient(self.clock, "me.example", tls="none")
        courier.makeConnection(Wire(self, courier))
        self.clock.callLater(0, courier.dataReceived, b"220 mx\r\n")
        await courier.ready
        return courier

    def _later(self, _work: object) -> Any:
        return deferLater(self.clock, 0, lambda: b"DKIM-Signature: x\r\n")

    async def settle(self, settlement: Settlement) -> frozenset[int]:
        self.settled.append(settlement)
        await deferLater(self.clock, 0, lambda: None)
        return frozenset({0})

    def send(self, mails: int, count: bool = False) -> None:
        """Until they are settled."""
        emails: list[Any] = [Email(uuid7(self.clock.seconds())) for _ in range(mails)]
        wanted = len(self.settled) + mails
        if count:
            sys.setprofile(self._note)
        try:
            for email in emails:
                seat = self.dispatch.offer("example.com", len(BODY), False)
                assert seat is not None
                self.dispatch.take(email, [seat])
            for _ in range(100 * mails):
                if len(self.settled) == wanted:
                    break
                self.clock.advance(0.001)
            self.clock.advance(0.001)
        finally:
            sys.setprofile(None)
        assert len(self.settled) == wanted

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not any(part in frame.f_code.co_filename for part in APART):
            self.calls += 1


@pytest.mark.parametrize(("chunking", "writes", "calls"), [(True, 1, 335), (False, 2, 350)])
def test_the_way_out_of_a_mail(chunking: bool, writes: int, calls: int) -> None:
    way = Way(chunking)
    way.send(1)  # the destination shows that it works
    way.send(5 * CONNECTIONS)
    before = way.writes
    way.send(MAILS, count=True)
    assert way.writes - before == writes * MAILS
    assert way.calls <= calls * MAILS
    assert all(isinstance(each.outcome, Delivered) for settlement in way.settled for each in settlement.outcomes)
