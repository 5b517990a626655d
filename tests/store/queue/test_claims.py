"""Due mail is found by destination and leased by one process at a time; schedules, expiry, holds and counts."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from hashlib import sha512
from typing import Any

import attrs
import pytest
import pytest_twisted

from mailsvc.delivery.connection.route import Route, mx_route
from mailsvc.delivery.shaping import destination_name, pooled
from mailsvc.net.dns import Mx
from mailsvc.outcome import Deferred
from mailsvc.store.mail.accept import NewEmail, NewRecipient
from mailsvc.store.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.store.mail.messages import Parts
from mailsvc.store.postgres.pool import Transaction
from mailsvc.store.queue import claims_sql
from mailsvc.store.queue.claims import FOREVER, Hold, Queue, Ready
from mailsvc.store.queue.operator import Operating
from tests.store.fixtures import ACCOUNT, DAY, MINUTE, NOW, OTHER, REGION, StoreRig, email, explain, nodes, together, visited

SECOND = timedelta(seconds=1)

BACKLOG = """
INSERT INTO queue (email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at, expires_at, reason)
SELECT gen_random_uuid(), 0, %s, gen_random_uuid(), %s, 'a@' || d, d, 'delayed', n %% 2 = 0, %s, %s, 'It does not answer.'
FROM generate_series(1, %s) AS n, unnest(%s::text[]) AS d
"""


async def backlog(store: StoreRig, next_at: datetime, count: int, *destinations: str) -> None:
    await store.pool.run(BACKLOG, (ACCOUNT, REGION, next_at, NOW + DAY, count, list(destinations)))


def claim_parameters(store: StoreRig, *destinations: str, now: datetime = NOW) -> dict[str, object]:
    """Parameters of a claim of 50 from each destination."""
    wanted = {"destinations": list(destinations), "limits": [50] * len(destinations)}
    return wanted | {"region": REGION, "now": now, "lease": store.lease, "message_bytes": 1 << 20}


def keys(leased: list[Any]) -> set[tuple[Any, int]]:
    return {(one.email_id, one.recipient) for one in leased}


@pytest_twisted.ensureDeferred
async def test_a_claim_leases_due_mail_up_to_the_requested_number(store: StoreRig) -> None:
    mails = [email() for _ in range(5)]
    await store.accept(*mails, email("a@example.net"))
    first = await store.claim(limit=3)
    second = await store.claim(limit=3)
    assert len(first) == 3 and keys(first) | keys(second) == {(m.email_id, 0) for m in mails}
    assert await store.claim() == []
    assert {(one.status, one.attempts, one.address, one.region, one.account_id) for one in first} == {
        ("queued", 0, "rcpt@example.org", REGION, ACCOUNT)
    }
    assert await store.statuses(mails[0]) == ["sending"]


@pytest_twisted.ensureDeferred
async def test_transactional_mail_is_claimed_before_bulk_and_oldest_first(store: StoreRig) -> None:
    bulk = [email(bulk=True, created_at=NOW - MINUTE * n) for n in range(3)]
    urgent = [email(created_at=NOW - SECOND * n) for n in range(3)]
    await store.accept(*bulk, *urgent)
    order = [m.email_id for m in (*reversed(urgent), *reversed(bulk))]
    assert [one.email_id for one in await store.claim(limit=4)] == order[:4]
    assert [one.email_id for one in await store.claim(limit=4)] == order[4:]


@pytest_twisted.ensureDeferred
async def test_a_claim_leases_mail_of_each_destination(store: StoreRig) -> None:
    mails = {name: [email(f"a@{name}", bulk=n % 2 == 0) for n in range(4)] for name in ("one.example", "two.example", "three.example")}
    await store.accept(*(mail for found in mails.values() for mail in found))
    claimed = (await store.queue.claim(REGION, {"one.example": 3, "nowhere.example": 9, "two.example": 1}, NOW, store.lease)).rows
    assert Counter(one.destination for one in claimed) == {"one.example": 3, "two.example": 1}
    assert [one.bulk for one in claimed] == [False, False, False, True]
    assert [len(await store.claim(name)) for name in mails] == [1, 3, 4]


@pytest_twisted.ensureDeferred
async def test_a_claim_of_first_attempts_returns_messages_that_fit(store: StoreRig) -> None:
    small = email("a@example.org", "b@example.org", envelope=StoredEnvelope(ret="HDRS"))
    large, tried = email(message=b"x" * 2000, created_at=NOW + SECOND), email("a@example.net")
    await store.accept(small, large, tried)
    many = {"example.org": 50, "example.net": 50}

    async def brought(message_bytes: int) -> dict[Any, Any]:
        claimed = await store.queue.claim(REGION, many, NOW + MINUTE, store.lease, message_bytes)
        await store.queue.release([(row.email_id, row.recipient) for row in claimed.rows], store.lease)
        assert len(claimed.rows) == 4
        return dict(claimed.messages)

    assert await brought(0) == {}
    expected = {small.email_id: (small.message, small.envelope), tried.email_id: (tried.message, EMPTY)}
    assert await brought(2000) == expected
    assert await brought(8000) == expected | {large.email_id: (large.message, EMPTY)}
    await store.claim("example.net")
    await store.settle(tried, Deferred("later", NOW))
    assert set(await brought(8000)) == {small.email_id, large.email_id}


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(("parts", "brought"), [((1 << 16,), True), (((1 << 16) + 1,), False), ((600_000,), False), ((10, 70_000), False)])
async def test_a_claim_brings_no_message_that_has_several_pieces(store: StoreRig, parts: tuple[int, ...], brought: bool) -> None:
    """It would bring the first one only, which would be sent as if it were the message."""
    message = Parts(tuple(b"x" * size for size in parts))  # as the SMTP listener spools it
    mail = email(message=message)
    await store.accept(mail)
    claimed = await store.queue.claim(REGION, {"example.org": 1}, NOW, store.lease, 1 << 20)
    assert len(claimed.rows) == 1
    assert {email_id: len(body) for email_id, (body, _) in claimed.messages.items()} == ({mail.email_id: len(message)} if brought else {})
    stored = await store.messages.load(ACCOUNT, mail.email_id)
    assert stored is not None and len(stored.body) == len(message)


@pytest_twisted.ensureDeferred
async def test_a_claim_includes_other_recipients_of_the_same_emails(store: StoreRig) -> None:
    both = email("a@example.org", "b@example.org", "c@example.net")
    await store.accept(both, email(created_at=NOW + MINUTE))
    assert keys(await store.claim(limit=1)) == {(both.email_id, 0), (both.email_id, 1)}
    assert await store.statuses(both) == ["sending", "sending", "queued"]


@pytest_twisted.ensureDeferred
async def test_a_claim_does_not_include_recipients_that_are_not_due(store: StoreRig) -> None:
    mail = email("a@example.org", "b@example.org")
    await store.accept(mail)
    await store.claim()
    await store.settle(mail, Deferred("later", NOW), Deferred("much later", NOW + MINUTE))
    assert keys(await store.claim(limit=1)) == {(mail.email_id, 0)}


@pytest_twisted.ensureDeferred
async def test_mail_to_many_hosts_with_long_names_is_queued_and_moved(store: StoreRig) -> None:
    """Rows of an index are limited; these names cannot be compressed."""
    digests = [sha512(bytes([number])).hexdigest() for number in range(40)]
    names = [f"{one[:60]}.{one[60:]}.{other[:60]}.{other[60:]}.mx.example" for one, other in zip(digests[::2], digests[1::2], strict=True)]
    route = mx_route("example.net", [Mx(10, name) for name in names], 25)
    assert isinstance(route, Route)
    destination = pooled(destination_name("p" * 64, route.destination), "x" * 32)
    queued, moved = email(recipients=(NewRecipient("a@example.net", destination, False),)), email("a@example.net")
    await store.accept(queued, moved)
    await store.claim("example.net")
    await store.queue.release([(moved.email_id, 0)], store.lease, destination=destination)
    assert keys(await store.claim(destination)) == {(queued.email_id, 0), (moved.email_id, 0)}


@pytest_twisted.ensureDeferred
async def test_concurrent_claims_do_not_overlap(store: StoreRig) -> None:
    await store.accept(*(email("a@example.org", "b@example.org") for _ in range(100)))
    leases = [await store.process() for _ in range(4)]
    rounds = await together(*(store.claim(limit=10, lease=leases[n % 4]) for n in range(40)))
    taken = [key for leased in rounds for key in keys(leased)]
    assert len(taken) == len(set(taken)) == 200


@pytest_twisted.ensureDeferred
async def test_only_the_holder_can_give_leases_back(store: StoreRig) -> None:
    mail = email()
    await store.accept(mail)
    await store.claim()
    await store.queue.release([(mail.email_id, 0)], store.lease + 1)
    assert await store.statuses(mail) == ["sending"]
    await store.queue.release(
        [(mail.email_id, 0)], store.lease, destination="mx.example.org", next_at=NOW + MINUTE, reason="It was greylisted."
    )
    [recipient] = await store.emails.recipients(ACCOUNT, mail.email_id)
    assert (recipient.status, recipient.reason, recipient.next_at) == ("queued", "It was greylisted.", NOW + MINUTE)
    assert await store.claim() == []
    assert keys(await store.claim("mx.example.org", NOW + MINUTE)) == {(mail.email_id, 0)}
    await store.queue.release([(mail.email_id, 0)], store.lease)
    [ready] = await store.queue.ready(REGION, NOW)
    assert (ready.destination, ready.next_at) == ("mx.example.org", NOW + MINUTE)


@pytest_twisted.ensureDeferred
async def test_ready_lists_each_destination_once_soonest_first(store: StoreRig) -> None:
    await backlog(store, NOW - MINUTE, 20, "b.example")
    await backlog(store, NOW + MINUTE, 20, "c.example")
    await store.accept(email("x@a.example", created_at=NOW - SECOND), email("x@d.example", bulk=True, created_at=NOW - 2 * SECOND))
    assert await store.queue.ready(REGION, NOW) == [
        Ready("b.example", False, NOW - MINUTE),
        Ready("d.example", True, NOW - 2 * SECOND),
        Ready("a.example", False, NOW - SECOND),
        Ready("c.example", False, NOW + MINUTE),
    ]
    assert [r.destination for r in await store.queue.ready(REGION, NOW, skip=["b.example"], limit=1)] == ["d.example"]
    assert await store.queue.ready("elsewhere", NOW) == []


@pytest_twisted.ensureDeferred
async def test_ready_says_whether_only_bulk_mail_is_due(store: StoreRig) -> None:
    await store.accept(email(created_at=NOW + MINUTE), email(bulk=True))
    assert await store.queue.ready(REGION, NOW) == [Ready("example.org", True, NOW)]
    assert await store.queue.ready(REGION, NOW - DAY) == [Ready("example.org", True, NOW)]
    assert await store.queue.ready(REGION, NOW + MINUTE) == [Ready("example.org", False, NOW)]


@pytest_twisted.ensureDeferred
async def test_scans_of_a_long_queue_continue_where_the_last_one_stopped(store: StoreRig) -> None:
    names = [f"{n:02}.example" for n in range(7)]
    await backlog(store, NOW, 2, *names)
    queue = Queue(store.pool, scan=3)
    looks = [[r.destination for r in await queue.ready(REGION, NOW)] for _ in range(4)]
    assert looks == [names[:3], names[3:6], names[6:], names[:3]]


@pytest_twisted.ensureDeferred
async def test_ready_omits_destinations_on_hold(store: StoreRig) -> None:
    mail = email()
    await store.accept(mail)
    await store.queue.hold(REGION, "example.org", "backoff", "Connection refused.", NOW + MINUTE, 3)
    assert await store.queue.ready(REGION, NOW) == []
    assert len(await store.queue.ready(REGION, NOW + MINUTE)) == 1
    assert await store.queue.holds(REGION) == {"example.org": Hold("backoff", "Connection refused.", NOW + MINUTE, 3)}
    [recipient] = await store.emails.recipients(ACCOUNT, mail.email_id)
    assert recipient.reason == "Connection refused." and recipient.next_at is not None
    await store.queue.lift(REGION, "example.org")
    assert await store.queue.holds(REGION) == {}
    assert len(await store.queue.ready(REGION, NOW)) == 1


@pytest_twisted.ensureDeferred
async def test_a_backoff_neither_shortens_nor_ends_a_pause(store: StoreRig) -> None:
    pause = Hold("paused", "By the operator.", FOREVER, 0)
    await store.accept(email())
    await store.queue.hold(REGION, "example.org", "backoff", "Timed out.", NOW + MINUTE, 1)
    await store.queue.hold(REGION, "example.org", "paused", "By the operator.", FOREVER)
    await store.queue.hold(REGION, "example.org", "backoff", "Timed out.", NOW + DAY, 2)
    await store.queue.lift(REGION, "example.org")
    assert await store.queue.holds(REGION) == {"example.org": pause}
    assert await store.queue.unexplained(NOW) == 0
    await store.queue.lift(REGION, "example.org", paused=True)
    assert await store.queue.holds(REGION) == {}


@pytest_twisted.ensureDeferred
async def test_expired_recipients_fail_in_every_state(store: StoreRig) -> None:
    expires_at = NOW - SECOND
    tried, queued, scheduled, leased = (email("a@example.org", "b@example.org", expires_at=expires_at) for _ in range(4))
    scheduled = attrs.evolve(scheduled, scheduled_at=NOW + MINUTE)
    leased = as_leased(leased, store.lease)
    await store.accept(tried)
    await store.claim()
    await store.settle(tried, Deferred("4.2.2 mailbox full", NOW), Deferred("4.2.2 mailbox full", NOW))
    await store.accept(queued, scheduled, leased, email())
    assert [await store.queue.expire(NOW, 4), await store.queue.expire(NOW, 4)] == [4, 2]
    assert await store.statuses(tried) == ["bounced", "bounced"]
    assert await store.statuses(queued) == await store.statuses(scheduled) == ["failed", "failed"]
    assert await store.statuses(leased) == ["sending", "sending"]
    [(data,)] = await store.pool.rows("SELECT data FROM events WHERE type = 'email.bounced' AND recipient = 0")
    assert (data["type"], "4.2.2 mailbox full" in data["reply"]) == ("Transient", True)


@pytest_twisted.ensureDeferred
async def test_mail_that_expires_while_its_account_is_on_hold_says_so(store: StoreRig) -> None:
    await store.accept(email(expires_at=NOW - SECOND), email(account=OTHER, expires_at=NOW - SECOND))
    await Operating(store.pool).pause_account(ACCOUNT, "The account's mail is on hold.", FOREVER, NOW)
    assert await store.queue.expire(NOW, 4) == 2
    reasons = dict(await store.pool.rows("SELECT account_id, data ->> 'reason' FROM events WHERE type = 'email.failed'"))
    assert reasons == {
        ACCOUNT: "It could not be sent before it expired. The account's mail is on hold.",
        OTHER: "It could not be sent before it expired.",
    }


def as_leased(mail: NewEmail, lease: int) -> NewEmail:
    recipients = tuple(NewRecipient(r.address, r.destination, True) for r in mail.recipients)
    return attrs.evolve(mail, lease=lease, recipients=recipients)


@pytest_twisted.ensureDeferred
async def test_scheduled_mail_is_queued_when_due_with_one_event(store: StoreRig) -> None:
    due = [email("a@example.org", "b@example.net", scheduled_at=NOW - n * SECOND) for n in range(8)]
    later = email(scheduled_at=NOW + MINUTE)
    await store.accept(*due, later)
    other = Queue(store.pool)
    released = await together(*(queue.release_scheduled(NOW, 3) for queue in (store.queue, other) * 3))
    assert sum(released) + await store.queue.release_scheduled(NOW, 100) == 8
    for mail in due:
        assert await store.events(mail) == [("email.scheduled", None), ("email.sent", None)]
        assert await store.statuses(mail) == ["queued", "queued"]
    assert await store.statuses(later) == ["scheduled"]
    assert len(await store.claim()) == 8


@pytest_twisted.ensureDeferred
async def test_concurrent_releases_of_one_email_do_not_split_it(store: StoreRig) -> None:
    mail = email("a@example.org", "b@example.org", scheduled_at=NOW)
    await store.accept(mail)

    async def meanwhile(tx: Transaction) -> int:
        await tx.rows("SELECT FROM queue WHERE email_id = %s AND recipient = 0 FOR UPDATE", (mail.email_id,))
        return await store.queue.release_scheduled(NOW)

    assert await store.pool.transact(meanwhile) == 0
    assert await store.queue.release_scheduled(NOW) == 1


@pytest_twisted.ensureDeferred
async def test_counts_by_destination(store: StoreRig) -> None:
    await backlog(store, NOW + MINUTE, 5, "dead.example")
    await store.accept(email(lease=store.lease), email(scheduled_at=NOW + DAY), email())
    counts = await store.queue.counts(REGION)
    assert [attrs.astuple(count) for count in counts] == [
        ("dead.example", 5, 0, 0, NOW + MINUTE),
        ("example.org", 1, 1, 1, NOW),
    ]


@pytest_twisted.ensureDeferred
async def test_a_recipient_without_a_reason_would_be_counted(store: StoreRig) -> None:
    mail = email(lease=store.lease + 1000)
    await store.accept(mail)
    assert await store.queue.unexplained(NOW) == 1
    await store.pool.run("UPDATE queue SET lease = NULL")
    assert await store.queue.unexplained(NOW) == 0


@pytest_twisted.ensureDeferred
async def test_every_kind_of_waiting_has_its_own_reason(store: StoreRig) -> None:
    waits = {
        "Scheduled": email(scheduled_at=NOW + DAY),
        "Being sent": email(lease=store.lease),
        "Waiting for a free connection to example.org": email(),
    }
    await store.accept(*waits.values())
    for reason, mail in waits.items():
        [recipient] = await store.emails.recipients(ACCOUNT, mail.email_id)
        assert recipient.reason is not None and recipient.reason.startswith(reason)
        assert recipient.next_at is not None and recipient.next_at >= NOW
    await store.pool.run("UPDATE processes SET ended_at = now()")
    [recipient] = await store.emails.recipients(ACCOUNT, waits["Being sent"].email_id)
    assert "another takes it over" in (recipient.reason or "")
    [recipient] = await store.emails.recipients(ACCOUNT, list(waits.values())[-1].email_id)
    assert recipient.reason == "No process that delivers mail of the region r1 is running."


@pytest_twisted.ensureDeferred
async def test_a_claim_reads_only_rows_that_it_leases(store: StoreRig) -> None:
    await backlog(store, NOW + MINUTE, 20_000, "dead.example")
    await store.accept(*(email() for _ in range(10)))
    plan = await explain(store, claims_sql.CLAIM, claim_parameters(store, "example.org"))
    assert max(visited(plan)) <= 10, visited(plan)
    plan = await explain(store, claims_sql.CLAIM, claim_parameters(store, "dead.example"))
    assert max(visited(plan)) == 0
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 100
    plan = await explain(store, claims_sql.CLAIM, claim_parameters(store, "dead.example", now=NOW + MINUTE))
    assert max(visited(plan)) <= 50, visited(plan)


@pytest_twisted.ensureDeferred
async def test_a_claim_reads_only_the_messages_that_it_returns(store: StoreRig) -> None:
    await store.accept(*(email("a@elsewhere.example") for _ in range(200)), *(email() for _ in range(10)))
    plan = await explain(store, claims_sql.CLAIM, claim_parameters(store, "example.org", "nowhere.example"))
    read = [node for node in nodes(plan) if node.get("Relation Name", "").startswith(("emails_", "messages_")) and node["Actual Loops"]]
    assert [node["Actual Rows"] * node["Actual Loops"] for node in read] == [10, 10]
    assert not [node for node in read if node.get("Rows Removed by Filter")]


@pytest_twisted.ensureDeferred
async def test_a_scan_skips_backlogs(store: StoreRig) -> None:
    await backlog(store, NOW, 20_000, "dead.example")
    await backlog(store, NOW, 10, *(f"{n}.example" for n in range(20)))
    params: dict[str, object] = {"region": REGION, "now": NOW, "skip": [], "limit": 100, "scan": 100, "start": ""}
    plan = await explain(store, claims_sql.READY, params)
    assert sum(visited(plan)) <= 21 * 4 + 1, visited(plan)
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 1000


@pytest_twisted.ensureDeferred
async def test_mail_of_a_domain_fails_in_transactions_that_continue_behind_each_other(store: StoreRig) -> None:
    mails, other = [email() for _ in range(5)], attrs.evolve(email(), domain_id=OTHER)
    await store.accept(*mails, other)
    await store.queue.fail_domain(mails[0].domain_id, "The domain was deleted.", NOW, 2)
    assert [await store.statuses(mail) for mail in mails] == [["failed"]] * 5
    assert await store.statuses(other) == ["queued"]
    await backlog(store, NOW, 1000, "dead.example")
    [(middle,)] = await store.pool.rows("SELECT email_id FROM queue WHERE domain_id <> %s ORDER BY 1 OFFSET 500 LIMIT 1", (OTHER,))
    await store.pool.run("UPDATE queue SET domain_id = %s", (OTHER,))
    plan = await explain(store, claims_sql.TAKE_OF_DOMAIN, (OTHER, middle, 0, 10), claims_sql.IN_ORDER)
    assert max(visited(plan)) <= 10, visited(plan)


@pytest_twisted.ensureDeferred
async def test_recipients_that_were_tried_bounce_for_a_stated_reason(store: StoreRig) -> None:
    deleted, expired = email(), attrs.evolve(email(), domain_id=OTHER)
    await store.accept(deleted, expired)
    await store.claim()
    for mail in (deleted, expired):
        await store.settle(mail, Deferred("Try again later.", NOW))
    await store.queue.fail_domain(deleted.domain_id, "The domain was deleted.", NOW, 2)
    await store.queue.expire(NOW + 10 * DAY)
    for mail, reason in ((deleted, "The domain was deleted."), (expired, "It could not be delivered before it expired. Try again later.")):
        [recipient] = await store.emails.recipients(ACCOUNT, mail.email_id)
        assert (recipient.status, recipient.reason) == ("bounced", reason)


@pytest_twisted.ensureDeferred
async def test_plans_use_indexes_without_statistics(store: StoreRig) -> None:
    """Right after the queue was empty, the planner prefers to read all of it."""
    await store.accept(email())
    plan = await explain(store, claims_sql.CLAIM, claim_parameters(store, "example.org"))
    scans = [node["Node Type"] for node in nodes(plan) if node.get("Relation Name") == "queue"]
    assert "Seq Scan" not in scans


@pytest_twisted.ensureDeferred
async def test_a_claim_from_a_sudden_backlog_reads_nothing_else(store: StoreRig) -> None:
    """By its statistics the table is empty: every index looks as good as the right one."""
    await store.pool.run("ANALYZE queue")
    await backlog(store, NOW, 3_000, "example.org")
    for _ in range(3):
        plan = await explain(store, claims_sql.CLAIM, claim_parameters(store, "example.org"))
        assert max(visited(plan)) <= 50, visited(plan)


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("known", ["empty", "full"])
async def test_a_claim_with_an_old_plan_reads_nothing_else(store: StoreRig, known: str) -> None:
    """The server keeps one plan for any limit, made while the table was empty or full."""
    if known == "full":
        await backlog(store, NOW, 3_000, "example.org", "example.net")
    await store.pool.run("ANALYZE queue")
    statement = attrs.evolve(claims_sql.TAKE, name="take_again")

    async def planned_before(tx: Transaction) -> Any:
        await tx.run("SET LOCAL plan_cache_mode = force_generic_plan")
        await tx.run(statement, (REGION, ["nowhere"], [50], NOW, store.lease, 0))
        await tx.run(BACKLOG, (ACCOUNT, REGION, NOW, NOW + DAY, 3_000, ["example.com"]))
        taken = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE take_again (%s, %s, %s, %s, %s, %s)"
        [(plans,)] = await tx.rows(taken, (REGION, ["example.com"], [50], NOW, store.lease, 1 << 20))
        return plans[0]["Plan"]

    plan = await store.pool.transact(planned_before)
    assert max(visited(plan)) == 50, visited(plan)
