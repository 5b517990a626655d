"""Broadcasts in requests and responses."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import attrs

from mailsvc.http.fields import SOME_ID, Bounds, Field, Flag, Id, OneOrMany, Record, Rules, Text, Unsupported
from mailsvc.http.operations import Parameter, one_of
from mailsvc.http.problem import Problem, invalid
from mailsvc.http.resources.audience.fields import page_text
from mailsvc.http.resources.send_fields import Address, Schedule
from mailsvc.http.views import (
    Listing,
    View,
    acknowledged,
    choice,
    const,
    count,
    free,
    many,
    maybe,
    one,
    optional,
    text,
    texts,
    time,
    uuid,
)  # fmt: skip
from mailsvc.store.broadcasts.settings import BroadcastSettings
from mailsvc.store.broadcasts.values import Broadcast

STATUSES = ("draft", "scheduled", "queued", "sent", "canceled", "failed")
KINDS = ("sent", "delivered", "opened", "clicked", "bounced", "complained", "unsubscribed", "suppressed")
BOUNCES = ("permanent", "transient", "undetermined")
COLORS = ("background", "text", "accent")
_COLOR = re.compile(r"#[0-9A-Fa-f]{6}")
_LOGO = re.compile(r"https://[!-;=?-~]{1,2000}")
_TEXT_ABOUT = 'The plain text version. By default it is made from `html`; `""` leaves it out.'
_PLACEHOLDERS = "Placeholders such as `{{{contact.first_name|there}}}` are replaced by each contact's values."


@attrs.frozen
class Whole(Field):
    """A whole number from 1 on."""

    most: int = attrs.field(default=1_000_000_000, kw_only=True)

    def form(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": 1, "maximum": self.most}

    def read(self, value: Any, place: str, rules: Rules) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= self.most:
            raise invalid(f"The `{place}` field must be a whole number from 1 to {self.most}.")
        return value


# Requests


def _message(bounds: Bounds) -> int:
    """A part of a message cannot be longer than a message."""
    return bounds.email.message


_SHARED: Mapping[str, Field] = {
    "name": Text(
        "A name for you; recipients don't see it. By default the subject.", "November news", most=lambda bounds: bounds.broadcasts.name
    ),
    "segment_id": Id("The segment whose contacts get the broadcast.", blank=True),
    "audience_id": Id("The former name of `segment_id`.", blank=True),
    "from": Address(
        "The sender: `someone@example.com` or `Name <someone@example.com>`, from one of your verified domains.",
        "Acme <news@example.com>",
        error="invalid_from_address",
    ),
    "subject": Text(
        f"The subject. {_PLACEHOLDERS}", "News for {{{contact.first_name|you}}}", most=lambda bounds: bounds.broadcasts.subject
    ),
    "reply_to": OneOrMany(
        "Where replies go.", ["support@example.com"], item=Address(), most=lambda bounds: bounds.broadcasts.reply_to, noun="addresses"
    ),
    "preview_text": Text(
        "What mail programs show beside the subject.", "What changed this month", most=lambda bounds: bounds.broadcasts.preview
    ),
    "html": Text(f"The HTML version. {_PLACEHOLDERS}", "<p>Hi {{{contact.first_name|there}}}</p>", most=_message),
    "text": Text(_TEXT_ABOUT, "Hi {{{contact.first_name|there}}}", blank=False, most=_message),
    "topic_id": Id("Only contacts who are subscribed to this topic get the broadcast.", blank=True),
    "hourly_rate": Whole("The maximum number of recipients per hour. By default as fast as possible.", 10_000),
}
_SCHEDULED_AT = Schedule("When to send: ISO 8601, or English such as `tomorrow at 9am`. By default now.")
CREATE = Record(
    title="CreateBroadcast",
    fields={
        **_SHARED,
        "from": attrs.evolve(_SHARED["from"], required=True),
        "subject": attrs.evolve(_SHARED["subject"], required=True),
        "send": Flag("Send it now, or at `scheduled_at`. By default it stays a draft.", True),
        "scheduled_at": attrs.evolve(_SCHEDULED_AT, about=f"{_SCHEDULED_AT.about} Only with `send`."),
    },
    example={
        "segment_id": SOME_ID,
        "from": "Acme <news@example.com>",
        "subject": "News",
        "html": "<p>Hi {{{contact.first_name|there}}}</p>",
    },
)
_SENDING = Unsupported("Send it with `POST /broadcasts/{id}/send`; if it is scheduled already, cancel it first.")
UPDATE = Record(title="UpdateBroadcast", fields={**_SHARED, "send": _SENDING, "scheduled_at": _SENDING})
SEND = Record(title="SendBroadcast", fields={"scheduled_at": _SCHEDULED_AT})
PAGE = Record(
    title="UpdatePreferencePage",
    fields={
        "title": Text("The heading.", "Your subscriptions", most=100),
        "message": Text("The text below the heading.", "Choose what you want to hear about.", most=page_text),
        "logo": Text("The https URL of an image.", "https://example.com/logo.png", pattern=_LOGO, says="must be an https URL"),
        **{
            f"{name}_color": Text(f"The {name} color in the light theme.", "#0055aa", pattern=_COLOR, says="must have the form #rrggbb")
            for name in COLORS
        },
        "hourly_rate": Whole("The maximum number of recipients of all broadcasts per hour.", 50_000),
    },
)

# Query parameters

KIND = Parameter("type", "What happened to the recipients' emails.", "delivered", one_of(*KINDS), required=True)
EMAIL = Parameter(
    "email",
    "Returns only addresses that contain this text, or only the recipient whose whole address it is.",
    "example.net",
    {"type": "string"},
)
BOUNCE = Parameter("bounce_type", "With `type=bounced`: returns only bounces of this kind.", "permanent", one_of(*BOUNCES))
CONTACT = Parameter("contact", "The contact: an ID or an address.", "ada@example.net", {"type": "string"}, required=True)
_CURSOR = {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"}
CURSORS = (
    Parameter("limit", "The number of rows on a page.", 20, {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 100}, {"const": ""}]}),
    Parameter("after", "Returns the rows that follow the one with this ID. Not together with `before`.", "AZCo5lw_eyGdTg", _CURSOR),
    Parameter("before", "Returns the rows that precede the one with this ID. Not together with `after`.", "AZCo5lw_eyGdTg", _CURSOR),
)


def cursor(text: str, name: str) -> UUID:
    """The row that the ID of a row in a list stands for."""
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except (ValueError, binascii.Error):
        raise Problem(422, "invalid_parameter", f"The `{name}` must be the ID of a row.") from None


def cursor_of(row: UUID) -> str:
    return base64.urlsafe_b64encode(row.bytes).decode().rstrip("=")


# Responses


def expected_end(broadcast: Broadcast) -> datetime | None:
    """When the last contact will have been looked at, if it goes on as fast as so far. None: not known, or something holds it up."""
    if broadcast.status != "queued" or broadcast.ended_at or broadcast.paused_at or broadcast.reason:
        return None
    if not broadcast.started_at or not broadcast.next_at:
        return None
    seconds = (broadcast.next_at - broadcast.started_at).total_seconds()
    if not broadcast.passed or not broadcast.total or seconds <= 0:
        return None
    return broadcast.next_at + timedelta(seconds=max(0, broadcast.total - broadcast.passed) * seconds / broadcast.passed)


PROGRESS = View(
    "BroadcastProgress",
    {
        "contacts": maybe(count("Contacts of the segment when sending started.", 1200, "total")),
        "processed": count("Contacts that were looked at so far.", 400, "passed"),
        "emails": count("Emails that were created so far; contacts who don't want the broadcast get none.", 380, "queued"),
        "expected_end": maybe(time("When all contacts will have been looked at.", expected_end)),
        "paused_at": maybe(
            time(
                "Since when it is paused: too many emails bounced or were reported as spam, its topic was deleted, "
                "or its domain can no longer send."
            )
        ),
        "reason": maybe(text("Why it is paused, waits or could not be sent.", "100 of 1,000 emails bounced.")),
    },
)
ROW = View(
    "BroadcastRow",
    {
        "id": uuid("The broadcast's ID."),
        "name": text("Its name.", "November news"),
        "audience_id": maybe(uuid("The former name of `segment_id`.", "segment_id")),
        "segment_id": maybe(uuid("The segment, which may have been deleted. Null if none was chosen.")),
        "topic_id": maybe(uuid("The topic.")),
        "status": choice("The state.", STATUSES),
        "created_at": time("When it was created."),
        "scheduled_at": maybe(time("When it will be sent, if it was scheduled.")),
        "sent_at": maybe(time("When it had been sent to everybody.")),
    },
)
BROADCAST = View(
    "Broadcast",
    {
        "object": const("broadcast", "Always `broadcast`."),
        **ROW.values,
        "from": text("The sender.", "Acme <news@example.com>", "sender"),
        "subject": text("The subject.", "News for {{{contact.first_name|you}}}"),
        "reply_to": maybe(texts("Where replies go.", ["support@example.com"], lambda broadcast: broadcast.reply_to or None)),
        "preview_text": text("What mail programs show beside the subject.", "What changed this month"),
        "html": maybe(text("The HTML version.", "<p>Hi {{{contact.first_name|there}}}</p>")),
        "text": maybe(text("The plain text version.", "Hi {{{contact.first_name|there}}}")),
        "hourly_rate": maybe(count("The maximum number of recipients per hour.", 10_000)),
        "progress": one(PROGRESS, "How far sending has come.", lambda broadcast: broadcast),
        "counts": free(
            "How many emails were sent, delivered, bounced and so on; how often they were opened and clicked, and how many of them "
            "(`unique_opened`, `unique_clicked`); and how many recipients unsubscribed.",
            {"sent": 380, "delivered": 371, "bounced": 9, "opened": 210, "unique_opened": 150, "unsubscribed": 2},
            type="object",
            additionalProperties={"type": "integer", "minimum": 0},
        ),
    },
)
CREATED = acknowledged("broadcast", "CreatedBroadcast", "The broadcast's ID.")
CHANGED = acknowledged("broadcast", "ChangedBroadcast", "The broadcast's ID.")
DELETED = acknowledged("broadcast", "DeletedBroadcast", "The broadcast's ID.", deleted=const(True, "Always true."))
CLICKED_LINK = View(
    "ClickedLink",
    {
        "id": text("For paging: the value for `after` and `before`.", "AZCo5lw_eyGdTg"),
        "url": text("The URL.", "https://example.com/a"),
        "clicks": count("How often it was followed.", 120),
        "unique_clicks": count("By how many recipients.", 80),
        "machine_clicks": count("How many of the clicks were made by programs, as far as they are recognised.", 30),
    },
)
_RECIPIENT_LINK = View(
    "RecipientLink",
    {
        "url": text("The URL.", "https://example.com/a", lambda link: link["url"]),
        "clicks": count("How often.", 3, lambda link: link["clicks"]),
    },
)
RECIPIENT = View(
    "BroadcastRecipient",
    {
        "id": text("For paging: the value for `after` and `before`.", "AZCo5lw_eyGdTg"),
        "contact_id": maybe(uuid("The contact. Null if it was deleted.", "present")),
        "email": text("The address.", "ada@example.net"),
        "count": optional(count("How often: of `opened` and `clicked`.", 3)),
        "bounce_type": optional(choice("Of `bounced`: the kind of the bounce.", BOUNCES)),
        "clicked_links": optional(many(_RECIPIENT_LINK, "Of `clicked`: the links that were followed, the first 100.")),
    },
)
_FOLLOWING = "The value of this parameter for the next page. Left out if there is none."
RECIPIENTS = Listing(
    RECIPIENT,
    {name: optional(text(_FOLLOWING, "AZCo5lw_eyGdTg")) for name in ("after", "before")},
    "FoundBroadcastRecipients",
)
PREVIEW_VIEW = View(
    "BroadcastPreview",
    {
        "object": const("broadcast_preview", "Always `broadcast_preview`."),
        "contact_id": uuid("The contact."),
        "subject": text("The contact's subject.", "News for Ada"),
        "preview_text": text("The contact's preview text.", "What changed this month"),
        "html": maybe(text("The contact's HTML.", "<p>Hi Ada</p>")),
        "text": maybe(text("The contact's plain text.", "Hi Ada")),
    },
)
MISSING = View(
    "MissingValue",
    {"key": text("The field or property.", "first_name"), "contacts": count("How many contacts of the segment have no value.", 12)},
)
REVIEW = View(
    "BroadcastReview",
    {
        "object": const("broadcast_review", "Always `broadcast_review`."),
        "contacts": count("Contacts of the segment.", 1200),
        "problems": texts("What prevents sending, or should be looked at before.", ["The content has no unsubscribe link."]),
        "missing": many(MISSING, "Values that the content uses without a fallback, and that contacts don't have."),
    },
)


def _color_of(name: str) -> Any:
    return lambda settings: settings.colors.get(name)


SETTINGS = View(
    "PreferencePage",
    {
        "object": const("preference_page", "Always `preference_page`."),
        "title": maybe(text("The heading.", "Your subscriptions")),
        "message": maybe(text("The text below the heading.", "Choose what you want to hear about.")),
        "logo": maybe(text("The URL of an image.", "https://example.com/logo.png")),
        **{f"{name}_color": maybe(text(f"The {name} color in the light theme.", "#0055aa", _color_of(name))) for name in COLORS},
        "hourly_rate": maybe(count("The maximum number of recipients of all broadcasts per hour.", 50_000)),
    },
)


def settings_of(before: BroadcastSettings, given: Mapping[str, Any]) -> BroadcastSettings:
    """The settings after a request, which has the fields to change; null sets the default."""
    colors = {name: given[f"{name}_color"] if f"{name}_color" in given else before.colors.get(name) for name in COLORS}
    plain = {name: value for name, value in given.items() if not name.endswith("_color")}
    return attrs.evolve(before, **plain, colors={name: value for name, value in colors.items() if value})
