"""The progress and the results of a broadcast: figures, the expected end, recipients by outcome and by provider."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import attrs
import pytest_twisted

from mailsvc.dashboard.broadcasts.recipients import by_provider
from mailsvc.dashboard.broadcasts.results import _rows, bar, expected_end
from mailsvc.dashboard.providers import SHOWN
from mailsvc.store.broadcasts.overview import DomainShare, Waiting
from mailsvc.store.broadcasts.values import MARKS, Broadcast
from mailsvc.store.events.rollups import Count
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.broadcasts.rig import HOME, BroadcastPagesRig
from tests.store.fixtures import NOW

COUNTS = {
    "sent": 90, "delivered": 80, "bounced.permanent": 6, "complained": 1, "failed": 1, "suppressed": 3, "opened": 50, "opened.machine": 10,
    "opened.unique": 40, "clicked": 9, "clicked.unique": 8, "unsubscribed": 2,
}  # fmt: skip


def running(**changed: Any) -> Broadcast:
    given = {field.name: None for field in attrs.fields(Broadcast)}
    made = Broadcast(**given | {"status": "queued", "started_at": NOW, "total": 1000, "passed": 300, "queued": 250})  # type: ignore[arg-type]
    return attrs.evolve(made, **changed)


def test_the_end_follows_from_the_rate_so_far() -> None:
    later, waiting = NOW + timedelta(minutes=10), Waiting(50, 7)
    assert expected_end(running(), waiting, later) == later + timedelta(minutes=30)  # 250 in ten minutes, 750 are left
    for held in ({"status": "sent"}, {"started_at": None}, {"paused_at": NOW}, {"reason": "The quota is used up."}, {"passed": 50}):
        assert expected_end(running(**held), waiting, later) is None, held


def test_the_bar_has_a_part_for_each_state() -> None:
    sums = {"delivered": 150, "bounced": 20, "failed": 5, "suppressed": 10}
    parts = bar(running(), sums, Waiting(50, 25))
    found = {part.name: part.count for part in parts}
    assert found == {
        "Delivered": 150, "Bounced or failed": 25, "Deferred": 25, "In the queue": 50, "Not processed yet": 700, "Not sent to": 60,
    }  # fmt: skip
    assert round(sum(part.share for part in parts)) == 100 and parts[1].start == parts[0].share
    assert bar(running(status="canceled"), dict.fromkeys(sums, 0), Waiting(0, 0))[0].name == "Not sent to"


def test_the_bar_of_a_canceled_broadcast_has_those_who_got_nothing() -> None:
    """250 of the 300 that were looked at got an email; 700 were not looked at."""
    sums = {"delivered": 150, "bounced": 20, "failed": 5, "suppressed": 10}
    parts = {part.name: part.count for part in bar(running(status="canceled"), sums, Waiting(0, 5))}
    assert parts == {"Delivered": 150, "Bounced or failed": 25, "Deferred": 5, "Not sent to": 60, "Canceled": 760}


def test_contacts_that_were_added_meanwhile_do_not_put_the_end_into_the_past() -> None:
    later = NOW + timedelta(minutes=10)
    assert expected_end(running(passed=1200), Waiting(10, 0), later) == later


def test_days_are_those_of_the_zone_and_may_have_25_hours() -> None:
    zone = ZoneInfo("Europe/Berlin")  # where clocks went back on 25 October 2026
    since = datetime(2026, 10, 23, 22, 0, tzinfo=UTC)
    counts = [Count(since + timedelta(hours=hours), None, None, None, "email.delivered", hours) for hours in range(24 * 4 + 1)]
    rows = _rows(counts, since, since + timedelta(days=4), zone)
    assert [at.isoformat() for at, _ in rows] == [
        "2026-10-24T00:00:00+02:00", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00", "2026-10-27T00:00:00+01:00",
    ]  # fmt: skip
    assert [values[0][1] for _, values in rows] == [sum(range(24)), sum(range(24, 49)), sum(range(49, 73)), sum(range(73, 97))]
    hours = _rows(counts, since, since + timedelta(hours=2), zone)
    assert [(f"{at:%H:%M}", values[0][1]) for at, values in hours] == [("00:00", 0), ("01:00", 1), ("02:00", 2)]


def test_domains_of_a_provider_are_added_up_and_small_ones_are_shown_together() -> None:
    marked = dict.fromkeys(MARKS, 1)
    domains = [DomainShare(name, 10, marked) for name in ("gmail.com", "googlemail.com", "")]
    domains += [DomainShare(f"{number:02}.example", 3, marked) for number in range(SHOWN)]
    found = by_provider(domains)
    assert [(each.name, each.recipients) for each in found[:2]] == [("Gmail", 20), ("Deleted contacts", 10)]
    assert found[0].marked["bounced"] == 2
    assert len(found) == SHOWN + 1 and (found[-1].name, found[-1].recipients) == ("2 other domains", 6)


async def sent(rig: BroadcastPagesRig) -> UUID:
    """A sent broadcast with counts and recipients, of whom one bounced, one clicked and one is not a contact any more."""
    draft = await rig.draft()
    pool, [(domain,)] = rig.rig.pool, await rig.rig.pool.rows("SELECT id FROM domains LIMIT 1")
    times = "started_at = %s, ended_at = %s, sent_at = %s"
    sql = f"UPDATE broadcasts SET status = 'sent', {times}, total = 99, passed = 99, queued = 93, domain_id = %s WHERE id = %s"
    await pool.run(sql, (NOW - timedelta(hours=2), NOW, NOW, domain, draft))
    counted = "INSERT INTO broadcast_counts (account_id, broadcast_id, hour, type, count) VALUES (%s, %s, %s, %s, %s)"
    hour = NOW.replace(minute=0, second=0, microsecond=0)
    for kind, count in COUNTS.items():
        await pool.run(counted, (rig.account_id, draft, hour, f"email.{kind}", count))
    contacts = await rig.contacts(["bounced@gmail.com", "clicked@googlemail.com", "fine@xn--bcher-kva.example"])
    recipient = "INSERT INTO broadcast_recipients (account_id, broadcast_id, contact_id, email_id, marks) VALUES (%s, %s, %s, %s, %s)"
    for contact, marks in zip([*contacts, uuid4()], (1, 48, 0, 0), strict=True):
        await pool.run(recipient, (rig.account_id, draft, contact, uuid4(), marks))
    return draft


@pytest_twisted.ensureDeferred
async def test_the_result_has_figures_recipients_and_providers(pool: Pool) -> None:
    rig = await BroadcastPagesRig.of(pool)
    draft = await sent(rig)
    page = await rig.shown(draft)
    figures = dict(re.findall(r'figure"><dt>([^<]+)</dt><dd>([^<]+)</dd>', page))
    assert figures == {"Delivered": "80", "Opened": "40", "Clicked": "8", "Bounced": "6", "Complained": "1", "Unsubscribed": "2"}
    assert "50.0% of delivered" in page and 'hx-trigger="every 10s"' in page
    rows = re.findall(r"<tr><th scope=\"row\"><time.*?</tr>", page, re.DOTALL)
    assert len(rows) == 3 and ">80<" in rows[-1] and ">80<" not in rows[0]  # one for each hour
    everybody = await rig.shown(draft, "/recipients")
    assert len(re.findall(r'class="cover"', everybody)) == 4 and "Deleted" in everybody
    bounced = await rig.shown(draft, "/recipients?type=bounced")
    assert "bounced@" in bounced and "clicked@" not in bounced
    assert "No address contains this text" in await rig.shown(draft, "/recipients?type=clicked&q=bounced")
    assert "fine@" in await rig.shown(draft, "/recipients?q=b%C3%BCcher.example")
    providers = await rig.shown(draft, "/providers")
    assert re.search(r"Gmail</td><td class=\"right\">2</td>", providers) and "Deleted contacts" in providers
    listed = (await rig.browser.get(HOME)).text
    assert ">93<" in listed and ">50.0%<" in listed and ">10.0%<" in listed
    await rig.browser.get(HOME)
    assert (await rig.browser.post(f"{HOME}/{draft}/cancel")).query == {"done": "late"}


@pytest_twisted.ensureDeferred
async def test_a_paused_broadcast_says_why_and_can_be_continued(pool: Pool) -> None:
    rig = await BroadcastPagesRig.of(pool)
    draft = await sent(rig)
    reason = "60 of 1,000 emails bounced; the limit is 5 %."
    await pool.run(
        "UPDATE broadcasts SET status = 'queued', sent_at = NULL, paused_at = %s, reason = %s WHERE id = %s", (NOW, reason, draft)
    )
    page = await rig.shown(draft)
    assert reason in page and "Continue sending" in page and "Paused" in page and "Ends about" not in page
    assert (await rig.browser.post(f"{HOME}/{draft}/continue")).query == {"done": "continued"}
    assert (await rig.get(draft)).paused_at is None
