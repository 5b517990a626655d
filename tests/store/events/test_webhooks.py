"""Endpoints, the outbox that the ledger fills for them, and the result of each message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mailsvc.outcome import Delivered
from mailsvc.store.events.event_log import EventLog
from mailsvc.store.events.outbox import Due, Outbox, Posted
from mailsvc.store.events.outbox_sql import CLAIM
from mailsvc.store.events.webhook_log import RANGE, WebhookLog
from mailsvc.store.events.webhooks import Webhook, Webhooks
from mailsvc.store.ids import uuid7
from mailsvc.store.logs.retention import Retention
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.pool import Transaction
from mailsvc.store.queue.claims_sql import BY_INDEX
from tests.store.encryption.test_secrets import ENCRYPTION
from tests.store.fixtures import DAY, MINUTE, NOW, StoreRig, email, explain, nodes, together

SECRET = b"s" * 32
HOUR = 60 * MINUTE
ALL = ("email.sent", "email.delivered", "email.canceled")


@attrs.define
class Setup:
    """The tables of webhooks, for one account that there is."""

    store: StoreRig
    account: UUID
    clock: Clock
    webhooks: Webhooks
    outbox: Outbox
    log: WebhookLog

    async def subscribe(self, *events: str, account: UUID | None = None) -> Webhook:
        created = await self.webhooks.add(account or self.account, "https://shop.example/hook", events or ALL, SECRET, 100)
        assert created is not None
        return created

    async def happen(self, count: int = 1) -> list[Any]:
        """Emails that were sent and delivered, numbered."""
        mails = [email(account=self.account, lease=self.store.lease) for _ in range(count)]
        await self.store.accept(*mails)
        await together(*(self.store.settle(mail, Delivered("250 ok")) for mail in mails))
        await self.store.ledger.number(1000)
        return mails

    async def claim(self, most: int = 100, now: Any = NOW + MINUTE) -> list[Due]:
        ready = await self.outbox.ready(now)
        return await self.outbox.claim({each.webhook_id: most for each in ready}, now, now + MINUTE)

    async def settle(self, due: Due, status: int, outcome: Any, now: Any = NOW + MINUTE, **more: Any) -> bool:
        posted = Posted(due, status, "said", now, 0.5, now, outcome, now - 5 * DAY)
        return await self.outbox.settle(attrs.evolve(posted, **more))

    async def fail(self, due: Due, now: Any = NOW + MINUTE, **more: Any) -> bool:
        return await self.settle(due, 500, "retry", now, next_at=now + 5 * MINUTE, **more)

    async def waiting(self) -> int:
        return await self.store.count("webhook_outbox")

    async def state(self, webhook: Webhook) -> Webhook:
        found = await self.webhooks.get(webhook.account_id, webhook.id)
        assert found is not None
        return found[0]

    async def statuses(self, webhook: Webhook) -> list[str]:
        return [message.status for message in (await self.log.list(webhook.account_id, webhook.id, 100))[0]]


@pytest_twisted.async_fixture
async def setup(store: StoreRig) -> Setup:
    clock = Clock()
    clock.advance(NOW.timestamp() - 1)  # endpoints hear of what happens after they were made
    account = await Accounts(store.pool, clock).create("Acme", notify="admin@acme.example")
    outbox = Outbox(store.pool, store.clock, ENCRYPTION)
    return Setup(store, account.id, clock, Webhooks(store.pool, clock, ENCRYPTION), outbox, WebhookLog(store.pool))


@pytest_twisted.ensureDeferred
async def test_an_endpoint_gets_its_types_of_its_account_only(setup: Setup) -> None:
    both, sent = await setup.subscribe(), await setup.subscribe("email.sent")
    other = await Accounts(setup.store.pool, setup.clock).create("Other")
    await setup.subscribe(account=other.id)
    off = await setup.subscribe()
    await setup.webhooks.change(setup.account, off.id, status="disabled")
    [mail] = await setup.happen()
    await setup.store.emails.cancel(setup.account, mail.email_id, NOW)
    claimed = await setup.claim()
    types = sorted((due.webhook_id, due.fact.type) for due in claimed if due.fact is not None)
    assert types == sorted([(both.id, "email.sent"), (both.id, "email.delivered"), (sent.id, "email.sent")])
    assert {due.secret for due in claimed} == {SECRET}
    assert {due.fact.mail.email_id for due in claimed if due.fact is not None and due.fact.mail is not None} == {mail.email_id}


@pytest_twisted.ensureDeferred
async def test_a_damaged_event_does_not_hold_up_the_others(setup: Setup) -> None:
    """It is claimed without content, and fails alone."""
    await setup.subscribe("email.sent")
    damaged, good = await setup.happen(2)
    await setup.store.pool.run("UPDATE emails SET tags = '[1]' WHERE email_id = %s", (damaged.email_id,))
    with capturedLogs() as logged:
        claimed = await setup.claim()
        listed, _ = await EventLog(setup.store.pool).after(setup.account, 0, 100)
    facts = [due.fact for due in claimed if due.fact is not None]
    assert (len(claimed), [fact.mail.email_id for fact in facts if fact.mail]) == (2, [good.email_id])
    assert {fact.mail.email_id for _, fact in listed if fact.mail} == {good.email_id}
    assert {event["log_format"] for event in logged} == {"the event {event_id} cannot be read"}


@pytest_twisted.ensureDeferred
async def test_canceling_is_no_event_for_readers(setup: Setup) -> None:
    await setup.subscribe()
    mail = email(account=setup.account, scheduled_at=NOW + DAY)
    await setup.store.accept(mail)
    await setup.store.emails.cancel(setup.account, mail.email_id, NOW)
    assert await setup.store.ledger.number(100) == 2
    assert await setup.store.count("event_log") == 1
    assert await setup.waiting() == 0


@pytest_twisted.ensureDeferred
async def test_an_endpoint_does_not_hear_of_what_was_before(setup: Setup) -> None:
    mail = email(account=setup.account)
    await setup.store.accept(mail)
    setup.clock.advance(60)
    await setup.subscribe()
    await setup.store.ledger.number(100)
    assert await setup.waiting() == 0


@pytest_twisted.ensureDeferred
async def test_what_is_claimed_is_nobody_elses_until_the_claim_ends(setup: Setup) -> None:
    await setup.subscribe("email.sent")
    await setup.happen(10)
    halves = await together(setup.claim(5), setup.claim(5))
    assert len({due.event_id for half in halves for due in half}) == 10
    assert await setup.claim() == []
    dues = await setup.claim(now=NOW + 2 * MINUTE)
    assert len(dues) == 10
    await setup.outbox.release(dues[:3], NOW + 2 * MINUTE, NOW + 3 * MINUTE)
    await setup.outbox.release(dues[3:], NOW + 2 * MINUTE, NOW + 4 * MINUTE)  # not this claim
    assert {due.event_id for due in await setup.claim(now=NOW + 2 * MINUTE)} == {due.event_id for due in dues[:3]}


@pytest_twisted.ensureDeferred
async def test_a_secret_that_cannot_be_decrypted_holds_up_no_other_endpoint(setup: Setup) -> None:
    well, damaged = await setup.subscribe("email.delivered"), await setup.subscribe("email.delivered")
    await setup.happen(2)
    await setup.store.pool.run("UPDATE webhooks SET secret = %s WHERE id = %s", (b"\x01rubbish", damaged.id))
    with capturedLogs() as logs:
        assert {due.webhook_id for due in await setup.claim()} == {well.id}
    assert [event["webhook_id"] for event in logs if "webhook_id" in event] == [damaged.id]
    assert await setup.waiting() == 4  # nothing is given up
    assert [due.webhook_id for due in await setup.claim(now=NOW + 3 * MINUTE)] == [well.id] * 2


@pytest_twisted.ensureDeferred
async def test_success_failure_and_the_end(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent")
    await setup.happen(3)
    good, bad, late = await setup.claim()
    await setup.settle(good, 204, "success")
    await setup.fail(bad)
    await setup.settle(late, 0, "failed")
    assert sorted(await setup.statuses(webhook)) == ["attempting", "failed", "success"]
    [again] = await setup.claim(now=NOW + 10 * MINUTE)
    assert (again.event_id, again.tries) == (bad.event_id, 1)
    await setup.settle(bad, 200, "success")  # an old claim: written down, and changes nothing
    assert await setup.waiting() == 1
    await setup.settle(again, 200, "success")
    assert await setup.waiting() == 0
    attempts, more = await setup.log.attempts(setup.account, webhook.id, bad.event_id, 2)
    assert ([each.status for each in attempts], more) == ([200, 200], True)
    [first], more = await setup.log.attempts(setup.account, webhook.id, bad.event_id, 2, attempts[-1].attempt_id)
    assert (first.status, first.response, first.seconds, first.next_at, more) == (500, "said", 0.5, NOW + 6 * MINUTE, False)


@pytest_twisted.ensureDeferred
async def test_an_attempt_at_the_former_url_does_not_count_for_the_new_one(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent")
    await setup.happen(3)
    gone, busy, accepted = await setup.claim()
    assert await setup.webhooks.change(setup.account, webhook.id, url="https://new.example/hook")
    assert not await setup.settle(gone, 410, "failed", why="It responded with 410 Gone.")
    assert not await setup.fail(busy, hold_until=NOW + DAY)
    state = await setup.state(webhook)
    assert (state.status, state.failing_since, state.hold_until) == ("enabled", None, None)
    assert await setup.waiting() == 2, "the message that is retried goes to the new URL"
    old, new = setup.settle(accepted, 500, "retry", next_at=NOW), attrs.evolve(busy, tries=1, url="https://new.example/hook")
    await together(old, setup.fail(new))
    assert (await setup.state(webhook)).failing_since == NOW + MINUTE


@pytest.mark.parametrize(("status", "outcome", "shown"), [(200, "success", "success"), (500, "retry", "failed")])
@pytest_twisted.ensureDeferred
async def test_a_message_whose_endpoint_is_disabled_during_its_request_succeeds_if_it_was_accepted(
    setup: Setup, status: int, outcome: str, shown: str
) -> None:
    """Otherwise, a replay of what failed would send it again."""
    webhook = await setup.subscribe("email.delivered")
    await setup.happen(2)
    first, _ = await setup.claim()
    await setup.webhooks.change(setup.account, webhook.id, status="disabled")
    await setup.settle(first, status, outcome, next_at=NOW)
    found = await setup.store.pool.rows("SELECT event_id, status FROM webhook_messages")
    assert {event: status for event, status in found if event != first.event_id}.popitem()[1] == "failed"
    assert dict(found)[first.event_id] == shown and await setup.waiting() == 0


@pytest_twisted.ensureDeferred
async def test_the_account_is_notified_of_a_failing_endpoint_before_it_is_disabled(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent")
    await setup.happen(2)
    first, second = await setup.claim()
    assert not await setup.fail(first)
    assert (await setup.state(webhook)).failing_since == NOW + MINUTE
    assert await setup.webhooks.to_notify(NOW) == []
    [(endpoint, to)] = await setup.webhooks.to_notify(NOW + MINUTE)
    assert (endpoint.id, endpoint.failed_with, to) == (webhook.id, 500, ["admin@acme.example"])
    await setup.webhooks.notified(endpoint)
    assert await setup.webhooks.to_notify(NOW + DAY) == []
    assert not await setup.fail(second, NOW + 5 * DAY)
    assert await setup.fail(second, NOW + 6 * DAY)
    state = await setup.state(webhook)
    assert (state.status, state.disabled_why) == ("disabled", "All attempts failed for too long.")
    [(endpoint, _)] = await setup.webhooks.to_notify(NOW)
    await setup.webhooks.notified(endpoint)
    assert await setup.webhooks.to_notify(NOW + 9 * DAY) == []
    [ready] = await setup.outbox.ready(NOW + 9 * DAY)
    assert not ready.live
    assert await setup.claim(now=NOW + 9 * DAY) == []
    await setup.outbox.clear(webhook.id)
    assert await setup.waiting() == 0
    assert await setup.statuses(webhook) == ["failed", "failed"]
    await setup.webhooks.change(setup.account, webhook.id, status="enabled")
    assert (await setup.state(webhook)).failing_since is None


@pytest_twisted.ensureDeferred
async def test_the_admins_of_an_account_are_told(setup: Setup) -> None:
    await setup.subscribe("email.sent")
    await setup.happen()
    for email_, role in (("zoe@acme.example", "admin"), ("admin@acme.example", "admin"), ("m@acme.example", "member")):
        user = uuid7(NOW.timestamp())
        await setup.store.pool.run("INSERT INTO users (id, email, created_at) VALUES (%s, %s, %s)", (user, email_, NOW))
        joined = "INSERT INTO members (account_id, user_id, role, created_at) VALUES (%s, %s, %s, %s)"
        await setup.store.pool.run(joined, (setup.account, user, role, NOW))
    await Accounts(setup.store.pool, setup.clock).notify(setup.account, "Admin@Acme.example")
    [due] = await setup.claim()
    await setup.fail(due)
    [(_, to)] = await setup.webhooks.to_notify(NOW + MINUTE)
    assert to == ["Admin@Acme.example", "zoe@acme.example"]


@pytest_twisted.ensureDeferred
async def test_one_success_makes_an_endpoint_healthy(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent")
    await setup.happen(3)
    dues = await setup.claim()
    await setup.fail(dues[0], hold_until=NOW + DAY)
    assert await setup.outbox.ready(NOW + 2 * MINUTE) == []  # by its own word
    assert len(await setup.outbox.ready(NOW + 2 * DAY)) == 1
    assert await setup.outbox.ready(NOW + 2 * DAY, failing=False) == []
    await setup.settle(dues[1], 200, "success")
    state = await setup.state(webhook)
    assert (state.failing_since, state.hold_until, state.failed_with) == (None, None, 500)
    await together(setup.fail(dues[2]), setup.settle(dues[0], 200, "success"))  # in one shared commit
    assert (await setup.state(webhook)).status == "enabled"


@pytest_twisted.ensureDeferred
async def test_who_took_a_message_lately_comes_first(setup: Setup) -> None:
    webhooks = [await setup.subscribe("email.sent") for _ in range(4)]
    await setup.happen(2)
    took, failed, late = (each.id for each in webhooks[1:])
    for due in await setup.claim(1):
        if due.webhook_id == took:
            await setup.settle(due, 200, "success")
        elif due.webhook_id == failed:
            await setup.settle(due, 200, "success")
            await setup.fail(due)
        elif due.webhook_id == late:
            await setup.settle(due, 200, "success", NOW - DAY)
    found = {each.webhook_id: each.well for each in await setup.outbox.ready(NOW + 2 * MINUTE)}
    assert [webhook_id for webhook_id, well in found.items() if well] == [took] == [*found][:1]
    assert [*found][-1] == failed
    [first, *_] = await setup.outbox.ready(NOW + 2 * MINUTE, limit=1)
    assert first.webhook_id == took
    [again] = [due for due in await setup.claim(1, NOW + 2 * MINUTE) if due.webhook_id == took]
    await setup.settle(again, 200, "success")  # within the minute: written down, but not here
    sql = "SELECT took_at FROM webhooks WHERE id = %s"
    assert await setup.store.pool.rows(sql, (took,)) == [(NOW + MINUTE,)]


@pytest_twisted.ensureDeferred
async def test_gone_is_the_end(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent")
    await setup.happen(2)
    first, _ = await setup.claim()
    assert await setup.settle(first, 410, "failed", why="It responded with 410 Gone.")
    assert (await setup.state(webhook)).disabled_why == "It responded with 410 Gone."
    assert len(await setup.webhooks.to_notify(NOW)) == 1


@pytest_twisted.ensureDeferred
async def test_a_success_that_was_under_way_does_not_hide_that_an_endpoint_was_disabled(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent")
    await setup.happen(2)
    first, second = await setup.claim()
    await setup.settle(first, 410, "failed", why="It responded with 410 Gone.")
    await setup.settle(second, 200, "success")
    assert [endpoint.id for endpoint, _ in await setup.webhooks.to_notify(NOW)] == [webhook.id]


@pytest_twisted.ensureDeferred
async def test_disabling_and_removing_give_up_what_waits(setup: Setup) -> None:
    off, gone = await setup.subscribe("email.sent"), await setup.subscribe("email.sent")
    await setup.happen(3)
    for due in await setup.claim():
        await setup.fail(due)
    await setup.webhooks.change(setup.account, off.id, events=["email.delivered"])
    assert await setup.waiting() == 6
    await setup.webhooks.change(setup.account, off.id, status="disabled")
    assert await setup.waiting() == 3
    assert await setup.statuses(off) == ["failed"] * 3
    await setup.webhooks.change(setup.account, off.id, status="enabled")
    await setup.webhooks.remove(setup.account, gone.id)
    assert await setup.waiting() == 0


@pytest_twisted.ensureDeferred
async def test_a_backlog_of_one_endpoint_is_not_looked_at_for_another(setup: Setup) -> None:
    dead, alive = await setup.subscribe("email.sent"), await setup.subscribe("email.delivered")
    await setup.store.pool.run(
        "INSERT INTO webhook_outbox (webhook_id, event_id, account_id, email_id, next_at)"
        " SELECT %s, gen_random_uuid(), %s, gen_random_uuid(), %s FROM generate_series(1, 5000)",
        (dead.id, setup.account, NOW - DAY),
    )
    await setup.happen()
    assert {each.webhook_id for each in await setup.outbox.ready(NOW + MINUTE)} == {dead.id, alive.id}
    assert [each.webhook_id for each in await setup.outbox.ready(NOW + MINUTE, [dead.id])] == [alive.id]
    until = NOW + 2 * MINUTE
    [due] = await setup.outbox.claim({alive.id: 10}, NOW + MINUTE, until)
    assert due.fact is not None
    assert "enable_seqscan = off" in CLAIM


@pytest_twisted.ensureDeferred
async def test_very_many_endpoints_are_looked_at_in_turns(setup: Setup) -> None:
    outbox = Outbox(setup.store.pool, setup.store.clock, ENCRYPTION, walk=2)
    webhooks = [await setup.subscribe("email.sent") for _ in range(5)]
    await setup.happen()
    seen = [[each.webhook_id for each in await outbox.ready(NOW + MINUTE)] for _ in range(3)]
    assert [len(part) for part in seen] == [2, 2, 1]
    assert {webhook_id for part in seen for webhook_id in part} == {webhook.id for webhook in webhooks}


@pytest_twisted.ensureDeferred
async def test_replays(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent")
    await setup.happen(4)
    dues = await setup.claim()
    for due in dues[:2]:
        await setup.settle(due, 200, "success")
    for due in dues[2:]:
        await setup.settle(due, 500, "failed")
    later = NOW + 2 * MINUTE
    assert await setup.log.replay(setup.account, webhook.id, dues[0].event_id, later)
    assert not await setup.log.replay(setup.account, webhook.id, uuid7(0), later)
    [again] = await setup.claim(now=later)
    assert (again.event_id, again.tries, again.fact) == (dues[0].event_id, 0, dues[0].fact)
    await setup.settle(again, 200, "success")
    assert await setup.log.replay_range(setup.account, webhook.id, NOW - MINUTE, NOW + MINUTE, True, later) == 2
    assert {due.event_id for due in await setup.claim(now=later)} == {due.event_id for due in dues[2:]}
    assert await setup.log.replay_range(setup.account, webhook.id, NOW - MINUTE, NOW + MINUTE, False, later) == 4
    assert await setup.log.replay_range(setup.account, webhook.id, NOW - MINUTE, NOW, False, later) == 0
    ever = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert await setup.log.replay_range(setup.account, webhook.id, *ever, False, later) == 4


@pytest_twisted.ensureDeferred
async def test_a_replay_reads_no_messages_of_other_times(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint can have millions of them, and those of the last hour are replayed most."""
    webhook = await setup.subscribe("email.sent")
    await setup.happen(3)
    older = """
    INSERT INTO webhook_messages (account_id, webhook_id, event_id, email_id, type, created_at, status)
    SELECT account_id, webhook_id, uuid7_before(%s, n), email_id, type, %s, 'failed'
    FROM (SELECT * FROM webhook_messages LIMIT 1) m, generate_series(1, 1000) n
    """
    at = NOW - 2 * HOUR
    await partitions.ensure(setup.store.pool, at, 0)
    await setup.store.pool.run(older, (uuid7(at.timestamp()), at))
    run: list[tuple[str, Any]] = []
    rows = Transaction.rows

    async def noted(tx: Transaction, sql: Any, params: Any = ()) -> Any:
        run.append((sql, params))
        return await rows(tx, sql, params)

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "rows", noted)
        await setup.log.replay_range(setup.account, webhook.id, NOW - 15 * MINUTE, NOW + MINUTE, False, NOW)
    [(sql, params)] = [each for each in run if RANGE in each[0]]
    scans = [node for node in nodes(await explain(setup.store, sql.replace(BY_INDEX, ""), params)) if "Scan" in node["Node Type"]]
    read = [node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans if node["Relation Name"].startswith("webhook_m")]
    assert sum(read) == 3


@pytest_twisted.ensureDeferred
async def test_a_test_event_has_its_own_attempts(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent")
    event_id = await setup.log.test(setup.account, webhook.id, "email.bounced", {"type": "email.bounced"}, NOW)
    [due] = await setup.claim()
    assert (due.event_id, due.payload, due.fact) == (event_id, {"type": "email.bounced"}, None)
    message = await setup.log.get(setup.account, webhook.id, event_id)
    assert message is not None
    assert (message.status, message.payload) == ("pending", {"type": "email.bounced"})
    assert await setup.store.count("event_log") == 0


@pytest_twisted.ensureDeferred
async def test_rotation_signs_by_both_for_a_day(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent")
    assert await setup.webhooks.rotate(setup.account, webhook.id, b"n" * 32)
    await setup.happen(2)
    [due, _] = await setup.claim(now=NOW + timedelta(hours=23))
    assert (due.secret, due.former) == (b"n" * 32, SECRET)
    [due, _] = await setup.claim(now=NOW + timedelta(hours=25))
    assert (due.secret, due.former) == (b"n" * 32, None)


@pytest_twisted.ensureDeferred
async def test_an_account_has_only_so_many(setup: Setup) -> None:
    created = await together(*(setup.webhooks.add(setup.account, "https://a.example/", ALL, SECRET, 3) for _ in range(5)))
    assert len([each for each in created if each is None]) == 2
    newest, more = await setup.webhooks.list(setup.account, 2)
    assert more
    [oldest], more = await setup.webhooks.list(setup.account, 2, after=newest[-1].id)
    assert not more
    assert (await setup.webhooks.list(setup.account, 2, before=oldest.id)) == (newest, False)
    other = uuid7(0)
    assert await setup.webhooks.get(other, oldest.id) is None
    assert not await setup.webhooks.change(other, oldest.id, status="disabled")
    assert not await setup.webhooks.rotate(other, oldest.id, SECRET)
    assert not await setup.webhooks.remove(other, oldest.id)
    assert await setup.webhooks.remove(setup.account, oldest.id)


@pytest_twisted.ensureDeferred
async def test_what_is_no_longer_kept_is_nobodys_failure(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent", "email.delivered")
    [mail, other] = await setup.happen(2)
    await setup.store.pool.run("DELETE FROM emails WHERE email_id = %s", (mail.email_id,))
    await setup.store.pool.run("DELETE FROM events WHERE email_id = %s AND type = 'email.sent'", (mail.email_id,))
    dues = await setup.claim()
    gone = [due for due in dues if due.fact is None]
    assert (len(dues), len(gone)) == (4, 2)
    for due in gone:
        assert not await setup.settle(due, 0, "failed", NOW + 9 * DAY, request_sent=False)
        message = await setup.log.get(setup.account, webhook.id, due.event_id)
        assert message is not None
        assert (message.status, message.fact) == ("failed", None)
        [attempt], _ = await setup.log.attempts(setup.account, webhook.id, due.event_id, 2)
        assert attempt.response == "said"
    assert ((await setup.state(webhook)).failing_since, (await setup.state(webhook)).failed_at) == (None, None)
    log, more = await EventLog(setup.store.pool).after(setup.account, 0, 10)
    assert ({fact.mail.email_id for _, fact in log if fact.mail is not None}, len(log), more) == ({other.email_id}, 2, False)


@pytest_twisted.ensureDeferred
async def test_old_days_are_dropped_and_waiting_mail_is_delivered(setup: Setup) -> None:
    webhook = await setup.subscribe("email.sent")
    await setup.happen(2)
    for due in await setup.claim():
        await setup.fail(due)
    await Retention(setup.store.pool).sweep({"webhooks": 1}, NOW + 3 * DAY)
    assert await setup.statuses(webhook) == ["attempting"] * 2  # a day of which something waits stays
    days = (partitions.name_of(table, NOW) for table in ("webhook_messages", "webhook_attempts"))
    await setup.store.pool.run(f"DROP TABLE {', '.join(days)}")  # and if it were gone all the same
    assert await setup.statuses(webhook) == []
    late, well = await setup.claim(now=NOW + 3 * DAY)
    assert late.fact is not None
    await together(setup.fail(late, NOW + 3 * DAY), setup.settle(well, 200, "success", NOW + 3 * DAY))
    assert await setup.waiting() == 1
    assert await setup.store.count("webhook_attempts") == 0
