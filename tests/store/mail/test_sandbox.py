"""The table of the development inbox, on Postgres."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import pytest_twisted

from mailsvc.store.ids import uuid7
from mailsvc.store.mail import sandbox as module
from mailsvc.store.mail.sandbox import ReceivedMail, Sandbox, Verdict
from mailsvc.store.postgres.pool import Pool

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
VERDICT = Verdict("example.com", "s1", "rsa-sha256", "fail", "The signature does not match the message.")


async def account(pool: Pool, name: str) -> tuple[UUID, int]:
    id_ = uuid7(NOW.timestamp())
    rows = await pool.rows("INSERT INTO accounts (id, name, created_at) VALUES (%s, %s, %s) RETURNING number", (id_, name, NOW))
    return id_, rows[0][0]


def mail(
    number: int | None, second: int = 0, message: bytes = b"Subject: x\r\n\r\n\x80\xff\r\n", email_id: UUID | None = None
) -> ReceivedMail:
    at = NOW + timedelta(seconds=second)
    return ReceivedMail(at, "b-x@send.example.com", ("a@x.test", "b@x.test"), message, (VERDICT,), "TLSv1.3 AES", number, email_id)


@pytest_twisted.ensureDeferred
async def test_a_mail_is_stored_as_received(pool: Pool) -> None:
    account_id, number = await account(pool, "one")
    store, email_id = Sandbox(pool), uuid7(NOW.timestamp())
    id_ = await store.add(mail(number, email_id=email_id))
    found = await store.get(account_id, id_)
    assert found is not None
    assert found.message == b"Subject: x\r\n\r\n\x80\xff\r\n"
    assert (found.sender, found.recipients, found.dkim) == ("b-x@send.example.com", ("a@x.test", "b@x.test"), (VERDICT,))
    assert (found.received_at, found.email_id, found.size, found.tls) == (NOW, email_id, 18, "TLSv1.3 AES")


@pytest_twisted.ensureDeferred
async def test_an_account_sees_only_its_emails(pool: Pool) -> None:
    store = Sandbox(pool)
    (one, number), (two, _) = await account(pool, "one"), await account(pool, "two")
    mine, nobodys = await store.add(mail(number)), await store.add(mail(None))
    assert [email.id for email in (await store.list(one, 10))[0]] == [mine]
    assert (await store.list(two, 10)) == ([], False)
    assert await store.get(two, mine) is None
    assert await store.get(one, nobodys) is None


@pytest_twisted.ensureDeferred
async def test_the_account_is_found_through_the_queue(pool: Pool) -> None:
    account_id, _ = await account(pool, "one")
    email_id = uuid7(NOW.timestamp())
    await pool.run(
        "INSERT INTO queue (email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at, expires_at)"
        " VALUES (%s, 0, %s, %s, 'r', 'a@x.test', 'x.test', 'queued', false, %s, %s)",
        (email_id, account_id, email_id, NOW, NOW),
    )
    id_ = await Sandbox(pool).add(mail(None, email_id=email_id))
    assert (await Sandbox(pool).get(account_id, id_)) is not None


@pytest_twisted.ensureDeferred
async def test_pages(pool: Pool) -> None:
    account_id, number = await account(pool, "one")
    store = Sandbox(pool)
    ids = [await store.add(mail(number, second)) for second in range(5)][::-1]

    async def page(limit: int, **edge: UUID) -> tuple[list[int], bool]:
        emails, more = await store.list(account_id, limit, **edge)
        assert all(email.message is None for email in emails)
        return [ids.index(email.id) for email in emails], more

    assert await page(2) == ([0, 1], True)
    assert await page(2, after=ids[1]) == ([2, 3], True)
    assert await page(2, after=ids[3]) == ([4], False)
    assert await page(2, before=ids[4]) == ([2, 3], True)
    assert await page(5, before=ids[2]) == ([0, 1], False)


@pytest.mark.parametrize(("max_mails", "max_bytes", "kept"), [(3, 10_000, 3), (100, 50, 2)])
@pytest_twisted.ensureDeferred
async def test_the_oldest_mails_are_deleted(pool: Pool, monkeypatch: pytest.MonkeyPatch, max_mails: int, max_bytes: int, kept: int) -> None:
    monkeypatch.setattr(module, "MAX_MAILS", max_mails)
    monkeypatch.setattr(module, "MAX_BYTES", max_bytes)
    monkeypatch.setattr(module, "_SWEEP_EVERY", 1)
    account_id, number = await account(pool, "one")
    store = Sandbox(pool)
    ids = [await store.add(mail(number, second)) for second in range(6)]
    assert [email.id for email in (await store.list(account_id, 100))[0]] == ids[::-1][:kept]


@pytest_twisted.ensureDeferred
async def test_dkim_keys_are_published(pool: Pool) -> None:
    account_id, _ = await account(pool, "one")
    domain_id, key_id = uuid7(NOW.timestamp()), uuid7(NOW.timestamp())
    await pool.run(
        "INSERT INTO domains (id, account_id, name, region, created_at) VALUES (%s, %s, 'example.com', 'r', %s)",
        (domain_id, account_id, NOW),
    )
    await pool.run(
        "INSERT INTO dkim_keys (id, domain_id, selector, algorithm, public_key, sealed_key, created_at)"
        " VALUES (%s, %s, 's1', 'ed25519', 'AAAA', %s, %s)",
        (key_id, domain_id, b"encrypted", NOW),
    )
    assert await Sandbox(pool).published("Example.com", "s1") == "v=DKIM1; k=ed25519; p=AAAA"
    assert await Sandbox(pool).published("example.com", "s2") is None
