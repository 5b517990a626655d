"""Metrics and usage: counted by recipients, in the periods of any time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.http.resources import metrics as answers
from mailsvc.http.resources.metrics import METRICS, RATES, SUMS
from mailsvc.outcome import Bounced, Delivered
from mailsvc.store.events.ledger import EventLedger
from mailsvc.store.queue.settle import RecipientOutcome, Settlement, Settling
from tests.http.api_rig import GOOD, ApiRig
from tests.http.rig import Nothing, Rig

NOW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


async def counted(rig: ApiRig, at: datetime, kind: str, count: int, domain: UUID | None = None) -> None:
    sql = "INSERT INTO rollups (account_id, hour, domain_id, type, count) VALUES (%s, %s, %s, %s, %s)"
    await rig.pool.run(sql, (rig.account_id, at, domain or rig.domain_id, kind, count))


async def metrics(rig: ApiRig, **parameters: str) -> Any:
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    answer = await rig.request("GET", f"/emails/metrics?{query}")
    assert answer.status == 200, answer.body
    return answer.json


@pytest_twisted.ensureDeferred
async def test_metrics_count_recipients_from_acceptance_to_totals(rig: ApiRig) -> None:
    sent = (await rig.request("POST", "/emails", {**GOOD, "to": ["a@example.net", "b@example.net", "c@example.net"]})).json["id"]
    lease = 0
    settling = Settling(rig.pool, rig.site.reactor)
    await rig.pool.run("UPDATE queue SET lease = %s", (lease,))
    outcomes = (Delivered("250 ok"), Bounced("550 no"), Bounced("552 full", "Transient", "MailboxFull"))
    results = tuple(RecipientOutcome(n, outcome) for n, outcome in enumerate(outcomes))
    await settling.settle(Settlement(rig.account_id, UUID(sent), rig.domain_id, lease, datetime.now(UTC), results, None))
    await EventLedger(rig.pool).number(100)
    wanted = {"sent": 3, "delivered": 1, "bounced": 2, "bounced_permanent": 1, "bounced_transient": 1, "bounced_undetermined": 0}
    rates = {"delivery_rate": 33.33, "bounce_rate": 66.67, "open_rate": 0.0}
    assert (await metrics(rig, metrics=",".join([*wanted, *rates])))["totals"] == wanted | rates
    of_email = await metrics(rig, metrics=",".join(wanted), email_id=sent, dimensions="email,domain")
    assert of_email["totals"] == wanted
    assert of_email["data"] == [{"email_id": sent, "domain_id": str(rig.domain_id), "domain_name": "example.test", **wanted}]
    usage = (await rig.request("GET", "/usage")).json
    assert (usage["emails"]["daily"]["used"], usage["emails"]["monthly"]["sent"], usage["emails"]["daily"]["limit"]) == (3, 3, None)
    assert usage["domains"] == {"used": 1, "limit": 1000} and usage["rate_limit"] == {"limit": 10_000, "duration": "1000ms"}
    foreign = await rig.request("GET", f"/emails/metrics?email_id={sent}&metrics=sent", key=rig.foreign_key)
    assert foreign.json["totals"] == {"sent": 0}


@pytest_twisted.ensureDeferred
async def test_metrics_default_to_totals_of_the_last_week(rig: ApiRig) -> None:
    await counted(rig, NOW - timedelta(days=6), "email.sent", 2)
    await counted(rig, NOW - timedelta(days=8), "email.sent", 5)
    answer = await metrics(rig)
    assert (answer["totals"]["sent"], answer["granularity"], answer["dimensions"]) == (2, "daily", [])
    assert set(answer["totals"]) == set(answer["metrics"]) == set(METRICS) == {*SUMS, *RATES}
    assert "data" not in answer


@pytest_twisted.ensureDeferred
async def test_metrics_begin_days_in_the_requested_time_zone(rig: ApiRig) -> None:
    await counted(rig, datetime(2026, 3, 28, 22, tzinfo=UTC), "email.sent", 1)  # 23:00 in Vienna
    await counted(rig, datetime(2026, 3, 28, 23, tzinfo=UTC), "email.sent", 2)  # midnight there
    await counted(rig, datetime(2026, 3, 29, 21, tzinfo=UTC), "email.sent", 4)  # 23:00, in summer time by now
    await counted(rig, datetime(2026, 3, 29, 22, tzinfo=UTC), "email.sent", 8)  # midnight
    query = {"start_date": "2026-03-28", "end_date": "2026-03-31", "metrics": "sent", "dimensions": "period"}
    vienna = await metrics(rig, **query, timezone="Europe/Vienna")
    rows = [(row["period"], row["sent"]) for row in vienna["data"]]
    assert rows == [("2026-03-28", 1), ("2026-03-29", 6), ("2026-03-30", 8), ("2026-03-31", 0)]
    assert vienna["start_date"] == "2026-03-27T23:00:00.000Z" and vienna["end_date"] == "2026-03-31T22:00:00.000Z"
    utc = await metrics(rig, **query)
    assert [row["sent"] for row in utc["data"]] == [3, 12, 0, 0]
    for first, last in (("20260328", "20260331"), ("2026-W13-6", "2026W142")):
        assert await metrics(rig, **{**query, "start_date": first, "end_date": last}) == utc
    hourly = await metrics(rig, **{**query, "start_date": "2026-03-28T22:00:00Z", "end_date": "2026-03-29T02:00:00Z"}, granularity="hourly")
    assert [row["sent"] for row in hourly["data"]] == [1, 2, 0, 0]
    local = {**query, "start_date": "2026-03-29T00:00", "end_date": "2026-03-29T04:00"}
    local_rows = (await metrics(rig, **local, granularity="hourly", timezone="Europe/Vienna"))["data"]
    assert [row["period"][11:16] for row in local_rows] == ["00:00", "01:00", "03:00"]  # two o'clock did not exist
    weekly = await metrics(rig, **query, granularity="weekly", timezone="Europe/Vienna")
    assert [(row["period"], row["sent"]) for row in weekly["data"]] == [("2026-03-23", 7), ("2026-03-30", 8)]
    monthly = await metrics(rig, **{**query, "start_date": "2026-01-15"}, granularity="monthly")
    assert [(row["period"], row["sent"]) for row in monthly["data"]] == [("2026-01-01", 0), ("2026-02-01", 0), ("2026-03-01", 15)]


@pytest.mark.parametrize(
    ("zone", "midnight"),
    [("CET", 22), ("EET", 21), ("MET", 22), ("WET", 23), ("EST5EDT", 4), ("EST", 5), ("Europe/Vienna", 22), ("Etc/GMT-3", 21)],
)
@pytest_twisted.ensureDeferred
async def test_zones_that_postgres_has_abbreviations_for_have_summer_time(rig: ApiRig, zone: str, midnight: int) -> None:
    at = datetime(2026, 7, 2 if midnight < 12 else 1, midnight, tzinfo=UTC)
    await counted(rig, at - timedelta(hours=1), "email.sent", 1)
    await counted(rig, at, "email.sent", 2)
    query = {"metrics": "sent", "dimensions": "period", "timezone": zone, "start_date": "2026-07-01", "end_date": "2026-07-02"}
    assert [(row["period"], row["sent"]) for row in (await metrics(rig, **query))["data"]] == [("2026-07-01", 1), ("2026-07-02", 2)]


@pytest.mark.parametrize("granularity", ["daily", "hourly"])
@pytest_twisted.ensureDeferred
async def test_where_zones_are_half_an_hour_off_each_hour_is_in_one_day(rig: ApiRig, granularity: str) -> None:
    await counted(rig, datetime(2026, 3, 27, 18, tzinfo=UTC), "email.sent", 1)  # 23:30 in Kolkata, on the 27th
    await counted(rig, datetime(2026, 3, 27, 19, tzinfo=UTC), "email.sent", 2)  # 00:30
    await counted(rig, datetime(2026, 3, 28, 18, tzinfo=UTC), "email.sent", 4)  # 23:30, on the 28th
    await counted(rig, datetime(2026, 3, 28, 19, tzinfo=UTC), "email.sent", 8)  # 00:30
    query = {"metrics": "sent", "dimensions": "period", "timezone": "Asia/Kolkata", "granularity": granularity}
    days = [await metrics(rig, **query, start_date=f"2026-03-{day}", end_date=f"2026-03-{day}") for day in (27, 28, 29)]
    assert [day["totals"]["sent"] for day in days] == [1, 6, 8]
    assert all({row["period"][:10] for row in answer["data"]} == {f"2026-03-{day}"} for day, answer in zip((27, 28, 29), days, strict=True))


@pytest_twisted.ensureDeferred
async def test_metrics_group_and_filter_by_domain(rig: ApiRig) -> None:
    gone = UUID(int=99)
    await counted(rig, NOW - timedelta(hours=2), "email.delivered", 3)
    await counted(rig, NOW - timedelta(hours=2), "email.delivered", 4, gone)
    both = await metrics(rig, metrics="delivered", dimensions="domain")
    ours = {"domain_id": str(rig.domain_id), "domain_name": "example.test", "delivered": 3}
    assert sorted(both["data"], key=str) == sorted([ours, {"domain_id": str(gone), "delivered": 4}], key=str)
    one = await metrics(rig, **{"metrics": "delivered", "domain_id[]": str(rig.domain_id)})
    assert one["totals"] == {"delivered": 3}
    assert (await metrics(rig, metrics="delivered", broadcast_id=str(gone)))["totals"] == {"delivered": 0}


@pytest.mark.parametrize(
    "query",
    [
        "granularity=yearly", "timezone=Mars/Olympus", "timezone=../etc/passwd", "timezone=%00", "metrics=sent,nonsense", "dimensions=to",
        "dimensions=email", "dimensions=email,broadcast&email_id=00000000-0000-0000-0000-000000000001", "email_id=x",
        "start_date=yesterday", "start_date=2026-13-01", "start_date=2026-02-01&end_date=2026-01-01", "start_date=2999-01-01",
        "start_date=2020-01-01&granularity=hourly", "start_date=0001-01-01T00:00:00%2B14:00", "end_date=9999-12-31&start_date=9999-12-30",
        "end_date=0001-02-01&start_date=0001-01-01T01:00Z&dimensions=period&timezone=America/New_York",
        "domain_id=" + ",".join(str(UUID(int=n)) for n in range(101)),
    ],
)  # fmt: skip
@pytest_twisted.ensureDeferred
async def test_metrics_refuse_invalid_parameters(rig: ApiRig, query: str) -> None:
    assert (await rig.request("GET", f"/emails/metrics?{query}")).status == 422


@pytest_twisted.ensureDeferred
async def test_metrics_of_the_first_days_of_the_calendar_are_zero(rig: ApiRig) -> None:
    assert (await metrics(rig, end_date="0001-01-01", metrics="sent"))["totals"] == {"sent": 0}


class NoCounts(Nothing):
    async def counts(self, *_: Any) -> Any:
        return []

    async def broadcasts(self, *_: Any) -> Any:
        return {}


@pytest.mark.parametrize(("query", "threads"), [("dimensions=period", 0), ("granularity=hourly&dimensions=period&metrics=sent", 1)])
def test_metrics_of_many_periods_are_made_in_a_thread(query: str, threads: int) -> None:
    """10,000 of them take a good part of a second, in which no other request would be answered."""
    rig = Rig()
    rig.site = attrs.evolve(rig.api, rollups=NoCounts()).site()
    assert rig.request("GET", f"/emails/metrics?{query}").status == 200
    assert (len(rig.threads), rig.budget.used) == (threads, 0)


@pytest_twisted.ensureDeferred
async def test_metrics_of_too_many_counts_are_refused(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        await counted(rig, NOW - timedelta(hours=2), "email.sent", 1, UUID(int=n))
    monkeypatch.setattr(answers, "COUNTS_MAX", 3)
    assert len((await metrics(rig, dimensions="period,domain", granularity="hourly"))["data"]) == 3
    await counted(rig, NOW - timedelta(hours=3), "email.sent", 1)
    refused = await rig.request("GET", "/emails/metrics?dimensions=period,domain&granularity=hourly")
    assert refused.problem == (422, "validation_error") and "granularity" in refused.json["message"]
