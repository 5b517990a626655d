"""What the sending domain adds. Its signature is always the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, get_args

import attrs
import pytest
from twisted.internet.defer import Deferred

from mailsvc.delivery.admission.memory import MemoryBudget
from mailsvc.delivery.message_loader import LoadedMessage, MessageLoader
from mailsvc.delivery.sending_domain import SendingDomains
from mailsvc.delivery.transaction import Transaction
from mailsvc.mail.authentication import dkim
from mailsvc.smtp.client.dot_stuffing import SLICE, DotStuffer
from mailsvc.smtp.client.message_writer import MessageWriter
from mailsvc.store.domains.domains import StoredKey
from mailsvc.store.ids import uuid7_floor
from mailsvc.store.mail.messages import StoredPieces
from mailsvc.store.queue.claims import Leased
from tests.delivery.fakes import MESSAGE, START, number

KEYS = tuple(StoredKey(f"s{n}", algorithm, dkim.generate(algorithm)[0]) for n, algorithm in enumerate(get_args(dkim.Algorithm)))
EXPIRES = datetime.fromtimestamp(START + 5 * 86400, UTC)


@attrs.define
class Domain:
    name: str = "sender.example"
    lost: str | None = None
    reserved: bool = False


class Stored:
    async def get(self, _: Any) -> Any:
        return Domain()

    async def signing_keys(self, _: Any) -> tuple[StoredKey, ...]:
        return KEYS


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


async def signed(prepare: Callable[[], dkim.Unsigned]) -> bytes:
    return dkim.complete([prepare()])[0]


def signature(transaction: Transaction) -> bytes:
    """Made by a process of its own."""
    stored: Any = Stored()
    found: list[bytes] = []
    Deferred.fromCoroutine(SendingDomains(stored, stored, b"secret", signed, at_once).sign(transaction, MESSAGE)).addCallback(found.append)
    return found[0]


def transaction() -> Transaction:
    email_id = uuid7_floor(datetime.fromtimestamp(START, UTC))
    leased = Leased(number(1), email_id, 0, number(9), "eu", "a@b.example", "mx", 0, "queued", EXPIRES, False)
    return Transaction(number(1), email_id, number(9), 7, False, (leased,))


def test_two_processes_that_sign_first_send_the_same_bytes() -> None:
    first = transaction()
    [leased] = first.recipients
    second = attrs.evolve(first, lease=8, recipients=(attrs.evolve(leased, recipient=1, destination="other"),))
    assert signature(first) == signature(second)
    assert signature(first).count(b"DKIM-Signature:") == 2


def test_a_signature_is_valid_from_acceptance_until_after_the_last_attempt() -> None:
    assert f" t={START:.0f}; x={START + 14 * 86400:.0f};".encode() in signature(transaction())


@attrs.define
class Large:
    """A message in pieces that counts how many are read in the reactor thread, which it also stands in for."""

    pieces: int = 160
    signature: bytes | None = None
    within: bool = False  # a thread
    taken: int = 0
    letter: bytes = b"x"
    reads: int = 0

    def __len__(self) -> int:
        return len(MESSAGE) + self.pieces * SLICE

    def __iter__(self) -> Iterator[bytes]:
        self.reads += 1
        for piece in (MESSAGE, *[self.letter * (SLICE - 2) + b"\r\n"] * self.pieces):
            self.taken += not self.within
            yield piece

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        self.within = True
        try:
            return work()
        finally:
            self.within = False

    async def load(self, *_: object) -> StoredPieces:
        return StoredPieces(self.signature, self)  # type: ignore[arg-type]

    def loader(self) -> MessageLoader:
        stored: Any = Stored()
        return MessageLoader(None, self, SendingDomains(stored, stored, lambda: [b"secret"], signed, self.in_thread), MemoryBudget(1 << 30))


def test_a_large_message_is_signed_and_scanned_in_threads() -> None:
    for large, leased in (
        (Large(), transaction()),  # read from the store
        (Large(signature=b"DKIM-Signature: 1\r\n"), transaction()),  # for another attempt
        (accepted := Large(), attrs.evolve(transaction(), body=accepted)),  # from memory
    ):
        found: list[LoadedMessage] = []
        Deferred.fromCoroutine(large.loader().load(leased)).addCallback(found.append)
        [loaded] = found
        assert not loaded.eight_bit and loaded.signature.startswith(b"DKIM-Signature:")
        assert large.taken == 0


@pytest.mark.parametrize("signed_before", [False, True])
@pytest.mark.parametrize("letter", [b"x", b"\xe4"])
def test_a_large_message_is_read_once_before_it_is_sent(letter: bytes, signed_before: bool) -> None:
    large = Large(signature=b"DKIM-Signature: 1\r\n" if signed_before else None, letter=letter)
    found: list[LoadedMessage] = []
    Deferred.fromCoroutine(large.loader().load(transaction())).addCallback(found.append)
    [loaded] = found
    assert loaded.eight_bit == (letter != b"x")
    assert large.reads == 1


@attrs.define
class Pausing:
    """A transport that pauses its producer after each write."""

    written: list[bytes] = attrs.field(factory=list)
    producer: Any = None

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def write(self, data: bytes) -> None:
        self.written.append(data)
        if self.producer is not None:
            self.producer.pauseProducing()


def test_a_large_message_is_sent_in_slices_as_the_server_reads() -> None:
    large, transport = Large(), Pausing()
    outflow: Any = MessageWriter(transport, b"", large, DotStuffer(), lambda: True, lambda data: None, lambda error: None)  # type: ignore[arg-type]
    outflow.start()
    turns = 1
    while transport.producer is not None:
        before = large.taken
        transport.producer.resumeProducing()
        turns += 1
        assert large.taken <= before + 2
    assert turns >= large.pieces and max(map(len, transport.written)) <= SLICE + 1024
    assert b"".join(transport.written).endswith(b"x\r\n.\r\n")
