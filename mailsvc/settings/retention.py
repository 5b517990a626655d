"""How many days each kind of data is kept: the section [retention] of the settings, and an account's own shorter times. Pure.

What is deleted, and what never is: store/logs/retention. When it is deleted: accounts/retention.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mailsvc.settings.reader import setting


def _days(value: int) -> str | None:
    return None if 1 <= value <= 3650 else "expected 1 to 3650"


@attrs.frozen
class Retention:
    """How many days data is kept. Queued emails, and all that their delivery needs, are kept as long as they are queued."""

    bodies: int = setting(30, "Days to keep message contents; at most `emails`.", check=_days)
    emails: int = setting(30, "Days to keep emails and their history after they were accepted.", check=_days)
    events: int = setting(30, "Days to keep an account's events (GET /event-log); at most `emails`.", check=_days)
    attempts: int = setting(30, "Days to keep delivery attempts and their transcripts; at most `emails`.", check=_days)
    requests: int = setting(30, "Days to keep the API request log.", check=_days)
    webhooks: int = setting(30, "Days to keep webhook messages and the endpoints' responses.", check=_days)
    receipts: int = setting(30, "Days to keep the session log: transcripts of customers' SMTP sessions.", check=_days)
    reports: int = setting(90, "Days to keep the results of DMARC and TLS reports about customers' domains.", check=_days)
    tls: int = setting(90, "Days to keep the counts for TLS reports, which belong to no account.", check=_days)


WITHIN_EMAILS = ("bodies", "events", "attempts")


def days(settings: Retention, wanted: Mapping[str, int] | None = None) -> dict[str, int]:
    """Returns the days by kind: the settings, or the account's own where shorter. Nothing of an email is kept longer than the email."""
    everybody = {
        "emails": settings.emails, "bodies": settings.bodies, "events": settings.events, "attempts": settings.attempts,
        "requests": settings.requests, "webhooks": settings.webhooks, "receipts": settings.receipts,
    }  # fmt: skip
    found = {kind: min(number, (wanted or {}).get(kind, number)) for kind, number in everybody.items()}
    return found | {kind: min(found[kind], found["emails"]) for kind in WITHIN_EMAILS}
