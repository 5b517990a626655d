"""The engine: every contact once, whatever happens in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from email import message_from_bytes, policy
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.accounts.quota import Quotas
from mailsvc.broadcasts import fanout as fanout_
from mailsvc.broadcasts.consent import BroadcastCanceled, OnHold
from mailsvc.broadcasts.copying import duplicate
from mailsvc.broadcasts.fanout import EXHAUSTED, Fanout
from mailsvc.clock import utc
from mailsvc.http.resources.broadcasts.fields import expected_end
from mailsvc.monitoring.metrics import Exposition, broadcasts
from mailsvc.store.audience.topics import Topics
from mailsvc.store.broadcasts.retention import BroadcastRetention
from mailsvc.store.broadcasts.sending import Sending
from mailsvc.store.broadcasts.values import Broadcast
from mailsvc.store.people.quota import Quota as StoredQuota
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.claims import Queue
from tests.broadcasts.fixtures import ACCOUNT, BASE, DOMAIN, NOW, BroadcastRig, Quota, at_once


@pytest_twisted.async_yield_fixture
async def rig(pool: Pool) -> AsyncIterator[BroadcastRig]:
    from twisted.internet import reactor

    rig = BroadcastRig(pool, reactor)
    await rig.start()
    yield rig


@pytest_twisted.ensureDeferred
async def test_each_contact_gets_one_personal_email(rig: BroadcastRig) -> None:
    await rig.pool.run(
        "INSERT INTO contact_properties (account_id, id, key, type, fallback, created_at) VALUES (%s, %s, 'plan', 'string', %s, %s)",
        (ACCOUNT, ACCOUNT, None, NOW),
    )
    [(number,)] = await rig.pool.rows("SELECT number::text FROM contact_properties")
    ada = await rig.contact("Ada@example.net", "Ada & Co", properties={number: "gold"})
    await rig.contact("bob@example.org")
    await rig.contact("gone@example.org", unsubscribed=True)
    await rig.pool.run(
        "INSERT INTO suppressions (id, account_id, address, email, origin, created_at) "
        "VALUES (%s, %s, 'bob@example.org', '', 'manual', %s)",
        (ACCOUNT, ACCOUNT, NOW),
    )
    broadcast = await rig.send(
        html="<p>Hi {{{contact.first_name|there}}}, {{{contact.plan}}} {{{RESEND_UNSUBSCRIBE_URL}}}",
        preview_text="For {{{FIRST_NAME}}}",
        reply_to=("help@example.com",),
    )
    await rig.fanout.run()
    assert await rig.addresses() == ["Ada@example.net"]
    found = await rig.get(broadcast)
    assert (found.status, found.total, found.passed, found.queued) == ("queued", 3, 3, 2)
    [(email_id, subject, merge)] = await rig.pool.rows("SELECT email_id, subject, merge FROM emails WHERE contact_id = %s", (ada,))
    assert (subject, merge) == ("Hi Ada & Co", {"first_name": "Ada & Co", "plan": "gold"})
    stored = await rig.messages.load(ACCOUNT, email_id)
    assert stored is not None and stored == await rig.messages.load(ACCOUNT, email_id)
    message = message_from_bytes(stored.body, policy=policy.default)
    link = str(message["List-Unsubscribe"]).strip()[1:-1]
    assert link.startswith(f"{BASE}/unsubscribe?token=")
    assert (message["List-Unsubscribe-Post"], message["Precedence"]) == ("List-Unsubscribe=One-Click", "bulk")
    assert (message["To"], message["Reply-To"], message["X-Entity-Ref-ID"]) == ("Ada@example.net", "help@example.com", str(broadcast))
    html, text = (message.get_body((kind,)).get_content() for kind in ("html", "plain"))  # type: ignore[union-attr]
    assert f"Hi Ada &amp; Co, gold {link}" in html and "For Ada &amp; Co" in html
    assert text.strip() == f"Hi Ada & Co, gold {link}"
    await rig.number()
    assert (await rig.broadcasts.counts(ACCOUNT, broadcast)) == {"email.sent": 1, "email.suppressed": 1}
    assert [row[0] for row in await rig.pool.rows("SELECT marks FROM broadcast_recipients ORDER BY contact_id")] == [0, 4]
    assert (rig.fanout.passed, rig.fanout.queued, rig.fanout.moved["started"]) == (3, 2, 1)
    metrics = Exposition()
    broadcasts(rig.fanout, SimpleNamespace(unsubscribed={"one_click": 4}))(metrics)
    values = {(sample.name, *sample.labels.values()): sample.value for family in metrics.collect() for sample in family.samples}
    assert values["mailsvc_broadcasts_total", "started"] == 1 and values["mailsvc_unsubscribes_total", "one_click"] == 4


@pytest_twisted.ensureDeferred
async def test_a_line_break_in_the_subject_becomes_a_space(rig: BroadcastRig) -> None:
    """It is no header field of its own, and it keeps no message from being composed."""
    await rig.contact("ada@example.net", "Ada")
    for subject in ("News\r\nBcc: eve@example.org", "News\nBcc: {{{FIRST_NAME}}}"):
        await rig.send(subject=subject)
    await rig.fanout.run()
    messages = [await rig.messages.load(ACCOUNT, email) for (email,) in await rig.pool.rows("SELECT email_id FROM emails ORDER BY 1")]
    parsed = [message_from_bytes(stored.body, policy=policy.default) for stored in messages if stored is not None]
    assert [" ".join(each["Subject"].split()) for each in parsed] == ["News Bcc: eve@example.org", "News Bcc: Ada"]
    assert [each["Bcc"] for each in parsed] == [None, None]


@pytest_twisted.ensureDeferred
async def test_the_message_stays_the_same_when_the_contact_changes(rig: BroadcastRig) -> None:
    await rig.contact("ada@example.net", "Ada")
    await rig.send()
    await rig.fanout.run()
    [(email_id,)] = await rig.pool.rows("SELECT email_id FROM emails")
    before = await rig.messages.load(ACCOUNT, email_id)
    await rig.pool.run("DELETE FROM contacts")
    after = await BroadcastRig(rig.pool, rig.messages._heads.clock).messages.load(ACCOUNT, email_id)
    assert before is not None and before == after and b"Ada" in before.body


@pytest_twisted.ensureDeferred
async def test_nobody_is_missed_or_taken_twice_when_processes_die_and_compete(rig: BroadcastRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second transaction fails, before or after its commit, and two processes work on the same broadcast."""
    from twisted.internet.defer import Deferred, gatherResults

    monkeypatch.setattr(fanout_, "PAGE", 7)
    monkeypatch.setattr(fanout_, "CLAIMED", 0.0)
    await rig.contacts(200)
    broadcast = await rig.send()
    engines = [rig.engine(), rig.engine()]
    for number, engine in enumerate(engines):
        advance, calls = engine.sending.advance, [0]

        async def dying(of: object, step: object, advance: object = advance, calls: list[int] = calls, after: int = number) -> int:
            calls[0] += 1
            if calls[0] % 2 == 0:
                if after:
                    await advance(of, step)  # type: ignore[operator]
                raise ConnectionError("killed")
            return await advance(of, step)  # type: ignore[operator]

        monkeypatch.setattr(type(engine.sending), "advance", type(engine.sending).advance)
        engine.sending = _Dying(engine.sending, dying)  # type: ignore[assignment]

    async def work(engine: object) -> None:
        with suppress(ConnectionError):
            await engine.run()  # type: ignore[attr-defined]

    for _ in range(100):
        rig.clock.advance(1)
        await gatherResults([Deferred.fromCoroutine(work(engine)) for engine in engines])
        if (await rig.get(broadcast)).ended_at is not None:
            break
    found = await rig.get(broadcast)
    assert (found.passed, found.queued) == (200, 200)
    rows = await rig.pool.rows("SELECT address, count(*) FROM queue GROUP BY 1")
    assert len(rows) == 200 and {count for _, count in rows} == {1}
    assert await rig.pool.rows("SELECT count(DISTINCT contact_id), count(*) FROM broadcast_recipients") == [(200, 200)]


class _Dying:
    def __init__(self, sending: object, advance: object) -> None:
        self._sending, self.advance = sending, advance

    def __getattr__(self, name: str) -> object:
        return getattr(self._sending, name)


@pytest_twisted.ensureDeferred
async def test_only_so_many_are_in_the_queue_at_once(rig: BroadcastRig) -> None:
    await rig.contacts(50)
    broadcast = await rig.send()
    rig.fanout = rig.engine(ahead=20)
    await rig.fanout.run()
    assert len(await rig.addresses()) == 20
    await rig.settled(5, "email.delivered")
    rig.clock.advance(2)
    await rig.fanout.run()
    assert len(await rig.addresses()) == 20
    assert (await rig.get(broadcast)).status == "queued"
    for _ in range(10):
        await rig.settled(50, "email.delivered")
        rig.clock.advance(2)
        await rig.fanout.run()
    found = await rig.get(broadcast)
    assert (found.status, found.queued, found.next_at) == ("sent", 50, None)
    assert found.sent_at is not None


class Prompt(Clock):
    """Timers run at once. Remembers their delays."""

    def __init__(self) -> None:
        super().__init__()
        self.delays: list[float] = []

    def callLater(self, delay: float, call: Callable[..., object], *arguments: object, **more: object) -> Any:
        self.delays.append(delay)
        call(*arguments, **more)


@pytest_twisted.ensureDeferred
async def test_it_pauses_for_other_mail_while_enough_is_in_the_queue(rig: BroadcastRig) -> None:
    await rig.contacts(800)
    broadcast = await rig.send()
    rig.clock = clock = Prompt()
    clock.advance(NOW.timestamp())

    class Slow(Quota):
        async def take(self, *arguments: Any) -> Any:
            clock.advance(0.5)
            return await super().take(*arguments)

    rig.quotas = Slow()
    await rig.engine(ahead=2000).run()
    found = await rig.get(broadcast)
    assert (found.queued, found.ended_at is not None) == (800, True)
    assert clock.delays == [0.5, 0.5, 0.5]  # after each 100, but not after the first 500


@pytest_twisted.ensureDeferred
async def test_a_contact_that_is_deleted_and_added_again_gets_one_email(rig: BroadcastRig) -> None:
    await rig.contact("ada@example.net")
    await rig.contact("bob@example.net")
    broadcast = await rig.send()
    rig.fanout = rig.engine(ahead=1)
    await rig.fanout.run()
    assert await rig.addresses() == ["ada@example.net"]
    await rig.pool.run("DELETE FROM contacts WHERE address = 'ada@example.net'")
    added = await rig.contact("ada@example.net")
    await rig.pool.run("UPDATE contacts SET created_at = %s WHERE id = %s", (NOW + timedelta(seconds=1), added))
    for _ in range(3):
        await rig.settled(1, "email.delivered")
        rig.clock.advance(2)
        await rig.fanout.run()
    assert await rig.pool.rows("SELECT recipients[1] FROM emails ORDER BY 1") == [("ada@example.net",), ("bob@example.net",)]
    assert (await rig.get(broadcast)).status == "sent"


@pytest_twisted.ensureDeferred
async def test_an_hourly_rate_is_kept(rig: BroadcastRig) -> None:
    await rig.contacts(100)
    await rig.send(hourly_rate=3600)
    for _ in range(30):
        await rig.fanout.run()
        rig.clock.advance(1)
    assert 30 <= len(await rig.addresses()) <= 40


@pytest_twisted.ensureDeferred
async def test_it_waits_for_the_quota(rig: BroadcastRig) -> None:
    await rig.contacts(20)
    rig.quotas.left = 0
    broadcast = await rig.send()
    await rig.fanout.run()
    found = await rig.get(broadcast)
    assert (found.queued, found.next_at) == (0, NOW + timedelta(seconds=EXHAUSTED))
    assert found.reason is not None and "quota" in found.reason and expected_end(found) is None
    rig.quotas.left = 100
    rig.clock.advance(6 * 3600)
    await rig.fanout.run()
    assert len(await rig.addresses()) == 20
    assert rig.quotas.left == 80


@pytest_twisted.ensureDeferred
async def test_it_continues_soon_after_the_account_got_a_larger_plan(rig: BroadcastRig) -> None:
    await rig.contacts(20)
    rig.quotas = Quota(left=5, resets_at=NOW + timedelta(days=20))
    broadcast, engine = await rig.send(), rig.engine()
    await engine.run()
    assert (await rig.get(broadcast)).queued == 5
    rig.quotas.left = 100
    rig.clock.advance(EXHAUSTED)
    await engine.run()
    found = await rig.get(broadcast)
    assert (found.queued, found.reason) == (20, None)
    rig.quotas.resets_at = soon = NOW + timedelta(seconds=EXHAUSTED + 10)
    rig.quotas.left, other = 0, await rig.send()
    await engine.run()
    assert (await rig.get(other)).next_at == soon


@pytest_twisted.ensureDeferred
async def test_a_new_account_is_limited_and_sends_what_fits_each_day(rig: BroadcastRig) -> None:
    await rig.contacts(12)
    await partitions.ensure(rig.pool, NOW, 3)
    await rig.pool.run("UPDATE accounts SET ramp = 5")
    quotas: Any = Quotas(StoredQuota(rig.pool), rig.clock, {})
    rig.quotas = quotas
    broadcast, engine = await rig.send(), rig.engine()
    for sent in (5, 10, 12):
        await engine.run()
        found = await rig.get(broadcast)
        assert (found.queued, len(await rig.addresses())) == (sent, sent)
        if sent < 12:
            assert found.next_at == utc(rig.clock) + timedelta(seconds=EXHAUSTED)
            assert "The quota of a new account grows" in (found.reason or "")
            assert (await quotas.usage(ACCOUNT, None, 5))["day"].used == 5
            rig.clock.advance(24 * 3600)
    assert found.reason is None


@pytest_twisted.ensureDeferred
async def test_too_many_bounces_pause_it_until_somebody_continues(rig: BroadcastRig) -> None:
    await rig.contacts(300)
    broadcast = await rig.send()
    rig.fanout = rig.engine(ahead=200)
    await rig.fanout.run()
    await rig.settled(90, "email.delivered")
    await rig.settled(10, "email.bounced")
    await rig.number()
    rig.clock.advance(2)
    await rig.fanout.run()
    found = await rig.get(broadcast)
    assert found.paused_at is not None and found.reason is not None and "10 of 100 emails bounced (10.0%)" in found.reason
    assert (found.queued, found.next_at) == (200, None)
    with pytest.raises(OnHold):
        await rig.consent.unwanted(ACCOUNT, broadcast, None, ["c1@example.net"])
    due = "SELECT count(*) FROM queue WHERE next_at <= %s"
    later = NOW + timedelta(days=4)
    assert await rig.pool.rows(due, (later,)) == [(0,)]
    assert await rig.broadcasts.continue_(ACCOUNT, broadcast) is None
    assert await rig.pool.rows(due, (later,)) == [(100,)]
    await rig.fanout.run()
    assert (await rig.get(broadcast)).queued == 300
    assert await rig.broadcasts.continue_(ACCOUNT, broadcast) == "status"


@pytest_twisted.ensureDeferred
async def test_it_is_paused_when_the_domain_can_no_longer_send(rig: BroadcastRig) -> None:
    await rig.contacts(30)
    broadcast, rig.fanout = await rig.send(), rig.engine(ahead=20)
    await rig.fanout.run()
    await rig.settled(15, "email.delivered")
    rig.domains.domain = attrs.evolve(DOMAIN, sending=False)
    rig.clock.advance(2)
    await rig.fanout.run()
    found = await rig.get(broadcast)
    assert (found.queued, found.next_at, found.paused_at is None) == (20, None, False)
    assert found.reason is not None and "example.com cannot send any more. Sending is turned off for this domain." in found.reason
    rig.domains.domain = DOMAIN
    assert await rig.broadcasts.continue_(ACCOUNT, broadcast) is None
    await rig.fanout.run()
    assert (await rig.get(broadcast)).queued == 30


@pytest_twisted.ensureDeferred
async def test_a_pause_is_not_counted_as_time_in_which_an_email_can_be_sent(rig: BroadcastRig) -> None:
    await rig.contacts(25)
    broadcast = await rig.send()
    await rig.fanout.run()
    await rig.pool.run("UPDATE queue SET attempts = 1, status = 'delayed' WHERE address = 'c1@example.net'")
    rig.clock.advance(24 * 3600)  # of the five days that each has
    await Sending(rig.pool).pause(await rig.get(broadcast), "Too many bounced.", utc(rig.clock))
    queue, expired = Queue(rig.pool), 0
    for _ in range(150):
        rig.clock.advance(24 * 3600)
        expired += await queue.expire(utc(rig.clock), limit=10)
    assert expired == 1  # the one that was tried
    assert len(await rig.addresses()) == 24
    assert await rig.broadcasts.continue_(ACCOUNT, broadcast) is None
    left = "SELECT DISTINCT next_at - %(now)s, expires_at - %(now)s FROM queue"
    assert await rig.pool.rows(left, {"now": utc(rig.clock)}) == [(timedelta(0), timedelta(days=4))]
    rig.clock.advance(4 * 24 * 3600)
    assert await queue.expire(utc(rig.clock)) == 24


@pytest_twisted.ensureDeferred
async def test_canceling_removes_what_was_not_sent(rig: BroadcastRig) -> None:
    await rig.contacts(40)
    broadcast = await rig.send()
    rig.fanout = rig.engine(ahead=20)
    await rig.fanout.run()
    assert await rig.broadcasts.cancel(ACCOUNT, broadcast) is None
    with pytest.raises(BroadcastCanceled):
        await rig.consent.unwanted(ACCOUNT, broadcast, None, ["c1@example.net"])
    await rig.fanout.run()
    assert await rig.addresses() == []
    assert (await rig.get(broadcast)).status == "canceled"
    assert await rig.pool.rows("SELECT count(*) FROM events WHERE type = 'email.canceled'") == [(20,)]
    assert await rig.broadcasts.cancel(ACCOUNT, broadcast) == "status"


@pytest_twisted.ensureDeferred
async def test_a_scheduled_broadcast_begins_at_its_time(rig: BroadcastRig) -> None:
    await rig.contacts(3)
    broadcast = await rig.send()
    await rig.pool.run("UPDATE broadcasts SET status = 'draft', next_at = NULL")
    assert await rig.broadcasts.send(ACCOUNT, broadcast, None, NOW + timedelta(hours=1)) is None
    await rig.fanout.run()
    assert (await rig.get(broadcast)).status == "scheduled"
    rig.clock.advance(3601)
    await rig.fanout.run()
    assert len(await rig.addresses()) == 3


@pytest.mark.parametrize(("change", "status"), [("segment", "draft"), ("topic", "draft"), ("domain", "failed")])
@pytest_twisted.ensureDeferred
async def test_what_is_missing_at_the_start(rig: BroadcastRig, change: str, status: str) -> None:
    await rig.contacts(3)
    broadcast = await rig.send(topic_id=await rig.topic(True))
    if change in ("segment", "topic"):
        await rig.pool.run(f"UPDATE {change}s SET deleted_at = %s", (NOW,))
    else:
        rig.domains.domain = None
    await rig.fanout.run()
    found = await rig.get(broadcast)
    assert (found.status, found.next_at, await rig.addresses()) == (status, None, [])
    assert found.reason


@pytest_twisted.ensureDeferred
async def test_a_plan_limits_the_contacts_when_sending_starts(rig: BroadcastRig) -> None:
    """They may have been added after the broadcast was scheduled."""
    await rig.contacts(4)
    rig.quotas.most_contacts = 3
    broadcast = await rig.schedule()
    await rig.fanout.run()
    found = await rig.get(broadcast)
    assert (found.status, found.next_at, await rig.addresses()) == ("draft", None, [])
    assert found.reason == "Your plan allows broadcasts with up to 3 contacts, and you have more."
    rig.quotas.most_contacts = 4
    assert await rig.broadcasts.send(ACCOUNT, broadcast, None, None) is None
    await rig.fanout.run()
    assert len(await rig.addresses()) == 4


@pytest_twisted.ensureDeferred
async def test_a_topic_that_is_deleted_meanwhile_pauses_the_broadcast(rig: BroadcastRig) -> None:
    await rig.contacts(30)
    broadcast = await rig.send(topic_id=await rig.topic(True))
    rig.fanout = rig.engine(ahead=10)
    await rig.fanout.run()
    await rig.pool.run("UPDATE topics SET deleted_at = %s", (NOW,))
    for continued in range(2):
        await rig.settled(10, "email.delivered")
        rig.clock.advance(2)
        await rig.fanout.run()
        found = await rig.get(broadcast)
        assert (found.status, found.queued, found.next_at, await rig.addresses()) == ("queued", 10, None, []), continued
        assert found.paused_at is not None and "topic was deleted" in (found.reason or "")
        assert await rig.broadcasts.continue_(ACCOUNT, broadcast) is None
    await rig.pool.run("UPDATE topics SET deleted_at = NULL")
    await rig.fanout.run()
    found = await rig.get(broadcast)
    assert (found.queued, found.paused_at, found.reason) == (20, None, None)


@pytest.mark.parametrize("ahead", [10, 100])
@pytest_twisted.ensureDeferred
async def test_a_broadcast_whose_topic_is_deleted_is_paused_while_its_emails_wait(rig: BroadcastRig, ahead: int) -> None:
    """The queue is full, or every contact has been processed."""
    await rig.contacts(30)
    broadcast = await rig.send(topic_id=await rig.topic(True))
    rig.fanout = rig.engine(ahead=ahead)
    await rig.fanout.run()
    queued = len(await rig.addresses())
    await rig.pool.run("UPDATE topics SET deleted_at = %s", (NOW,))
    rig.clock.advance(2)
    await rig.fanout.run()
    found = await rig.get(broadcast)
    assert found.paused_at is not None and "topic was deleted" in (found.reason or "")
    held = await rig.pool.rows("SELECT count(*) FROM queue WHERE next_at > '9999-01-01' AND reason = %s", (found.reason,))
    assert held == [(queued,)]
    await rig.pool.run("UPDATE topics SET deleted_at = NULL")
    assert await rig.broadcasts.continue_(ACCOUNT, broadcast) is None
    assert not await rig.pool.rows("SELECT FROM queue WHERE next_at > '9999-01-01'")


@pytest_twisted.ensureDeferred
async def test_a_broadcast_that_waits_for_its_rate_is_paused_as_soon_as_its_topic_is_deleted(rig: BroadcastRig) -> None:
    await rig.contacts(30)
    topic = await rig.topic(True)
    broadcast = await rig.send(topic_id=topic, hourly_rate=360)
    await rig.fanout.run()
    assert (await rig.get(broadcast)).queued == 1
    assert await Topics(rig.pool, rig.clock).remove(ACCOUNT, topic) is not None
    await rig.fanout.run()
    assert (await rig.get(broadcast)).paused_at is not None


@pytest.mark.parametrize("tried", [False, True])
@pytest_twisted.ensureDeferred
async def test_it_has_failed_if_its_last_emails_ended_with_their_domain(rig: BroadcastRig, tried: bool) -> None:
    """Every contact has been processed; `tried`: and everybody was tried before the domain was deleted."""
    await rig.contacts(3)
    broadcast = await rig.send()
    await rig.fanout.run()
    await rig.settled(3 if tried else 1, "email.delivered")
    rig.domains.domain = None
    await rig.settled(3, "email.failed")
    await rig.number()
    rig.clock.advance(2)
    await rig.fanout.run()
    found = await rig.get(broadcast)
    assert (found.status, found.reason) == (("sent", None) if tried else ("failed", "The sending domain no longer exists."))


@pytest_twisted.ensureDeferred
async def test_recipients_of_old_broadcasts_are_deleted(rig: BroadcastRig) -> None:
    await rig.contacts(3)
    old, new = await rig.send(), await rig.send()
    await rig.fanout.run()
    await rig.pool.run("UPDATE broadcasts SET status = 'sent'")
    await rig.pool.run("UPDATE broadcasts SET ended_at = %s WHERE id = %s", (NOW - timedelta(days=31), old))
    assert await BroadcastRetention(rig.pool).sweep(NOW - timedelta(days=30)) == 3
    assert await rig.pool.rows("SELECT DISTINCT broadcast_id FROM broadcast_recipients") == [(new,)]


@pytest.mark.parametrize(("text", "copied"), [(None, None), ("", ""), ("Written", "Written")])
@pytest_twisted.ensureDeferred
async def test_the_copy_of_a_sent_broadcast_has_a_text_only_if_somebody_wrote_it(
    rig: BroadcastRig, text: str | None, copied: str | None
) -> None:
    """Otherwise, somebody who changes the HTML of the copy would send the text of the former broadcast with it."""
    await rig.contacts(1)
    broadcast = await rig.send(text=text)
    await rig.fanout.run()
    assert (await rig.broadcasts.bodies(ACCOUNT, broadcast))[1] is not None
    copy = await duplicate(rig.broadcasts, at_once, ACCOUNT, broadcast, [])
    assert copy is not None and (await rig.broadcasts.bodies(ACCOUNT, copy))[1] == copied
    again = await duplicate(rig.broadcasts, at_once, ACCOUNT, copy, [])
    assert again is not None and (await rig.broadcasts.bodies(ACCOUNT, again))[1] == copied
    assert await duplicate(rig.broadcasts, at_once, ACCOUNT, ACCOUNT, []) is None


@pytest_twisted.ensureDeferred
async def test_one_that_fails_unexpectedly_does_not_hold_up_the_others(rig: BroadcastRig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.contact("ada@example.net")
    sent, failed, begin = {await rig.send(), await rig.send()}, list[UUID](), Fanout._begin

    async def fail_once(self: Fanout, found: Broadcast) -> None:
        if not failed:
            failed.append(found.id)
            raise ValueError("a defect")
        await begin(self, found)

    monkeypatch.setattr(Fanout, "_begin", fail_once)
    await rig.fanout.run()
    [other] = sent.difference(failed)
    assert (await rig.get(other)).queued == 1 and (await rig.get(failed[0])).queued == 0


@pytest_twisted.ensureDeferred
async def test_a_suspended_account_sends_nothing(rig: BroadcastRig) -> None:
    await rig.contacts(3)
    broadcast = await rig.send()
    await rig.pool.run("UPDATE accounts SET suspended_at = %s", (NOW,))
    await rig.fanout.run()
    assert await rig.addresses() == []
    assert "suspended" in ((await rig.get(broadcast)).reason or "")
    await rig.pool.run("UPDATE accounts SET suspended_at = NULL")
    rig.clock.advance(61)
    await rig.fanout.run()
    assert len(await rig.addresses()) == 3
