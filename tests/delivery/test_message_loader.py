"""The message loader and the memory budget."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.broadcasts.consent import BroadcastCanceled
from mailsvc.delivery.admission.memory import MemoryBudget
from mailsvc.delivery.message_loader import Gone, LoadedMessage, MessageLoader, ToSign
from mailsvc.store.mail.envelope import EMPTY
from mailsvc.store.mail.messages import StoredPieces
from mailsvc.store.postgres.errors import Unavailable
from tests.delivery.admission.test_sharing import transaction
from tests.delivery.fakes import Sending

SIZE = 40
MESSAGE = b"x" * SIZE


class Messages:
    """Each message has 40 bytes. They are read when a test says so; `reading` counts those whose size was charged."""

    def __init__(self) -> None:
        self.reading: list[Deferred[None]] = []
        self.failures: list[Exception] = []

    async def load(self, account_id: UUID, email_id: UUID, before_rest: Any) -> StoredPieces:
        await before_rest(SIZE)
        if self.failures:
            raise self.failures.pop()
        waiting: Deferred[None] = Deferred()
        self.reading.append(waiting)
        await waiting
        return StoredPieces(b"", MESSAGE, EMPTY)


class Rig:
    def __init__(self, limit: int) -> None:
        self.clock, self.messages, self.memory = Clock(), Messages(), MemoryBudget(limit)
        sending: Any = Sending()
        self.loader = MessageLoader(self.clock, self.messages, sending, self.memory)
        self.loaded: list[LoadedMessage] = []
        self.errors: list[Any] = []

    def load(self, email: int) -> Deferred[None]:
        loading = Deferred.fromCoroutine(self.loader.load(transaction(email)))
        return loading.addCallbacks(self.loaded.append, lambda failure: self.errors.append(failure.value))

    def wait(self) -> None:
        self.clock.pump([0.05] * 3)


def test_messages_that_are_loaded_together_stay_within_the_budget() -> None:
    rig = Rig(limit=2 * SIZE + 10)
    for email in range(4):
        rig.load(email)
    assert (len(rig.messages.reading), rig.memory.used) == (2, 2 * SIZE), "charged before they are read"
    for reading in rig.messages.reading:
        reading.callback(None)
    rig.wait()
    assert (len(rig.messages.reading), rig.memory.used) == (2, 2 * SIZE), "the others wait until one is unloaded"
    rig.loader.unload(rig.loaded[0])
    rig.wait()
    assert (len(rig.messages.reading), rig.memory.used) == (3, 2 * SIZE)


def test_a_message_that_exceeds_the_budget_is_loaded_alone() -> None:
    rig = Rig(limit=SIZE // 2)
    rig.memory.charge(SIZE // 2)  # mail in lanes
    for email in range(2):
        rig.load(email)
    assert len(rig.messages.reading) == 1
    rig.messages.reading[0].callback(None)
    rig.loader.unload(rig.loaded[0])
    rig.wait()
    assert len(rig.messages.reading) == 2


def test_a_load_that_is_repeated_is_charged_once() -> None:
    rig = Rig(limit=10 * SIZE)
    rig.messages.failures = [Unavailable("The database is restarting.")]
    rig.load(1)
    rig.clock.pump([0.5, 0.5])
    assert rig.memory.used == SIZE
    rig.messages.reading[0].callback(None)
    rig.loader.unload(rig.loaded[0])
    assert rig.memory.used == 0


@pytest.mark.parametrize("error", [ValueError("broken"), Gone("It is no longer stored.")])
def test_a_load_that_fails_is_not_charged(error: Exception) -> None:
    rig = Rig(limit=10 * SIZE)
    rig.messages.failures = [error]
    rig.load(1)
    assert (rig.errors, rig.memory.used) == ([error], 0)


def test_an_email_of_a_canceled_broadcast_is_not_charged() -> None:
    class Canceled:
        async def unwanted(self, *of: object) -> Mapping[str, str]:
            raise BroadcastCanceled

    class OfBroadcast(Messages):
        async def load(self, account_id: UUID, email_id: UUID, before_rest: Any) -> StoredPieces:
            await before_rest(SIZE)
            return StoredPieces(b"", b"x" * SIZE, EMPTY, broadcast_id=UUID(int=7))

    sending: Any = Sending()
    memory = MemoryBudget(10 * SIZE)
    loader = MessageLoader(Clock(), OfBroadcast(), sending, memory, Canceled())
    failed: list[Any] = []
    Deferred.fromCoroutine(loader.load(transaction(1))).addErrback(lambda failure: failed.append(failure.type))
    assert (failed, memory.used) == ([BroadcastCanceled], 0)


class Ahead:
    """A loader whose signatures are made when a test says so."""

    def __init__(self, batch: int = 1) -> None:
        self.signing: list[tuple[int, Deferred[bytes]]] = []
        sending: Any = Sending()
        sending.sign, sending.batch, sending.small = self.sign, batch, SIZE
        self.clock = Clock()
        self.loader = MessageLoader(self.clock, Messages(), sending, MemoryBudget(10 * SIZE))
        self.loaded: list[LoadedMessage] = []

    async def sign(self, email: ToSign, body: Any) -> bytes:
        waiting: Deferred[bytes] = Deferred()
        self.signing.append((email.email_id.int, waiting))
        return await waiting

    def sign_ahead(self, *messages: tuple[int, bytes | None]) -> None:
        emails: Any = [SimpleNamespace(email_id=UUID(int=number), message=message) for number, message in messages]
        self.loader.sign_ahead(emails)

    def load(self, number: int) -> None:
        loaded = transaction(number)
        loaded.body = MESSAGE
        Deferred.fromCoroutine(self.loader.load(loaded)).addCallback(self.loaded.append)

    @property
    def signed(self) -> list[int]:
        return [number for number, _ in self.signing]


def test_a_signature_made_ahead_is_used() -> None:
    rig = Ahead()
    rig.sign_ahead((1, MESSAGE))
    rig.signing[0][1].callback(b"made ahead")
    rig.load(1)
    rig.sign_ahead((1, MESSAGE))
    assert (rig.signed, [each.signature for each in rig.loaded]) == ([1], [b"made ahead"])
    assert rig.loaded[0].new_signature, "it is stored if a recipient has to be retried"


def test_attempts_wait_for_a_signature_that_is_being_made_ahead() -> None:
    rig = Ahead()
    rig.sign_ahead((1, MESSAGE))
    rig.load(1)
    rig.load(1)
    assert (rig.signed, rig.loaded) == ([1], [])
    rig.signing[0][1].callback(b"made ahead")
    assert [each.signature for each in rig.loaded] == [b"made ahead"] * 2


def test_if_a_signature_cannot_be_made_ahead_one_attempt_makes_it() -> None:
    rig = Ahead()
    rig.sign_ahead((1, MESSAGE))
    rig.load(1)
    rig.load(1)
    rig.signing[0][1].errback(Unavailable("The database is restarting."))
    assert (rig.signed, rig.loaded) == ([1, 1], [])
    rig.signing[1][1].callback(b"made by the attempt")
    assert [each.signature for each in rig.loaded] == [b"made by the attempt"] * 2


def test_only_small_messages_in_memory_are_signed_ahead() -> None:
    rig = Ahead()
    rig.sign_ahead((1, MESSAGE), (2, MESSAGE + b"x"), (3, None))
    assert rig.signed == [1]


@pytest.mark.parametrize(("emails", "signed"), [(0, 0), (4, 0), (5, 5), (8, 8), (12, 8), (13, 13)])
def test_messages_that_do_not_fill_a_batch_are_not_signed_ahead(emails: int, signed: int) -> None:
    rig = Ahead(batch=8)
    rig.sign_ahead(*((number, MESSAGE) for number in range(emails)))
    assert rig.signed == list(range(signed))
