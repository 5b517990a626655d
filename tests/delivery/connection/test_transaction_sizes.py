"""Hosts that end the session when a transaction has more recipients than they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.protocols.basic import LineReceiver

from mailsvc.delivery.connection.transaction_sizes import TransactionSizes, smaller
from mailsvc.delivery.transaction import Transaction, from_rows
from mailsvc.mail.reply import Reply
from mailsvc.outcome import Bounced, Delivered
from mailsvc.outcome import Deferred as Later
from mailsvc.store.queue.claims import Leased
from tests.delivery.fakes import DeliveryRig, answered, number, taken
from tests.delivery.test_loopback import Site, named
from tests.store.fixtures import NOW


def of(recipients: int) -> Transaction:
    rows = [
        Leased(number(1), number(1), n, number(9), "eu", f"r{n}@x.example", "mx.x.example", 0, "queued", NOW, False)
        for n in range(recipients)
    ]
    (transaction,) = from_rows(rows, 7, recipients)
    return transaction


def sizes_of(sizes: TransactionSizes, recipients: int, host: str = "mx.x.example") -> tuple[int, int]:
    """How many recipients go into the next transaction with the host, and how many are left."""
    transaction = of(recipients)
    rest = [each for each in [sizes.rest(host, transaction)] if each is not None]
    assert {each.recipient for part in (transaction, *rest) for each in part.recipients} == set(range(recipients))
    return len(transaction.recipients), sum(len(each.recipients) for each in rest)


@pytest.mark.parametrize(
    ("recipients", "replied", "next_size"), [(100, 20, 20), (100, 1, 1), (100, 0, 50), (3, 0, 1), (2, 0, 1), (1, 0, 1)]
)
def test_the_next_transaction_has_as_many_as_were_replied_to_or_half(recipients: int, replied: int, next_size: int) -> None:
    assert smaller(recipients, replied) == next_size


def test_a_host_gets_smaller_transactions_for_an_hour() -> None:
    clock = Clock()
    sizes = TransactionSizes(clock)
    assert sizes_of(sizes, 100) == (100, 0)
    sizes.failed("mx.x.example", 100, 20)
    assert sizes_of(sizes, 100) == (20, 80)
    assert sizes_of(sizes, 20) == (20, 0)
    assert sizes_of(sizes, 100, "mx.y.example") == (100, 0)
    sizes.failed("mx.x.example", 100, 30)  # of another connection, which began before
    assert sizes_of(sizes, 100) == (20, 80)
    sizes.failed("mx.x.example", 20, 0)
    assert sizes_of(sizes, 100) == (10, 90)
    clock.advance(3600)
    assert sizes_of(sizes, 100) == (100, 0)


@pytest.mark.parametrize("stage", ["data", "dot"])
def test_a_message_that_is_refused_because_of_too_many_recipients_is_divided(stage: str) -> None:
    rig = DeliveryRig()
    server = rig.server("x.example", "1.1.1.1")
    for recipient in range(100):
        rig.store.add(1, f"r{recipient}@x.example", recipient=recipient, destination="mx.x.example")
    too_many = Reply(552, "Too many recipients", "5.5.3")
    server.answer = lambda envelope: taken(envelope) if len(envelope.recipients) <= 20 else answered(envelope, too_many, stage)
    rig.start().run(5)
    assert [type(outcomes[-1]) for outcomes in rig.store.outcomes.values()] == [Delivered] * 100
    assert len(server.mails) < 20
    server.answer = lambda envelope: answered(envelope, too_many, stage)
    rig.store.add(2, "bob@x.example", destination="mx.x.example")
    rig.run(5)
    assert isinstance(rig.store.last(2), Bounced)  # it cannot be sent with fewer others


# A real server

END: dict[str, Callable[[Any], None]] = {
    "421 and a close": lambda server: (server.sendLine(b"421 4.3.2 closing"), server.transport.loseConnection()),  # type: ignore[dict-item]
    "a close": lambda server: server.transport.loseConnection(),
}


class Few(LineReceiver):
    """Ends the session at the recipient after the twentieth of a transaction, or of the session."""

    most = 20
    of_session = False
    factory: Any

    def connectionMade(self) -> None:
        self.count, self.before, self.body, self.over = 0, 0, False, False
        self.sendLine(b"220 mx")

    def lineReceived(self, line: bytes) -> None:
        if self.over:
            return
        if self.body:
            self.body = line != b"."
            if not self.body:
                self.factory.transactions.append(self.count - self.before)
                self.before = self.count if self.of_session else 0
                self.sendLine(b"250 2.0.0 taken")
            return
        verb = line.split(b" ")[0]
        self.count = 0 if verb == b"MAIL" and not self.of_session else self.count + (verb == b"RCPT")
        self.body = verb == b"DATA"
        if self.count > self.most:
            self.over = True
            self.factory.ended += 1
            self.factory.end(self)
        else:
            self.sendLine({b"EHLO": self.factory.ehlo, b"DATA": b"354 go"}.get(verb, b"250 ok"))


async def start(protocol: type[Few], way: str, ehlo: bytes = b"250-mx\r\n250 PIPELINING") -> tuple[Site, Any]:
    site = Site()
    factory: Any = Factory.forProtocol(protocol)
    factory.noisy, factory.transactions, factory.ended, factory.end, factory.ehlo = False, [], 0, END[way], ehlo
    site.open("127.0.0.1", factory)
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    return site, factory


@pytest.mark.parametrize(("way", "ehlo"), [("421 and a close", b"250-mx\r\n250 PIPELINING"), ("a close", b"250 mx")])
@pytest_twisted.ensureDeferred
async def test_everybody_gets_the_mail_after_two_rounds(way: str, ehlo: bytes) -> None:
    site, factory = await start(Few, way, ehlo)
    keys = [site.store.add(1, f"r{n}@example.com", recipient=n) for n in range(300)]
    await site.start(retry_after=(1.0,), retry_jitter=0.0, hold_first=1.0, connections_max=2)
    await site.until(lambda: all(isinstance(site.store.outcomes.get(key, [None])[-1], Delivered) for key in keys))
    await site.stop()
    assert all(len(site.store.outcomes[key]) <= 2 for key in keys)
    assert all(isinstance(outcome, Later | Delivered) for outcomes in site.store.outcomes.values() for outcome in outcomes)
    assert sum(factory.transactions) == 300, "nobody gets it twice"
    assert factory.ended <= 2, "those that had begun before the first of them ended"


class FewInASession(Few):
    of_session = True


@pytest.mark.parametrize("way", END)
@pytest_twisted.ensureDeferred
async def test_mail_after_the_limit_of_a_session_goes_over_another_connection_at_once(way: str) -> None:
    site, factory = await start(FewInASession, way)
    keys = [site.store.add(email, "bob@example.com") for email in range(1, 51)]
    await site.start(connections_max=1)
    await site.until(lambda: len(site.store.outcomes) == len(keys))
    await site.stop()
    assert all(isinstance(outcome, Delivered) for outcomes in site.store.outcomes.values() for outcome in outcomes)
    assert factory.transactions == [1] * 50
