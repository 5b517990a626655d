"""The reason of a pause, as customers read it."""

from __future__ import annotations

import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.monitoring.operator_commands import OperatorCommands
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.operator import Operating
from tests.store.fixtures import NOW


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, "Paused by the operator."),
        (" ", "Paused by the operator."),
        ("maintenance", "Paused by the operator: maintenance."),
        ("Ask us why. ", "Paused by the operator: Ask us why."),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_pause_is_explained_in_one_sentence(pool: Pool, given: str | None, shown: str) -> None:
    clock = Clock()
    clock.advance(NOW.timestamp())
    accounts, operating = Accounts(pool, clock), Operating(pool)
    account = await accounts.create("Acme")
    commands = OperatorCommands(Queue(pool), operating, "us-east-1", clock.seconds, accounts, lambda: None)
    await commands.pause("account", "Acme", given)
    assert await operating.pause_of(account.id, NOW) == shown
