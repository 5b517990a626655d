"""The timeline of a recipient: events and attempts in order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import attrs

from mailsvc.dashboard.formatting import STATUSES, duration, stamp
from mailsvc.mail.tracking.machine import REASONS
from mailsvc.store.events.event_data import Click, Open, Schedule
from mailsvc.store.mail.emails import AttemptView
from mailsvc.store.mail.history import EventView

_TITLES = {
    "email.sent": "Accepted",
    "email.scheduled": "Scheduled",
    "email.delivery_delayed": "Deferred",
    "email.canceled": "Canceled",
    "email.failed": "Failed",
    "email.suppressed": "Suppressed",
    "email.complained": "Marked as spam",
    "email.delivered": "Delivered",
    "email.bounced": "Bounced",
    "email.opened": "Opened",
    "email.clicked": "Link clicked",
}
_BEGINNINGS = {"Accepted", "Scheduled"}  # above what happened at the same moment
_OUTCOMES = {"delivered": "good", "deferred": "warn", "uncertain": "warn", "bounced": "bad", "failed": "bad"}


@attrs.frozen
class TimelineEntry:
    """One entry. Only attempts have a `transcript` and a `meaning`, the class of the failure.

    `attempts`: those that this entry stands for, because they ended alike. Then it has no transcript.
    """

    at: datetime
    title: str
    tone: str
    text: str = ""
    facts: str = ""
    transcript: str | None = None
    meaning: str = ""
    attempts: tuple[TimelineEntry, ...] = ()


def of_recipient(number: int, events: Sequence[EventView], attempts: Sequence[AttemptView], now: datetime) -> list[TimelineEntry]:
    """Oldest first, with times in the zone of `now`. Events of the whole email are on every recipient's timeline."""
    tried = [a for a in attempts if number in a.recipients]
    entries = [_attempt(attempt, count, number) for count, attempt in enumerate(tried, 1)]
    known = {entry.text for entry in entries}
    happened = [_event(event, now) for event in events if event.recipient in (None, number)]
    entries += [attrs.evolve(entry, text="") if entry.text in known else entry for entry in happened]  # an attempt already shows this reply
    return _grouped(sorted(entries, key=lambda entry: (entry.at, entry.title not in _BEGINNINGS)), now)


def _grouped(entries: Sequence[TimelineEntry], now: datetime) -> list[TimelineEntry]:
    """Deferred attempts that follow each other and ended alike become one entry, with the events that only repeat them."""
    shown: list[TimelineEntry] = []
    alike: list[TimelineEntry] = []  # attempts, and after the first one events without a text of their own
    for entry in entries:
        if alike and _repeats(entry, alike[0]):
            alike.append(entry)
        else:
            shown += _merged(alike, now)
            alike = [entry] if entry.transcript is not None and entry.tone == "warn" else []
            shown += [] if alike else [entry]
    return shown + _merged(alike, now)


def _merged(alike: Sequence[TimelineEntry], now: datetime) -> list[TimelineEntry]:
    attempts = tuple(entry for entry in alike if entry.transcript is not None)
    if len(attempts) < 2:
        return list(alike)
    first, last = attempts[0], attempts[-1]
    title = f"Attempts {first.title.split()[-1]} {'and' if len(attempts) == 2 else 'to'} {last.title.split()[-1]}"
    return [attrs.evolve(first, title=title, facts=f"The last one at {stamp(last.at, now)}", transcript=None, attempts=attempts)]


def _repeats(entry: TimelineEntry, attempt: TimelineEntry) -> bool:
    """Whether an entry ended like this attempt, or only says that it was deferred."""
    if entry.transcript is None:
        return entry.title == "Deferred" and not entry.text
    return (entry.text, entry.meaning, entry.tone) == (attempt.text, attempt.meaning, attempt.tone)


def _event(event: EventView, now: datetime) -> TimelineEntry:
    short = event.type.removeprefix("email.")
    tone = STATUSES.get(short, ("", "quiet"))[1]
    facts = ""
    if isinstance(event.data, Open | Click):
        tone = tone if event.data.machine is None else "quiet"
        facts = " · ".join(filter(None, (event.data.address, event.data.agent)))
    return TimelineEntry(event.at, _TITLES.get(event.type, short.replace("_", " ").capitalize()), tone, _description(event, now), facts)


def _description(event: EventView, now: datetime) -> str:
    if isinstance(event.data, Schedule):
        return "" if event.data.scheduled_at is None else f"Scheduled for {stamp(event.data.scheduled_at, now)}."
    if isinstance(event.data, Open | Click):
        program = "" if event.data.machine is None else f"Likely by {REASONS.get(event.data.machine, 'a program')}."
        return " ".join(filter(None, (event.data.text, program)))
    if event.type == "email.sent":
        return "Queued for delivery."
    if event.type == "email.delivered":
        return "Accepted by the recipient’s server."
    return event.data.text


def _attempt(attempt: AttemptView, count: int, number: int) -> TimelineEntry:
    place = attempt.recipients.index(number)
    outcome, reply = attempt.outcomes[place], attempt.replies[place]
    at = f" ({attempt.address})" if attempt.address else ""
    server = "No server could be used" if attempt.host is None else f"{attempt.host}{at} · {attempt.tls or 'no TLS'}"
    facts = f"{server} · {duration(attempt.seconds)}"
    meaning = (attempt.classes[place] or "").replace("_", " ") if place < len(attempt.classes) else ""
    return TimelineEntry(attempt.started_at, f"Attempt {count}", _OUTCOMES.get(outcome, "quiet"), reply, facts, attempt.transcript, meaning)
