"""The message loader and the memory budget."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.delivery.admission.memory import MemoryBudget
from mailsvc.delivery.message_loader import Gone, LoadedMessage, MessageLoader
from mailsvc.store.mail.envelope import EMPTY
from mailsvc.store.mail.messages import StoredPieces
from mailsvc.store.postgres.errors import Unavailable
from tests.delivery.admission.test_sharing import transaction
from tests.delivery.fakes import Sending

SIZE = 40


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
        return StoredPieces(b"", b"x" * SIZE, EMPTY)


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
