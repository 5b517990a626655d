"""The list of broadcasts, drafts, their review, and sending or scheduling them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import pytest_twisted

from mailsvc.broadcasts.review import Setup, Written, review
from mailsvc.store.audience.topics import Topics
from mailsvc.store.broadcasts.overview import Overview
from mailsvc.store.paging import Page
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.broadcasts.rig import DOMAIN, HOME, BroadcastPagesRig

PREFERENCES = "/dashboard/settings/profile/preferences"
FINE = Setup(f"Acme <news@{DOMAIN}>", "News", contacts=3, recipients=2)


def titles(setup: Setup = FINE, html: str | None = '<a href="{{{RESEND_UNSUBSCRIBE_URL}}}">x</a>') -> list[tuple[str, bool]]:
    return [(each.title, each.blocks) for each in review(setup, Written.of(html, None, (setup.subject, ""), {"city": None}))]


@pytest.mark.parametrize(
    ("setup", "title"),
    [
        ({"sender": ""}, "No sender"),
        ({"domain_missing": "Its DNS records have not been checked yet."}, "Domain not verified"),
        ({"subject": " "}, "No subject"),
        ({"contacts": None}, "No segment"),
        ({"contacts": 0, "recipients": 0}, "Empty segment"),
        ({"recipients": 0}, "No recipients"),
        ({"refusal": ("This account is suspended and can’t send.", "operator")}, "Sending isn’t possible"),
        ({"topic_deleted": True, "recipients": 0}, "Deleted topic"),
    ],
)
def test_what_prevents_sending(setup: dict[str, Any], title: str) -> None:
    given = {"sender": FINE.sender, "subject": "News", "contacts": 3, "recipients": 2} | setup
    assert titles() == []
    assert titles(Setup(**given)) == [(title, True)]


@pytest.mark.parametrize(
    ("html", "title", "blocks"),
    [
        (None, "No content", True),
        ("<p>Hi", "No unsubscribe link", False),
        ('<a href="#">a</a><a href="">b</a><a href="{{{UNSUBSCRIBE_URL}}}">c</a>', "Links without an address", False),
        ('{{{contact.town}}}<a href="{{{UNSUBSCRIBE_URL}}}">c</a>', "Unknown placeholders", False),
    ],
)
def test_what_the_content_lacks(html: str | None, title: str, blocks: bool) -> None:
    assert titles(html=html) == [(title, blocks)]


def test_missing_values_and_quota_are_warnings_after_what_prevents_sending() -> None:
    setup = Setup("", "News", contacts=9, recipients=9, missing={"city": 4, "first_name": 0}, room=5)
    assert titles(setup) == [("No sender", True), ("More recipients than your quota allows", False), ("Missing value: city", False)]


@pytest_twisted.ensureDeferred
async def test_a_new_draft_is_listed_copied_and_deleted(pool: Pool) -> None:
    rig = await BroadcastPagesRig.of(pool)
    ann = rig.browser
    assert "No broadcasts yet" in (await ann.get(HOME)).text
    made = await ann.post(HOME)
    draft = re.fullmatch(rf"{HOME}/([0-9a-f-]{{36}})/edit", made.location)
    assert draft, made.location
    page = await rig.shown(draft[1])  # type: ignore[arg-type]
    for title in ("No sender", "No subject", "No segment", "No content"):
        assert f"<strong>{title}</strong>" in page
    assert "Send now" not in page and f'href="{HOME}/{draft[1]}/edit"' in page
    assert (await ann.post(f"{HOME}/{draft[1]}/send")).status == 422
    await rig.draft()
    assert (await rig.get((await rig.stored.list(rig.account_id, Page(1)))[0][0].id)).name == "News"
    newest = await ann.post(HOME)
    assert (await rig.get(newest.location.split("/")[3])).sender == f"Acme <news@{DOMAIN}>"  # type: ignore[arg-type]
    copied = await ann.post(f"{HOME}/{draft[1]}/duplicate")
    assert "Untitled (copy)" in (await ann.get(copied.location)).text
    listed = (await ann.get(f"{HOME}?status=draft")).text
    assert len(re.findall(r'class="cover"', listed)) == 4 and "Readers" in listed
    assert "No broadcast has this status" in (await ann.get(f"{HOME}?status=sent")).text
    assert (await ann.post(f"{HOME}/{draft[1]}/delete")).location == f"{HOME}?done=deleted"
    assert (await ann.get(f"{HOME}/{draft[1]}")).status == 404
    assert [action for action, _ in await rig.rig.audit(rig.account_id)][-1] == "broadcast deleted"


@pytest_twisted.ensureDeferred
async def test_the_list_has_pages(pool: Pool) -> None:
    rig = await BroadcastPagesRig.of(pool)
    for number in range(51):
        await rig.draft(name=f"No. {number:02}")
    first = await rig.browser.get(f"{HOME}?status=draft")
    assert "No. 50" in first.text and "No. 00" not in first.text
    second = await rig.browser.get(first.found(r'href="([^"]+)" rel="next"'))
    assert "No. 00" in second.text and "No. 01" not in second.text and "Newest" in second.text


@pytest_twisted.ensureDeferred
async def test_another_account_sees_nothing(pool: Pool) -> None:
    rig = await BroadcastPagesRig.of(pool)
    await rig.contacts(["a@example.net"])
    draft = await rig.draft()
    await rig.rig.person("bob@example.com")
    bob = await rig.rig.inside("bob@example.com")
    await bob.get(HOME)
    for path in ("", "/recipients", "/providers"):
        assert (await bob.get(f"{HOME}/{draft}{path}")).status == 404
    for form in ("send", "schedule", "unschedule", "cancel", "continue", "duplicate", "delete"):
        assert (await bob.post(f"{HOME}/{draft}/{form}", {"at": "2030-01-01T00:00"})).status == 404, form
    assert (await rig.get(draft)).status == "draft"


@pytest_twisted.ensureDeferred
async def test_the_review_counts_who_gets_it_by_reason(pool: Pool) -> None:
    rig = await BroadcastPagesRig.of(pool)
    topic = uuid4()
    sql = (
        "INSERT INTO topics (account_id, id, name, subscribed, public, created_at, updated_at) VALUES (%s, %s, 'T', %s, true, now(), now())"
    )
    await pool.run(sql, (rig.account_id, topic, False))
    await rig.contacts(["left@example.net"], unsubscribed=True)
    await rig.contacts(["silent@example.net", "quiet@example.net"])
    out, inside, barred = await rig.contacts(["out@example.net", "in@example.net", "barred@example.net"])
    [anonymous] = await rig.contacts(["anonymous@example.net"], first_name=None)
    choice = "INSERT INTO contact_topics (account_id, contact_id, topic_id, subscribed, changed_at) VALUES (%s, %s, %s, %s, now())"
    for contact, chosen in ((out, False), (inside, True), (anonymous, True), (barred, True)):
        await pool.run(choice, (rig.account_id, contact, topic, chosen))
    await rig.browser.get(HOME)
    await rig.browser.post("/dashboard/suppressions", {"emails": "barred@example.net"})
    draft = await rig.get(
        await rig.draft(topic_id=topic, html='{{{FIRST_NAME}}}<a href="{{{UNSUBSCRIBE_URL}}}">x</a><a href="http://localhost/">y</a>')
    )
    overview = Overview(pool)
    reach = await overview.reach(draft, False, {"first_name": ""})
    assert reach.reasons == {"unsubscribed": 1, "opted_out": 1, "no_consent": 2, "suppressed": 1}
    assert (reach.total, reach.recipients, reach.missing, reach.exact) == (7, 2, {"first_name": 1}, True)
    assert (await overview.reach(draft, True, {})).recipients == 4  # the topic's default is to subscribe
    assert (await overview.reach(draft, None, {})).recipients == 5  # without a topic
    some = await overview.reach(draft, None, {}, exact=4)
    assert (some.total, some.looked, some.exact) == (7, 4, False)
    page = await rig.shown(draft.id)
    assert re.search(r'id="recipients">2<', page) and "Never subscribed to the topic" in page
    assert "Send this broadcast to 2 recipients now?" in page
    assert "1 recipient has no first_name" in page
    assert '2 of the <a href="#insights">insights</a> need your attention.' in page and ">3 to check<" in page
    complete = await rig.shown(await rig.draft())  # its unsubscribe link leads to localhost
    assert '1 of the <a href="#insights">insights</a> needs your attention.' in complete and ">1 to check<" in complete
    assert "Nothing needs your attention" not in complete


@pytest_twisted.ensureDeferred
async def test_a_draft_whose_topic_was_deleted_is_not_sent(pool: Pool) -> None:
    """Without the topic, it would go to those who opted out of it."""
    rig = await BroadcastPagesRig.of(pool)
    topic = await Topics(pool, rig.rig.clock).add(rig.account_id, "News", True)
    [out, _] = await rig.contacts(["out@example.net", "silent@example.net"])
    await pool.run("INSERT INTO contact_topics VALUES (%s, %s, %s, false, now())", (rig.account_id, out, topic.id))
    draft = await rig.draft(topic_id=topic.id)
    await Topics(pool, rig.rig.clock).remove(rig.account_id, topic.id)
    page = await rig.shown(draft)
    assert "<strong>Deleted topic</strong>" in page and "<dt>Topic</dt><dd>Deleted</dd>" in page and "Send now" not in page
    assert (await rig.browser.post(f"{HOME}/{draft}/send")).status == 422
    assert await rig.stored.send(rig.account_id, draft, None, None) == "topic"
    editor = await rig.browser.get(f"{HOME}/{draft}/edit")
    assert re.search(rf'<option value="{topic.id}" selected>Deleted topic<', editor.text)
    base = editor.found('name="base" value="([^"]+)"')
    refused = await rig.browser.post(f"{HOME}/{draft}/edit/save", {"base": base, "topic": str(topic.id), "subject": "More"})
    assert refused.status == 422 and "This topic no longer exists. Choose another one." in refused.text and 'value="More"' in refused.text
    assert (await rig.browser.post(f"{HOME}/{draft}/edit/save", {"base": base, "topic": ""})).query == {"done": "saved"}
    assert "Send to 2 recipients" in await rig.shown(draft)


@pytest_twisted.ensureDeferred
async def test_sending_asks_with_the_number_and_happens_once(pool: Pool) -> None:
    rig = await BroadcastPagesRig.of(pool)
    await rig.contacts(["a@example.net", "b@example.net"])
    draft = await rig.draft()
    page = await rig.shown(draft)
    assert "Send to 2 recipients" in page and "confirm(" not in page
    assert "<strong>Link to your own domain</strong>" in page or "Insights" in page
    assert (await rig.browser.post(f"{HOME}/{draft}/send")).query == {"done": "sent"}
    sent = await rig.get(draft)
    assert sent.status == "queued" and sent.next_at is not None
    assert (await rig.browser.post(f"{HOME}/{draft}/send")).query == {"done": "late"}
    assert (await rig.browser.post(f"{HOME}/{draft}/delete")).query == {"done": "late"}
    page = await rig.shown(draft)
    assert "Cancel sending" in page and 'hx-trigger="every 3s"' in page
    assert (await rig.browser.post(f"{HOME}/{draft}/unschedule")).query == {"done": "late"}  # never stops one that is being sent
    assert (await rig.get(draft)).status == "queued"
    assert (await rig.browser.post(f"{HOME}/{draft}/cancel")).query == {"done": "canceled"}
    assert (await rig.get(draft)).status == "canceled"
    entries = [line for line in await rig.rig.audit(rig.account_id) if line[0].startswith("broadcast")]
    assert entries == [("broadcast sent", f"{draft} (News)"), ("broadcast canceled", f"{draft} (News)")]


@pytest_twisted.ensureDeferred
async def test_scheduling_uses_the_time_zone_of_the_person(pool: Pool) -> None:
    rig = await BroadcastPagesRig.of(pool)
    await rig.contacts(["a@example.net"])
    draft = await rig.draft()
    await rig.shown(draft)
    tomorrow = rig.rig.assembly.domains.now() + timedelta(days=1)
    for at, zone, message in (
        ("soon", "UTC", "Enter a valid date and time"),
        ("2020-01-01T10:00", "Asia/Tokyo", "This time has passed in Asia/Tokyo"),
        ("2199-01-01T10:00", "UTC", "within the next 30 days"),
        ("2026-03-29T02:30", "Europe/Berlin", "Clocks in Europe/Berlin skip this time"),
    ):
        await rig.browser.post(PREFERENCES, {"time_zone": zone})
        answer = await rig.browser.post(f"{HOME}/{draft}/schedule", {"at": at})
        assert answer.status == 422 and message in answer.text, (at, answer.text)
        assert f'value="{at}"' in answer.text and f"Date and time ({zone})" in answer.text
    local = f"{tomorrow:%Y-%m-%d}T09:30"
    await rig.browser.post(PREFERENCES, {"time_zone": "Asia/Tokyo"})
    assert (await rig.browser.post(f"{HOME}/{draft}/schedule", {"at": local})).query == {"done": "scheduled"}
    found = await rig.get(draft)
    assert found.status == "scheduled"
    assert found.scheduled_at == datetime.fromisoformat(local).replace(tzinfo=UTC) - timedelta(hours=9)
    page = await rig.shown(draft)
    assert "Unschedule" in page and f"{tomorrow:%Y-%m-%d} 09:30:00 JST" in page
    assert f"{draft}/edit" not in page and "To change the broadcast, unschedule it first." in page
    late = await rig.browser.get(f"{HOME}/{draft}/edit")
    assert "Only drafts can be edited." in (await rig.browser.get(late.location)).text
    assert (await rig.browser.post(f"{HOME}/{draft}/unschedule")).query == {"done": "unscheduled"}
    assert (await rig.get(draft)).status == "draft"
