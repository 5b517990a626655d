"""The request bodies of the audience, and how IDs and addresses in its paths are read. Responses: views."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import attrs

from mailsvc.audience.double_opt_in import LINK
from mailsvc.http.fields import (
    NO_ENTRIES,
    SOME_ID,
    Bounds,
    Choice,
    Field,
    Flag,
    Id,
    Record,
    Records,
    Rules,
    Text,
    Unsupported,
    Wrong,
    fixed,
    no_entries,
)
from mailsvc.http.problem import Problem, invalid, not_found
from mailsvc.http.resources.send_fields import Address, BareAddress
from mailsvc.http.strict_json import shortened
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.mail.header import FORBIDDEN
from mailsvc.store.audience.contacts import Ref
from mailsvc.store.audience.values import Choice as TopicChoice
from mailsvc.store.audience.values import Confirmation, Full, Unknown, WrongProperty

SUBSCRIPTIONS = ("opt_in", "opt_out")
VISIBILITIES = ("private", "public")
TYPES = ("string", "number")
RESERVED = ("email", "first_name", "last_name", "unsubscribed", "id", "created_at", "unsubscribe_url")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
_KEY = re.compile(r"[A-Za-z0-9_]{1,50}")


# The limits that the operator sets (settings/audience).


def _name(bounds: Bounds) -> int:
    return bounds.audience.name


def _choices(bounds: Bounds) -> int:
    return bounds.audience.choices


def _wording_length(bounds: Bounds) -> int:
    return bounds.audience.wording


def page_text(bounds: Bounds) -> int:
    """Of a text on the pages for recipients."""
    return bounds.audience.page_text


def contact_ref(text: str) -> Ref:
    """A contact's ID or address in a path."""
    if _UUID.match(text):
        return UUID(text)
    if "@" not in text:
        raise not_found("Contact")
    try:
        return parse_mailbox(text).address
    except AddressError:
        raise not_found("Contact") from None


def problem(wrong: Exception) -> Problem:
    """Why the store refuses to write something."""
    match wrong:
        case Unknown("segment"):
            return not_found("Audience")
        case Unknown():
            return not_found("Topic")
        case WrongProperty(key, why):
            return invalid(f"The `properties.{shortened(key)}` field {why}.")
        case Full(kind, most):
            return invalid(f"The account has {most} {kind}, which is the maximum. Delete some first.")
    raise wrong


REFUSED = (Unknown, WrongProperty, Full)


@attrs.frozen
class Values(Field):
    """Values of properties by key. Which keys there are and what they accept is up to the account."""

    def form(self) -> dict[str, Any]:
        value = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}
        return {"anyOf": [{"type": "object", "additionalProperties": value}, NO_ENTRIES]}

    def read(self, value: Any, place: str, rules: Rules) -> Mapping[str, Any]:
        if no_entries(value):
            return {}
        if not isinstance(value, dict):
            raise invalid(f"The `{place}` field must be an object.")
        for key, content in value.items():
            if content is not None and not isinstance(content, str | int | float | bool):
                raise invalid(f"The `{place}.{shortened(key)}` field must be a string, a number or null.")
            if isinstance(content, str) and "\0" in content:
                raise invalid(f"The `{place}.{shortened(key)}` field must not have a NUL character.")
        return value


@attrs.frozen
class SegmentId(Field):
    """A segment's ID, alone or as `{"id": …}`."""

    def form(self) -> dict[str, Any]:
        named = {
            "type": "object",
            "title": "SegmentReference",
            "properties": {"id": Id(about="The segment's ID.").schema},
            "required": ["id"],
        }
        return {"anyOf": [Id().form(), named]}

    def read(self, value: Any, place: str, rules: Rules) -> UUID:
        if isinstance(value, dict):
            value, place = value.get("id"), f"{place}.id"
        return Id().read(value, place, rules)


@attrs.frozen
class SegmentIds(Field):
    """An array of them."""

    def form(self) -> dict[str, Any]:
        return {"type": "array", "items": SegmentId().form(), "maxItems": _choices}

    def read(self, value: Any, place: str, rules: Rules) -> tuple[UUID, ...]:
        most = _choices(rules.bounds)
        if not isinstance(value, list) or len(value) > most:
            raise invalid(f"The `{place}` field must be an array of at most {most} segments.")
        return tuple(SegmentId().read(item, f"{place}[{index}]", rules) for index, item in enumerate(value))


def _choice(found: dict[str, Any], place: str) -> TopicChoice:
    return TopicChoice(found["id"], found["subscription"] == "opt_in")


_SUBSCRIPTION = Choice("Whether the contact is subscribed to the topic.", "opt_in", words=SUBSCRIPTIONS, required=True)
TOPIC_CHOICE = Record(
    title="TopicChoice", fields={"id": Id("The topic's ID.", required=True), "subscription": _SUBSCRIPTION}, make=_choice, noun="topic"
)
TOPIC_CHOICES = Records("Choices of topics.", item=TOPIC_CHOICE, most=_choices)


@attrs.frozen
class ChoicesBody(Field):
    """Choices as an array, as most libraries send them, or as `{"topics": […]}`."""

    def form(self) -> dict[str, Any]:
        wrapped = {"title": "TopicChoices", "type": "object", "properties": {"topics": TOPIC_CHOICES.schema}, "required": ["topics"]}
        return {"anyOf": [TOPIC_CHOICES.form(), wrapped]}

    def read(self, value: Any, place: str, rules: Rules) -> tuple[TopicChoice, ...]:
        if isinstance(value, dict):
            if value.get("topics") is None:
                raise Problem(422, "missing_required_field", "Missing `topics` field.")
            value, place = value["topics"], "topics"
        if not isinstance(value, list):
            raise invalid("The request body must be an array of topics.")
        return tuple(TOPIC_CHOICES.read(value, place or "topics", rules))


CHOICES = ChoicesBody(example=[{"id": SOME_ID, "subscription": "opt_out"}])

_NAMES = {
    "first_name": Text("The first name. null removes it.", "Ada", most=_name),
    "last_name": Text("The last name. null removes it.", "Lovelace", most=_name),
}
_PROPERTIES = Values("Values of contact properties by key. null removes one.", {"company": "Analytical Ltd", "seats": 12})
_ONE_SEGMENT = Id("A segment that the contact is added to, besides `segments`.", blank=True)
_AUDIENCE = Id("Deprecated: a segment that the contact is added to.")
_EMAIL = BareAddress("The address, which identifies the contact.", "ada@example.net", required=True)
_UNSUBSCRIBED = "Whether the contact gets no broadcasts at all, whatever its topics."
_UNTRACKED = "Whether the contact objected to tracking: no email to it is tracked, neither of a broadcast nor any other."
LEGACY_CREATE = Record(
    title="CreateAudienceContact",
    fields={
        "email": _EMAIL,
        **_NAMES,
        "unsubscribed": Flag(f"{_UNSUBSCRIBED} false does not subscribe a contact again that exists already.", False),
        "untracked": Flag(f"{_UNTRACKED} false does not withdraw an objection.", False),
        "properties": _PROPERTIES,
    },
)
CREATE = Record(
    title="CreateContact",
    fields={
        **LEGACY_CREATE.fields,
        "segments": SegmentIds("Segments that the contact is added to.", [{"id": SOME_ID}]),
        "topics": attrs.evolve(TOPIC_CHOICES, about="Choices of topics. `opt_in` does not replace an earlier `opt_out`."),
        "segment_id": _ONE_SEGMENT,
        "audience_id": _AUDIENCE,
    },
)
UPDATE = Record(
    title="UpdateContact",
    fields={
        **_NAMES,
        "unsubscribed": Flag(f"{_UNSUBSCRIBED} false subscribes the contact again.", True),
        "untracked": Flag(f"{_UNTRACKED} false withdraws the objection.", True),
        "properties": _PROPERTIES,
        **fixed(CREATE, "email"),
        "segments": Unsupported("Use `POST /contacts/{contact}/segments/{segment_id}`."),
        "topics": Unsupported("Use `PATCH /contacts/{contact}/topics`."),
    },
)

# Double opt-in


def _wording(found: dict[str, Any], place: str) -> Confirmation:
    if not any(LINK in (found[name] or "") for name in ("html", "text")):
        raise invalid(f"The `{place}` field must have `html` or `text`, with {LINK} where the link goes.")
    texts = {name: found[name] or default for name, default in _PAGE.items()}
    return Confirmation(found["from"].display, found["subject"], found["html"], found["text"], **texts)


def _line(text: str) -> str:
    """The value of a header field. With other characters, no email could be composed, and nobody would be asked."""
    if FORBIDDEN.search(text):
        raise Wrong("must not have line breaks or other control characters")
    return text


_PAGE = {
    "title": "Confirm your subscription",
    "message": "Press the button to confirm your subscription.",
    "button": "Confirm",
    "done": "Thank you. Your subscription is confirmed.",
}
_ABOUT_PAGE = {
    "title": "The title of the page that the link opens.",
    "message": "The text above the button of that page.",
    "button": "The label of the button.",
    "done": "What the page says after the button was pressed.",
}
DOUBLE_OPT_IN = Record(
    "Asks contacts to confirm by email before they are added. null turns it off.",
    title="DoubleOptIn",
    fields={
        "from": Address("The sender, at a verified domain.", "Acme <news@example.com>", required=True),
        "subject": Text("The subject of the email.", "Please confirm your subscription", least=1, most=255, required=True, parse=_line),
        "html": Text(f"The HTML of the email, with {LINK} where the link goes.", f'<a href="{LINK}">Confirm</a>', most=_wording_length),
        "text": Text("The plain text of the email. By default it is generated from the HTML.", f"Confirm: {LINK}", most=_wording_length),
        **{name: Text(_ABOUT_PAGE[name], default, most=page_text) for name, default in _PAGE.items()},
    },
    example={"from": "Acme <news@example.com>", "subject": "Please confirm your subscription", "text": f"Confirm: {LINK}"},
    make=_wording,
)

# Segments, topics, properties

_SEGMENT_NAME = Text("The name, which contacts do not see.", "Registered users", least=1, most=100, required=True)
CREATE_SEGMENT = Record(title="CreateSegment", fields={"name": _SEGMENT_NAME, "double_opt_in": DOUBLE_OPT_IN})
UPDATE_SEGMENT = Record(title="UpdateSegment", fields={"name": attrs.evolve(_SEGMENT_NAME, required=False), "double_opt_in": DOUBLE_OPT_IN})
CREATE_AUDIENCE = Record(title="CreateAudience", fields={"name": _SEGMENT_NAME})
_TOPIC = {
    "name": Text("The name, which contacts see.", "Product news", least=1, most=50, required=True),
    "description": Text("What the topic is about. Contacts see it.", "New features, once a month", most=200),
    "visibility": Choice(
        "`public`: every contact sees it on the preference page. `private`: only those who are subscribed.", "private", words=VISIBILITIES
    ),
    "double_opt_in": DOUBLE_OPT_IN,
}
CREATE_TOPIC = Record(
    title="CreateTopic",
    fields={
        **_TOPIC,
        "default_subscription": Choice(
            "Whether contacts who made no choice are subscribed. It cannot be changed later.", "opt_in", words=SUBSCRIPTIONS, required=True
        ),
    },
)
UPDATE_TOPIC = Record(
    title="UpdateTopic",
    fields={**_TOPIC, "name": attrs.evolve(_TOPIC["name"], required=False), **fixed(CREATE_TOPIC, "default_subscription")},
)


@attrs.frozen
class Fallback(Field):
    """A string or a number. Whether it fits the type of the property is checked with the type."""

    def form(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, {"type": "number"}]}

    def read(self, value: Any, place: str, rules: Rules) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise invalid(f"The `{place}` field must be a string or a number.")
        return value


_FALLBACK = Fallback("What placeholders show for contacts without a value. It has the type of the property.", "there")


def _unreserved(key: str) -> str:
    """The property would hide the field in placeholders."""
    if key.lower() in RESERVED:
        raise Wrong(f"must not be `{key}`, which every contact has already")
    return key


PROPERTY_KEY = Text(
    "The name in placeholders and in `properties`. It cannot be changed later.", "company", required=True, most=50,
    pattern=_KEY, says="must have 1 to 50 letters, digits or underscores", parse=_unreserved,
)  # fmt: skip
CREATE_PROPERTY = Record(
    title="CreateContactProperty",
    fields={
        "key": PROPERTY_KEY,
        "type": Choice("The type of its values. It cannot be changed later.", "string", words=TYPES, required=True),
        "fallback_value": _FALLBACK,
    },
)  # fmt: skip
UPDATE_PROPERTY = Record(title="UpdateContactProperty", fields={"fallback_value": _FALLBACK, **fixed(CREATE_PROPERTY, "key", "type")})
