"""The stored JSON of each kind of event data, and that it is read back, whatever is missing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import attrs
import orjson
import pytest

from mailsvc.outcome import Bounced, Meaning
from mailsvc.store.events.event_data import Bounce, Complaint, Delay, Delivery, Empty, Failure, Schedule, Suppressed, read

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
MEANING = Meaning("mailbox_full", "text-full", "recipient", "The mailbox is full.", "Wait.")
OF_MEANING = {"class": "mailbox_full", "rule": "text-full", "party": "recipient", "advice": "Wait."}
STORED: dict[str, tuple[Any, dict[str, Any]]] = {
    "email.delivered": (Delivery("250 ok"), {"reply": "250 ok"}),
    "email.bounced": (
        Bounce.of(Bounced("552 full", "Transient", "MailboxFull", meaning=MEANING), late=True),
        {"type": "Transient", "sub_type": "MailboxFull", "reply": "552 full", "reason": "552 full", "late": True} | OF_MEANING,
    ),
    "email.failed": (Failure("It expired."), {"reason": "It expired."}),
    "email.delivery_delayed": (
        Delay("451 later", AT, MEANING),
        {"reason": "451 later", "next_at": "2026-03-01T12:30:00+00:00"} | OF_MEANING,
    ),
    "email.complained": (
        Complaint("Spam.", "abuse", "agent/1"),
        {"reason": "Spam.", "feedback_type": "abuse", "user_agent": "agent/1", "late": True},
    ),
    "email.scheduled": (Schedule(AT), {"scheduled_at": "2026-03-01T12:30:00+00:00"}),
}


@pytest.mark.parametrize("kind", STORED)
def test_data_is_stored_and_read_back(kind: str) -> None:
    data, stored = STORED[kind]
    assert json.loads(orjson.dumps(data.stored())) == stored
    assert read(kind, stored) == (attrs.evolve(data, meaning=None) if hasattr(data, "meaning") else data)


def test_a_bounce_without_a_sentence_has_no_reason() -> None:
    assert Bounce("Transient", "General", "expired").stored() == {"type": "Transient", "sub_type": "General", "reply": "expired"}


def test_the_data_of_a_suppressed_recipient_is_written_by_sql() -> None:
    assert read("email.suppressed", {"origin": "bounce", "reason": "It bounced."}) == Suppressed("bounce", "It bounced.")


@pytest.mark.parametrize("kind", [*STORED, "email.suppressed", "email.sent", "email.canceled"])
def test_missing_values_are_empty(kind: str) -> None:
    assert read(kind, {}).text == read(kind, {"scheduled_at": "soon", "next_at": None, "reply": None}).text == ""
    assert kind not in ("email.sent", "email.canceled") or read(kind, {"x": 1}) == Empty()
