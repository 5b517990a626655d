"""How many statements and commits concurrent work shares: exact counts, the same on every machine."""

from __future__ import annotations

import pytest_twisted

from mailsvc.outcome import Delivered
from tests.store.fixtures import NOW, REGION, House, email, together

MANY = 100


@pytest_twisted.ensureDeferred
async def test_a_hundred_emails_at_once_share_their_statements(house: House) -> None:
    async def cost(*work: object) -> int:
        before = house.pool.statements
        await together(*work)
        return house.pool.statements - before

    await house.accept(email())  # what a connection prepares once is no cost of an email
    mails = [email(lease=house.lease) for _ in range(MANY)]
    assert await cost(house.accept(*mails)) <= 2
    assert await cost(*(house.settle(mail, Delivered("250 ok")) for mail in mails)) <= 2

    assert await cost(house.books.number(1000)) == 1

    waiting = [email() for _ in range(MANY)]
    await house.accept(*waiting)
    assert await cost(house.queue.claim(REGION, {"example.org": MANY}, NOW, house.lease)) == 1
    apart = [email(f"a@{n}.example") for n in range(MANY)]
    await house.accept(*apart)
    wanted = {f"{n}.example": 10 for n in range(MANY)}
    assert await cost(house.queue.claim(REGION, wanted, NOW, house.lease, 1 << 20)) == 1
    assert await cost(*(house.messages.load(mail.account_id, mail.email_id) for mail in waiting)) <= -(-MANY // 16)
