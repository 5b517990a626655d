"""The values of contacts, segments, topics and properties, and the reasons for which the store refuses to write one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import attrs

PropertyValue = str | int | float
Source = Literal["api", "dashboard", "import", "confirmation", "preferences", "one_click"]
EVERYTHING = UUID(int=0)  # in place of a topic: unsubscribed from everything
TRACKING = UUID(int=1)  # in place of a topic: objected to open and click tracking


@attrs.frozen
class Contact:
    """`properties`: by the number of the property."""

    id: UUID
    email: str
    first_name: str | None
    last_name: str | None
    unsubscribed: bool
    untracked: bool
    properties: Mapping[str, PropertyValue]
    hash: bytes = attrs.field(repr=False, converter=bytes)
    created_at: datetime
    updated_at: datetime


@attrs.frozen
class Property:
    """A custom field of contacts. `number` is the key of its values, which no other property ever has."""

    id: UUID
    number: int
    key: str
    type: Literal["string", "number"]
    fallback: PropertyValue | None
    created_at: datetime


@attrs.frozen
class Confirmation:
    """The wording of a double opt-in: the email that asks, and the page that its link opens. `{{{CONFIRM_URL}}}` is the link."""

    sender: str
    subject: str
    html: str | None
    text: str | None
    title: str
    message: str
    button: str
    done: str  # what the page says after the button was pressed


@attrs.frozen
class Segment:
    id: UUID
    name: str
    confirmation: Confirmation | None
    created_at: datetime


@attrs.frozen
class Topic:
    """`subscribed`: what holds for contacts who made no choice."""

    id: UUID
    name: str
    description: str | None
    subscribed: bool
    public: bool
    confirmation: Confirmation | None
    created_at: datetime
    updated_at: datetime


@attrs.frozen
class Choice:
    """What a contact has chosen for a topic."""

    topic_id: UUID
    subscribed: bool


@attrs.frozen
class By:
    """Who changes something about a contact, for the evidence. `text`: what the person was shown."""

    source: Source
    details: Mapping[str, str] = attrs.field(factory=dict)
    text: str | None = None

    @property
    def in_person(self) -> bool:
        """Whether the person decided, rather than the account."""
        return self.source in ("confirmation", "preferences", "one_click")


@attrs.frozen
class NewContact:
    """What to create, or to change if the address exists already. None: not given."""

    email: str
    first_name: str | None = None
    last_name: str | None = None
    unsubscribed: bool | None = None
    untracked: bool | None = None
    properties: Mapping[str, Any] = attrs.field(factory=dict)  # by key, unchecked
    segments: Sequence[UUID] = ()
    topics: Sequence[Choice] = ()


@attrs.frozen
class Limits:
    """What the operator allows: characters of a name and of a property's value, and the time to confirm a double opt-in."""

    name: int = 255
    value: int = 2000
    confirm: timedelta = timedelta(days=7)


@attrs.frozen
class Unknown(Exception):
    """There is no such segment or topic."""

    kind: Literal["segment", "topic"]
    id: UUID


@attrs.frozen
class WrongProperty(Exception):
    """A property is not defined, or the value does not fit. `why` ends a sentence that begins with the field."""

    key: str
    why: str


@attrs.frozen
class Full(Exception):
    """The account has as many of these as it may have."""

    kind: str
    most: int


@attrs.frozen
class Taken(Exception):
    """Another property has this key."""

    key: str
