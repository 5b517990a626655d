"""Requested DSNs are written with the event, taken by one process, and deleted when sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest_twisted

from mailsvc.outcome import Bounced, Deferred, Delivered, Failed
from mailsvc.store.events.async_bounces import AsyncBounces
from mailsvc.store.mail.dsn_requests import ForwardedReport, Notice, Notices
from mailsvc.store.mail.envelope import StoredEnvelope
from tests.store.fixtures import ACCOUNT, DOMAIN, MINUTE, NOW, StoreRig, email

ALL = "DELAY,FAILURE,SUCCESS"
SOON = NOW + timedelta(seconds=2)


async def sent(store: StoreRig, *notify: str | None, **envelope: Any) -> Any:
    await store.pool.run(
        "INSERT INTO accounts (id, name, created_at) VALUES (%s, 'Example', now()) ON CONFLICT DO NOTHING",
        (ACCOUNT,),
    )
    await store.pool.run(
        "INSERT INTO domains (id, account_id, name, region, created_at) VALUES (%s, %s, 'example.com', 'r1', now()) ON CONFLICT DO NOTHING",
        (DOMAIN, ACCOUNT),
    )
    kept = StoredEnvelope(**{"sender": "me@example.com", "notify": notify} | envelope)
    mail = email(*(f"{n}@example.org" for n in range(len(notify))), lease=store.lease, envelope=kept)
    await store.accept(mail)
    return mail


def reported(notices: Any) -> list[tuple[str, str]]:
    return [(each.address, each.type) for notice in notices for each in notice.items]


@pytest_twisted.ensureDeferred
async def test_each_recipient_gets_the_dsns_requested_for_it(store: StoreRig) -> None:
    mail = await sent(store, ALL, "SUCCESS", "FAILURE", "NEVER", None, "DELAY")
    later = Deferred("451 later", NOW + MINUTE)
    await store.settle(mail, Delivered("250 ok"), Bounced("550 no"), Bounced("550 no"), Failed("gone"), Delivered("250 ok"), later)
    notices = Notices(store.pool)
    [notice] = found = await notices.take(SOON)
    assert isinstance(notice, Notice)
    assert reported(found) == [
        ("0@example.org", "email.delivered"),
        ("2@example.org", "email.bounced"),
        ("5@example.org", "email.delivery_delayed"),
    ]
    assert {each.host for each in notice.items} == {"mx.example.org"}
    assert notice.items[1].data.text == "550 no" and (notice.domain, notice.envelope.sender) == ("example.com", "me@example.com")


@pytest_twisted.ensureDeferred
async def test_one_that_cannot_be_read_does_not_hold_up_the_others(store: StoreRig) -> None:
    damaged, good = await sent(store, ALL), await sent(store, ALL)
    for mail in (damaged, good):
        await store.settle(mail, Delivered("250 ok"))
    await store.pool.run("UPDATE emails SET recipients = '{}' WHERE email_id = %s", (damaged.email_id,))
    notices = Notices(store.pool)
    assert [notice.email_id for notice in await notices.take(SOON)] == [good.email_id]
    await store.pool.run("UPDATE emails SET recipients = '{0@example.org}' WHERE email_id = %s", (damaged.email_id,))
    assert [notice.email_id for notice in await notices.take(SOON + 2 * MINUTE)] == [good.email_id], "it is not logged each minute"
    assert damaged.email_id in [notice.email_id for notice in await notices.take(SOON + 61 * MINUTE)]


@pytest_twisted.ensureDeferred
async def test_a_delay_is_reported_once_and_its_end_too(store: StoreRig) -> None:
    mail = await sent(store, ALL)
    notices = Notices(store.pool)
    await store.settle(mail, Deferred("451 later", NOW))
    [first] = await notices.take(SOON)
    await notices.done(first.report)
    await store.pool.run("UPDATE queue SET lease = %s", (store.lease,))
    await store.settle(mail, Deferred("451 later", NOW))
    assert await notices.take(SOON) == []
    await store.pool.run("UPDATE queue SET lease = %s", (store.lease,))
    await store.settle(mail, Delivered("250 ok"))
    assert reported(await notices.take(SOON)) == [("0@example.org", "email.delivered")]


@pytest_twisted.ensureDeferred
async def test_expiry_is_reported_as_a_failure(store: StoreRig) -> None:
    mail = await sent(store, "FAILURE")
    await store.pool.run("UPDATE queue SET lease = NULL, expires_at = %s", (NOW,))
    assert await store.queue.expire(SOON) == 1
    assert reported(await Notices(store.pool).take(SOON + MINUTE)) == [("0@example.org", "email.failed")]
    assert mail.email_id


@pytest_twisted.ensureDeferred
async def test_a_dsn_is_taken_again_only_after_a_minute(store: StoreRig) -> None:
    mail = await sent(store, ALL, ALL)
    await store.settle(mail, Delivered("250 ok"), Delivered("250 ok"))
    notices = Notices(store.pool)
    [first] = await notices.take(SOON)
    assert await notices.take(SOON) == []
    [again] = await notices.take(SOON + MINUTE)
    assert again == first
    await notices.done(first.report)
    assert await notices.take(SOON + 2 * MINUTE) == []
    assert await store.count("notices") == 0


@pytest_twisted.ensureDeferred
async def test_a_suppressed_recipient_is_reported_as_a_failure(store: StoreRig) -> None:
    await store.pool.run(
        "INSERT INTO suppressions (id, account_id, address, email, origin, created_at) SELECT gen_random_uuid(), %s, a, a, 'manual', now()"
        " FROM unnest(ARRAY['0@example.org', '1@example.org', '2@example.org']) a",
        (ACCOUNT,),
    )
    await sent(store, "FAILURE", "NEVER", None, "FAILURE")
    assert reported(await Notices(store.pool).take(SOON)) == [("0@example.org", "email.suppressed")]


@pytest_twisted.ensureDeferred
async def test_no_success_dsn_when_the_server_reports_the_delivery(store: StoreRig) -> None:
    mail = await sent(store, ALL, "FAILURE,SUCCESS", ALL, ALL)
    await store.settle(
        mail, Delivered("250 ok"), Bounced("550 no"), Deferred("451 later", NOW + MINUTE), Delivered("250 ok"), passed_on=True
    )
    notices = Notices(store.pool)
    [first] = found = await notices.take(SOON)
    assert reported(found) == [("1@example.org", "email.bounced"), ("2@example.org", "email.delivery_delayed")]
    await notices.done(first.report)

    reports = [
        ForwardedReport(0, "delivered", "2.0.0", "mx.example.org"),
        ForwardedReport(1, "delivered", "", ""),
        ForwardedReport(7, "delayed", "", ""),
    ]
    bounces = AsyncBounces(store.pool)
    for _ in range(2):
        await bounces.forward(mail.account_id, mail.email_id, lambda addresses: reports, SOON)
    [notice] = found = await notices.take(SOON + timedelta(seconds=2))
    assert reported(found) == [("0@example.org", "forwarded"), ("1@example.org", "forwarded")]
    assert notice.items[0].data == ForwardedReport(0, "delivered", "2.0.0", "mx.example.org")

    await notices.done(notice.report)
    await bounces.forward(mail.account_id, mail.email_id, lambda addresses: reports, SOON)
    assert await notices.take(SOON + MINUTE) == []
    await notices.sweep(SOON + timedelta(days=29))
    assert await store.count("notices") == 2
    await notices.sweep(SOON + timedelta(days=31))
    assert await store.count("notices") == 0


@pytest_twisted.ensureDeferred
async def test_remote_reports_are_forwarded_only_if_requested(store: StoreRig) -> None:
    mail = await sent(store, "FAILURE", None, "SUCCESS", "DELAY")
    actions: list[Any] = ["delivered", "relayed", "delayed", "delayed"]
    reports = [ForwardedReport(number, action, "", "") for number, action in enumerate(actions)]
    await AsyncBounces(store.pool).forward(mail.account_id, mail.email_id, lambda addresses: reports, NOW)
    assert reported(await Notices(store.pool).take(SOON)) == [("3@example.org", "forwarded")]


@pytest_twisted.ensureDeferred
async def test_without_a_sender_there_are_no_dsns(store: StoreRig) -> None:
    mail = await sent(store, ALL, sender="")
    await store.settle(mail, Delivered("250 ok"))
    assert await Notices(store.pool).take(SOON) == []
