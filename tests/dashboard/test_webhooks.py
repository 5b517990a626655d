"""The pages of webhooks: what is selected at first, and a disabled endpoint."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import pytest_twisted

from mailsvc.store.events import webhook_log
from mailsvc.store.events.ledger import EventLedger
from mailsvc.store.events.webhook_log import WebhookLog
from mailsvc.store.ids import uuid7
from mailsvc.store.logs.retention import Retention
from mailsvc.store.postgres import partitions
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import Browser, DashboardRig

WEBHOOKS = "/dashboard/webhooks"


@pytest_twisted.ensureDeferred
async def test_no_event_about_tracking_is_selected_at_first(pool: Pool) -> None:
    rig = DashboardRig(pool)
    await rig.person("ann@example.com")
    page = await (await rig.inside("ann@example.com")).get(WEBHOOKS)
    for kind, selected in {"email.bounced": True, "email.opened": False, "email.clicked": False, "domain.created": False}.items():
        assert (f'name="on:{kind}" value="1" checked' in page.text) is selected, kind


@pytest_twisted.ensureDeferred
async def test_a_disabled_endpoint_says_why_and_is_sent_what_failed_and_what_it_missed(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    domain = await rig.assembly.domains.add(account_id, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account_id, domain.name)
    ledger, log = EventLedger(pool), WebhookLog(pool)
    webhook = await rig.assembly.webhooks.add(account_id, "https://shop.example/hook", ["email.sent"], b"s" * 24, 9)
    assert webhook is not None
    rig.clock.advance(1)
    failed = await rig.mail(account_id, domain.name)
    await ledger.number(100)
    await pool.run("DELETE FROM webhook_outbox")
    await pool.run("UPDATE webhook_messages SET status = 'failed'")
    why = "The endpoint responded with 410 Gone."
    await pool.run("UPDATE webhooks SET status = 'disabled', disabled_why = %s, failing_since = created_at, failed_with = 410", (why,))
    rig.clock.advance(1)
    missed = await rig.mail(account_id, domain.name)
    await ledger.number(100)

    ann = await rig.inside("ann@example.com")
    page = await ann.get(f"{WEBHOOKS}/{webhook.id}")
    assert why in page.text and "the last response was HTTP status 410" in page.text and "Enable and replay" in page.text
    with monkeypatch.context() as broken:
        broken.setattr(webhook_log, "MISSED", "SELECT 1 / 0 WHERE %(now)s IS NOT NULL")
        assert (await ann.post(f"{WEBHOOKS}/{webhook.id}/enable")).status == 500
    newer = await rig.mail(account_id, domain.name)
    await ledger.number(100)
    assert (await ann.post(f"{WEBHOOKS}/{webhook.id}/enable")).location == f"{WEBHOOKS}/{webhook.id}?done=enabled"
    rows = await pool.rows("SELECT email_id FROM webhook_outbox ORDER BY event_id")
    assert rows == [(failed,), (missed,), (newer,)]
    assert [one.status for one in (await log.list(account_id, webhook.id, 9))[0]] == ["pending"] * 3
    page = await ann.get(f"{WEBHOOKS}/{webhook.id}")
    assert "Enable and replay" not in page.text and ">Enabled</" in page.text.replace("</label", "</")
    await ann.post(f"{WEBHOOKS}/{webhook.id}/enable")  # again: nothing twice
    assert len(await pool.rows("SELECT FROM webhook_outbox")) == 3


@pytest_twisted.ensureDeferred
async def test_an_endpoint_that_is_enabled_again_is_not_sent_what_is_older_than_its_log(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    domain = await rig.assembly.domains.add(account_id, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account_id, domain.name)
    ledger, retention = EventLedger(pool), Retention(pool)
    await retention.want(account_id, {"webhooks": 1})
    webhook = await rig.assembly.webhooks.add(account_id, "https://shop.example/hook", ["email.sent"], b"s" * 24, 9)
    assert webhook is not None
    rig.clock.advance(1)
    await rig.mail(account_id, domain.name)
    await ledger.number(100)
    await pool.run("DELETE FROM webhook_outbox")
    await pool.run("UPDATE webhook_messages SET status = 'success'")
    await rig.assembly.webhooks.change(account_id, webhook.id, status="disabled")
    rig.clock.advance(1.5 * 86400)
    await partitions.ensure_day(pool, rig.assembly._context().now())
    missed = await rig.mail(account_id, domain.name)
    await ledger.number(100)
    assert await retention.sweep_account(account_id, {"webhooks": 1}, rig.assembly._context().now()) == 1
    await pool.run(f"DROP TABLE {partitions.name_of('webhook_messages', webhook.created_at)}")

    ann = await rig.inside("ann@example.com")
    page = await ann.get(f"{WEBHOOKS}/{webhook.id}")
    assert "those that it missed in the last 1 day." in page.text
    assert (await ann.post(f"{WEBHOOKS}/{webhook.id}/enable")).status == 303
    assert await pool.rows("SELECT email_id FROM webhook_outbox") == [(missed,)]


async def failed(pool: Pool) -> tuple[DashboardRig, Browser, str]:
    """Somebody at the page of an endpoint that was sent an event in vain."""
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    webhook = await rig.assembly.webhooks.add(account_id, "https://shop.example/hook", ["email.sent"], b"s" * 24, 9)
    assert webhook is not None
    ann = await rig.inside("ann@example.com")
    path = f"{WEBHOOKS}/{webhook.id}"
    await ann.get(path)
    await ann.post(f"{path}/test")
    await pool.run("DELETE FROM webhook_outbox")
    return rig, ann, path


@pytest_twisted.ensureDeferred
async def test_failed_events_of_a_period_are_sent_again(pool: Pool) -> None:
    rig, ann, path = await failed(pool)
    rig.clock.advance(3700)
    for hours, done in (("1", "none"), ("24", "replayed"), ("24", "none")):
        assert (await ann.post(f"{path}/replay", {"hours": hours})).location == f"{path}?done={done}", hours
    assert (await ann.post(f"{path}/replay", {"hours": "9"})).status == 422


@pytest_twisted.ensureDeferred
async def test_failed_events_since_a_time_are_sent_again(pool: Pool) -> None:
    rig, ann, path = await failed(pool)
    begun = rig.assembly._context().now()
    form = re.search(r'<input id="since"[^>]*>', (await ann.get(path)).text)
    assert form and "max" not in form[0]  # the page can stay open, and clocks show some times twice
    rig.clock.advance(200)
    for minutes, done in ((2, "none"), (-1, "replayed")):
        since = (begun + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M")
        assert (await ann.post(f"{path}/replay", {"hours": "24", "since": since})).location == f"{path}?done={done}", minutes
    for wrong in ("yesterday", "2999-01-01T00:00"):
        assert (await ann.post(f"{path}/replay", {"since": wrong})).status == 422


@pytest_twisted.ensureDeferred
async def test_an_endpoint_shows_how_well_it_responds(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    webhook = await rig.assembly.webhooks.add(account_id, "https://shop.example/hook", ["email.sent"], b"s" * 24, 9)
    assert webhook is not None
    ann = await rig.inside("ann@example.com")
    assert "<dt>Success rate, 24 hours</dt><dd>–</dd>" in (await ann.get(f"{WEBHOOKS}/{webhook.id}")).text
    now = rig.assembly._context().now()
    for status, seconds, hours in ((200, 0.1, 1), (204, 0.3, 2), (0, 15.0, 3), (500, 0.2, 4), (500, 9.0, 25)):
        at = now - timedelta(hours=hours)
        await partitions.ensure_day(pool, at)  # the day before yesterday, in the hour after midnight
        row = (account_id, webhook.id, uuid7(at.timestamp()), uuid7(at.timestamp()), status, "", seconds, at)
        await pool.run("INSERT INTO webhook_attempts VALUES (%s, %s, %s, %s, %s, %s, %s, %s, NULL)", row)
    page = await ann.get(f"{WEBHOOKS}/{webhook.id}")
    assert "<dt>Success rate, 24 hours</dt><dd>50.0%</dd>" in page.text and "<dt>Attempts</dt><dd>4</dd>" in page.text
    assert "<dt>Response time, median</dt><dd>200 ms</dd>" in page.text


@pytest_twisted.ensureDeferred
async def test_nothing_is_sent_to_a_disabled_endpoint(pool: Pool) -> None:
    _, ann, path = await failed(pool)
    [(event,)] = await pool.rows("SELECT event_id FROM webhook_messages")
    actions = (f"{path}/test", f"{path}/replay", f"{path}/events/{event}/replay")
    shown = (await ann.get(path)).text + (await ann.get(f"{path}/events/{event}")).text
    assert all(f'action="{action}"' in shown for action in actions)
    await pool.run("UPDATE webhooks SET status = 'disabled'")
    shown = (await ann.get(path)).text + (await ann.get(f"{path}/events/{event}")).text
    assert not any(f'action="{action}"' in shown for action in actions)
    for action in actions:
        answer = await ann.post(action, {"hours": "24"})
        assert (answer.status, "Enable it first" in answer.text) == (409, True), action
    assert await pool.rows("SELECT FROM webhook_outbox") == []


@pytest_twisted.ensureDeferred
async def test_the_event_of_a_deleted_email_has_no_payload(pool: Pool) -> None:
    _, ann, path = await failed(pool)
    await pool.run("UPDATE webhook_messages SET payload = NULL")
    [(event,)] = await pool.rows("SELECT event_id FROM webhook_messages")
    shown = (await ann.get(f"{path}/events/{event}")).text
    assert "its payload is no longer known" in shown and ">null<" not in shown


@pytest_twisted.ensureDeferred
async def test_the_forms_keep_what_was_entered_after_an_error(pool: Pool) -> None:
    _, ann, path = await failed(pool)
    shown = await ann.post(WEBHOOKS, {"url": "https://shop.example/other"})
    assert shown.status == 422 and "Choose at least one event." in shown.text and 'value="https://shop.example/other"' in shown.text
    assert "checked" not in shown.text, "no event is selected that nobody chose"
    shown = await ann.post(f"{path}/change", {"url": "ftp://shop.example", "on:email.bounced": "1"})
    assert shown.status == 422 and 'value="ftp://shop.example"' in shown.text
    assert 'name="on:email.bounced" value="1" checked' in shown.text
    assert 'name="enabled" value="on">' in shown.text, "the box that was cleared stays so"
