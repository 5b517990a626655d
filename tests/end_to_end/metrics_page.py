"""docs/metrics.md, from what a running daemon exposes."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

HEAD = """# Metrics

What `/metrics` has, with the labels of each metric. [How to read them](operations.md#monitor). Alert rules are in
[etc/alerts.yml](../etc/alerts.yml), and a dashboard for Grafana is in [etc/monitoring/grafana.json](../etc/monitoring/grafana.json).
Besides these there are the usual `process_*` metrics. With a content filter, `mailsvc_content_filter_total` counts messages by the
filter's `action`. In a cell, `mailsvc_cell_moves_total` counts the moves that the process has followed.

| metric | type | labels | meaning |
|---|---|---|---|
"""
# The labels of metrics that have no samples at first.
LABELS = {
    "mailsvc_destinations_held": ["state"],
    "mailsvc_destinations_resting": ["state"],
    "mailsvc_queue_oldest_seconds": ["class", "state"],
    "mailsvc_queue_recipients": ["class", "state"],
    "mailsvc_queue_undelivered": ["region"],
    "mailsvc_quota_left": ["account", "period"],
    "mailsvc_source_limit_today": ["address", "provider"],
    "mailsvc_source_listed": ["address"],
    "mailsvc_source_sent_today": ["address", "provider"],
    "mailsvc_throttled_emails_per_minute": ["name"],
    "mailsvc_tracking_hits": ["by", "kind"],
    "mailsvc_webhook_attempts": ["outcome"],
}
SAMPLED = {"counter": "_total"}  # what the samples of a type are called, after the name of the family


def page(text: str) -> str:
    """`text`: a response of /metrics."""
    rows = []
    for family in text_string_to_metric_families(text):
        if family.name.startswith("mailsvc_") and not family.name.endswith("_created"):
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"}) or LABELS.get(family.name, [])
            name = family.name + SAMPLED.get(family.type, "")
            rows.append(f"| `{name}` | {family.type} | {', '.join(f'`{label}`' for label in labels)} | {family.documentation} |\n")
    return HEAD + "".join(sorted(rows))
