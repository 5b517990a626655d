"""How many days each kind of thing is kept: the section [retention] of the settings, and what an account wants shorter. Pure.

What goes when its days are over, and what is never touched: store/logs/retention. When it is done: keeping.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mailsvc.settings.reader import setting


def _days(value: int) -> str | None:
    return None if 1 <= value <= 3650 else "expected 1 to 3650"


@attrs.frozen
class Retention:
    """How many days things are kept. What still waits, and what it needs, is kept however long it takes."""

    bodies: int = setting(30, "Days of the messages themselves; never longer than `emails`.", check=_days)
    emails: int = setting(30, "Days of emails, each with its own history, after they were accepted.", check=_days)
    events: int = setting(30, "Days of the account's numbered events (GET /event-log); never longer than `emails`.", check=_days)
    attempts: int = setting(30, "Days of the attempts over SMTP with their transcripts; never longer than `emails`.", check=_days)
    requests: int = setting(30, "Days of the API request log.", check=_days)
    webhooks: int = setting(30, "Days of what webhooks were sent, and of their answers.", check=_days)
    receipts: int = setting(30, "Days of the transcripts of customers' SMTP sessions.", check=_days)
    tls: int = setting(90, "Days of the counts for TLS reports, which belong to no account.", check=_days)


WITHIN_EMAILS = ("bodies", "events", "attempts")


def days(settings: Retention, wanted: Mapping[str, int] | None = None) -> dict[str, int]:
    """What counts, by kind: the settings, or what an account wants where that is shorter. Nothing of an email outlives it."""
    everybody = {
        "emails": settings.emails, "bodies": settings.bodies, "events": settings.events, "attempts": settings.attempts,
        "requests": settings.requests, "webhooks": settings.webhooks, "receipts": settings.receipts,
    }  # fmt: skip
    found = {kind: min(number, (wanted or {}).get(kind, number)) for kind, number in everybody.items()}
    return found | {kind: min(found[kind], found["emails"]) for kind in WITHIN_EMAILS}
