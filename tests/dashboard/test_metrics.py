"""The metrics page shows opens and clicks of accounts that track, with and without those that programs made."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest_twisted

from mailsvc.dashboard.metrics import ceiling
from mailsvc.store.domains.domains import Choices
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig

COUNTS = {
    "delivered": 50, "opened": 30, "opened.machine": 70, "opened.unique": 40, "opened.unique.people": 20,
    "clicked": 6, "clicked.machine": 3, "clicked.unique": 5, "clicked.unique.people": 4, "sent": 50,
}  # fmt: skip


@pytest_twisted.ensureDeferred
async def test_opens_and_clicks(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "mail.acme.example", "us-east-1", [])
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    sql = "INSERT INTO rollups (account_id, hour, domain_id, type, count) VALUES (%s, %s, %s, %s, %s)"
    for kind in ("sent", "delivered"):
        await pool.run(sql, (account, hour, domain.id, f"email.{kind}", COUNTS[kind]))

    async def figures(query: str = "") -> dict[str, str]:
        ann = await DashboardRig(pool).inside("ann@example.com")  # without cached domains
        text = str((await ann.get(f"/dashboard/metrics{query}")).text).partition('id="engagement"')[2].partition("</section>")[0]
        return dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", text))

    assert await figures() == {}  # nothing is tracked
    for kind, number in COUNTS.items():
        if kind not in ("sent", "delivered"):
            await pool.run(sql, (account, hour, domain.id, f"email.{kind}", number))
    everything = {"Emails opened": "40", "Opens": "100", "Emails clicked": "5", "Clicks": "9", "Open rate": "80.0%", "Click rate": "10.0%"}
    people = {"Emails opened": "20", "Opens": "30", "Emails clicked": "4", "Clicks": "6", "Open rate": "40.0%", "Click rate": "8.0%"}
    assert (await figures(), await figures("?programs=no")) == (everything, people)
    assert await figures(f"?domain={domain.id}&programs=no") == people


@pytest_twisted.ensureDeferred
async def test_an_account_that_tracks_sees_them_before_the_first(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "mail.acme.example", "us-east-1", [], Choices(open_tracking=True))
    sql = "INSERT INTO rollups (account_id, hour, domain_id, type, count) VALUES (%s, date_trunc('hour', now()), %s, 'email.sent', 1)"
    await pool.run(sql, (account, domain.id))
    ann = await rig.inside("ann@example.com")
    text = (await ann.get("/dashboard/metrics")).text
    assert "Opens and clicks</h2>" in text and "<dt>Open rate</dt><dd>–</dd>" in text


@pytest_twisted.ensureDeferred
async def test_a_zone_that_only_this_machine_knows_is_no_zone(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "mail.acme.example", "us-east-1", [])
    sql = "INSERT INTO rollups (account_id, hour, domain_id, type, count) VALUES (%s, date_trunc('hour', now()), %s, 'email.sent', 1)"
    await pool.run(sql, (account, domain.id))
    ann = await rig.inside("ann@example.com")
    for zone, shown in (("Asia/Kathmandu",) * 2, ("posix/UTC", "UTC"), ("right/UTC", "UTC"), ("localtime", "UTC"), ("x" * 300, "UTC")):
        for page in ("", "/csv", "/providers"):
            assert (await ann.get(f"/dashboard/metrics{page}?zone={zone}")).status == 200, (page, zone)
        assert f"<option selected>{shown}</option>" in (await ann.get(f"/dashboard/metrics?zone={zone}")).text


BROADCAST = """
INSERT INTO broadcasts (account_id, id, name, sender, reply_to, subject, preview_text, status, created_at, domain_id)
VALUES (%s, %s, %s, 'a@example.com', '{}', 'Hi', '', 'sent', now(), %s)
"""


@pytest_twisted.ensureDeferred
async def test_broadcasts_newest_first(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "mail.acme.example", "us-east-1", [])
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    await pool.run(
        "INSERT INTO rollups (account_id, hour, domain_id, type, count) VALUES (%s, %s, %s, 'email.sent', 1)", (account, hour, domain.id)
    )
    ids = [UUID(int=number) for number in (1, 2, 3)]
    for id_, name in zip(ids, ("October", "<b>November</b>", "Nothing sent"), strict=True):
        await pool.run(BROADCAST, (account, id_, name, domain.id))
    counts = [(ids[0], "delivered", 10), (ids[1], "delivered", 50), (ids[1], "unsubscribed", 2)]
    counts += [(ids[1], kind, number) for kind, number in COUNTS.items() if kind.startswith(("opened", "clicked"))]
    for id_, kind, number in counts:
        await pool.run("INSERT INTO broadcast_counts VALUES (%s, %s, %s, %s, %s)", (account, id_, hour, f"email.{kind}", number))
    ann = await rig.inside("ann@example.com")

    async def table(query: str = "") -> list[list[str]]:
        text = (await ann.get(f"/dashboard/metrics{query}")).text.partition('id="by-broadcast"')[2].partition("</section>")[0]
        rows = re.findall(r"<tr>(<td.*?)</tr>", text)
        return [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in rows]

    october = ["October", "10", "0", "0.0%", "0", "0.0%", "0"]
    november = "&lt;b&gt;November&lt;/b&gt;"
    assert await table() == [[november, "50", "40", "80.0%", "5", "10.0%", "2"], october]
    assert await table("?programs=no") == [[november, "50", "20", "40.0%", "4", "8.0%", "2"], october]


@pytest_twisted.ensureDeferred
async def test_the_period_is_compared_with_the_one_before_and_is_a_file(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "mail.acme.example", "us-east-1", [])
    other = await rig.assembly.domains.add(account, "other.acme.example", "us-east-1", [])
    now = rig.assembly._context().now().replace(minute=0, second=0, microsecond=0)
    sql = "INSERT INTO rollups (account_id, hour, domain_id, type, count) VALUES (%s, %s, %s, %s, %s)"
    for days, number in ((0, 5), (6, 7), (7, 30), (13, 40), (14, 900)):
        await pool.run(sql, (account, now - timedelta(days=days), domain.id, "email.sent", number))
    await pool.run(sql, (account, now, other.id, "email.bounced.permanent", 3))
    ann = await rig.inside("ann@example.com")
    text = (await ann.get("/dashboard/metrics?days=7")).text
    assert '<dt>Sent</dt><dd>12</dd><dd class="small-dd">Before: 70</dd>' in text
    assert "/dashboard/metrics/csv?days=7&amp;zone=UTC" in text
    file = await ann.get("/dashboard/metrics/csv?days=7")
    assert file.headers["content-type"].startswith("text/csv") and 'filename="metrics-7-days.csv"' in file.headers["content-disposition"]
    head, *rows = file.text.split()
    assert head.startswith("time,sent,delivered,bounced_permanent") and len(rows) == 7
    assert [row.split(",", 1)[1] for row in (rows[0], rows[-1])] == ["7,0,0,0,0,0,0", "5,0,3,0,0,0,0"]
    alone = (await ann.get(f"/dashboard/metrics/csv?days=7&domain={domain.id}")).text.split()
    assert alone[-1].endswith(",5,0,0,0,0,0,0")
    assert (await ann.get("/dashboard/metrics/csv?domain=x")).status == 404


@pytest_twisted.ensureDeferred
async def test_where_zones_are_half_an_hour_off_the_figures_are_those_of_the_days_shown(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "mail.acme.example", "us-east-1", [])
    midnight = ceiling(rig.assembly._context().now(), "day", ZoneInfo("Asia/Kolkata")) - timedelta(days=7)
    last_hour = midnight.astimezone(UTC).replace(minute=0)  # begins at 23:30, in the period before
    sql = "INSERT INTO rollups (account_id, hour, domain_id, type, count) VALUES (%s, %s, %s, %s, %s)"
    await pool.run(sql, (account, last_hour, domain.id, "email.sent", 30))
    await pool.run(sql, (account, last_hour + timedelta(hours=1), domain.id, "email.sent", 7))
    ann = await rig.inside("ann@example.com")
    text = (await ann.get("/dashboard/metrics?days=7&zone=Asia/Kolkata")).text
    assert '<dt>Sent</dt><dd>7</dd><dd class="small-dd">Before: 30</dd>' in text
