"""The responses of the audience. Where client libraries expect different keys, there are the keys of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mailsvc.http.fields import SOME_ID
from mailsvc.http.resources.audience.fields import SUBSCRIPTIONS, TYPES, VISIBILITIES
from mailsvc.http.views import (
    Listing,
    View,
    acknowledged,
    choice,
    const,
    flag,
    free,
    many,
    maybe,
    one,
    optional,
    text,
    time,
    uuid,
)  # fmt: skip
from mailsvc.store.audience.values import Contact, Property

_DELETED = const(True, "Always true.")


# Contacts

CONTACT_ROW = View(
    "ContactRow",
    {
        "id": uuid("The contact's ID."),
        "email": text("The address.", "ada@example.net", format="email"),
        "first_name": maybe(text("The first name.", "Ada")),
        "last_name": maybe(text("The last name.", "Lovelace")),
        "created_at": time("When it was created."),
        "unsubscribed": flag("Whether the contact gets no broadcasts at all.", False),
    },
)
_VALUE = View(
    "ContactPropertyValue",
    {
        "value": free("The value.", "Analytical Ltd", anyOf=[{"type": "string"}, {"type": "number"}]),
        "type": choice("The type of the property.", TYPES),
    },
)
CONTACT = View(
    "Contact",
    {
        "object": const("contact", "Always `contact`."),
        **CONTACT_ROW.values,
        "untracked": flag("Whether the contact objected to tracking: its emails are not tracked.", False),
        "properties": free(
            "The values that the contact has, by the key of the property.",
            {"company": {"value": "Analytical Ltd", "type": "string"}},
            type="object",
            additionalProperties=_VALUE.schema,
        ),
    },
)
CONTACTS = Listing(
    CONTACT_ROW, {"after": optional(uuid("With `search`: the `after` of the next page. Left out if there is none."))}, "FoundContacts"
)
SAVED = acknowledged("contact", "SavedContact", "The contact's ID.")
DELETED = acknowledged(
    "contact", "DeletedContact", "The contact's ID.", contact=text("The same, for other libraries.", SOME_ID), deleted=_DELETED
)
REMOVED = View(
    "RemovedAudienceContact",
    {
        "object": const("contact", "Always `contact`."),
        "contact": text("The ID or the address of the request.", "ada@example.net"),
        "deleted": _DELETED,
    },
)


def shown_properties(contact: Contact, properties: Sequence[Property]) -> Mapping[str, object]:
    """Values by key. Those of deleted properties are left out."""
    values = contact.properties
    found = sorted((each.key, values[str(each.number)], each.type) for each in properties if str(each.number) in values)
    return {key: {"value": value, "type": kind} for key, value, kind in found}


# Segments and topics of a contact

CONTACT_SEGMENT = View(
    "ContactSegment",
    {
        "id": uuid("The segment's ID."),
        "name": text("The segment's name.", "Registered users"),
        "created_at": time("When the contact was added.", "added_at"),
    },
)
_MEMBERSHIP = {"contact_id": uuid("The contact's ID."), "segment_id": uuid("The segment's ID.")}
ADDED = acknowledged("contact_segment", "AddedContactSegment", "The segment's ID.", **_MEMBERSHIP)
LEFT = acknowledged("contact_segment", "RemovedContactSegment", "The segment's ID.", **_MEMBERSHIP, deleted=_DELETED)
_SUBSCRIPTION = "Whether the contact is subscribed: its own choice, otherwise the topic's default."


def subscription(subscribed: bool) -> str:
    return "opt_in" if subscribed else "opt_out"


CONTACT_TOPIC = View(
    "ContactTopic",
    {
        "id": uuid("The topic's ID."),
        "name": text("The topic's name.", "Product news"),
        "description": maybe(text("What the topic is about.", "New features, once a month")),
        "subscription": choice(_SUBSCRIPTION, SUBSCRIPTIONS, lambda topic: subscription(topic.subscribed)),
        "created_at": time("When the topic was created."),
    },
)
_CHOSEN = View(
    "ChosenTopic",
    {
        "id": uuid("The topic's ID.", "topic_id"),
        "subscription": choice("The choice.", SUBSCRIPTIONS, lambda chosen: subscription(chosen.subscribed)),
    },
)
CHOSEN = acknowledged(
    "contact_topics", "ChosenTopics", "The contact's ID.", contact_id=uuid("The same, for other libraries."),
    topics=many(_CHOSEN, "The choices of the request."),
)  # fmt: skip


# Segments

_WORDING = View(
    "DoubleOptInWording",
    {
        "from": text("The sender of the email.", "Acme <news@example.com>", "sender"),
        "subject": text("The subject of the email.", "Please confirm your subscription"),
        "html": maybe(text("The HTML of the email.", '<a href="{{{CONFIRM_URL}}}">Confirm</a>')),
        "text": maybe(text("The plain text of the email.", "Confirm: {{{CONFIRM_URL}}}")),
        "title": text("The title of the page that the link opens.", "Confirm your subscription"),
        "message": text("The text above the button of that page.", "Press the button to confirm your subscription."),
        "button": text("The label of the button.", "Confirm"),
        "done": text("What the page says after the button was pressed.", "Thank you. Your subscription is confirmed."),
    },
)
_DOUBLE_OPT_IN = maybe(one(_WORDING, "The double opt-in; null: there is none.", "confirmation"))
_SEGMENT = {
    "id": uuid("The segment's ID."),
    "name": text("The name.", "Registered users"),
    "created_at": time("When it was created."),
}
SEGMENT_ROW = View("SegmentRow", _SEGMENT)
SEGMENT = View("Segment", {"object": const("segment", "Always `segment`."), **_SEGMENT, "double_opt_in": _DOUBLE_OPT_IN})
SEGMENT_CREATED = View("CreatedSegment", {"object": const("segment", "Always `segment`."), "id": _SEGMENT["id"], "name": _SEGMENT["name"]})
SEGMENT_CHANGED = acknowledged("segment", "ChangedSegment", "The segment's ID.")
SEGMENT_DELETED = acknowledged("segment", "DeletedSegment", "The segment's ID.", deleted=_DELETED)
AUDIENCE = View("Audience", {"object": const("audience", "Always `audience`."), **_SEGMENT})
AUDIENCE_CREATED = View(
    "CreatedAudience", {"object": const("audience", "Always `audience`."), "id": _SEGMENT["id"], "name": _SEGMENT["name"]}
)
AUDIENCE_DELETED = acknowledged("audience", "DeletedAudience", "The segment's ID.", deleted=_DELETED)


# Topics

TOPIC_ROW = View(
    "TopicRow",
    {
        "id": uuid("The topic's ID."),
        "name": text("The name.", "Product news"),
        "description": maybe(text("What the topic is about.", "New features, once a month")),
        "default_subscription": choice(
            "Whether contacts who made no choice are subscribed.", SUBSCRIPTIONS, lambda topic: subscription(topic.subscribed)
        ),
        "visibility": choice(
            "Who sees it on the preference page: everybody, or only who is subscribed.",
            VISIBILITIES,
            lambda topic: "public" if topic.public else "private",
        ),
        "created_at": time("When it was created."),
    },
)
TOPIC = View("Topic", {"object": const("topic", "Always `topic`."), **TOPIC_ROW.values, "double_opt_in": _DOUBLE_OPT_IN})
TOPIC_SAVED = acknowledged("topic", "SavedTopic", "The topic's ID.")
TOPIC_DELETED = acknowledged("topic", "DeletedTopic", "The topic's ID.", deleted=_DELETED)


# Contact properties

PROPERTY = View(
    "ContactProperty",
    {
        "object": const("contact_property", "Always `contact_property`."),
        "id": uuid("The property's ID."),
        "key": text("The name in placeholders and in `properties`.", "company"),
        "type": choice("The type of its values.", TYPES),
        "fallback_value": free(
            "What placeholders show for contacts without a value.", "there", "fallback",
            anyOf=[{"type": "string"}, {"type": "number"}, {"type": "null"}],
        ),
        "created_at": time("When it was created."),
    },
)  # fmt: skip
PROPERTY_SAVED = acknowledged("contact_property", "SavedContactProperty", "The property's ID.")
PROPERTY_DELETED = acknowledged("contact_property", "DeletedContactProperty", "The property's ID.", deleted=_DELETED)
