"""What webhooks tell of each event: the keys that the client libraries read."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import pytest
from jsonschema import Draft202012Validator

from mailsvc.events import payload
from mailsvc.store.events.event_log import Fact, Mail
from tests.http.strictclients import event_schema

OURS = [kind for kind in payload.TYPES if kind.partition(".")[0] in ("email", "domain", "suppression")]
AT = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)
MAIL = Mail(
    UUID("56761188-7520-42d8-8898-ff6fc54ce618"), datetime(2026, 1, 2, tzinfo=UTC), "<1@mx.example.com>", "Acme <hello@example.com>",
    ("a@example.net", "b@example.net"), "Hi", (("category", "welcome"),), {"X-Order": "7"},
)  # fmt: skip
BOUNCED = {"type": "Permanent", "sub_type": "General", "reply": "550 5.1.1 user unknown", "class": "user_unknown", "rule": "x.1.1"}


def valid(kind: str, message: Any) -> None:
    Draft202012Validator(event_schema(kind)).validate(message)


def fact(kind: str, recipient: int | None = 1, **data: Any) -> Fact:
    return Fact(UUID(int=7), kind, AT, recipient, data, MAIL)


@pytest.mark.parametrize("kind", OURS)
def test_a_sample_is_what_the_event_would_be(kind: str) -> None:
    valid(kind, payload.sample(kind, AT))


@pytest.mark.parametrize("kind", payload.TYPES)
def test_every_type_that_can_be_requested_has_a_sample(kind: str) -> None:
    assert set(payload.sample(kind, AT)) == {"type", "created_at", "data"}


def test_only_types_that_are_documented_are_sent() -> None:
    table = (Path(__file__).parents[2] / "docs/webhooks.md").read_text("utf-8").partition("| type | when |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z]+\.[a-z_]+(?:\.[a-z]+)?)`", table)) == set(payload.SENT)


def test_a_bounce_from_its_keys() -> None:
    message = payload.render(fact("email.bounced", **BOUNCED))
    valid("email.bounced", message)
    assert message == {
        "type": "email.bounced",
        "created_at": "2026-01-02T03:04:05.678Z",
        "data": {
            "email_id": "56761188-7520-42d8-8898-ff6fc54ce618",
            "created_at": "2026-01-02T00:00:00.000Z",
            "message_id": "<1@mx.example.com>",
            "from": "Acme <hello@example.com>",
            "to": ["b@example.net"],
            "subject": "Hi",
            "tags": {"category": "welcome"},
            "headers": [{"name": "X-Order", "value": "7"}],
            "bounce": {
                "type": "Permanent",
                "subType": "General",
                "message": "550 5.1.1 user unknown",
                "diagnosticCode": ["smtp; 550 5.1.1 user unknown"],
            },
        },
    }


def test_who_is_meant_and_what_is_left_out() -> None:
    whole = payload.render(fact("email.sent", None))
    assert whole["data"]["to"] == ["a@example.net", "b@example.net"]  # type: ignore[index]
    bare = attrs.evolve(fact("email.delivered", 0), mail=attrs.evolve(MAIL, tags=(), headers={}))
    message = payload.render(bare)
    valid("email.delivered", message)
    assert set(message["data"]) == {"email_id", "created_at", "message_id", "from", "to", "subject"}  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("data", "reason"),
    [({"origin": "bounce"}, "previous_bounce"), ({"origin": "complaint"}, "previous_complaint"), ({"origin": "manual"}, None)],
)
def test_why_it_was_suppressed(data: dict[str, str], reason: str | None) -> None:
    message = payload.render(fact("email.suppressed", **data, why="x"))
    valid("email.suppressed", message)
    assert message["data"]["suppressed"].get("reason") == reason  # type: ignore[index]


def test_an_open_and_a_link_that_was_followed() -> None:
    data = {"link": "https://example.com/a", "address": "192.0.2.0", "agent": "Mozilla/5.0", "method": "GET", "machine": "soon"}
    message = payload.render(fact("email.clicked", None, **data))
    valid("email.clicked", message)
    assert message["data"]["to"] == ["a@example.net", "b@example.net"]  # type: ignore[index]
    assert message["data"]["click"] == {  # type: ignore[index]
        "ipAddress": "192.0.2.0", "link": "https://example.com/a", "timestamp": "2026-01-02T03:04:05.678Z", "userAgent": "Mozilla/5.0",
    }  # fmt: skip
    opened = payload.render(fact("email.opened", None, **data))
    valid("email.opened", opened)
    assert opened["data"]["open"] == {  # type: ignore[index]
        "ipAddress": "192.0.2.0", "timestamp": "2026-01-02T03:04:05.678Z", "userAgent": "Mozilla/5.0",
    }  # fmt: skip
    assert "click" not in opened["data"]  # type: ignore[operator]


@pytest.mark.parametrize("data", [{}, {"reply": ""}, {"reason": "It was given up."}, {"reply": None, "type": "Transient"}])
def test_a_bounce_of_which_little_is_known(data: dict[str, Any]) -> None:
    message = payload.render(fact("email.bounced", **data))
    valid("email.bounced", message)
    assert message["data"]["bounce"]["diagnosticCode"] == []  # type: ignore[index]
