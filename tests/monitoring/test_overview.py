"""The operator's page: figures, problems, escaping. Also the alert rules."""

from __future__ import annotations

import re

import pytest
import yaml

from mailsvc.monitoring.metrics import Exposition
from mailsvc.monitoring.overview import EVERY, POINTS, Overview, Series, problems, quantile, seconds, values_of
from tests.end_to_end.rig import PROJECT

NOW, DAY = 1_800_000_000.0, 86400.0


def metrics_text(**changes: float) -> bytes:
    """The figures of a healthy installation, with changes."""
    exposition = Exposition()
    exposition.gauge("database_up", "", changes.get("database_up", 1))
    waiting = {("queued", "transactional"): 2.0, ("delayed", "bulk"): 5.0}
    exposition.gauge("queue_recipients", "", waiting, ("state", "class"))
    exposition.gauge(
        "queue_oldest_seconds", "", {("queued", "transactional"): changes.get("oldest", 3.0), ("delayed", "bulk"): 90}, ("state", "class")
    )
    exposition.gauge("queue_unexplained", "", changes.get("unexplained", 0))
    exposition.gauge("database_writable", "", changes.get("writable", 1))
    exposition.gauge("database_restored", "", changes.get("restored", 0))
    exposition.gauge("database_standby_lag_bytes", "", changes.get("behind", 0))
    exposition.gauge("temporary_free_bytes", "", changes.get("free", 50e9))
    exposition.gauge("certificate_expires_timestamp_seconds", "", changes.get("expires", NOW + 60 * DAY))
    exposition.gauge("queue_overdue_seconds", "", changes.get("overdue", 0))
    exposition.gauge("processes", "", {("delivery",): 1, ("http",): 2}, ("role",))
    exposition.gauge("queue_undelivered", "", {("eu",): 0, ("us",): changes.get("undelivered", 0)}, ("region",))
    exposition.gauge("ledger_lag_seconds", "", changes.get("ledger", 0))
    exposition.gauge("clock_ahead_seconds", "", changes.get("clock", 0))
    exposition.gauge("pool_waiting", "", changes.get("pool", 0))
    exposition.gauge("coordinator_up", "", changes.get("coordinator", 1))
    exposition.counter("accepted", "", {("api",): changes.get("accepted", 0), ("smtp",): 1}, ("source",))
    exposition.counter("deliveries", "", {("delivered",): 8, ("bounced",): 1}, ("outcome",))
    exposition.gauge("source_listed", "", {("192.0.2.1",): changes.get("listed", 0), ("192.0.2.2",): 0}, ("address",))
    exposition.gauge("source_sent_today", "", {("192.0.2.2", "google"): 30}, ("address", "provider"))
    exposition.gauge("source_limit_today", "", {("192.0.2.2", "google"): 100}, ("address", "provider"))
    exposition.gauge("throttled_emails_per_minute", "", {("big",): 12.0}, ("name",))
    exposition.gauge("quota_left", "", {("7", "<day>"): 3}, ("account", "period"))
    return exposition.text()


def test_figures_are_taken_from_the_metrics() -> None:
    shown = Overview().shown(metrics_text(), "mailsvc")
    assert ("queued", "transactional", 2.0, 3.0) in shown.queue and ("delayed", "bulk", 5.0, 90.0) in shown.queue
    figures = {(card, name): figure.replace("\u00a0", " ") for card, rows in shown.cards for name, figure in rows}
    assert figures["Outbound", "Deliveries"] == "8 delivered, 1 bounced" and figures["Inbound", "Accepted"] == "1 smtp"
    assert figures["Processes", "Role http"] == "2" and shown.slow == {("big",): 12.0}


@pytest.mark.parametrize(("changes", "text"), [
    ({"database_up": 0}, "The database is unreachable"),
    ({"undelivered": 4}, "Mail of the region us is queued, but no process of this region with the delivery role is running."),
    ({"unexplained": 1}, "queued without a reason: 1"),
    ({"overdue": 301}, "has been due for 5 min"),
    ({"oldest": 7200}, "waiting 2 h for its first attempt"),
    ({"ledger": 61}, "ledger is 1 min behind"),
    ({"clock": -6}, "by -6 s"),
    ({"listed": 1}, "The source address 192.0.2.1 is on a block list and sends no mail."),
    ({"listed": 2}, "is on 2 block lists and sends no mail."),
    ({"pool": 21}, "waiting for a database connection: 21"),
    ({"coordinator": 0}, "cannot connect to the cluster's coordinator: mail flows"),
    ({"writable": 0}, "Postgres cannot write: its disk or memory is full, a table is locked, or commits wait for a standby."),
    ({"restored": 1}, "all mail is on hold"),
    ({"behind": 250 << 20}, "A standby of Postgres is 250.0 MB behind"),
    ({"free": 1.5 * (1 << 30)}, "has 1.5 GB free"),
    ({"expires": NOW + 3 * DAY}, "The certificate of the SMTP ports expires in 3 d"),
    ({"expires": NOW - 1}, "The certificate of the SMTP ports has expired."),
])  # fmt: skip
def test_problems_are_listed_first(changes: dict[str, float], text: str) -> None:
    assert problems(values_of(metrics_text()), NOW) == []
    [problem] = problems(values_of(metrics_text(**changes)), NOW)
    assert text in problem.description.replace("\u00a0", " ")
    assert Overview().shown(metrics_text(**changes), "mailsvc", NOW).problems == [problem]


def test_a_line_shows_the_rate_per_minute_of_the_last_hour() -> None:
    overview = Overview()
    for count in range(POINTS + 5):
        overview.remember(metrics_text(accepted=10.0 * count))
    series = overview.series[0]
    assert (len(series.points), series.newest, series.most) == (POINTS, 10 * 60 / EVERY, 10 * 60 / EVERY)
    assert series.path.startswith("M0.0 2.0 L1.0 2.0") and series.path.endswith("240.0 2.0")
    overview.remember(metrics_text(accepted=0))  # never negative
    assert series.newest == 0 and Series(("x",), "").path == ""


def test_figures_are_formatted() -> None:
    shown = [seconds(value).replace("\u00a0", " ") for value in (0, 0.25, 12, 120, 7200, 200000)]
    assert shown == ["0 s", "0.2 s", "12 s", "2 min", "2 h", "2.3 d"]
    buckets = {("lag_bucket", "0.1"): 98.0, ("lag_bucket", "0.25"): 99.0, ("lag_bucket", "+Inf"): 100.0}
    assert (quantile(buckets, "lag", 0.99), quantile(buckets, "lag", 0.999), quantile({}, "lag", 0.9)) == (0.25, None, None)


def test_the_alert_rules_are_valid_for_prometheus() -> None:
    """Groups of rules, each with an expression, a duration and a summary."""
    [group] = yaml.safe_load((PROJECT / "etc/alerts.yml").read_text("utf-8"))["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names)) > 10
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "annotations"} and re.fullmatch(r"\d+[smh]", rule["for"]), rule
        assert rule["annotations"]["summary"].endswith((".", "?")), rule
        opened = rule["expr"]
        assert all(opened.count(left) == opened.count(right) for left, right in ("()", "[]", "{}")), rule
