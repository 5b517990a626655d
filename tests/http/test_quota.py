"""Plans over the API: what fits, how the rest is refused, and what is left."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest_twisted

from mailsvc.settings.plans import ends
from mailsvc.store.people.abuse import AbuseStore
from mailsvc.store.people.audit import Line
from tests.http.api_rig import GOOD, ApiRig
from tests.http.rig import Response

THREE = {**GOOD, "to": ["a@example.net", "b@example.net"], "cc": ["c@example.net"]}


async def on_plan(rig: ApiRig, plan: str) -> None:
    await rig.pool.run("UPDATE accounts SET plan = %s WHERE id = %s", (plan, rig.account_id))


def used(response: Response) -> tuple[str | None, str | None]:
    return response.headers.get("x-resend-daily-quota"), response.headers.get("x-resend-monthly-quota")


@pytest_twisted.ensureDeferred
async def test_quota_counts_recipients_and_refuses_what_does_not_fit(rig: ApiRig) -> None:
    await on_plan(rig, "tiny")
    sent = await rig.request("POST", "/emails", THREE, Idempotency_Key="a")
    assert (sent.status, used(sent)) == (200, ("3", "3"))
    before = datetime.now(UTC)
    refused = await rig.request("POST", "/emails", THREE)
    assert refused.problem == (429, "daily_quota_exceeded") and used(refused) == ("3", "3")
    midnight = ends("day", before)
    assert refused.json["message"] == (
        "You have exceeded your daily email sending quota. This request has 3 recipients, but only 2 of 5 are left "
        f"until {midnight:%Y-%m-%d} 00:00 UTC."
    )
    assert 0 <= math.ceil((midnight - before).total_seconds()) - int(refused.headers["retry-after"]) <= 60
    again = await rig.request("POST", "/emails", THREE, Idempotency_Key="a")
    assert (again.status, again.json, used(again)) == (200, sent.json, ("3", "3"))  # what was accepted is answered, and not counted twice
    other = await rig.request("POST", "/emails", {**THREE, "subject": "Other"}, Idempotency_Key="a")
    assert other.problem == (409, "invalid_idempotent_request")
    assert used(await rig.request("POST", "/emails", {**GOOD, "from": "a@elsewhere.test"})) == ("3", "3")
    fits = await rig.request("POST", "/emails", {**THREE, "cc": []})
    assert (fits.status, used(fits)) == (200, ("5", "5"))
    mail = (await rig.request("GET", "/usage")).json["emails"]
    assert [(mail[period]["used"], mail[period]["limit"]) for period in ("daily", "monthly")] == [(5, 5), (5, 7)]
    assert (await rig.request("GET", "/usage", key=rig.foreign_key)).json["emails"]["monthly"]["limit"] is None


@pytest_twisted.ensureDeferred
async def test_quota_counts_a_batch_at_once(rig: ApiRig) -> None:
    await on_plan(rig, "month")
    assert used(await rig.request("POST", "/emails", GOOD)) == (None, "1")
    for headers in ({}, {"x_batch_validation": "permissive"}):
        refused = await rig.request("POST", "/emails/batch", [GOOD] * 4, **headers)
        assert refused.problem == (429, "monthly_quota_exceeded") and used(refused) == (None, "1")
    assert len((await rig.request("GET", "/emails")).json["data"]) == 1
    fits = await rig.request("POST", "/emails/batch", [GOOD] * 3)
    assert (fits.status, used(fits)) == (200, (None, "4"))
    assert (await rig.request("POST", "/emails", GOOD)).problem == (429, "monthly_quota_exceeded")


@pytest_twisted.ensureDeferred
async def test_a_request_with_more_recipients_than_a_whole_period_allows_is_invalid(rig: ApiRig) -> None:
    await on_plan(rig, "month")
    refused = await rig.request("POST", "/emails/batch", [GOOD] * 5)
    assert refused.problem == (422, "validation_error") and "retry-after" not in refused.headers
    assert refused.json["message"] == "This request has 5 recipients, but your quota allows 4 in a month. Split it into several requests."
    assert used(await rig.request("POST", "/emails", GOOD)) == (None, "1")


@pytest_twisted.ensureDeferred
async def test_a_new_account_has_a_daily_limit_besides_its_plan(rig: ApiRig) -> None:
    await rig.pool.run("UPDATE accounts SET ramp = 2 WHERE id = %s", (rig.account_id,))
    assert (await rig.request("POST", "/emails", GOOD)).status == 200
    daily = (await rig.request("GET", "/usage")).json["emails"]["daily"]
    assert (daily["used"], daily["limit"]) == (1, 2)
    refused = await rig.request("POST", "/emails", THREE)
    assert refused.problem == (429, "daily_quota_exceeded")
    assert "The quota of a new account grows" in refused.json["message"]
    assert used(await rig.request("POST", "/emails", GOOD)) == ("2", None)


@pytest_twisted.ensureDeferred
async def test_mail_of_a_held_account_is_accepted_and_shows_the_reason(rig: ApiRig) -> None:
    now = datetime.now(UTC)
    await AbuseStore(rig.pool).hold(
        rig.account_id, "The account's mail is on hold. Why.", now, Line(rig.account_id, None, None, "", "", "")
    )
    sent = await rig.request("POST", "/emails", GOOD)
    assert sent.status == 200
    [recipient] = (await rig.request("GET", f"/emails/{sent.json['id']}")).json["recipients"]
    assert (recipient["status"], recipient["reason"]) == ("queued", "The account's mail is on hold. Why.")
    assert recipient["next_attempt_at"] is not None


@pytest_twisted.ensureDeferred
async def test_quota_ignores_suppressed_recipients(rig: ApiRig) -> None:
    await on_plan(rig, "month")
    assert (await rig.request("POST", "/suppressions", {"email": "c@example.net"})).status == 201
    assert used(await rig.request("POST", "/emails", THREE)) == (None, "2")


@pytest_twisted.ensureDeferred
async def test_quota_of_a_new_plan_includes_this_month(rig: ApiRig) -> None:
    now = datetime.now(UTC)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    rollup = "INSERT INTO rollups (account_id, hour, domain_id, type, count) VALUES (%s, %s, %s, 'email.sent', %s)"
    await rig.pool.run(rollup, (rig.account_id, month, rig.domain_id, 3))
    await rig.pool.run(rollup, (rig.account_id, month - timedelta(hours=1), rig.domain_id, 50))
    await on_plan(rig, "month")
    before = (await rig.request("GET", "/usage")).json["emails"]["monthly"]
    assert (before["used"], before["limit"]) == (3, 4)
    assert used(await rig.request("POST", "/emails", GOOD)) == (None, "4")
    assert (await rig.request("POST", "/emails", GOOD)).problem == (429, "monthly_quota_exceeded")
