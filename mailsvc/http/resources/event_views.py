"""Each event type as webhooks send it, for the description. What makes the JSON: `events/payload`."""

from __future__ import annotations

from collections.abc import Mapping

from mailsvc.events import payload
from mailsvc.http.operations import Parameter
from mailsvc.http.resources.domain_fields import EVENT_DATA as DOMAIN
from mailsvc.http.resources.webhook_fields import SOME_MESSAGE
from mailsvc.http.views import Value, View, choice, const, flag, free, iso, many, maybe, one, optional, text, texts, uuid

_EMAIL = {
    "email_id": uuid("The email's ID."),
    "created_at": iso("When the email was accepted."),
    "message_id": text("The Message-ID header field.", "<0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e@example.com>"),
    "from": text("The sender.", "Acme <hello@example.com>"),
    "to": texts("The recipients that the event is about.", ["someone@example.net"]),
    "subject": text("The subject.", "Your order has shipped"),
    "broadcast_id": optional(uuid("The broadcast that the email is part of.")),
    "tags": optional(
        free("The tags.", {"category": "welcome"}, type="object", additionalProperties={"type": "string"}),
    ),
    "headers": optional(
        many(
            View(
                "EventHeader",
                {"name": text("The name.", "X-Entity-Ref-ID"), "value": text("The value.", "order-1234")},
            ),
            "The additional header fields of the email.",
        )
    ),
}
_CODES = texts("What the recipient's server answered.", ["smtp; 550 5.1.1 No such user"])
_BOUNCE = View(
    "EventBounce",
    {
        "type": choice("Whether the failure is permanent.", ("Permanent", "Transient", "Undetermined")),
        "subType": text("The kind of bounce.", "General"),
        "message": text("What happened and what it means.", "550 5.1.1 No such user. The address does not exist."),
        "diagnosticCode": _CODES,
    },
)
_SUPPRESSED = View(
    "EventSuppression",
    {
        "type": text("The list that has the address.", "OnAccountSuppressionList"),
        "message": text("Why it is suppressed.", "A previous email bounced."),
        "diagnosticCode": _CODES,
        "reason": optional(choice("What suppressed it.", ("previous_bounce", "previous_complaint"))),
    },
)
_FAILED = View("EventFailure", {"reason": text("Why it failed.", "The sending domain was deleted.")})
_OPEN = View(
    "EventOpen",
    {
        "ipAddress": text("The IP address that opened the email. The operator can have it shortened to its network.", "192.0.2.0"),
        "timestamp": iso("When the email was opened."),
        "userAgent": text("The User-Agent header field of the mail program or its proxy.", "Mozilla/5.0 (X11; Linux x86_64)"),
    },
)
_CLICK = View(
    "EventClick",
    {
        "ipAddress": text("The IP address that followed the link. The operator can have it shortened to its network.", "192.0.2.0"),
        "link": text("The link's URL.", "https://example.com/a"),
        "timestamp": iso("When the link was followed."),
        "userAgent": text("The User-Agent header field of the browser.", "Mozilla/5.0 (X11; Linux x86_64)"),
    },
)
_MORE: Mapping[str, Mapping[str, Value]] = {
    "email.bounced": {"bounce": one(_BOUNCE, "The bounce.")},
    "email.suppressed": {"suppressed": one(_SUPPRESSED, "The suppression.")},
    "email.opened": {"open": one(_OPEN, "The open.")},
    "email.clicked": {"click": one(_CLICK, "The click.")},
    "email.failed": {"failed": one(_FAILED, "The failure.")},
}
_SUPPRESSION = View(
    "SuppressionEventData",
    {
        "id": uuid("The suppression's ID."),
        "created_at": iso("When it was added."),
        "email": text("The address.", "someone@example.net", format="email"),
        "origin": choice("Why the address is suppressed.", ("bounce", "complaint", "manual")),
        "source_id": maybe(uuid("The ID of the email that caused it.")),
    },
)
_CONTACT = View(
    "ContactEventData",
    {
        "id": uuid("The contact's ID."),
        "audience_id": text("The first of `segment_ids`; empty if there is none.", "0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e"),
        "segment_ids": texts("The segments that the contact is in.", ["0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e"]),
        "created_at": iso("When the contact was created."),
        "updated_at": iso("When it was last changed."),
        "email": text("The address.", "ada@example.net", format="email"),
        "first_name": maybe(text("The first name.", "Ada")),
        "last_name": maybe(text("The last name.", "Lovelace")),
        "unsubscribed": flag("Whether the contact gets no broadcasts at all.", False),
    },
)
_SUBSCRIPTIONS = ("opt_in", "opt_out")
_CHOICE = View(
    "TopicChoiceEvent", {"id": uuid("The topic's ID."), "subscription": choice("Whether the contact is subscribed now.", _SUBSCRIPTIONS)}
)
_CHOICES = View(
    "ContactTopicsEventData",
    {"email": text("The contact's address.", "ada@example.net"), "topics": many(_CHOICE, "The topics that changed.")},
)
_TOPIC = View(
    "TopicEventData",
    {
        "id": uuid("The topic's ID."),
        "name": text("The name.", "Product news"),
        "description": maybe(text("What the topic is about.", "New features, once a month")),
        "default_subscription": choice("Whether contacts who made no choice are subscribed.", _SUBSCRIPTIONS),
        "deleted": flag("Whether the topic was deleted.", False),
        "created_at": iso("When the topic was created."),
        "updated_at": iso("When it was last changed."),
    },
)
_OTHER = free("What the event is about.", {"id": "0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e"}, type="object", additionalProperties=True)


def _data(kind: str) -> Value:
    group = kind.partition(".")[0]
    if group == "email":
        view = View(f"{_title(kind)}Data" if kind in _MORE else "EmailEventData", {**_EMAIL, **_MORE.get(kind, {})})
        return one(view, "The email.")
    if group == "domain":
        return one(DOMAIN, "The domain.")
    if kind == "contact.topics.updated":
        return one(_CHOICES, "The choices.")
    if group in ("contact", "topic"):
        return one(_CONTACT, "The contact.") if group == "contact" else one(_TOPIC, "The topic.")
    return one(_SUPPRESSION, "The suppression.") if group == "suppression" else _OTHER


def _title(kind: str) -> str:
    return "".join(word.capitalize() for word in kind.replace("_", ".").split(".")) + "Event"


EVENTS: Mapping[str, View] = {
    kind: View(
        _title(kind),
        {"type": const(kind, "The event type."), "created_at": iso("When the event happened."), "data": _data(kind)},
    )
    for kind in payload.TYPES
}

_STRING = {"type": "string"}
DELIVERY_HEADERS = tuple(
    Parameter(f"{family}-{name}", about, example, _STRING, where="header", required=True)
    for family in ("webhook", "svix")
    for name, about, example in (
        ("id", "The ID of the event, the same for every attempt.", SOME_MESSAGE),
        ("timestamp", "When the request was signed: seconds since 1970.", "1767323045"),
        (
            "signature",
            "HMAC-SHA256 signatures of `id.timestamp.body`, separated by spaces.",
            "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
        ),
    )
)
