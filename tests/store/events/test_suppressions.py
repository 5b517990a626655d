"""Suppressed addresses: left out when an email is accepted or released, and added by a hard bounce."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import pytest_twisted

from mailsvc.outcome import Bounced, Delivered
from mailsvc.store.events.async_bounces import AsyncBounces, Complained, Report
from mailsvc.store.events.suppressions import OLDER, SCANNED, SEARCH, Suppressions, add
from mailsvc.store.mail.accept import Accepted, NewRecipient
from mailsvc.store.mail.inserts import INSERT_EMAILS, documents
from mailsvc.store.postgres.pool import Transaction
from tests.store.fixtures import ACCOUNT, MINUTE, NOW, OTHER, StoreRig, email, explain, keyed, nodes, together


def listed(store: StoreRig) -> Suppressions:
    return Suppressions(store.pool, store.clock)


async def last_event(store: StoreRig, mail: Any) -> str:
    found = await store.emails.get(mail.account_id, mail.email_id)
    assert found is not None
    return found.last_event


@pytest_twisted.ensureDeferred
async def test_a_suppressed_recipient_is_left_out_and_the_others_are_not(store: StoreRig) -> None:
    await listed(store).add(ACCOUNT, ["Bad@Example.org"])
    mail = email("good@example.org", "bad@example.ORG", "also@example.net")
    assert await store.accept(mail) == [Accepted({mail.email_id: frozenset({1})})]
    assert await store.statuses(mail) == ["queued", "suppressed", "queued"]
    assert await store.events(mail) == [("email.suppressed", 1), ("email.sent", None)]
    assert await last_event(store, mail) == "email.sent"
    bad = (await store.emails.recipients(ACCOUNT, mail.email_id))[1]
    assert bad.last_reply == "The address is on the suppression list of the account: it was put there by hand."
    assert await store.ledger.number(100) == 3


@pytest_twisted.ensureDeferred
async def test_an_email_to_nobody_else_was_never_sent(store: StoreRig) -> None:
    await listed(store).add(ACCOUNT, ["rcpt@example.org"])
    mail, foreign = email(), email(account=OTHER)
    assert await store.accept(mail, foreign) == [Accepted({mail.email_id: frozenset({0})}), Accepted()]
    assert await store.events(mail) == [("email.suppressed", 0)]
    assert await last_event(store, mail) == "email.suppressed"
    assert await store.events(foreign) == [("email.sent", None)]
    assert await store.count("queue") == 1


@pytest_twisted.ensureDeferred
async def test_large_messages_and_keyed_requests_are_looked_at_too(store: StoreRig) -> None:
    await listed(store).add(ACCOUNT, ["rcpt@example.org"])
    large = email(message=b"Subject: x\r\n\r\n" + b"x" * 100_000)
    assert await store.accept(large) == [Accepted({large.email_id: frozenset({0})})]
    first = email()
    assert await store.acceptance.accept(keyed(first)) == Accepted({first.email_id: frozenset({0})})


@pytest_twisted.ensureDeferred
async def test_suppressed_recipients_are_never_leased(store: StoreRig) -> None:
    await listed(store).add(ACCOUNT, ["a@example.org"])
    both = (NewRecipient("a@example.org", "example.org", True), NewRecipient("b@example.org", "example.org", True))
    mail = attrs.evolve(email("a@example.org", "b@example.org", lease=store.lease), recipients=both)
    [accepted] = await store.accept(mail)
    assert isinstance(accepted, Accepted)
    assert [each.leased for each in accepted.left(mail).recipients] == [False, True]
    assert list(await store.queue.leased(store.lease)) == [(mail.email_id, 1)]


@pytest_twisted.ensureDeferred
async def test_scheduled_mail_is_looked_at_when_it_goes(store: StoreRig) -> None:
    mail = email("a@example.org", "b@example.org", scheduled_at=NOW + MINUTE)
    alone = email("a@example.org", scheduled_at=NOW + MINUTE)
    await store.accept(mail, alone)
    await listed(store).add(ACCOUNT, ["a@example.org"])
    assert await store.queue.release_scheduled(NOW + MINUTE) == 2
    assert await store.events(mail) == [("email.scheduled", None), ("email.suppressed", 0), ("email.sent", None)]
    assert await store.events(alone) == [("email.scheduled", None), ("email.suppressed", 0)]
    assert await store.statuses(mail) == ["suppressed", "queued"]
    assert await store.count("queue") == 1


@pytest_twisted.ensureDeferred
async def test_a_bounce_puts_its_address_on_the_list_once(store: StoreRig) -> None:
    mails = [email("Gone@example.org", lease=store.lease) for _ in range(3)]
    await store.accept(*mails)
    bounced = Bounced("550 5.1.1 no such user", suppress=True)
    await together(*(store.settle(mail, bounced) for mail in mails))
    [found], more = await listed(store).list(ACCOUNT, 10)
    assert not more
    assert (found.email, found.origin, found.reason) == ("Gone@example.org", "bounce", "550 5.1.1 no such user")
    assert found.source_id in [mail.email_id for mail in mails]
    rows = await store.pool.rows("SELECT data FROM events WHERE type = 'suppression.added'")
    [(data,)] = rows
    assert data == {
        "id": str(found.id),
        "email": "Gone@example.org",
        "origin": "bounce",
        "source_id": str(found.source_id),
        "created_at": NOW.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
    }
    assert await store.ledger.number(100) == 3 + 3 + 1
    later = email("gone@EXAMPLE.org")
    await store.accept(later)
    assert await store.statuses(later) == ["suppressed"]


@pytest_twisted.ensureDeferred
async def test_other_bounces_do_not(store: StoreRig) -> None:
    mail = email(lease=store.lease)
    await store.accept(mail)
    await store.settle(mail, Bounced("550 rejected"))
    assert await listed(store).list(ACCOUNT, 10) == ([], False)


@pytest_twisted.ensureDeferred
async def test_the_list_is_one_accounts_and_says_why(store: StoreRig) -> None:
    suppressions = listed(store)
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
    assert [kind for (kind,) in await store.pool.rows("SELECT type FROM events ORDER BY event_id")] == [
        "suppression.added",
        "suppression.added",
        "suppression.removed",
    ]


@pytest_twisted.ensureDeferred
async def test_an_address_that_is_added_while_it_is_removed_is_suppressed(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    suppressions = listed(store)
    [before] = await suppressions.add(ACCOUNT, ["a@example.org"])

    async def add_then_remove(tx: Transaction, *given: Any, **more: Any) -> None:
        monkeypatch.undo()
        await add(tx, *given, **more)
        await suppressions.remove(ACCOUNT, [before.id])  # in a transaction of its own

    monkeypatch.setattr("mailsvc.store.events.suppressions.add", add_then_remove)
    [after] = await suppressions.add(ACCOUNT, ["a@example.org"])
    assert after.id != before.id
    assert await suppressions.get(ACCOUNT, after.id) == after


@pytest_twisted.ensureDeferred
async def test_an_async_complaint_suppresses_in_its_own_transaction(store: StoreRig) -> None:
    mail = email(lease=store.lease)
    await store.accept(mail)
    await store.settle(mail, Delivered("250 ok"))
    bounces = AsyncBounces(store.pool)
    reports = [Report(0, Complained("It was reported as spam.", "abuse", "agent"))]
    assert await bounces.record(ACCOUNT, mail.email_id, lambda addresses: reports, NOW + MINUTE) == {0: "changed"}
    [found], _ = await listed(store).list(ACCOUNT, 10)
    assert (found.origin, found.source_id, found.reason) == ("complaint", mail.email_id, "It was reported as spam.")
    kinds = [kind for (kind,) in await store.pool.rows("SELECT type FROM events ORDER BY event_id DESC LIMIT 2")]
    assert sorted(kinds) == ["email.complained", "suppression.added"]


@pytest_twisted.ensureDeferred
async def test_a_long_list_is_not_read_to_accept(store: StoreRig) -> None:
    await store.pool.run(
        "INSERT INTO suppressions (id, account_id, address, email, origin, created_at)"
        " SELECT gen_random_uuid(), %s, n || '@example.org', n || '@example.org', 'manual', now() FROM generate_series(1, 20000) n",
        (ACCOUNT,),
    )

    async def explained(tx: Transaction) -> Any:
        [(plans,)] = await tx.rows("EXPLAIN (FORMAT JSON) " + INSERT_EMAILS.plain, next(documents([email() for _ in range(100)])))
        return plans[0]["Plan"]

    scans = [node for node in nodes(await store.pool.transact(explained)) if node.get("Relation Name") == "suppressions"]
    assert [node["Node Type"] for node in scans] == ["Index Scan"]


@pytest_twisted.ensureDeferred
async def test_a_list_of_a_rare_origin_reads_no_others(store: StoreRig) -> None:
    await store.pool.run(
        "INSERT INTO suppressions (id, account_id, address, email, origin, created_at)"
        " SELECT gen_random_uuid(), %s, n || '@example.org', n || '@example.org', 'bounce', now() FROM generate_series(1, 5000) n",
        (ACCOUNT,),
    )
    await listed(store).add(ACCOUNT, ["a@example.net"])
    await store.pool.run("ANALYZE suppressions")
    plan = await explain(store, OLDER, {"account_id": ACCOUNT, "origin": "manual", "after": None, "limit": 51}, "SELECT")
    assert [node["Index Name"] for node in nodes(plan) if "Scan" in node["Node Type"]] == ["suppressions_origin"]


@pytest_twisted.ensureDeferred
async def test_a_search_goes_by_part_of_the_address_in_bounded_steps(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mailsvc.store.events.suppressions.SEARCH", SEARCH.replace(f"LIMIT {SCANNED}", "LIMIT 4"))
    monkeypatch.setattr("mailsvc.store.events.suppressions.SCANNED", 4)
    stored = listed(store)
    await stored.add(ACCOUNT, ["Old@Shop.example"])
    await stored.add(ACCOUNT, [f"{n}@example.org" for n in range(3)])
    await stored.add(ACCOUNT, ["new@shop.example"])
    await stored.add(OTHER, ["foreign@shop.example"])
    found, after = await stored.search(ACCOUNT, "SHOP.ex", 5)
    assert [one.email for one in found] == ["new@shop.example"] and after is not None
    found, after = await stored.search(ACCOUNT, "SHOP.ex", 5, after)
    assert ([one.email for one in found], after) == (["Old@Shop.example"], None)
    found, after = await stored.search(ACCOUNT, "example.org", 2)
    assert len(found) == 2 and found[-1].id == after
