"""Maps the columns of an imported file to fields of contacts, and reads its rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from mailsvc.audience import csv_reader
from mailsvc.audience.csv_reader import Row
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.audience.import_values import ImportRow, RowError
from mailsvc.store.audience.keys import AudienceKey, folded
from mailsvc.store.audience.properties import converted
from mailsvc.store.audience.values import Limits

VALUE = 200  # characters of a wrong value that are kept
# Headers that are recognized without a column map, in lower case with underscores.
_HEADERS = {
    "email": ("email", "e_mail", "email_address"),
    "first_name": ("first_name", "firstname"),
    "last_name": ("last_name", "lastname"),
    "unsubscribed": ("unsubscribed",),
}
_YES = frozenset({"true", "t", "1", "yes", "y", "unsubscribed"})
_UNREADABLE = "the row has a quotation mark that is not closed, or is too long"
_FIRST_LINE = "The first line of `file` cannot be read. Separate lines with LF or CRLF, and check the quotation marks and long fields."
_TOO_MANY = "the row has more fields than the header; see whether one has to be in quotation marks"
_NOT_UTF8 = "the row is not UTF-8; save the file as “CSV UTF-8” and import it again"
_CONTROL = dict.fromkeys([*range(32), 127], " ")


class WrongMap(ValueError):
    """The file or the column map cannot be used. The message is for the client."""


@attrs.frozen
class PropertyColumn:
    """`column`: its header."""

    column: str
    type: Literal["string", "number"]


@attrs.frozen
class ColumnMap:
    """The headers of columns; None: recognize it."""

    email: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    unsubscribed: str | None = None
    properties: Mapping[str, PropertyColumn] = attrs.field(factory=dict)  # by key


@attrs.frozen
class Plan:
    """Columns by number. `properties`: by the number of the property, with the type of its values. `width`: columns of the header."""

    separator: str
    email: int
    first_name: int | None = None
    last_name: int | None = None
    unsubscribed: int | None = None
    properties: Mapping[str, tuple[int, Literal["string", "number"]]] = attrs.field(factory=dict)
    width: int | None = None

    def stored(self) -> dict[str, Any]:
        """Without the width, which an earlier release does not know among the columns."""
        return attrs.asdict(self, filter=attrs.filters.exclude("width"))

    @classmethod
    def of(cls, stored: Mapping[str, Any], width: int | None) -> Plan:
        properties = {number: (at, kind) for number, (at, kind) in stored["properties"].items()}
        return cls(**{**stored, "properties": properties, "width": width})


@attrs.frozen
class Columns:
    """What a header says: the plan without properties, and the column of each property by key."""

    plan: Plan
    properties: Mapping[str, tuple[int, Literal["string", "number"]]]
    start: int  # where the first row after the header begins


def columns(data: bytes, given: ColumnMap, known: Mapping[str, Literal["string", "number"]]) -> Columns:
    """Find the columns in the first line of a file. `known`: the account's properties, whose keys are recognized without a map."""
    try:
        names, separator, start = csv_reader.header(data)
    except csv_reader.Unreadable:
        raise WrongMap(_FIRST_LINE) from None
    places: dict[str, int] = {}
    for at, name in enumerate(names):
        places.setdefault(name, at)
    normal = {name.lower().replace(" ", "_").replace("-", "_"): at for name, at in reversed(places.items())}
    found: dict[str, int | None] = {}
    for field, recognized in _HEADERS.items():
        wanted = getattr(given, field)
        if wanted is not None:
            found[field] = _place(places, wanted, field)
        else:
            found[field] = next((normal[name] for name in recognized if name in normal), None)
    email = found.pop("email")
    if email is None:
        raise WrongMap("The file has no column for the email address. Name it `email`, or give its header in `column_map.email`.")
    properties = {key: (_place(places, one.column, f"properties.{key}"), one.type) for key, one in given.properties.items()}
    taken = {email, *found.values(), *(at for at, _ in properties.values())}
    for key, kind in known.items():
        if key in places and key not in properties and places[key] not in taken:
            properties[key] = (places[key], kind)
    plan = Plan(separator, email, found["first_name"], found["last_name"], found["unsubscribed"], width=len(names))
    return Columns(plan, properties, start)


def _place(places: Mapping[str, int], header: str, field: str) -> int:
    if header.strip() not in places:
        raise WrongMap(f"The file has no column that is named as in `column_map.{field}`.")
    return places[header.strip()]


def read(plan: Plan, row: Row, line: int, key: AudienceKey, limits: Limits) -> ImportRow | RowError:
    """What a row says, or why it cannot be imported. `line`: of the row in the file."""
    fields = row.fields
    if fields is None:
        return RowError(line, _UNREADABLE, "")
    if plan.width is not None and any(map(str.strip, fields[plan.width :])):  # an unsubscribe could be in the wrong column
        return RowError(line, _TOO_MANY, shown(plan.separator.join(fields)))
    text = fields[plan.email].strip() if plan.email < len(fields) else ""
    if not text:
        return RowError(line, "the email address is missing", "")
    try:
        email = parse_mailbox(text).address
    except AddressError as wrong:
        return RowError(line, str(wrong).rstrip("."), shown(text))
    if not email.isascii() and _is_broken(email):
        return RowError(line, _NOT_UTF8, shown(text))
    try:
        names = [_name(fields, at, field, limits.name) for at, field in ((plan.first_name, "first name"), (plan.last_name, "last name"))]
        properties = {
            number: value
            for number, (at, kind) in plan.properties.items()
            if (value := _property(fields, at, kind, limits.value)) is not None
        }
    except Wrong as wrong:
        return RowError(line, wrong.reason, shown(wrong.value))
    unsubscribed = _cell(fields, plan.unsubscribed).lower() in _YES
    return ImportRow(email, folded(email), names[0], names[1], unsubscribed, properties, key.hash(email))


@attrs.frozen
class Wrong(Exception):
    reason: str
    value: str


def _cell(fields: Sequence[str], at: int | None) -> str:
    return fields[at].strip() if at is not None and at < len(fields) else ""


def _name(fields: Sequence[str], at: int | None, field: str, longest: int) -> str | None:
    text = _cell(fields, at)
    if len(text) > longest:
        raise Wrong(f"the {field} has more than {longest} characters", text)
    return _clean(text) or None


def _property(fields: Sequence[str], at: int, kind: Literal["string", "number"], longest: int) -> str | int | float | None:
    text = _cell(fields, at)
    if not text:
        return None
    try:
        value = converted(kind, _clean(text) if kind == "string" else text, longest)
    except ValueError as wrong:
        raise Wrong(f"a property {wrong}", text) from None
    return value


def _clean(text: str) -> str:
    if _is_broken(text):
        raise Wrong(_NOT_UTF8, text)
    return text if text.isprintable() else text.translate(_CONTROL)


def _is_broken(text: str) -> bool:
    """Whether it has bytes that were not UTF-8."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def shown(value: str) -> str:
    """A wrong value for the list of errors."""
    return value[:VALUE].encode("utf-8", "replace").decode().translate(_CONTROL)
