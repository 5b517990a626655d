"""Webhooks in requests and responses."""

from __future__ import annotations

import base64
from uuid import UUID

from mailsvc.events import payload
from mailsvc.http.fields import SOME_ID, Choice, Moment, OneOrMany, Record, Text
from mailsvc.http.operations import LIMIT, Parameter, or_unset
from mailsvc.http.views import View, acknowledged, choice, const, count, free, maybe, one, text, time, uuid

STATUSES = ("enabled", "disabled")
SOME_MESSAGE = "msg_0190a8e65c3f7b219d4e3f2a1b0c9d8e"
SOME_ATTEMPT = "atmpt_0190a8e65c3f7b219d4e3f2a1b0c9d8e"
_MESSAGE_ID = "^msg_[0-9a-f]{32}$"
_ATTEMPT_ID = "^atmpt_[0-9a-f]{32}$"


def shown_secret(secret: bytes) -> str:
    return f"whsec_{base64.b64encode(secret).decode()}"


def shown_message(event_id: UUID) -> str:
    return f"msg_{event_id.hex}"


# Requests

_URL = "The https URL that events are sent to."
_EVENTS = "The event types to send: one or an array."


def _types(*, required: bool = False) -> OneOrMany:
    item = Choice(words=payload.TYPES, blank=False)
    return OneOrMany(_EVENTS, ["email.delivered", "email.bounced"], item=item, most=1000, noun="types", required=required, blank=False)


CREATE = Record(
    title="CreateWebhook",
    fields={
        "endpoint": Text(_URL, "https://example.com/webhooks", required=True, more={"format": "uri"}),
        "events": _types(required=True),
        "status": Choice("By default `enabled`. A disabled endpoint gets no events.", "enabled", words=STATUSES),
    },
)
UPDATE = Record(
    title="UpdateWebhook",
    fields={
        "endpoint": Text(_URL, "https://example.com/webhooks"),
        "events": _types(),
        "status": Choice("A disabled endpoint gets no events.", "enabled", words=STATUSES),
    },
)
REPLAY = Record(
    title="ReplayWebhookEvents",
    fields={
        "since": Moment("Replays events from this time on. ISO 8601 with a UTC offset.", required=True),
        "until": Moment("Replays events before this time. By default now.", "2026-01-03T03:04:05Z"),
        "status": Choice("`failed` (default): only events that failed. `all`: all of them.", "failed", words=("failed", "all")),
    },
)
TEST = Record(
    title="TestWebhook",
    fields={"type": Choice("The type of the event. By default the first type of the endpoint.", "email.delivered", words=payload.TYPES)},
)

# Parameters

AFTER_MESSAGE = Parameter(
    "after", "Returns the rows that follow the one with this ID.", SOME_MESSAGE, or_unset({"type": "string", "pattern": _MESSAGE_ID})
)
AFTER_ATTEMPT = Parameter(
    "after", "Returns the rows that follow the one with this ID.", SOME_ATTEMPT, or_unset({"type": "string", "pattern": _ATTEMPT_ID})
)
MESSAGES = (LIMIT, AFTER_MESSAGE)
ATTEMPTS = (LIMIT, AFTER_ATTEMPT)

# Responses

_SECRET = text("The secret that signs events.", "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ=")
ROW = View(
    "WebhookRow",
    {
        "id": uuid("The webhook's ID."),
        "created_at": time("When it was created."),
        "status": choice("A disabled endpoint gets no events.", STATUSES),
        "endpoint": text("The URL that events are sent to.", "https://example.com/webhooks", "url", format="uri"),
        "events": free(
            "The event types that are sent.",
            ["email.delivered", "email.bounced"],
            type="array",
            items={"type": "string", "enum": list(payload.TYPES)},
        ),
    },
)
WITH_SECRET = acknowledged("webhook", "WebhookWithSecret", "The webhook's ID.", signing_secret=_SECRET)
CHANGED = acknowledged("webhook", "ChangedWebhook", "The webhook's ID.")
DELETED = acknowledged("webhook", "DeletedWebhook", "The webhook's ID.", deleted=const(True, "Always true."))
_FAILURE = View(
    "WebhookFailure",
    {
        "at": time("When it failed.", "failed_at"),
        "status": maybe(count("The HTTP status; null if there was no response.", 503, "failed_with")),
    },
)
WEBHOOK = View(
    "Webhook",
    {
        "object": const("webhook", "Always `webhook`."),
        **ROW.values,
        "signing_secret": _SECRET,
        "disabled_reason": maybe(text("Why mailsvc disabled the endpoint.", "It failed for five days.", "disabled_why")),
        "failing_since": maybe(time("Since when all attempts have failed.")),
        "last_failure": maybe(one(_FAILURE, "The last failed attempt.", lambda webhook: webhook.failed_at and webhook)),
    },
)


_MESSAGE = {
    "id": text("The ID, also the `webhook-id` header.", SOME_MESSAGE, lambda message: shown_message(message.event_id), pattern=_MESSAGE_ID),
    "type": text("The event type.", "email.delivered"),
    "created_at": time("When the event was queued for this endpoint."),
    "status": choice("The state of the delivery.", ("success", "failed", "attempting", "pending")),
}
MESSAGE_ROW = View("WebhookEventRow", _MESSAGE)
_PAYLOAD = View(
    "WebhookPayload",
    {
        "type": text("The event type.", "email.delivered"),
        "created_at": text("When the event happened.", "2026-01-02T03:04:05.678Z"),
        "data": free("What the event is about. Its fields depend on the type: see `webhooks`.", {"email_id": SOME_ID}, type="object"),
    },
)
MESSAGE = View(
    "WebhookEvent",
    {
        "object": const("webhook_event", "Always `webhook_event`."),
        **_MESSAGE,
        "next_attempt_at": maybe(time("When it will be tried again.", "next_at")),
        "payload": maybe(one(_PAYLOAD, "The JSON that was sent.")),
    },
)
ATTEMPT_ROW = View(
    "WebhookAttempt",
    {
        "id": text("The attempt's ID.", SOME_ATTEMPT, lambda attempt: f"atmpt_{attempt.attempt_id.hex}", pattern=_ATTEMPT_ID),
        "http_status_code": maybe(count("The HTTP status. 0: there was no response, and `response` says why.", 200, "status")),
        "response": maybe(text("The beginning of the response.", "ok")),
        "sent_at": time("When it was sent.", "started_at"),
        "duration_ms": count("How long it took.", 120, lambda attempt: round(attempt.seconds * 1000)),
        "next_attempt_at": maybe(time("When it will be tried again.", "next_at")),
    },
)
REPLAYED = View(
    "ReplayedWebhookEvent",
    {
        "object": const("webhook_event", "Always `webhook_event`."),
        "id": text("The ID of the webhook event.", SOME_MESSAGE, pattern=_MESSAGE_ID),
    },
)
REPLAYED_RANGE = acknowledged(
    "webhook_replay", "ReplayedWebhookEvents", "The webhook's ID.", replayed=count("How many events will be sent again.", 12)
)
TESTED = View(
    "TestedWebhook",
    {**REPLAYED.values, "type": choice("The type of the event.", payload.TYPES)},
)
