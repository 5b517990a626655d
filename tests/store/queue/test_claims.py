"""Due mail is found by destination and leased by one process at a time; schedules, expiry, holds and counts."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import attrs
import pytest
import pytest_twisted

from mailsvc.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.outcome import Deferred
from mailsvc.store.mail.accept import NewEmail, NewRecipient
from mailsvc.store.postgres.pool import Transaction
from mailsvc.store.queue import claims_sql
from mailsvc.store.queue.claims import FOREVER, Hold, Queue, Ready
from tests.store.fixtures import ACCOUNT, DAY, MINUTE, NOW, REGION, House, email, explain, nodes, together, visited

SECOND = timedelta(seconds=1)

BACKLOG = """
INSERT INTO queue (email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at, expires_at, reason)
SELECT gen_random_uuid(), 0, %s, gen_random_uuid(), %s, 'a@' || d, d, 'delayed', n %% 2 = 0, %s, %s, 'It does not answer.'
FROM generate_series(1, %s) AS n, unnest(%s::text[]) AS d
"""


async def backlog(house: House, next_at: datetime, count: int, *destinations: str) -> None:
    await house.pool.run(BACKLOG, (ACCOUNT, REGION, next_at, NOW + DAY, count, list(destinations)))


def asked(house: House, *destinations: str, now: datetime = NOW) -> dict[str, object]:
    """Parameters of a claim of 50 from each destination."""
    wanted = {"destinations": list(destinations), "limits": [50] * len(destinations)}
    return wanted | {"region": REGION, "now": now, "lease": house.lease, "message_bytes": 1 << 20}


def keys(leased: list[Any]) -> set[tuple[Any, int]]:
    return {(one.email_id, one.recipient) for one in leased}


@pytest_twisted.ensureDeferred
async def test_a_claim_leases_due_mail_up_to_the_requested_number(house: House) -> None:
    mails = [email() for _ in range(5)]
    await house.accept(*mails, email("a@example.net"))
    first = await house.claim(limit=3)
    second = await house.claim(limit=3)
    assert len(first) == 3 and keys(first) | keys(second) == {(m.email_id, 0) for m in mails}
    assert await house.claim() == []
    assert {(one.status, one.attempts, one.address, one.region, one.account_id) for one in first} == {
        ("queued", 0, "rcpt@example.org", REGION, ACCOUNT)
    }
    assert await house.statuses(mails[0]) == ["sending"]


@pytest_twisted.ensureDeferred
async def test_transactional_mail_is_claimed_before_bulk_and_oldest_first(house: House) -> None:
    bulk = [email(bulk=True, created_at=NOW - MINUTE * n) for n in range(3)]
    urgent = [email(created_at=NOW - SECOND * n) for n in range(3)]
    await house.accept(*bulk, *urgent)
    order = [m.email_id for m in (*reversed(urgent), *reversed(bulk))]
    assert [one.email_id for one in await house.claim(limit=4)] == order[:4]
    assert [one.email_id for one in await house.claim(limit=4)] == order[4:]


@pytest_twisted.ensureDeferred
async def test_a_claim_leases_mail_of_each_destination(house: House) -> None:
    mails = {name: [email(f"a@{name}", bulk=n % 2 == 0) for n in range(4)] for name in ("one.example", "two.example", "three.example")}
    await house.accept(*(mail for found in mails.values() for mail in found))
    claimed = (await house.queue.claim(REGION, {"one.example": 3, "nowhere.example": 9, "two.example": 1}, NOW, house.lease)).rows
    assert Counter(one.destination for one in claimed) == {"one.example": 3, "two.example": 1}
    assert [one.bulk for one in claimed] == [False, False, False, True]
    assert [len(await house.claim(name)) for name in mails] == [1, 3, 4]


@pytest_twisted.ensureDeferred
async def test_a_claim_of_first_attempts_returns_messages_that_fit(house: House) -> None:
    small = email("a@example.org", "b@example.org", envelope=StoredEnvelope(ret="HDRS"))
    large, tried = email(message=b"x" * 2000, created_at=NOW + SECOND), email("a@example.net")
    await house.accept(small, large, tried)
    many = {"example.org": 50, "example.net": 50}

    async def brought(message_bytes: int) -> dict[Any, Any]:
        claimed = await house.queue.claim(REGION, many, NOW + MINUTE, house.lease, message_bytes)
        await house.queue.release([(row.email_id, row.recipient) for row in claimed.rows], house.lease)
        assert len(claimed.rows) == 4
        return dict(claimed.messages)

    assert await brought(0) == {}
    expected = {small.email_id: (small.message, small.envelope), tried.email_id: (tried.message, EMPTY)}
    assert await brought(2000) == expected
    assert await brought(8000) == expected | {large.email_id: (large.message, EMPTY)}
    await house.claim("example.net")
    await house.settle(tried, Deferred("later", NOW))
    assert set(await brought(8000)) == {small.email_id, large.email_id}


@pytest_twisted.ensureDeferred
async def test_a_claim_includes_other_recipients_of_the_same_emails(house: House) -> None:
    both = email("a@example.org", "b@example.org", "c@example.net")
    await house.accept(both, email(created_at=NOW + MINUTE))
    assert keys(await house.claim(limit=1)) == {(both.email_id, 0), (both.email_id, 1)}
    assert await house.statuses(both) == ["sending", "sending", "queued"]


@pytest_twisted.ensureDeferred
async def test_a_claim_does_not_include_recipients_that_are_not_due(house: House) -> None:
    mail = email("a@example.org", "b@example.org")
    await house.accept(mail)
    await house.claim()
    await house.settle(mail, Deferred("later", NOW), Deferred("much later", NOW + MINUTE))
    assert keys(await house.claim(limit=1)) == {(mail.email_id, 0)}


@pytest_twisted.ensureDeferred
async def test_concurrent_claims_do_not_overlap(house: House) -> None:
    await house.accept(*(email("a@example.org", "b@example.org") for _ in range(100)))
    leases = [await house.process() for _ in range(4)]
    rounds = await together(*(house.claim(limit=10, lease=leases[n % 4]) for n in range(40)))
    taken = [key for leased in rounds for key in keys(leased)]
    assert len(taken) == len(set(taken)) == 200


@pytest_twisted.ensureDeferred
async def test_only_the_holder_can_give_leases_back(house: House) -> None:
    mail = email()
    await house.accept(mail)
    await house.claim()
    await house.queue.release([(mail.email_id, 0)], house.lease + 1)
    assert await house.statuses(mail) == ["sending"]
    await house.queue.release(
        [(mail.email_id, 0)], house.lease, destination="mx.example.org", next_at=NOW + MINUTE, reason="It was greylisted."
    )
    [told] = await house.emails.recipients(ACCOUNT, mail.email_id)
    assert (told.status, told.reason, told.next_at) == ("queued", "It was greylisted.", NOW + MINUTE)
    assert await house.claim() == []
    assert keys(await house.claim("mx.example.org", NOW + MINUTE)) == {(mail.email_id, 0)}
    await house.queue.release([(mail.email_id, 0)], house.lease)
    [ready] = await house.queue.ready(REGION, NOW)
    assert (ready.destination, ready.next_at) == ("mx.example.org", NOW + MINUTE)


@pytest_twisted.ensureDeferred
async def test_ready_lists_each_destination_once_soonest_first(house: House) -> None:
    await backlog(house, NOW - MINUTE, 20, "b.example")
    await backlog(house, NOW + MINUTE, 20, "c.example")
    await house.accept(email("x@a.example", created_at=NOW - SECOND), email("x@d.example", bulk=True, created_at=NOW - 2 * SECOND))
    assert await house.queue.ready(REGION, NOW) == [
        Ready("b.example", False, NOW - MINUTE),
        Ready("d.example", True, NOW - 2 * SECOND),
        Ready("a.example", False, NOW - SECOND),
        Ready("c.example", False, NOW + MINUTE),
    ]
    assert [r.destination for r in await house.queue.ready(REGION, NOW, skip=["b.example"], limit=1)] == ["d.example"]
    assert await house.queue.ready("elsewhere", NOW) == []


@pytest_twisted.ensureDeferred
async def test_ready_says_whether_only_bulk_mail_is_due(house: House) -> None:
    await house.accept(email(created_at=NOW + MINUTE), email(bulk=True))
    assert await house.queue.ready(REGION, NOW) == [Ready("example.org", True, NOW)]
    assert await house.queue.ready(REGION, NOW - DAY) == [Ready("example.org", True, NOW)]
    assert await house.queue.ready(REGION, NOW + MINUTE) == [Ready("example.org", False, NOW)]


@pytest_twisted.ensureDeferred
async def test_scans_of_a_long_queue_continue_where_the_last_one_stopped(house: House) -> None:
    names = [f"{n:02}.example" for n in range(7)]
    await backlog(house, NOW, 2, *names)
    queue = Queue(house.pool, scan=3)
    looks = [[r.destination for r in await queue.ready(REGION, NOW)] for _ in range(4)]
    assert looks == [names[:3], names[3:6], names[6:], names[:3]]


@pytest_twisted.ensureDeferred
async def test_ready_omits_destinations_on_hold(house: House) -> None:
    mail = email()
    await house.accept(mail)
    await house.queue.hold(REGION, "example.org", "backoff", "Connection refused.", NOW + MINUTE, 3)
    assert await house.queue.ready(REGION, NOW) == []
    assert len(await house.queue.ready(REGION, NOW + MINUTE)) == 1
    assert await house.queue.holds(REGION) == {"example.org": Hold("backoff", "Connection refused.", NOW + MINUTE, 3)}
    [told] = await house.emails.recipients(ACCOUNT, mail.email_id)
    assert told.reason == "Connection refused." and told.next_at is not None
    await house.queue.lift(REGION, "example.org")
    assert await house.queue.holds(REGION) == {}
    assert len(await house.queue.ready(REGION, NOW)) == 1


@pytest_twisted.ensureDeferred
async def test_a_backoff_neither_shortens_nor_ends_a_pause(house: House) -> None:
    pause = Hold("paused", "By the operator.", FOREVER, 0)
    await house.accept(email())
    await house.queue.hold(REGION, "example.org", "backoff", "Timed out.", NOW + MINUTE, 1)
    await house.queue.hold(REGION, "example.org", "paused", "By the operator.", FOREVER)
    await house.queue.hold(REGION, "example.org", "backoff", "Timed out.", NOW + DAY, 2)
    await house.queue.lift(REGION, "example.org")
    assert await house.queue.holds(REGION) == {"example.org": pause}
    assert await house.queue.unexplained(NOW) == 0
    await house.queue.lift(REGION, "example.org", paused=True)
    assert await house.queue.holds(REGION) == {}


@pytest_twisted.ensureDeferred
async def test_expired_recipients_fail_in_every_state(house: House) -> None:
    expires_at = NOW - SECOND
    tried, queued, scheduled, leased = (email("a@example.org", "b@example.org", expires_at=expires_at) for _ in range(4))
    scheduled = attrs.evolve(scheduled, scheduled_at=NOW + MINUTE)
    leased = as_leased(leased, house.lease)
    await house.accept(tried)
    await house.claim()
    await house.settle(tried, Deferred("4.2.2 mailbox full", NOW), Deferred("4.2.2 mailbox full", NOW))
    await house.accept(queued, scheduled, leased, email())
    assert [await house.queue.expire(NOW, 4), await house.queue.expire(NOW, 4)] == [4, 2]
    assert await house.statuses(tried) == ["bounced", "bounced"]
    assert await house.statuses(queued) == await house.statuses(scheduled) == ["failed", "failed"]
    assert await house.statuses(leased) == ["sending", "sending"]
    [(data,)] = await house.pool.rows("SELECT data FROM events WHERE type = 'email.bounced' AND recipient = 0")
    assert (data["type"], "4.2.2 mailbox full" in data["reply"]) == ("Transient", True)


def as_leased(mail: NewEmail, lease: int) -> NewEmail:
    recipients = tuple(NewRecipient(r.address, r.destination, True) for r in mail.recipients)
    return attrs.evolve(mail, lease=lease, recipients=recipients)


@pytest_twisted.ensureDeferred
async def test_scheduled_mail_is_queued_when_due_with_one_event(house: House) -> None:
    due = [email("a@example.org", "b@example.net", scheduled_at=NOW - n * SECOND) for n in range(8)]
    later = email(scheduled_at=NOW + MINUTE)
    await house.accept(*due, later)
    other = Queue(house.pool)
    released = await together(*(queue.release_scheduled(NOW, 3) for queue in (house.queue, other) * 3))
    assert sum(released) + await house.queue.release_scheduled(NOW, 100) == 8
    for mail in due:
        assert await house.events(mail) == [("email.scheduled", None), ("email.sent", None)]
        assert await house.statuses(mail) == ["queued", "queued"]
    assert await house.statuses(later) == ["scheduled"]
    assert len(await house.claim()) == 8


@pytest_twisted.ensureDeferred
async def test_concurrent_releases_of_one_email_do_not_split_it(house: House) -> None:
    mail = email("a@example.org", "b@example.org", scheduled_at=NOW)
    await house.accept(mail)

    async def meanwhile(tx: Transaction) -> int:
        await tx.rows("SELECT FROM queue WHERE email_id = %s AND recipient = 0 FOR UPDATE", (mail.email_id,))
        return await house.queue.release_scheduled(NOW)

    assert await house.pool.transact(meanwhile) == 0
    assert await house.queue.release_scheduled(NOW) == 1


@pytest_twisted.ensureDeferred
async def test_counts_by_destination(house: House) -> None:
    await backlog(house, NOW + MINUTE, 5, "dead.example")
    await house.accept(email(lease=house.lease), email(scheduled_at=NOW + DAY), email())
    counts = await house.queue.counts(REGION)
    assert [attrs.astuple(count) for count in counts] == [
        ("dead.example", 5, 0, 0, NOW + MINUTE),
        ("example.org", 1, 1, 1, NOW),
    ]


@pytest_twisted.ensureDeferred
async def test_a_recipient_without_a_reason_would_be_counted(house: House) -> None:
    mail = email(lease=house.lease + 1000)
    await house.accept(mail)
    assert await house.queue.unexplained(NOW) == 1
    await house.pool.run("UPDATE queue SET lease = NULL")
    assert await house.queue.unexplained(NOW) == 0


@pytest_twisted.ensureDeferred
async def test_every_kind_of_waiting_has_its_own_reason(house: House) -> None:
    waits = {
        "Scheduled": email(scheduled_at=NOW + DAY),
        "Being sent": email(lease=house.lease),
        "Waiting for a free connection to example.org": email(),
    }
    await house.accept(*waits.values())
    for reason, mail in waits.items():
        [told] = await house.emails.recipients(ACCOUNT, mail.email_id)
        assert told.reason is not None and told.reason.startswith(reason)
        assert told.next_at is not None and told.next_at >= NOW
    await house.pool.run("UPDATE processes SET ended_at = now()")
    [told] = await house.emails.recipients(ACCOUNT, waits["Being sent"].email_id)
    assert "another takes it over" in (told.reason or "")
    [told] = await house.emails.recipients(ACCOUNT, list(waits.values())[-1].email_id)
    assert told.reason == "No process that delivers mail of the region r1 is running."


@pytest_twisted.ensureDeferred
async def test_a_claim_reads_only_rows_that_it_leases(house: House) -> None:
    await backlog(house, NOW + MINUTE, 20_000, "dead.example")
    await house.accept(*(email() for _ in range(10)))
    plan = await explain(house, claims_sql.CLAIM, asked(house, "example.org"))
    assert max(visited(plan)) <= 10, visited(plan)
    plan = await explain(house, claims_sql.CLAIM, asked(house, "dead.example"))
    assert max(visited(plan)) == 0
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 100
    plan = await explain(house, claims_sql.CLAIM, asked(house, "dead.example", now=NOW + MINUTE))
    assert max(visited(plan)) <= 50, visited(plan)


@pytest_twisted.ensureDeferred
async def test_a_claim_reads_only_the_messages_that_it_returns(house: House) -> None:
    await house.accept(*(email("a@elsewhere.example") for _ in range(200)), *(email() for _ in range(10)))
    plan = await explain(house, claims_sql.CLAIM, asked(house, "example.org", "nowhere.example"))
    read = [node for node in nodes(plan) if node.get("Relation Name", "").startswith(("emails_", "messages_")) and node["Actual Loops"]]
    assert [node["Actual Rows"] * node["Actual Loops"] for node in read] == [10, 10]
    assert not [node for node in read if node.get("Rows Removed by Filter")]


@pytest_twisted.ensureDeferred
async def test_a_scan_skips_backlogs(house: House) -> None:
    await backlog(house, NOW, 20_000, "dead.example")
    await backlog(house, NOW, 10, *(f"{n}.example" for n in range(20)))
    params: dict[str, object] = {"region": REGION, "now": NOW, "skip": [], "limit": 100, "scan": 100, "start": ""}
    plan = await explain(house, claims_sql.READY, params)
    assert sum(visited(plan)) <= 21 * 4 + 1, visited(plan)
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 1000


@pytest_twisted.ensureDeferred
async def test_plans_use_indexes_without_statistics(house: House) -> None:
    """Right after the queue was empty, the planner prefers to read all of it."""
    await house.accept(email())
    plan = await explain(house, claims_sql.CLAIM, asked(house, "example.org"))
    scans = [node["Node Type"] for node in nodes(plan) if node.get("Relation Name") == "queue"]
    assert "Seq Scan" not in scans


@pytest_twisted.ensureDeferred
async def test_a_claim_from_a_sudden_backlog_reads_nothing_else(house: House) -> None:
    """By its statistics the table is empty: every index looks as good as the right one."""
    await house.pool.run("ANALYZE queue")
    await backlog(house, NOW, 3_000, "example.org")
    for _ in range(3):
        plan = await explain(house, claims_sql.CLAIM, asked(house, "example.org"))
        assert max(visited(plan)) <= 50, visited(plan)


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("known", ["empty", "full"])
async def test_a_claim_with_an_old_plan_reads_nothing_else(house: House, known: str) -> None:
    """The server keeps one plan for any limit, made while the table was empty or full."""
    if known == "full":
        await backlog(house, NOW, 3_000, "example.org", "example.net")
    await house.pool.run("ANALYZE queue")
    statement = attrs.evolve(claims_sql.TAKE, name="take_again")

    async def planned_before(tx: Transaction) -> Any:
        await tx.run("SET LOCAL plan_cache_mode = force_generic_plan")
        await tx.run(statement, (REGION, ["nowhere"], [50], NOW, house.lease, 0))
        await tx.run(BACKLOG, (ACCOUNT, REGION, NOW, NOW + DAY, 3_000, ["example.com"]))
        taken = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE take_again (%s, %s, %s, %s, %s, %s)"
        [(plans,)] = await tx.rows(taken, (REGION, ["example.com"], [50], NOW, house.lease, 1 << 20))
        return plans[0]["Plan"]

    plan = await house.pool.transact(planned_before)
    assert max(visited(plan)) == 50, visited(plan)
