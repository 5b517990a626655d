"""How many statements and commits concurrent work shares: exact counts, the same on every machine."""

from __future__ import annotations

import pytest_twisted

from mailsvc.outcome import Delivered
from tests.store.fixtures import NOW, REGION, StoreRig, email, together

MANY = 100


@pytest_twisted.ensureDeferred
async def test_a_hundred_emails_at_once_share_their_statements(store: StoreRig) -> None:
    async def cost(*work: object) -> int:
        before = store.pool.statements
        await together(*work)
        return store.pool.statements - before

    await store.accept(email())  # what a connection prepares once is no cost of an email
    mails = [email(lease=store.lease) for _ in range(MANY)]
    assert await cost(store.accept(*mails)) <= 2
    assert await cost(*(store.settle(mail, Delivered("250 ok")) for mail in mails)) <= 2

    assert await cost(store.ledger.number(1000)) == 1

    waiting = [email() for _ in range(MANY)]
    await store.accept(*waiting)
    assert await cost(store.queue.claim(REGION, {"example.org": MANY}, NOW, store.lease)) == 1
    apart = [email(f"a@{n}.example") for n in range(MANY)]
    await store.accept(*apart)
    wanted = {f"{n}.example": 10 for n in range(MANY)}
    assert await cost(store.queue.claim(REGION, wanted, NOW, store.lease, 1 << 20)) == 1
    assert await cost(*(store.messages.load(mail.account_id, mail.email_id) for mail in waiting)) <= -(-MANY // 16)
