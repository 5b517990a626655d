"""Emails are read by their own account only, in pages, and can be canceled or rescheduled while waiting."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.outcome import Bounced, Deferred, Delivered, Uncertain
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.accept import NewEmail, NewRecipient, Submission
from tests.store.fixtures import ACCOUNT, DAY, MINUTE, NOW, OTHER, REGION, House, email, explain, keyed, nodes, together

NOBODY = UUID(int=0)


@pytest_twisted.ensureDeferred
async def test_pages_cover_everything_newest_first(house: House) -> None:
    mails = [email() for _ in range(7)]
    await house.accept(*mails, email(account=OTHER))
    newest_first = sorted((m.email_id for m in mails), reverse=True)

    first, more = await house.emails.list(ACCOUNT, 3)
    assert ([e.email_id for e in first], more) == (newest_first[:3], True)
    second, more = await house.emails.list(ACCOUNT, 3, after=first[-1].email_id)
    assert ([e.email_id for e in second], more) == (newest_first[3:6], True)
    third, more = await house.emails.list(ACCOUNT, 3, after=second[-1].email_id)
    assert ([e.email_id for e in third], more) == (newest_first[6:], False)

    back, more = await house.emails.list(ACCOUNT, 3, before=third[0].email_id)
    assert ([e.email_id for e in back], more) == (newest_first[3:6], True)
    back, more = await house.emails.list(ACCOUNT, 3, before=second[0].email_id)
    assert ([e.email_id for e in back], more) == (newest_first[:3], False)
    assert await house.emails.list(ACCOUNT, 3, before=newest_first[0]) == ([], False)
    assert await house.emails.list(ACCOUNT, 7) == ([*first, *second, *third], False)


@pytest_twisted.ensureDeferred
async def test_paging_works_from_an_id_that_does_not_exist(house: House) -> None:
    older, between, newer = email(), uuid7(NOW.timestamp()), email()
    await house.accept(older, newer)
    assert [e.email_id for e in (await house.emails.list(ACCOUNT, 9, after=between))[0]] == [older.email_id]
    assert [e.email_id for e in (await house.emails.list(ACCOUNT, 9, before=between))[0]] == [newer.email_id]


@pytest_twisted.ensureDeferred
async def test_an_account_cannot_read_or_change_emails_of_another(house: House) -> None:
    mine = email(scheduled_at=NOW + MINUTE)
    sent = email(lease=house.lease)
    await house.accept(mine, sent)
    await house.settle(sent, Deferred("later", NOW), signature=b"x")
    assert await house.acceptance.accept(keyed(email())) == await house.acceptance.accept(keyed(email(account=OTHER)))
    for mail in (mine, sent):
        assert await house.emails.get(OTHER, mail.email_id) is None
        assert await house.emails.recipients(OTHER, mail.email_id) == []
        assert await house.emails.attempts(OTHER, mail.email_id) == []
        assert await house.messages.load(OTHER, mail.email_id) is None
        assert await house.emails.cancel(OTHER, mail.email_id, NOW) == "not_found"
        assert await house.emails.reschedule(OTHER, mail.email_id, NOW + DAY, NOW) == "not_found"
    assert [e.account_id for e in (await house.emails.list(OTHER, 100))[0]] == [OTHER]
    assert await house.statuses(mine) == ["scheduled"]


@pytest_twisted.ensureDeferred
async def test_a_settlement_of_another_account_cannot_touch_a_row(house: House) -> None:
    mine = email(lease=house.lease)
    await house.accept(mine)
    stolen = attrs.evolve(mine, account_id=OTHER)
    assert await house.settle(stolen, Delivered("250")) == frozenset()
    assert await house.statuses(mine) == ["sending"]


@pytest_twisted.ensureDeferred
async def test_last_event_is_the_latest_event(house: House) -> None:
    mail = email("a@example.org", "b@example.org", lease=house.lease)
    await house.accept(mail)
    seen = [await last_event(house, mail)]
    for outcomes in ((Deferred("later", NOW), None), (None, Bounced("550"))):
        await house.settle(mail, *outcomes)
        seen.append(await last_event(house, mail))
    assert seen == ["email.sent", "email.delivery_delayed", "email.bounced"]


async def last_event(house: House, mail: NewEmail) -> str:
    found = await house.emails.get(mail.account_id, mail.email_id)
    assert found is not None
    [listed], _ = await house.emails.list(mail.account_id, 1)
    assert listed == found
    return found.last_event


@pytest_twisted.ensureDeferred
async def test_lists_never_read_a_message(house: House) -> None:
    from mailsvc.store.mail import emails_sql

    await house.accept(email())
    plan = await explain(house, emails_sql.NEWEST, (ACCOUNT, 10))
    read = {str(node.get("Relation Name")).rpartition("_")[0] for node in nodes(plan)}
    assert "emails" in read and "messages" not in read


@pytest_twisted.ensureDeferred
async def test_waiting_recipients_can_be_canceled_and_leased_ones_cannot(house: House) -> None:
    waiting, scheduled, sending, delivered = email(), email(scheduled_at=NOW + DAY), email(lease=house.lease), email(lease=house.lease)
    await house.accept(waiting, scheduled, sending, delivered)
    await house.settle(delivered, Delivered("250"))
    answers = [await house.emails.cancel(ACCOUNT, m.email_id, NOW) for m in (waiting, scheduled, sending, delivered)]
    assert answers == ["canceled", "canceled", "too_late", "too_late"]
    assert await house.emails.cancel(ACCOUNT, waiting.email_id, NOW) == "too_late"
    assert await house.emails.cancel(ACCOUNT, NOBODY, NOW) == "not_found"
    assert [await house.statuses(m) for m in (waiting, scheduled, sending)] == [["canceled"], ["canceled"], ["sending"]]
    assert await last_event_of(house, waiting) == "email.canceled"
    assert await house.claim() == []


async def last_event_of(house: House, mail: NewEmail) -> str:
    found = await house.emails.get(mail.account_id, mail.email_id)
    return found.last_event if found else ""


@pytest_twisted.ensureDeferred
async def test_canceling_affects_the_recipients_still_waiting(house: House) -> None:
    mail = email("a@example.org", "b@example.org", "c@example.org", "d@example.org", lease=house.lease)
    await house.accept(mail)
    await house.settle(mail, Delivered("250"), Deferred("later", NOW), Uncertain("who knows", NOW))
    assert await house.emails.cancel(ACCOUNT, mail.email_id, NOW) == "canceled"
    assert await house.statuses(mail) == ["delivered", "canceled", "uncertain", "sending"]


@pytest_twisted.ensureDeferred
async def test_a_cancel_and_a_claim_do_not_both_win(house: House) -> None:
    mails = [email() for _ in range(30)]
    await house.accept(*mails)
    claims = [house.claim(limit=2) for _ in range(15)]
    cancels = [house.emails.cancel(ACCOUNT, m.email_id, NOW) for m in mails]
    results = await together(*(one for pair in zip(cancels[:15], claims, strict=True) for one in pair), *cancels[15:])
    canceled = [r for r in results if r == "canceled"]
    claimed = [leased for r in results if isinstance(r, list) for leased in r]
    assert len(canceled) + len(claimed) + await house.count("queue WHERE lease IS NULL") == 30
    statuses = [(await house.statuses(m))[0] for m in mails]
    assert (statuses.count("canceled"), statuses.count("sending")) == (len(canceled), len(claimed))


@pytest_twisted.ensureDeferred
async def test_rescheduling_moves_the_expiry_too(house: House) -> None:
    mail = email("a@example.org", "b@example.org", scheduled_at=NOW + MINUTE, expires_at=NOW + MINUTE + DAY)
    await house.accept(mail)
    at = NOW + 3 * DAY + timedelta(microseconds=1)
    assert await house.emails.reschedule(ACCOUNT, mail.email_id, at, NOW) == "rescheduled"
    found = await house.emails.get(ACCOUNT, mail.email_id)
    assert found is not None and (found.scheduled_at, found.last_event) == (at, "email.scheduled")
    assert await house.pool.rows("SELECT DISTINCT next_at, expires_at FROM queue") == [(at, at + DAY)]
    assert await house.queue.release_scheduled(NOW + DAY) == 0
    assert await house.queue.release_scheduled(at) == 1
    found = await house.emails.get(ACCOUNT, mail.email_id)
    assert found is not None and (found.scheduled_at, found.last_event) == (at, "email.sent")
    assert await house.emails.reschedule(ACCOUNT, mail.email_id, at, NOW) == "too_late"
    assert await house.emails.reschedule(ACCOUNT, NOBODY, at, NOW) == "not_found"


@pytest_twisted.ensureDeferred
async def test_rescheduling_writes_no_entry_in_the_event_log(house: House) -> None:
    mail = email(scheduled_at=NOW + MINUTE)
    await house.accept(mail)
    await house.emails.reschedule(ACCOUNT, mail.email_id, NOW + DAY, NOW)
    assert len(await house.events(mail)) == 2
    assert await house.count("fresh_events") == 1


@pytest.mark.parametrize("count", [1, 150])
@pytest_twisted.ensureDeferred
async def test_recipients_are_returned_in_order(house: House, count: int) -> None:
    addresses = [f"{n}@example.org" for n in range(count)]
    mail = email(*addresses)
    await house.accept(mail)
    assert [(r.recipient, r.address) for r in await house.emails.recipients(ACCOUNT, mail.email_id)] == [*enumerate(addresses)]


@pytest_twisted.ensureDeferred
async def test_one_address_twice_is_two_recipients(house: House) -> None:
    twice = email("a@example.org", "a@example.org")
    twice = attrs.evolve(twice, lease=house.lease, recipients=(twice.recipients[0], NewRecipient("a@example.org", "example.org", True)))
    await house.acceptance.accept(Submission(ACCOUNT, (twice,)))
    await house.settle(twice, None, Delivered("250"))
    assert await house.statuses(twice) == ["queued", "delivered"]
    assert [r.destination for r in await house.queue.ready(REGION, NOW)] == ["example.org"]
