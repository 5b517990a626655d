"""Requested DSNs are written with the event, taken by one process, and deleted when sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest_twisted

from mailsvc.mail.envelope import StoredEnvelope
from mailsvc.outcome import Bounced, Deferred, Delivered, Failed
from mailsvc.store.events.async_bounces import AsyncBounces
from mailsvc.store.mail.dsn_requests import Notice, Notices, Passed
from tests.store.fixtures import ACCOUNT, DOMAIN, MINUTE, NOW, House, email

ALL = "DELAY,FAILURE,SUCCESS"
SOON = NOW + timedelta(seconds=2)


async def sent(house: House, *notify: str | None, **envelope: Any) -> Any:
    await house.pool.run(
        "INSERT INTO accounts (id, name, created_at) VALUES (%s, 'Example', now()) ON CONFLICT DO NOTHING",
        (ACCOUNT,),
    )
    await house.pool.run(
        "INSERT INTO domains (id, account_id, name, region, created_at) VALUES (%s, %s, 'example.com', 'r1', now()) ON CONFLICT DO NOTHING",
        (DOMAIN, ACCOUNT),
    )
    kept = StoredEnvelope(**{"sender": "me@example.com", "notify": notify} | envelope)
    mail = email(*(f"{n}@example.org" for n in range(len(notify))), lease=house.lease, envelope=kept)
    await house.accept(mail)
    return mail


def told(notices: Any) -> list[tuple[str, str]]:
    return [(each.address, each.type) for notice in notices for each in notice.told]


@pytest_twisted.ensureDeferred
async def test_each_recipient_gets_the_dsns_requested_for_it(house: House) -> None:
    mail = await sent(house, ALL, "SUCCESS", "FAILURE", "NEVER", None, "DELAY")
    later = Deferred("451 later", NOW + MINUTE)
    await house.settle(mail, Delivered("250 ok"), Bounced("550 no"), Bounced("550 no"), Failed("gone"), Delivered("250 ok"), later)
    notices = Notices(house.pool)
    [notice] = found = await notices.take(SOON)
    assert isinstance(notice, Notice)
    assert told(found) == [
        ("0@example.org", "email.delivered"),
        ("2@example.org", "email.bounced"),
        ("5@example.org", "email.delivery_delayed"),
    ]
    assert notice.told[1].data["reply"] == "550 no" and (notice.domain, notice.envelope.sender) == ("example.com", "me@example.com")


@pytest_twisted.ensureDeferred
async def test_a_delay_is_reported_once_and_its_end_too(house: House) -> None:
    mail = await sent(house, ALL)
    notices = Notices(house.pool)
    await house.settle(mail, Deferred("451 later", NOW))
    [first] = await notices.take(SOON)
    await notices.done(first.report)
    await house.pool.run("UPDATE queue SET lease = %s", (house.lease,))
    await house.settle(mail, Deferred("451 later", NOW))
    assert await notices.take(SOON) == []
    await house.pool.run("UPDATE queue SET lease = %s", (house.lease,))
    await house.settle(mail, Delivered("250 ok"))
    assert told(await notices.take(SOON)) == [("0@example.org", "email.delivered")]


@pytest_twisted.ensureDeferred
async def test_expiry_is_reported_as_a_failure(house: House) -> None:
    mail = await sent(house, "FAILURE")
    await house.pool.run("UPDATE queue SET lease = NULL, expires_at = %s", (NOW,))
    assert await house.queue.expire(SOON) == 1
    assert told(await Notices(house.pool).take(SOON + MINUTE)) == [("0@example.org", "email.failed")]
    assert mail.email_id


@pytest_twisted.ensureDeferred
async def test_a_dsn_is_taken_again_only_after_a_minute(house: House) -> None:
    mail = await sent(house, ALL, ALL)
    await house.settle(mail, Delivered("250 ok"), Delivered("250 ok"))
    notices = Notices(house.pool)
    [first] = await notices.take(SOON)
    assert await notices.take(SOON) == []
    [again] = await notices.take(SOON + MINUTE)
    assert again == first
    await notices.done(first.report)
    assert await notices.take(SOON + 2 * MINUTE) == []
    assert await house.count("notices") == 0


@pytest_twisted.ensureDeferred
async def test_a_suppressed_recipient_is_reported_as_a_failure(house: House) -> None:
    await house.pool.run(
        "INSERT INTO suppressions (id, account_id, address, email, origin, created_at) SELECT gen_random_uuid(), %s, a, a, 'manual', now()"
        " FROM unnest(ARRAY['0@example.org', '1@example.org', '2@example.org']) a",
        (ACCOUNT,),
    )
    await sent(house, "FAILURE", "NEVER", None, "FAILURE")
    assert told(await Notices(house.pool).take(SOON)) == [("0@example.org", "email.suppressed")]


@pytest_twisted.ensureDeferred
async def test_no_success_dsn_when_the_server_reports_the_delivery(house: House) -> None:
    mail = await sent(house, ALL, "FAILURE,SUCCESS", ALL, ALL)
    await house.settle(
        mail, Delivered("250 ok"), Bounced("550 no"), Deferred("451 later", NOW + MINUTE), Delivered("250 ok"), passed_on=True
    )
    notices = Notices(house.pool)
    [first] = found = await notices.take(SOON)
    assert told(found) == [("1@example.org", "email.bounced"), ("2@example.org", "email.delivery_delayed")]
    await notices.done(first.report)

    said = [Passed(0, "delivered", "2.0.0", "mx.example.org"), Passed(1, "delivered", "", ""), Passed(7, "delayed", "", "")]
    bounces = AsyncBounces(house.pool)
    for _ in range(2):
        await bounces.forward(mail.account_id, mail.email_id, lambda addresses: said, SOON)
    [notice] = found = await notices.take(SOON + timedelta(seconds=2))
    assert told(found) == [("0@example.org", "passed"), ("1@example.org", "passed")]
    assert notice.told[0].data == {"action": "delivered", "said": "2.0.0", "reporter": "mx.example.org"}

    await notices.done(notice.report)
    await bounces.forward(mail.account_id, mail.email_id, lambda addresses: said, SOON)
    assert await notices.take(SOON + MINUTE) == []
    await notices.sweep(SOON + timedelta(days=29))
    assert await house.count("notices") == 2
    await notices.sweep(SOON + timedelta(days=31))
    assert await house.count("notices") == 0


@pytest_twisted.ensureDeferred
async def test_remote_reports_are_forwarded_only_if_requested(house: House) -> None:
    mail = await sent(house, "FAILURE", None, "SUCCESS", "DELAY")
    actions: list[Any] = ["delivered", "relayed", "delayed", "delayed"]
    said = [Passed(number, action, "", "") for number, action in enumerate(actions)]
    await AsyncBounces(house.pool).forward(mail.account_id, mail.email_id, lambda addresses: said, NOW)
    assert told(await Notices(house.pool).take(SOON)) == [("3@example.org", "passed")]


@pytest_twisted.ensureDeferred
async def test_without_a_sender_there_are_no_dsns(house: House) -> None:
    mail = await sent(house, ALL, sender="")
    await house.settle(mail, Delivered("250 ok"))
    assert await Notices(house.pool).take(SOON) == []
