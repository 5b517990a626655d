"""The figures of a week on the home page, and what needs attention."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import attrs
import pytest_twisted

from mailsvc.accounts.quota import Used
from mailsvc.clock import utc
from mailsvc.dashboard.home import overview
from mailsvc.store.domains.values import Domain, RecordState
from mailsvc.store.events.rollups import Count
from mailsvc.store.events.webhooks import Webhook
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig

TODAY = date(2026, 3, 14)
DAYS = [TODAY - timedelta(days=number) for number in range(13, -1, -1)]
NOW = datetime(2026, 3, 14, tzinfo=UTC)
DOMAIN = Domain(uuid4(), uuid4(), "acme.example", "us-east-1", "verified", False, "send", ("rsa",), "opportunistic", NOW)
ENDPOINT = Webhook(uuid4(), DOMAIN.account_id, "https://a.example/hook", ("email.sent",), "enabled", None, None, None, None, None, NOW)


def counts(day: date, **of: int) -> list[Count]:
    names = {"bounced": "email.bounced.permanent"}
    return [Count(None, day, None, None, names.get(kind, f"email.{kind}"), number) for kind, number in of.items()]


def test_a_week_is_shown_beside_the_one_before() -> None:
    of = [
        *counts(DAYS[0], sent=100, delivered=100),
        *counts(DAYS[7], sent=60, delivered=50, bounced=10),
        *counts(TODAY, sent=90, delivered=90),
    ]
    sent, deliverability, bounces, complaints = overview.figures(of, DAYS)
    assert (sent.shown, sent.before, sent.bars) == ("150", "100 (+50%)", [67, 0, 0, 0, 0, 0, 100])
    assert (deliverability.shown, deliverability.before) == ("93.3%", "100.0%")
    assert deliverability.days == ["83.3%", "–", "–", "–", "–", "–", "100.0%"]
    assert (bounces.shown, bounces.before, bounces.tone) == ("6.67%", "0.00%", "bad")
    assert (complaints.shown, complaints.tone, complaints.bars) == ("0.000%", "", [0] * 7)


def test_nothing_was_sent_yet() -> None:
    assert [(one.shown, one.before) for one in overview.figures([], DAYS)] == [("0", "0")] + [("–", "–")] * 3


def concerns(*of: Count, domain: Domain = DOMAIN, webhook: Webhook = ENDPOINT, used: int = 0) -> list[tuple[str, str]]:
    found = overview.concerns([domain], [webhook], of, DAYS, {"day": Used(used, 100)})
    return [(one.text, one.tone) for one in found]


def test_what_needs_attention() -> None:
    assert concerns(*counts(TODAY, sent=100, delivered=99, bounced=1)) == []
    assert concerns(*counts(TODAY, delivered=50, bounced=49, complained=1)) == []  # too few to say
    assert concerns(*counts(TODAY, delivered=180, bounced=20, complained=2)) == [
        ("10.00% of your emails bounced in 7 days. Above 4%, mailbox providers start to reject mail.", "bad"),
        ("1.111% of your recipients complained in 7 days. Above 0.08%, mail goes to spam.", "bad"),
    ]
    assert concerns(*counts(DAYS[0], delivered=1, bounced=10)) == []  # the week before
    pending = attrs.evolve(DOMAIN, status="pending")
    assert concerns(domain=pending) == [("acme.example can’t send. Its DNS records have not been checked yet.", "bad")]
    assert concerns(domain=attrs.evolve(pending, sending=False)) == []  # somebody wants it so
    assert concerns(domain=attrs.evolve(DOMAIN, since=NOW)) == [("DNS records of acme.example are missing or incorrect.", "warn")]
    silent = RecordState("SPF", "TXT", "acme.example", "v=spf1", True, "temporary_failure", problem="unanswered")
    unknown = attrs.evolve(DOMAIN, since=NOW, records=(silent,))
    assert concerns(domain=unknown) == [("DNS did not answer for records of acme.example.", "warn")]
    assert concerns(used=80) == [("80% of today’s quota is used.", "warn")]
    assert concerns(used=120) == [("100% of today’s quota is used.", "bad")]


def test_endpoints_that_fail_come_after_what_is_worse() -> None:
    failing = attrs.evolve(ENDPOINT, failing_since=NOW)
    found = concerns(webhook=failing, domain=attrs.evolve(DOMAIN, status="failed"))
    assert [tone for _, tone in found] == ["bad", "warn"] and found[1][0] == "The webhook endpoint https://a.example/hook fails."
    disabled = attrs.evolve(failing, status="disabled", disabled_why="It failed for five days.")
    assert concerns(webhook=disabled) == [("The webhook endpoint https://a.example/hook was disabled.", "bad")]
    assert concerns(webhook=attrs.evolve(ENDPOINT, status="disabled")) == []  # by somebody of the account


def test_many_domains_and_endpoints_are_counted() -> None:
    names = [f"{number}.example" for number in range(6)]
    domains = [attrs.evolve(DOMAIN, name=name, status="failed") for name in names[1:]]
    found = overview.concerns([attrs.evolve(DOMAIN, name=names[0], since=NOW), *domains], [], [], DAYS, {})
    assert [one.text.partition(" ")[0] for one in found] == ["1.example", "2.example", "3.example", "3"]  # the first is only a warning
    assert (found[3].text, found[3].path, found[3].tone) == ("3 more domains need attention.", "/dashboard/domains", "bad")
    endpoints = [attrs.evolve(ENDPOINT, failing_since=NOW)] * 4
    assert len(overview.concerns([], endpoints, [], DAYS, {})) == 4  # “1 more” would take the same line
    found = overview.concerns(domains[:1], [*endpoints, *endpoints], [], DAYS, {})
    assert [found[0].tone, found[-1].text, found[-1].tone] == ["bad", "5 more endpoints need attention.", "warn"]


@pytest_twisted.ensureDeferred
async def test_the_home_page_shows_both(pool: Pool) -> None:
    rig = DashboardRig(pool)
    account = await rig.account("Acme")
    await rig.person("ann@example.com", account)
    domain = await rig.assembly.domains.add(account, "acme.example", "us-east-1", [])
    await rig.assembly.domains.trust(account, domain.name)
    await rig.mail(account, domain.name)
    await rig.assembly.domains.add(account, "other.example", "us-east-1", [])
    hour = utc(rig.clock).replace(minute=0, second=0, microsecond=0)
    sql = "INSERT INTO rollups (hour, account_id, domain_id, type, count) VALUES (%s, %s, %s, %s, %s)"
    for kind, number in (("email.sent", 1200), ("email.delivered", 1100), ("email.bounced.permanent", 100)):
        await pool.run(sql, (hour, account, domain.id, kind, number))
    page = (await (await rig.inside("ann@example.com")).get("/dashboard")).text
    assert "<dd>1,200</dd>" in page and "7 days before: 0" in page
    assert "8.33% of your emails bounced" in page and "other.example can’t send." in page
