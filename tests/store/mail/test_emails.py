"""Emails are read by their own account only, in pages, and can be canceled or rescheduled while waiting."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.outcome import Bounced, Deferred, Delivered, Uncertain
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.accept import NewEmail, NewRecipient, Submission
from mailsvc.store.mail.emails import VIEW, of_page
from mailsvc.store.mail.search import STATES, Filters, Search
from tests.store.fixtures import ACCOUNT, DAY, MINUTE, NOW, OTHER, REGION, StoreRig, email, explain, keyed, nodes, together

NOBODY = UUID(int=0)


@pytest_twisted.ensureDeferred
async def test_pages_cover_everything_newest_first(store: StoreRig) -> None:
    mails = [email() for _ in range(7)]
    await store.accept(*mails, email(account=OTHER))
    newest_first = sorted((m.email_id for m in mails), reverse=True)

    first, more = await store.emails.list(ACCOUNT, 3)
    assert ([e.email_id for e in first], more) == (newest_first[:3], True)
    second, more = await store.emails.list(ACCOUNT, 3, after=first[-1].email_id)
    assert ([e.email_id for e in second], more) == (newest_first[3:6], True)
    third, more = await store.emails.list(ACCOUNT, 3, after=second[-1].email_id)
    assert ([e.email_id for e in third], more) == (newest_first[6:], False)

    back, more = await store.emails.list(ACCOUNT, 3, before=third[0].email_id)
    assert ([e.email_id for e in back], more) == (newest_first[3:6], True)
    back, more = await store.emails.list(ACCOUNT, 3, before=second[0].email_id)
    assert ([e.email_id for e in back], more) == (newest_first[:3], False)
    assert await store.emails.list(ACCOUNT, 3, before=newest_first[0]) == ([], False)
    assert await store.emails.list(ACCOUNT, 7) == ([*first, *second, *third], False)


@pytest_twisted.ensureDeferred
async def test_paging_works_from_an_id_that_does_not_exist(store: StoreRig) -> None:
    older, between, newer = email(), uuid7(NOW.timestamp()), email()
    await store.accept(older, newer)
    assert [e.email_id for e in (await store.emails.list(ACCOUNT, 9, after=between))[0]] == [older.email_id]
    assert [e.email_id for e in (await store.emails.list(ACCOUNT, 9, before=between))[0]] == [newer.email_id]


@pytest_twisted.ensureDeferred
async def test_an_account_cannot_read_or_change_emails_of_another(store: StoreRig) -> None:
    mine = email(scheduled_at=NOW + MINUTE)
    sent = email(lease=store.lease)
    await store.accept(mine, sent)
    await store.settle(sent, Deferred("later", NOW), signature=b"x")
    assert await store.acceptance.accept(keyed(email())) == await store.acceptance.accept(keyed(email(account=OTHER)))
    for mail in (mine, sent):
        assert await store.emails.get(OTHER, mail.email_id) is None
        assert await store.emails.recipients(OTHER, mail.email_id) == []
        assert await store.emails.attempts(OTHER, mail.email_id) == []
        assert await store.messages.load(OTHER, mail.email_id) is None
        assert await store.emails.cancel(OTHER, mail.email_id, NOW) == "not_found"
        assert await store.emails.reschedule(OTHER, mail.email_id, NOW + DAY, NOW) == "not_found"
    assert [e.account_id for e in (await store.emails.list(OTHER, 100))[0]] == [OTHER]
    assert await store.statuses(mine) == ["scheduled"]


@pytest_twisted.ensureDeferred
async def test_a_settlement_of_another_account_cannot_touch_a_row(store: StoreRig) -> None:
    mine = email(lease=store.lease)
    await store.accept(mine)
    stolen = attrs.evolve(mine, account_id=OTHER)
    assert await store.settle(stolen, Delivered("250")) == frozenset()
    assert await store.statuses(mine) == ["sending"]


@pytest_twisted.ensureDeferred
async def test_last_event_is_the_latest_event(store: StoreRig) -> None:
    mail = email("a@example.org", "b@example.org", lease=store.lease)
    await store.accept(mail)
    seen = [await last_event(store, mail)]
    for outcomes in ((Deferred("later", NOW), None), (None, Bounced("550"))):
        await store.settle(mail, *outcomes)
        seen.append(await last_event(store, mail))
    assert seen == ["email.sent", "email.delivery_delayed", "email.bounced"]


async def last_event(store: StoreRig, mail: NewEmail) -> str:
    found = await store.emails.get(mail.account_id, mail.email_id)
    assert found is not None
    [listed], _ = await store.emails.list(mail.account_id, 1)
    assert listed == found
    return found.last_event


@pytest_twisted.ensureDeferred
async def test_a_page_is_planned_for_the_days_of_its_emails_and_never_reads_a_message(store: StoreRig) -> None:
    """The number of days grows with the retention, and planning for all of them takes longer than reading the page."""
    mails = [email() for _ in range(3)]
    await store.accept(*mails)
    for sql in (VIEW, STATES):
        plan = await explain(store, sql, of_page(ACCOUNT, [mail.email_id for mail in mails]))
        read = {str(node["Relation Name"]) for node in nodes(plan) if "Relation Name" in node}
        assert read == {f"{table}_{NOW:%Y%m%d}" for table in ("emails", "events")}


@pytest_twisted.ensureDeferred
async def test_waiting_recipients_can_be_canceled_and_leased_ones_cannot(store: StoreRig) -> None:
    waiting, scheduled, sending, delivered = email(), email(scheduled_at=NOW + DAY), email(lease=store.lease), email(lease=store.lease)
    await store.accept(waiting, scheduled, sending, delivered)
    await store.settle(delivered, Delivered("250"))
    answers = [await store.emails.cancel(ACCOUNT, m.email_id, NOW) for m in (waiting, scheduled, sending, delivered)]
    assert answers == ["canceled", "canceled", "too_late", "too_late"]
    assert await store.emails.cancel(ACCOUNT, waiting.email_id, NOW) == "too_late"
    assert await store.emails.cancel(ACCOUNT, NOBODY, NOW) == "not_found"
    assert [await store.statuses(m) for m in (waiting, scheduled, sending)] == [["canceled"], ["canceled"], ["sending"]]
    assert await last_event_of(store, waiting) == "email.canceled"
    assert await store.claim() == []


async def last_event_of(store: StoreRig, mail: NewEmail) -> str:
    found = await store.emails.get(mail.account_id, mail.email_id)
    return found.last_event if found else ""


@pytest_twisted.ensureDeferred
async def test_canceling_affects_the_recipients_still_waiting(store: StoreRig) -> None:
    mail = email("a@example.org", "b@example.org", "c@example.org", "d@example.org", lease=store.lease)
    await store.accept(mail)
    await store.settle(mail, Delivered("250"), Deferred("later", NOW), Uncertain("who knows", NOW))
    assert await store.emails.cancel(ACCOUNT, mail.email_id, NOW) == "canceled"
    assert await store.statuses(mail) == ["delivered", "canceled", "uncertain", "sending"]


@pytest_twisted.ensureDeferred
async def test_a_cancel_and_a_claim_do_not_both_win(store: StoreRig) -> None:
    mails = [email() for _ in range(30)]
    await store.accept(*mails)
    claims = [store.claim(limit=2) for _ in range(15)]
    cancels = [store.emails.cancel(ACCOUNT, m.email_id, NOW) for m in mails]
    results = await together(*(one for pair in zip(cancels[:15], claims, strict=True) for one in pair), *cancels[15:])
    canceled = [r for r in results if r == "canceled"]
    claimed = [leased for r in results if isinstance(r, list) for leased in r]
    assert len(canceled) + len(claimed) + await store.count("queue WHERE lease IS NULL") == 30
    statuses = [(await store.statuses(m))[0] for m in mails]
    assert (statuses.count("canceled"), statuses.count("sending")) == (len(canceled), len(claimed))


@pytest_twisted.ensureDeferred
async def test_rescheduling_moves_the_expiry_too(store: StoreRig) -> None:
    mail = email("a@example.org", "b@example.org", scheduled_at=NOW + MINUTE, expires_at=NOW + MINUTE + DAY)
    await store.accept(mail)
    at = NOW + 3 * DAY + timedelta(microseconds=1)
    assert await store.emails.reschedule(ACCOUNT, mail.email_id, at, NOW) == "rescheduled"
    found = await store.emails.get(ACCOUNT, mail.email_id)
    assert found is not None and (found.scheduled_at, found.last_event) == (at, "email.scheduled")
    assert await store.pool.rows("SELECT DISTINCT next_at, expires_at FROM queue") == [(at, at + DAY)]
    assert await store.queue.release_scheduled(NOW + DAY) == 0
    assert await store.queue.release_scheduled(at) == 1
    found = await store.emails.get(ACCOUNT, mail.email_id)
    assert found is not None and (found.scheduled_at, found.last_event) == (at, "email.sent")
    assert await store.emails.reschedule(ACCOUNT, mail.email_id, at, NOW) == "too_late"
    assert await store.emails.reschedule(ACCOUNT, NOBODY, at, NOW) == "not_found"


@pytest_twisted.ensureDeferred
async def test_rescheduling_writes_no_entry_in_the_event_log(store: StoreRig) -> None:
    mail = email(scheduled_at=NOW + MINUTE)
    await store.accept(mail)
    await store.emails.reschedule(ACCOUNT, mail.email_id, NOW + DAY, NOW)
    assert len(await store.events(mail)) == 2
    assert await store.count("fresh_events") == 1


@pytest.mark.parametrize("count", [1, 150])
@pytest_twisted.ensureDeferred
async def test_recipients_are_returned_in_order(store: StoreRig, count: int) -> None:
    addresses = [f"{n}@example.org" for n in range(count)]
    mail = email(*addresses)
    await store.accept(mail)
    assert [(r.recipient, r.address) for r in await store.emails.recipients(ACCOUNT, mail.email_id)] == [*enumerate(addresses)]


@pytest_twisted.ensureDeferred
async def test_one_address_twice_is_two_recipients(store: StoreRig) -> None:
    twice = email("a@example.org", "a@example.org")
    twice = attrs.evolve(twice, lease=store.lease, recipients=(twice.recipients[0], NewRecipient("a@example.org", "example.org", True)))
    await store.acceptance.accept(Submission(ACCOUNT, (twice,)))
    await store.settle(twice, None, Delivered("250"))
    assert await store.statuses(twice) == ["queued", "delivered"]
    assert [r.destination for r in await store.queue.ready(REGION, NOW)] == ["example.org"]


@pytest_twisted.ensureDeferred
async def test_an_opened_email_is_not_shown_as_delivered_again(store: StoreRig) -> None:
    mail = email("a@example.org", "b@example.org", lease=store.lease)
    await store.accept(mail)
    await store.settle(mail, Delivered("250 2.0.0 Ok"), None)
    assert await shown_as(store, mail) == "email.delivered"
    await write_events(store, mail, "email.opened")
    assert await shown_as(store, mail) == "email.opened"
    await store.settle(mail, None, Delivered("250 2.0.0 Ok"))
    assert await shown_as(store, mail) == "email.opened"
    await write_events(store, mail, "email.clicked")
    assert await shown_as(store, mail) == "email.clicked"
    await write_events(store, mail, "email.complained")
    assert await shown_as(store, mail) == "email.complained"


@pytest_twisted.ensureDeferred
async def test_searches_go_by_recipients_so_that_a_later_delivery_hides_no_complaint(store: StoreRig) -> None:
    mail = email("a@example.org", "b@example.org", "c@example.org", lease=store.lease)
    await store.accept(mail)
    await store.settle(mail, Delivered("250 2.0.0 Ok"), None, None)
    await write_events(store, mail, "email.complained", 0)
    await store.settle(mail, None, Delivered("250 2.0.0 Ok"), None)
    search = Search(store.pool)
    [found] = (await search.emails(mail.account_id, Filters(), 1)).emails
    assert found.last_event == "email.delivered"
    assert found.outcomes == {"email.complained": 1, "email.delivered": 1}
    for status, count in (("complained", 1), ("delivered", 1), ("bounced", 0)):
        assert len((await search.emails(mail.account_id, Filters(status=f"email.{status}"), 5)).emails) == count, status


@pytest_twisted.ensureDeferred
async def test_a_search_for_opened_emails_finds_those_with_several_recipients_and_an_open_hides_no_complaint(store: StoreRig) -> None:
    mail = email("a@example.org", "b@example.org", lease=store.lease)
    await store.accept(mail)
    await store.settle(mail, Delivered("250 2.0.0 Ok"), Delivered("250 2.0.0 Ok"))
    one = email(account=OTHER, lease=store.lease)
    await store.accept(one)
    await store.settle(one, Delivered("250 2.0.0 Ok"))
    await write_events(store, one, "email.complained", 0)
    for opened in (mail, one):
        await write_events(store, opened, "email.opened")
        await write_events(store, opened, "email.clicked")
        for status in ("opened", "clicked"):
            search = Search(store.pool).emails(opened.account_id, Filters(status=f"email.{status}"), 5)
            assert [found.email_id for found in (await search).emails] == [opened.email_id], status
    [found] = (await Search(store.pool).emails(OTHER, Filters(status="email.complained"), 5)).emails
    assert (found.last_event, found.outcomes) == ("email.clicked", {"email.complained": 1})


@pytest_twisted.ensureDeferred
async def test_a_search_for_complaints_finds_old_ones_by_their_index(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many emails were sent since."""
    monkeypatch.setattr("mailsvc.store.mail.search.MAX_SCANNED_FOR_STATUS", 3)
    mails = [email(f"{n}@example.org", subject=f"Number {n}") for n in range(8)]
    await store.accept(*mails)
    for mail in (mails[0], mails[1], mails[4]):
        await write_events(store, mail, "email.complained", 0)
        await write_events(store, mail, "email.opened")
    search = Search(store.pool)
    first = await search.emails(ACCOUNT, Filters(status="email.complained"), 2)
    assert [found.subject for found in first.emails] == ["Number 4", "Number 1"] and first.looked_until is None
    second = await search.emails(ACCOUNT, Filters(status="email.complained"), 2, first.after)
    assert ([found.subject for found in second.emails], second.after) == (["Number 0"], None)
    named = await search.emails(ACCOUNT, Filters(status="email.complained", text="0@example.org"), 2)
    assert [found.subject for found in named.emails] == ["Number 0"] and named.looked_until is not None


@pytest_twisted.ensureDeferred
async def test_a_search_goes_by_part_of_a_tag_and_by_message_id(store: StoreRig) -> None:
    tagged = email("a@example.org", tags=(("campaign", "Spring_Sale"), ("team", "shop")))
    named = email("b@example.org", message_id="<Order-7@shop.example>")
    await store.accept(tagged, named)
    search = Search(store.pool)
    for text, expected in {
        "sale": tagged, "campaign: spring": tagged, "team:shop": tagged, "order-7@shop.example": named, "<Order-7@shop.example>": named,
        "team:spring": None, "7@shop.example": None,
    }.items():  # fmt: skip
        found = (await search.emails(ACCOUNT, Filters(text=text), 5)).emails
        assert [one.email_id for one in found] == ([expected.email_id] if expected else []), text


@pytest_twisted.ensureDeferred
async def test_the_services_own_emails_are_in_no_list_and_do_not_end_it(store: StoreRig) -> None:
    own, sent = email("reset@example.org", source="dashboard"), email("a@example.org")
    await store.accept(own, sent, *(email(f"{n}@example.org", source="system") for n in range(4)))
    await write_events(store, own, "email.bounced", 0)
    for filters in (Filters(), Filters(text="example.org"), Filters(status="email.sent")):
        page = await Search(store.pool).emails(ACCOUNT, filters, 2)
        assert ([one.email_id for one in page.emails], page.after) == ([sent.email_id], None), filters
    assert (await Search(store.pool).emails(ACCOUNT, Filters(status="email.bounced"), 2)).emails == ()


async def shown_as(store: StoreRig, mail: NewEmail) -> str:
    """The same in a single read, in lists and in searches."""
    one = await store.emails.get(mail.account_id, mail.email_id)
    [listed], _ = await store.emails.list(mail.account_id, 1)
    [found] = (await Search(store.pool).emails(mail.account_id, Filters(), 1)).emails
    assert one is not None and one.last_event == listed.last_event == found.last_event
    return one.last_event


async def write_events(store: StoreRig, mail: NewEmail, type_: str, recipient: int | None = None) -> None:
    event = NewEvent(mail.account_id, mail.email_id, mail.domain_id, recipient, type_, NOW)
    await store.pool.transact(lambda tx: events.write(tx, [event]))
