"""Reads the files of an export: JSON as an API answered, or CSV. Pure. Which fields mean what: importing/formats."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from mailsvc.audience import csv_reader
from mailsvc.cli.importing.formats import FORMATS, Format
from mailsvc.cli.importing.records import Export, Named, Person, Record, Suppressed, Wrong
from mailsvc.domains import names
from mailsvc.mail.address import AddressError, parse_mailbox

LONGEST = 256 << 20  # bytes of a file
NAME = 200  # characters
_PIECE = 50_000  # rows of a CSV file that are in memory at once
_CONTROL = dict.fromkeys([*range(32), 127], " ")  # Postgres stores no NUL, and names have no use for the others

Row = Mapping[str, Any]


class NotRead(Exception):
    """The file is not an export of this service. The text is a sentence."""


def read(export: Export, service: str, file: str, data: bytes) -> None:
    """Add the rows of a file. Raises NotRead."""
    text = _utf8(file, data).lstrip()
    rows = _in_json if text[:1] in (b"{", b"[") else _in_csv
    for number, known, row in rows(file, text, service):
        try:
            if isinstance(row, ValueError):
                raise row
            for record in _records(known, row):
                export.add(record)
        except ValueError as wrong:
            export.wrong.append(Wrong(file, number, str(wrong)))


def _utf8(file: str, data: bytes) -> bytes:
    """Without a byte order mark. PowerShell and spreadsheets write UTF-16, which always begins with one."""
    if not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-16").encode()
    except UnicodeError:
        raise NotRead(f"{file} begins as UTF-16, but is not valid UTF-16.") from None


def _in_json(file: str, data: bytes, service: str) -> Iterator[tuple[int, Format, Row]]:
    """The rows of each list, with their numbers and formats. Several answers can be in a list, as pages."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as wrong:
        raise NotRead(f"{file} is not valid JSON: {wrong}.") from None
    keys = {key for known in FORMATS[service] for key in known.lists}
    pages = _objects(file, [document] if isinstance(document, dict) else document)
    lists = ((key.lower(), value) for page in pages for key, value in page.items())
    found: list[tuple[str, Sequence[Any]]] = [(key, value) for key, value in lists if key in keys and isinstance(value, list)]
    if not found and isinstance(document, dict):
        raise NotRead(f"{file} has no list that `mailsvc import` knows. Known are: {', '.join(sorted(filter(None, keys)))}.")
    for key, rows in found or [("", pages)]:
        for number, row in enumerate(map(_flat, _objects(file, rows)), 1):
            known = next((each for each in FORMATS[service] if key in each.lists and row.keys() >= set(each.needs)), None)
            if known is None:
                raise NotRead(f"{file}, row {number}: these fields are in no export of {service} that `mailsvc import` knows.")
            yield number, known, row


def _objects(file: str, rows: Sequence[Any]) -> Sequence[Row]:
    if not all(isinstance(each, dict) for each in rows):
        raise NotRead(f"{file} is a list of something else than objects.")
    return rows


def _in_csv(file: str, data: bytes, service: str) -> Iterator[tuple[int, Format, Row | ValueError]]:
    """The rows, with their numbers and the format that the header has; of a row that cannot be read, why."""
    if not data:
        return
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    try:
        header, separator, start = csv_reader.header(data)
    except csv_reader.Unreadable as wrong:
        raise NotRead(f"{file} is not valid CSV: {wrong}.") from None
    places = {_normal(name): at for at, name in reversed(list(enumerate(header))) if name}  # of several columns, the first
    known = next((each for each in FORMATS[service] if places.keys() >= set(each.needs)), None)
    if known is None:
        raise NotRead(f"{file}: these columns are in no export of {service} that `mailsvc import` knows.")
    places = {name: at for name, at in places.items() if name in (*known.needs, *known.fields.values(), *known.left)}
    for number, fields in enumerate(_lines(data[start:], separator), 1):
        yield number, known, _row(file, number, fields, len(header), places, known)


def _lines(data: bytes, separator: str) -> Iterator[Sequence[str] | None]:
    while data:
        piece = csv_reader.read(data, separator, True, _PIECE)
        yield from (row.fields for row in piece.rows if row.fields is None or any(row.fields))
        data = data[piece.bytes :]


def _row(file: str, number: int, fields: Sequence[str] | None, most: int, places: Mapping[str, int], known: Format) -> Row | ValueError:
    if fields is None:
        return ValueError("the row has a quotation mark that is not closed, or is too long")
    try:
        "".join(fields).encode()
    except UnicodeEncodeError:  # names would be damaged, and all rows are likely to be in the same encoding
        raise NotRead(f"{file}, row {number}: this is not UTF-8. Save the file as CSV in UTF-8, and import that.") from None
    if len(fields) > most:  # an unsubscribe could be in the wrong column
        return ValueError("the row has more fields than the header; see whether one has to be in quotation marks")
    missing = next((name for name in known.needs if places[name] >= len(fields)), None)
    if missing is not None:
        return ValueError(f"the row ends before the column {missing}")
    return {name: fields[at] for name, at in places.items() if at < len(fields)}


def _flat(row: Mapping[str, Any]) -> Row:
    """Fields in lower case; those of an object are called `object.field`."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= {f"{_normal(name)}.{_normal(inner)}": deeper for inner, deeper in value.items()}
        found[_normal(name)] = value
    return found


def _normal(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _records(known: Format, row: Row) -> Iterator[Record]:
    """What a row says. Raises ValueError."""
    left = bool(known.left) and all(_text(row, name).lower() == value for name, value in known.left.items())
    if known.kind == "suppressions" and (left or _is_partial(row.get(known.kinds))):
        yield Person(_email(row, known), unsubscribed=True)
    elif known.kind == "suppressions":
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


def _is_partial(kinds: object) -> bool:
    """Whether somebody left only some kinds of mail, so that others have to arrive: a list, or words with commas between them."""
    found = kinds if isinstance(kinds, list) else str(kinds or "").strip("[]").replace('"', "").replace("'", "").split(",")
    named = {str(each).strip() for each in found} - {""}
    return bool(named) and "*" not in named


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
    names = (name.translate(_CONTROL).strip()[:NAME] for name in found)
    return tuple(filter(None, names))


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
    return "" if value is None else str(value).translate(_CONTROL).strip()
