"""Plans over the API: what fits, how the rest is refused, and what is left."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest_twisted

from mailsvc.settings.plans import ends
from tests.http.rig import Response
from tests.http.world import GOOD, World

THREE = {**GOOD, "to": ["a@example.net", "b@example.net"], "cc": ["c@example.net"]}


async def on_plan(world: World, plan: str) -> None:
    await world.pool.run("UPDATE accounts SET plan = %s WHERE id = %s", (plan, world.account_id))


def used(response: Response) -> tuple[str | None, str | None]:
    return response.headers.get("x-resend-daily-quota"), response.headers.get("x-resend-monthly-quota")


@pytest_twisted.ensureDeferred
async def test_quota_counts_recipients_and_refuses_what_does_not_fit(world: World) -> None:
    await on_plan(world, "tiny")
    sent = await world.ask("POST", "/emails", THREE, Idempotency_Key="a")
    assert (sent.status, used(sent)) == (200, ("3", "3"))
    before = datetime.now(UTC)
    refused = await world.ask("POST", "/emails", THREE)
    assert refused.problem == (429, "daily_quota_exceeded") and used(refused) == ("3", "3")
    midnight = ends("day", before)
    assert refused.json["message"] == (
        "You have exceeded your daily email sending quota. This request has 3 recipients, but only 2 of 5 are left "
        f"until {midnight:%Y-%m-%d} 00:00 UTC."
    )
    assert 0 <= math.ceil((midnight - before).total_seconds()) - int(refused.headers["retry-after"]) <= 60
    again = await world.ask("POST", "/emails", THREE, Idempotency_Key="a")
    assert (again.status, again.json, used(again)) == (200, sent.json, ("3", "3"))  # what was accepted is answered, and not counted twice
    other = await world.ask("POST", "/emails", {**THREE, "subject": "Other"}, Idempotency_Key="a")
    assert other.problem == (409, "invalid_idempotent_request")
    assert used(await world.ask("POST", "/emails", {**GOOD, "from": "a@elsewhere.test"})) == ("3", "3")
    fits = await world.ask("POST", "/emails", {**THREE, "cc": []})
    assert (fits.status, used(fits)) == (200, ("5", "5"))
    mail = (await world.ask("GET", "/usage")).json["emails"]
    assert [(mail[period]["used"], mail[period]["limit"]) for period in ("daily", "monthly")] == [(5, 5), (5, 7)]
    assert (await world.ask("GET", "/usage", key=world.foreign_key)).json["emails"]["monthly"]["limit"] is None


@pytest_twisted.ensureDeferred
async def test_quota_counts_a_batch_at_once(world: World) -> None:
    await on_plan(world, "month")
    for headers in ({}, {"x_batch_validation": "permissive"}):
        refused = await world.ask("POST", "/emails/batch", [GOOD] * 5, **headers)
        assert refused.problem == (429, "monthly_quota_exceeded") and used(refused) == (None, "0")
    assert (await world.ask("GET", "/emails")).json["data"] == []
    fits = await world.ask("POST", "/emails/batch", [GOOD] * 4)
    assert (fits.status, used(fits)) == (200, (None, "4"))
    assert (await world.ask("POST", "/emails", GOOD)).problem == (429, "monthly_quota_exceeded")


@pytest_twisted.ensureDeferred
async def test_quota_ignores_suppressed_recipients(world: World) -> None:
    await on_plan(world, "month")
    assert (await world.ask("POST", "/suppressions", {"email": "c@example.net"})).status == 201
    assert used(await world.ask("POST", "/emails", THREE)) == (None, "2")


@pytest_twisted.ensureDeferred
async def test_quota_of_a_new_plan_includes_this_month(world: World) -> None:
    now = datetime.now(UTC)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    rollup = "INSERT INTO rollups (account_id, hour, domain_id, type, count) VALUES (%s, %s, %s, 'email.sent', %s)"
    await world.pool.run(rollup, (world.account_id, month, world.domain_id, 3))
    await world.pool.run(rollup, (world.account_id, month - timedelta(hours=1), world.domain_id, 50))
    await on_plan(world, "month")
    before = (await world.ask("GET", "/usage")).json["emails"]["monthly"]
    assert (before["used"], before["limit"]) == (3, 4)
    assert used(await world.ask("POST", "/emails", GOOD)) == (None, "4")
    assert (await world.ask("POST", "/emails", GOOD)).problem == (429, "monthly_quota_exceeded")
