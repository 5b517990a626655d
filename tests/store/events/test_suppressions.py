"""Suppressed addresses: left out when an email is accepted or released, and added by a hard bounce."""

from __future__ import annotations

from typing import Any

import attrs
import pytest_twisted

from mailsvc.outcome import Bounced, Delivered
from mailsvc.store.events.async_bounces import AsyncBounces, Complained, Report
from mailsvc.store.events.suppressions import Suppressions
from mailsvc.store.mail.accept import Accepted, NewRecipient
from mailsvc.store.mail.inserts import INSERT_EMAILS, documents
from mailsvc.store.postgres.pool import Transaction
from tests.store.fixtures import ACCOUNT, MINUTE, NOW, OTHER, House, email, keyed, nodes, together


def listed(house: House) -> Suppressions:
    return Suppressions(house.pool, house.clock)


async def last_event(house: House, mail: Any) -> str:
    found = await house.emails.get(mail.account_id, mail.email_id)
    assert found is not None
    return found.last_event


@pytest_twisted.ensureDeferred
async def test_a_suppressed_recipient_is_left_out_and_the_others_are_not(house: House) -> None:
    await listed(house).add(ACCOUNT, ["Bad@Example.org"])
    mail = email("good@example.org", "bad@example.ORG", "also@example.net")
    assert await house.accept(mail) == [Accepted({mail.email_id: frozenset({1})})]
    assert await house.statuses(mail) == ["queued", "suppressed", "queued"]
    assert await house.events(mail) == [("email.suppressed", 1), ("email.sent", None)]
    assert await last_event(house, mail) == "email.sent"
    bad = (await house.emails.recipients(ACCOUNT, mail.email_id))[1]
    assert bad.last_reply == "The address is on the suppression list of the account: it was put there by hand."
    assert await house.books.number(100) == 3


@pytest_twisted.ensureDeferred
async def test_an_email_to_nobody_else_was_never_sent(house: House) -> None:
    await listed(house).add(ACCOUNT, ["rcpt@example.org"])
    mail, foreign = email(), email(account=OTHER)
    assert await house.accept(mail, foreign) == [Accepted({mail.email_id: frozenset({0})}), Accepted()]
    assert await house.events(mail) == [("email.suppressed", 0)]
    assert await last_event(house, mail) == "email.suppressed"
    assert await house.events(foreign) == [("email.sent", None)]
    assert await house.count("queue") == 1


@pytest_twisted.ensureDeferred
async def test_large_messages_and_keyed_requests_are_looked_at_too(house: House) -> None:
    await listed(house).add(ACCOUNT, ["rcpt@example.org"])
    large = email(message=b"Subject: x\r\n\r\n" + b"x" * 100_000)
    assert await house.accept(large) == [Accepted({large.email_id: frozenset({0})})]
    first = email()
    assert await house.acceptance.accept(keyed(first)) == Accepted({first.email_id: frozenset({0})})


@pytest_twisted.ensureDeferred
async def test_nobody_suppressed_is_born_leased(house: House) -> None:
    await listed(house).add(ACCOUNT, ["a@example.org"])
    both = (NewRecipient("a@example.org", "example.org", True), NewRecipient("b@example.org", "example.org", True))
    mail = attrs.evolve(email("a@example.org", "b@example.org", lease=house.lease), recipients=both)
    [accepted] = await house.accept(mail)
    assert isinstance(accepted, Accepted)
    assert [each.leased for each in accepted.left(mail).recipients] == [False, True]
    assert await house.queue.leased(house.lease) == [(mail.email_id, 1)]


@pytest_twisted.ensureDeferred
async def test_scheduled_mail_is_looked_at_when_it_goes(house: House) -> None:
    mail = email("a@example.org", "b@example.org", scheduled_at=NOW + MINUTE)
    alone = email("a@example.org", scheduled_at=NOW + MINUTE)
    await house.accept(mail, alone)
    await listed(house).add(ACCOUNT, ["a@example.org"])
    assert await house.queue.release_scheduled(NOW + MINUTE) == 2
    assert await house.events(mail) == [("email.scheduled", None), ("email.suppressed", 0), ("email.sent", None)]
    assert await house.events(alone) == [("email.scheduled", None), ("email.suppressed", 0)]
    assert await house.statuses(mail) == ["suppressed", "queued"]
    assert await house.count("queue") == 1


@pytest_twisted.ensureDeferred
async def test_a_bounce_puts_its_address_on_the_list_once(house: House) -> None:
    mails = [email("Gone@example.org", lease=house.lease) for _ in range(3)]
    await house.accept(*mails)
    bounced = Bounced("550 5.1.1 no such user", suppress=True)
    await together(*(house.settle(mail, bounced) for mail in mails))
    [found], more = await listed(house).list(ACCOUNT, 10)
    assert not more
    assert (found.email, found.origin, found.reason) == ("Gone@example.org", "bounce", "550 5.1.1 no such user")
    assert found.source_id in [mail.email_id for mail in mails]
    rows = await house.pool.rows("SELECT data FROM events WHERE type = 'suppression.added'")
    [(data,)] = rows
    assert data == {
        "id": str(found.id),
        "email": "Gone@example.org",
        "origin": "bounce",
        "source_id": str(found.source_id),
        "created_at": NOW.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
    }
    assert await house.books.number(100) == 3 + 3 + 1
    later = email("gone@EXAMPLE.org")
    await house.accept(later)
    assert await house.statuses(later) == ["suppressed"]


@pytest_twisted.ensureDeferred
async def test_other_bounces_do_not(house: House) -> None:
    mail = email(lease=house.lease)
    await house.accept(mail)
    await house.settle(mail, Bounced("550 rejected"))
    assert await listed(house).list(ACCOUNT, 10) == ([], False)


@pytest_twisted.ensureDeferred
async def test_the_list_is_one_accounts_and_says_why(house: House) -> None:
    suppressions = listed(house)
    mine = await suppressions.add(ACCOUNT, ["b@example.org", "a@example.org", "B@example.org"])
    assert [each.email for each in mine] == ["b@example.org", "a@example.org", "b@example.org"]
    assert [each.id for each in await suppressions.add(ACCOUNT, ["A@EXAMPLE.ORG"])] == [mine[1].id]
    assert await suppressions.get(OTHER, mine[0].id) is None
    assert await suppressions.remove(OTHER, [mine[0].id], ["a@example.org"]) == []
    newest, more = await suppressions.list(ACCOUNT, 1)
    assert more
    older, more = await suppressions.list(ACCOUNT, 1, after=newest[0].id)
    assert not more
    assert {newest[0], *older} == set(mine)
    assert (await suppressions.list(ACCOUNT, 5, before=older[0].id)) == (newest, False)
    assert (await suppressions.list(ACCOUNT, 5, origin="bounce")) == ([], False)
    [removed] = await suppressions.remove(ACCOUNT, emails=["A@example.org"])
    assert removed == mine[1]
    assert [kind for (kind,) in await house.pool.rows("SELECT type FROM events ORDER BY event_id")] == [
        "suppression.added",
        "suppression.added",
        "suppression.removed",
    ]


@pytest_twisted.ensureDeferred
async def test_an_async_complaint_suppresses_in_its_own_transaction(house: House) -> None:
    mail = email(lease=house.lease)
    await house.accept(mail)
    await house.settle(mail, Delivered("250 ok"))
    bounces = AsyncBounces(house.pool)
    reports = [Report(0, Complained("It was reported as spam.", "abuse", "agent"))]
    assert await bounces.record(ACCOUNT, mail.email_id, lambda addresses: reports, NOW + MINUTE) == {0: "changed"}
    [found], _ = await listed(house).list(ACCOUNT, 10)
    assert (found.origin, found.source_id, found.reason) == ("complaint", mail.email_id, "It was reported as spam.")
    kinds = [kind for (kind,) in await house.pool.rows("SELECT type FROM events ORDER BY event_id DESC LIMIT 2")]
    assert sorted(kinds) == ["email.complained", "suppression.added"]


@pytest_twisted.ensureDeferred
async def test_a_long_list_is_not_read_to_accept(house: House) -> None:
    await house.pool.run(
        "INSERT INTO suppressions (id, account_id, address, email, origin, created_at)"
        " SELECT gen_random_uuid(), %s, n || '@example.org', n || '@example.org', 'manual', now() FROM generate_series(1, 20000) n",
        (ACCOUNT,),
    )

    async def explained(tx: Transaction) -> Any:
        [(plans,)] = await tx.rows("EXPLAIN (FORMAT JSON) " + INSERT_EMAILS.plain, next(documents([email() for _ in range(100)])))
        return plans[0]["Plan"]

    scans = [node for node in nodes(await house.pool.transact(explained)) if node.get("Relation Name") == "suppressions"]
    assert [node["Node Type"] for node in scans] == ["Index Scan"]
