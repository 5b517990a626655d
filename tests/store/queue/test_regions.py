"""Queued mail of a domain that has moved to another region goes there, at once or when its lease ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import pytest_twisted

from mailsvc.outcome import Deferred
from mailsvc.store.mail.values import NewEmail
from mailsvc.store.queue.processes import FREE
from tests.store.fixtures import ACCOUNT, DAY, DOMAIN, MINUTE, NOW, REGION, StoreRig, email

ACCOUNTS = "INSERT INTO accounts (id, name, created_at) VALUES (%s, 'acme', %s)"
DOMAINS = "INSERT INTO domains (id, account_id, name, region, status, created_at) VALUES (%s, %s, 'acme.example', %s, 'verified', %s)"


async def regions(store: StoreRig) -> list[str]:
    return [region for (region,) in await store.pool.rows("SELECT region FROM queue ORDER BY email_id")]


@pytest_twisted.ensureDeferred
async def test_waiting_mail_moves_and_leased_mail_stays(store: StoreRig) -> None:
    await store.accept(email(), email(), email(scheduled_at=NOW + DAY), email(domain_id=ACCOUNT), email(lease=store.lease))
    assert await store.queue.move_domain(DOMAIN, "r2", NOW + MINUTE, 2) == 2
    assert await store.queue.move_domain(DOMAIN, "r2", NOW + MINUTE, 2) == 1
    assert await store.queue.move_domain(DOMAIN, "r2", NOW + MINUTE, 2) == 0
    assert await regions(store) == ["r2", "r2", "r2", REGION, REGION]
    assert (await store.queue.claim("r2", {"example.org": 9}, NOW, store.lease)).rows == [], "until every process knows the new region"
    assert len((await store.queue.claim("r2", {"example.org": 9}, NOW + MINUTE, store.lease)).rows) == 2


async def given_back(store: StoreRig, mail: NewEmail) -> None:
    await store.queue.release([(mail.email_id, 0)], store.lease)


async def given_back_paused(store: StoreRig, mail: NewEmail) -> None:
    await store.queue.release_paused([(mail.email_id, 0)], store.lease, ACCOUNT, NOW)


async def deferred(store: StoreRig, mail: NewEmail) -> None:
    await store.settle(mail, Deferred("Later.", NOW + MINUTE))


async def died(store: StoreRig, mail: NewEmail) -> None:
    await store.pool.run("UPDATE processes SET ended_at = now()")
    await store.pool.run(FREE)


@pytest.mark.parametrize("end", [given_back, given_back_paused, deferred, died])
@pytest_twisted.ensureDeferred
async def test_leased_mail_follows_when_its_lease_ends(store: StoreRig, end: Callable[[StoreRig, NewEmail], Awaitable[None]]) -> None:
    mail = email(lease=store.lease)
    await store.accept(mail)
    await store.pool.run(ACCOUNTS, (ACCOUNT, NOW))
    await store.pool.run(DOMAINS, (DOMAIN, ACCOUNT, "r2", NOW))
    await end(store, mail)
    assert await store.pool.rows("SELECT region, lease FROM queue") == [("r2", None)]
