"""Reads the files of an export: JSON as an API answered, or CSV. Pure. Which fields mean what: importing/formats."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import orjson

from mailsvc.cli.importing.formats import FORMATS, Format
from mailsvc.cli.importing.records import Export, Named, Person, Record, Suppressed, Wrong
from mailsvc.domains import names
from mailsvc.mail.address import AddressError, parse_mailbox

LONGEST = 256 << 20  # bytes of a file
NAME = 200  # characters
_SEPARATORS = ",;\t"

Row = Mapping[str, Any]


class NotRead(Exception):
    """The file is not an export of this service. The text is a sentence."""


def read(export: Export, service: str, file: str, data: bytes) -> None:
    """Add the rows of a file. Raises NotRead."""
    formats = FORMATS[service]
    for where, rows in _lists(file, data, {key for known in formats for key in known.lists}):
        for number, row in enumerate(rows, 1):
            fitting = (each for each in formats if where in (None, *each.lists) and row.keys() >= set(each.needs))
            known = next(fitting, None)
            if known is None:
                raise NotRead(f"{file}, row {number}: these fields are in no export of {service} that `mailsvc import` knows.")
            try:
                for record in _records(known, row):
                    export.add(record)
            except ValueError as wrong:
                export.wrong.append(Wrong(file, number, str(wrong)))


def _lists(file: str, data: bytes, keys: Collection[str]) -> Iterator[tuple[str | None, Sequence[Row]]]:
    """The lists of rows, each with its key in JSON, or None for CSV. Several answers can be in a list, as pages."""
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] not in (b"{", b"["):
        yield None, _table(file, text)
        return
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as wrong:
        raise NotRead(f"{file} is not valid JSON: {wrong}.") from None
    pages = [document] if isinstance(document, dict) else document
    if not all(isinstance(each, dict) for each in pages):
        raise NotRead(f"{file} is a list of something else than objects.")
    found = [(key.lower(), value) for page in pages for key, value in page.items() if key.lower() in keys and isinstance(value, list)]
    if not found and isinstance(document, dict):
        raise NotRead(f"{file} has no list that `mailsvc import` knows. Known are: {', '.join(sorted(filter(None, keys)))}.")
    for key, rows in found or [("", pages)]:
        yield key, [_flat(row) for row in rows if isinstance(row, dict)]


def _flat(row: Mapping[str, Any]) -> Row:
    """Fields in lower case; those of an object are called `object.field`."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= {f"{_normal(name)}.{_normal(inner)}": deeper for inner, deeper in value.items()}
        found[_normal(name)] = value
    return found


def _table(file: str, data: bytes) -> list[Row]:
    text = data.decode("utf-8", "replace")
    first = text.partition("\n")[0]
    separator = max(_SEPARATORS, key=first.count)
    lines = csv.reader(text.splitlines(), delimiter=separator)
    try:
        header = [_normal(name) for name in next(lines, [])]
        return [dict(zip(header, line, strict=False)) for line in lines if any(line)]
    except csv.Error as wrong:
        raise NotRead(f"{file} is not valid CSV: {wrong}.") from None


def _normal(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _records(known: Format, row: Row) -> Iterator[Record]:
    """What a row says. Raises ValueError."""
    if known.kind == "suppressions":
        origin = known.origins.get(_text(row, known.fields["origin"]).lower(), known.origin)
        yield Suppressed(_email(row, known), origin)
    elif known.kind == "contacts":
        yield from _person(known, row)
    elif known.kind == "segments":
        name = _text(row, known.fields["name"])
        if not name:
            raise ValueError("the segment has no name")
        yield Named("segments", name[:NAME], _text(row, known.fields["id"]))
    elif _text(row, "identitytype").upper() in ("", "DOMAIN", "MANAGED_DOMAIN"):
        yield Named("domains", _domain(_text(row, known.fields["name"])))


def _person(known: Format, row: Row) -> Iterator[Record]:
    email = _email(row, known)
    bounced = known.origins.get(_text(row, known.fields.get("origin", "")).lower())
    if bounced is not None:
        yield Suppressed(email, bounced)
        return
    first, last = (_text(row, known.fields.get(name, ""))[:NAME] for name in ("first_name", "last_name"))
    if not first and "name" in known.fields:
        first, _, last = _text(row, known.fields["name"])[:NAME].partition(" ")
    unsubscribed = known.all_unsubscribed or _text(row, known.fields.get("unsubscribed", "")).lower() in known.gone
    tags = _tags(row.get(known.fields.get("tags", "")))
    for tag in tags:
        yield Named("segments", tag)
    ids = row.get(known.fields.get("ids", ""))
    yield Person(email, first, last.strip(), unsubscribed, (*tags, *(str(each) for each in ids if isinstance(ids, list))) if ids else tags)


def _tags(value: object) -> tuple[str, ...]:
    """Of Mailchimp: a list of objects, or quoted names with commas between them."""
    if isinstance(value, list):
        found = [str(each.get("name", "")) for each in value if isinstance(each, dict)]
    else:
        try:
            found = next(csv.reader([str(value or "")], skipinitialspace=True), [])
        except csv.Error:
            raise ValueError("the tags cannot be read") from None
    return tuple(name.strip()[:NAME] for name in found if name.strip())


def _email(row: Row, known: Format) -> str:
    text = _text(row, known.fields["email"])
    if not text:
        raise ValueError("the email address is missing")
    try:
        return parse_mailbox(text).address
    except AddressError as wrong:
        raise ValueError(f"{text[:NAME]!r} is not an email address. {wrong}") from None


def _domain(text: str) -> str:
    try:
        names.parse(text)
        return text.lower()
    except names.NotADomain as wrong:
        raise ValueError(f"{text[:NAME]!r} is not a sending domain. {wrong}") from None


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    return "" if value is None else str(value).strip()
