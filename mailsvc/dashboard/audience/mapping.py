"""The columns of an uploaded file: what each seems to be, and the plan of an import from what a person chose for each. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import attrs

from mailsvc.audience import csv_reader
from mailsvc.audience.import_plan import ColumnMap, Columns, Plan, WrongMap, columns
from mailsvc.http.resources.audience.fields import RESERVED
from mailsvc.mail.address import AddressError, parse_mailbox

Kind = Literal["string", "number"]
MOST = 150  # columns that can be chosen
SAMPLES = 3  # rows that are shown
SHOWN = 60  # characters of a cell
DIRECT = {"email": "Email address", "first_name": "First name", "last_name": "Last name", "unsubscribed": "Unsubscribed"}
SKIP = ""
_NOT_IN_KEY = re.compile(r"[^A-Za-z0-9]+")
LONGEST_KEY = 50


class WrongFile(ValueError):
    """The file cannot be imported. The message is for the person who uploaded it."""


class WrongChoice(ValueError):
    """Something is wrong with what was chosen for the columns. The message is for the person who chose it."""


@attrs.frozen
class Column:
    """`key`: of a new property, if it can become one. `guess`: what it seems to be, as a choice."""

    number: int
    header: str
    samples: Sequence[str]
    key: str
    guess: str


@attrs.frozen
class Header:
    """The first line of a file. `start`: where the next one begins. `left_out`: columns after those that can be chosen."""

    separator: str
    start: int
    columns: Sequence[Column]
    left_out: int


def read(data: bytes, known: Mapping[str, Kind]) -> Header:
    """`data`: the beginning of the file. `known`: the account's properties."""
    if b"\0" in data:
        raise WrongFile("This isn’t a CSV file in UTF-8. In a spreadsheet program, save it as “CSV UTF-8”.")
    try:
        names, separator, start = csv_reader.header(data)
    except csv_reader.Unreadable:
        raise WrongFile("The first line can’t be read. In a spreadsheet program, save the file as “CSV UTF-8”.") from None
    if not any(names):
        raise WrongFile("The file is empty. Its first line must name the columns.")
    if any(map(_is_address, names)):
        raise WrongFile("The first line has an address instead of the names of the columns. Put a line such as “email,first_name” first.")
    rows = [row.fields for row in csv_reader.read(data[start:], separator, True, SAMPLES).rows if row.fields]
    guesses = _guesses(data, names, rows, known)
    taken = {*known, *RESERVED}
    found = []
    for at, name in enumerate(names[:MOST]):
        samples = [_readable(row[at].strip())[:SHOWN] for row in rows if at < len(row) and row[at].strip()]
        key = _key(name, at)
        new = "" if key.lower() in RESERVED or key in taken else key
        found.append(Column(at, _readable(name) or f"Column {at + 1}", samples, new, guesses.get(at, SKIP)))
        taken.add(key)
    return Header(separator, start, found, max(0, len(names) - MOST))


def _is_address(text: str) -> bool:
    try:
        return "@" in text and bool(parse_mailbox(text))
    except AddressError:
        return False


def _guesses(data: bytes, names: Sequence[str], rows: Sequence[Sequence[str]], known: Mapping[str, Kind]) -> dict[int, str]:
    """As an import without a column map; otherwise the first column with an address in it."""
    try:
        found = columns(data, ColumnMap(), known)
    except WrongMap:
        at = next((at for at in range(len(names)) if any(at < len(row) and "@" in row[at][1:-1] for row in rows)), None)
        if at is None:
            return {}
        found = columns(data, ColumnMap(email=names[at]), known)
    direct = {getattr(found.plan, name): name for name in DIRECT}
    return {at: guess for at, guess in direct.items() if at is not None} | {at: f"p:{key}" for key, (at, _) in found.properties.items()}


def _key(name: str, at: int) -> str:
    """The key of a property that is called like the column."""
    return _NOT_IN_KEY.sub("_", name).strip("_").lower()[:LONGEST_KEY] or f"column_{at + 1}"


def _readable(text: str) -> str:
    """Without bytes that are not UTF-8, which cannot be shown."""
    return text.encode("utf-8", "replace").decode()


def planned(header: Header, chosen: Mapping[int, str], known: Mapping[str, Kind]) -> Columns:
    """`chosen`: by the number of the column."""
    places: dict[str, int] = {}
    properties: dict[str, tuple[int, Kind]] = {}
    for column in header.columns:
        choice = chosen.get(column.number, SKIP)
        if choice in DIRECT:
            if choice in places:
                raise WrongChoice(f"Choose “{DIRECT[choice]}” for one column only.")
            places[choice] = column.number
        elif choice != SKIP:
            key, kind = _property(column, choice, known)
            if key in properties:
                raise WrongChoice(f"Choose the property “{key}” for one column only.")
            properties[key] = (column.number, kind)
    if "email" not in places:
        raise WrongChoice("Choose the column that has the email addresses.")
    first_name, last_name, unsubscribed = (places.get(name) for name in ("first_name", "last_name", "unsubscribed"))
    width = len(header.columns) + header.left_out
    plan = Plan(header.separator, places["email"], first_name, last_name, unsubscribed, width=width)
    return Columns(plan, properties, header.start)


def _property(column: Column, choice: str, known: Mapping[str, Kind]) -> tuple[str, Kind]:
    kind, _, key = choice.partition(":")
    if kind == "p" and key in known:
        return key, known[key]
    if choice == "new:string" and column.key:
        return column.key, "string"
    if choice == "new:number" and column.key:
        return column.key, "number"
    raise WrongChoice(f"The choice for the column “{column.header}” isn’t available any more.")
