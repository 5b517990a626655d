"""What exports of other services are read into. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import attrs

from mailsvc.store.events.suppressions import Origin

Kind = Literal["suppressions", "contacts", "segments", "domains"]
KINDS: Sequence[Kind] = ("suppressions", "contacts", "segments", "domains")


@attrs.frozen
class Suppressed:
    """An address that gets no mail."""

    email: str
    origin: Origin


@attrs.frozen
class Person:
    """A contact. `segments`: their names, or their IDs in the other service."""

    email: str
    first_name: str = ""
    last_name: str = ""
    unsubscribed: bool = False
    segments: Sequence[str] = ()


@attrs.frozen
class Named:
    """A segment, whose `id` contacts may refer to, or a domain."""

    kind: Kind
    name: str
    id: str = ""


Record = Suppressed | Person | Named


@attrs.frozen
class Wrong:
    """A row that cannot be imported. `number`: of the row in the file, counted from 1 without the header."""

    file: str
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, row {self.number}: {self.reason}"


@attrs.define
class Export:
    """The contents of all files together, each address and each name once."""

    suppressed: dict[str, Suppressed] = attrs.field(factory=dict)  # by the address in lower case
    people: dict[str, Person] = attrs.field(factory=dict)  # likewise
    segments: dict[str, str] = attrs.field(factory=dict)  # names by ID, or by name if there is none
    domains: dict[str, None] = attrs.field(factory=dict)
    wrong: list[Wrong] = attrs.field(factory=list)

    def add(self, record: Record) -> None:
        if isinstance(record, Suppressed):
            self.suppressed.setdefault(record.email.lower(), record)
        elif isinstance(record, Person):
            known = self.people.get(record.email.lower())
            self.people[record.email.lower()] = record if known is None else _both(known, record)
        elif record.kind == "segments":
            self.segments[record.id or record.name] = record.name
        else:
            self.domains[record.name] = None

    def memberships(self) -> Iterator[tuple[Person, str]]:
        """Who is in which segment, by name. IDs of segments that no file names are left out."""
        named = set(self.segments.values())
        for person in self.people.values():
            for one in person.segments:
                if one in self.segments or one in named:
                    yield person, self.segments.get(one, one)


def _both(first: Person, second: Person) -> Person:
    """Somebody who is in several files. Whoever has unsubscribed in one of them has unsubscribed."""
    return Person(
        first.email,
        first.first_name or second.first_name,
        first.last_name or second.last_name,
        first.unsubscribed or second.unsubscribed,
        tuple(dict.fromkeys((*first.segments, *second.segments))),
    )
