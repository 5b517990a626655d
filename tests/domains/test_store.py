"""What is written of domains: together or not at all, fenced, and with its event."""

from __future__ import annotations

from datetime import timedelta

import attrs
import pytest
import pytest_twisted

from mailsvc import outcome
from mailsvc.outcome import Uncertain
from mailsvc.store.domains.checks import Result
from mailsvc.store.people.accounts import Accounts
from tests.domains.rig import Rig
from tests.store.fixtures import MINUTE, NOW, StoreRig, email


@pytest_twisted.ensureDeferred
async def test_the_domains_of_all_accounts_are_read_at_once(rig: Rig) -> None:
    other = await Accounts(rig.pool, rig.clock).create("other")
    theirs = await rig.domains.add(other.id, "example.net", "r1", [])
    first, second = await rig.add(), await rig.add("example.org")
    before = rig.pool.statements
    assert [domain.id for domain in await rig.domains.every()] == [second.id, first.id, theirs.id]
    assert rig.pool.statements == before + 1


@pytest_twisted.ensureDeferred
async def test_deleting_a_domain_ends_its_queued_mail(rig: Rig) -> None:
    domain, other = await rig.add(), await rig.add("example.org")
    store = StoreRig(rig.pool, rig.reactor)
    store.lease = await store.process()

    def mail(**changes: object) -> object:
        return attrs.evolve(email(account=rig.account.id, **changes), domain_id=domain.id)  # type: ignore[arg-type]

    queued, scheduled = mail(), mail(scheduled_at=NOW + timedelta(hours=1))
    delayed, uncertain, sending = mail(lease=store.lease), mail(lease=store.lease), mail(lease=store.lease)
    theirs = attrs.evolve(email(account=rig.account.id), domain_id=other.id)
    await store.accept(queued, scheduled, delayed, uncertain, sending, theirs)  # type: ignore[arg-type]
    await store.settle(delayed, outcome.Deferred("451 later", NOW + MINUTE))  # type: ignore[arg-type]
    await store.settle(uncertain, Uncertain("lost", NOW + MINUTE))  # type: ignore[arg-type]
    assert await rig.domains.delete(rig.account.id, domain.id) == domain
    states = [await store.statuses(one) for one in (queued, scheduled, delayed, uncertain, sending, theirs)]  # type: ignore[arg-type]
    assert states == [["failed"], ["failed"], ["bounced"], ["bounced"], ["sending"], ["queued"]]
    for one in (queued, delayed):
        [recipient] = await store.emails.recipients(rig.account.id, one.email_id)  # type: ignore[attr-defined]
        assert recipient.last_reply == "The sending domain example.com was deleted." or recipient.attempts
    [(data,)] = await rig.pool.rows("SELECT data FROM events WHERE email_id = %s AND type = 'email.bounced'", (delayed.email_id,))  # type: ignore[attr-defined]
    assert (data["type"], data["reply"]) == ("Transient", "The sending domain example.com was deleted.")
    assert await rig.pool.rows("SELECT count(*) FROM dkim_keys WHERE domain_id = %s", (domain.id,)) == [(0,)]
    assert await rig.domains.delete(rig.account.id, domain.id) is None


@pytest.mark.parametrize(
    ("change", "ended"),
    [
        ("status = 'verified'", None),
        ("trusted_at = now()", None),
        ("status = 'failed'", "The sending domain example.com is not verified any more."),
        ("status = 'pending'", "The sending domain example.com is not verified any more."),
        ("status = 'verified', sending = false", "Sending is turned off for the domain example.com."),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_scheduled_email_is_only_sent_if_its_domain_can_still_send(rig: Rig, change: str, ended: str | None) -> None:
    domain = await rig.add()
    store = StoreRig(rig.pool, rig.reactor)
    mail = attrs.evolve(email("a@example.net", "b@example.net", account=rig.account.id, scheduled_at=NOW), domain_id=domain.id)
    await store.accept(mail)
    await rig.pool.run(f"UPDATE domains SET {change}")
    assert await store.queue.release_scheduled(NOW) == 1
    wanted = [("email.failed", 0), ("email.failed", 1)] if ended else [("email.sent", None)]
    assert await store.events(mail) == [("email.scheduled", None), *wanted]
    assert await store.statuses(mail) == (["failed", "failed"] if ended else ["queued", "queued"])
    assert {each.last_reply for each in await store.emails.recipients(rig.account.id, mail.email_id)} == {ended}


@pytest_twisted.ensureDeferred
async def test_a_superseded_result_is_not_recorded(rig: Rig) -> None:
    domain = await rig.add()
    await rig.maintenance.verify(domain)
    [taken] = await rig.checks.due(10)
    assert await rig.checks.due(10) == []  # it is being checked
    await rig.later(seconds=1)
    await rig.maintenance.verify(taken)  # requested again meanwhile
    assert await rig.maintenance.check(taken) is None
    assert (await rig.now_of(domain)).status == "pending"
    assert await rig.round() == 1
    assert (await rig.now_of(domain)).status == "verified"
    [taken] = [await rig.checks.take(await rig.now_of(domain))]
    assert taken is not None
    await rig.domains.delete(rig.account.id, domain.id)
    assert await rig.checks.record(taken, Result(taken)) is None
    assert [kind for kind, _ in await rig.events()][-1] == "domain.deleted"


@pytest_twisted.ensureDeferred
async def test_checks_of_a_crashed_process_are_due_again(rig: Rig) -> None:
    await rig.maintenance.verify(await rig.add())
    assert len(await rig.checks.due(10)) == 1
    await rig.later(minutes=4)
    assert await rig.checks.due(10) == []
    await rig.later(minutes=1)
    assert len(await rig.checks.due(10)) == 1


@pytest_twisted.ensureDeferred
async def test_an_event_has_the_whole_domain_and_is_only_written_for_changes(rig: Rig) -> None:
    domain = await rig.verified(await rig.add())
    before = await rig.events()
    assert [kind for kind, _ in before] == ["domain.created", "domain.updated", "domain.updated"]
    assert [data["status"] for _, data in before] == ["not_started", "pending", "verified"]
    assert {record["status"] for record in before[-1][1]["records"]} == {"verified"}
    assert {"id", "name", "status", "created_at", "region", "capabilities", "records"} <= set(before[-1][1])
    for _ in range(3):
        await rig.later(days=1)
        await rig.round()
    assert await rig.events() == before
    assert (await rig.now_of(domain)).checked_at == rig.now()


@pytest_twisted.ensureDeferred
async def test_events_follow_the_order_of_the_account(rig: Rig) -> None:
    from mailsvc.store.events.ledger import EventLedger

    await rig.verified(await rig.add())
    assert await EventLedger(rig.pool).number(100) == 3
    rows = await rig.pool.rows(
        "SELECT l.sequence, e.data ->> 'status' FROM event_log l JOIN events e USING (account_id, email_id, event_id) ORDER BY 1"
    )
    assert rows == [(1, "not_started"), (2, "pending"), (3, "verified")]
