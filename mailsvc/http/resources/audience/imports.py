"""Imports of contacts from a CSV file: upload one, read its progress, and list its invalid rows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import attrs

from mailsvc.audience import import_plan
from mailsvc.audience.import_plan import ColumnMap, PropertyColumn, WrongMap
from mailsvc.http import multipart, parameters, strict_json
from mailsvc.http.answer import audited, collection, created, ok, page
from mailsvc.http.fields import SOME_ID, Choice, Field, Record, Rules, Text, no_entries
from mailsvc.http.multipart import Part
from mailsvc.http.operations import PAGING, Parameter, one_of, operation
from mailsvc.http.problem import invalid, missing, not_found, unavailable
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources.audience.contacts import written
from mailsvc.http.resources.audience.context import AudienceContext, UploadsBusy
from mailsvc.http.resources.audience.fields import PROPERTY_KEY, TOPIC_CHOICES, SegmentIds
from mailsvc.http.resources.audience.import_orders import ImportOrders
from mailsvc.http.views import Listing, View, acknowledged, choice, const, count, maybe, one, text, time, uuid
from mailsvc.mail import csv_file
from mailsvc.store.audience.import_values import STATUSES, Import, Orders
from mailsvc.store.audience.imports import CHUNK, PAGE
from mailsvc.store.paging import ALL

T = TypeVar("T")
RETRY = 30  # seconds after which a file that did not get its turn can be sent again
_CAMEL = {"firstName": "first_name", "lastName": "last_name"}


@attrs.frozen
class File(Field):
    """The file. Only its description: `multipart` reads it."""

    def form(self) -> dict[str, Any]:
        return {"type": "string", "format": "binary"}

    def read(self, value: Any, place: str, rules: Rules) -> Any:
        return value


_MAP = (
    "JSON: the headers of the columns, `email`, `first_name`, `last_name`, `unsubscribed`, and `properties` as "
    '`{"key": {"column": "header", "type": "string"}}`, with the type `string`, `number` or `boolean`. Properties that do not exist are '
    "created. Without it, columns are recognized by their headers."
)
UPLOAD = Record(
    title="ImportContacts",
    fields={
        "file": File(
            "A CSV file in UTF-8 with a header line, separated by commas, semicolons or tabs.", "email\nada@example.net", required=True
        ),
        "column_map": Text(_MAP, '{"email": "Email"}'),
        "on_conflict": Choice(
            "What to do with contacts that exist: `upsert` changes them (default), `skip` doesn't.", "upsert", words=("skip", "upsert")
        ),
        "segments": Text("JSON: segments that the contacts are added to.", f'[{{"id": "{SOME_ID}"}}]'),
        "topics": Text(
            "JSON: choices of topics. `opt_in` does not replace an earlier `opt_out`.",
            f'[{{"id": "{SOME_ID}", "subscription": "opt_in"}}]',
        ),
    },
)
_COUNTS = View(
    "ImportCounts",
    {
        "total": count("The rows that were read so far.", 1200),
        "created": count("New contacts.", 1150),
        "updated": count("Contacts that existed.", 30),
        "skipped": count("Contacts that existed and were left as they are.", 15),
        "failed": count("Rows that are wrong. See the list of errors.", 5),
    },
)
ROW = {
    "id": uuid("The import's ID."),
    "status": choice("How far it is.", STATUSES, example="completed"),
    "created_at": time("When the file was uploaded."),
    "completed_at": maybe(time("When all rows were read; null before.")),
    "counts": one(_COUNTS, "The rows so far."),
    "reason": maybe(text("Why the whole import failed; null if it did not.", "The file has a row that does not end.")),
}
IMPORT_ROW = View("ContactImportRow", {"object": const("contact_import", "Always `contact_import`."), **ROW})
IMPORT = View("ContactImport", {"object": const("contact_import", "Always `contact_import`."), **ROW})
ADDED = acknowledged("contact_import", "AddedContactImport", "The import's ID.")
STATUS = Parameter("status", "Returns only imports with this status.", "completed", one_of(*STATUSES))


@attrs.define(eq=False)
class ContactImports:
    app = collection()
    context: AudienceContext
    reader: Reader

    @app.route("/contacts/imports", methods=["POST"])
    @operation(
        "Import contacts",
        "Uploads a CSV file whose rows become contacts in the background. Nobody who unsubscribed is subscribed again.",
        ADDED,
        status=201,
        body=UPLOAD,
        media="multipart/form-data",
        errors=[404],
    )
    async def add(self, request: Request) -> bytes:
        return await request.detached(self._add(request))

    async def _add(self, request: Request) -> bytes:
        try:
            added = await self._stored(request)
        except UploadsBusy:
            raise unavailable(RETRY) from None
        self.context.on_import()
        return created(request, ADDED.show(added))

    async def _stored(self, request: Request) -> Import:
        assert request.content is not None
        file, account_id = request.content, request.caller.account_id
        separator = multipart.boundary((request.requestHeaders.getRawHeaders(b"content-type") or [b""])[-1])
        async with self.context.storing():
            found = await self._in_thread(request, partial(multipart.parts, file, separator))
            if "file" not in found:
                raise missing("file")
            options = {name: _option(found, name, file, self.context.part) for name in ("column_map", "on_conflict", "segments", "topics")}
            orders, start = await self._orders(request, found["file"].read(file, self.context.part), options)
            source = found["file"]
            line = audited(request, "contacts imported", f"{source.end - source.start} bytes")
            chunks = multipart.pieces(source, file, CHUNK, partial(self._in_thread, request))
            return await written(self.context.imports.add(account_id, orders, source.end - source.start, start, chunks, [line]))

    async def _orders(self, request: Request, head: bytes, options: Mapping[str, str | None]) -> tuple[Orders, int]:
        """What to do with the rows, and where they begin."""
        account_id = request.caller.account_id
        rules = Rules(self.reader.now(), self.reader.bounds, natural=False)
        given = _column_map(_json(options["column_map"], "column_map"))
        on_conflict = UPLOAD.fields["on_conflict"].read(options["on_conflict"] or "upsert", "on_conflict", rules)
        segments = SegmentIds().read(_json(options["segments"] or "[]", "segments"), "segments", rules)
        topics = TOPIC_CHOICES.read(_json(options["topics"] or "[]", "topics"), "topics", rules)
        definitions, _ = await self.context.properties.list(account_id, ALL)
        try:
            columns = import_plan.columns(head, given, {each.key: each.type for each in definitions})
        except WrongMap as wrong:
            raise invalid(str(wrong)) from None
        orders = ImportOrders(self.context, account_id, partial(audited, request))
        return await orders.make(columns, on_conflict == "upsert", segments, topics), columns.start

    async def _in_thread(self, request: Request, work: Callable[[], T]) -> T:
        """In a thread if the body is large, because it is in a file then."""
        return await self.reader.in_thread(work) if request.large else work()

    @app.route("/contacts/imports", methods=["GET"])
    @operation("List imports", "The imports of the account, newest first.", Listing(IMPORT_ROW), parameters=[*PAGING, STATUS])
    async def list(self, request: Request) -> bytes:
        wanted, status = parameters.page(request), parameters.choice(request, "status", *STATUSES)
        found, more = await request.detached(self.context.imports.list(request.caller.account_id, wanted, status))
        return page(request, IMPORT_ROW, found, more)

    @app.route("/contacts/imports/<id>", methods=["GET"])
    @operation("Retrieve an import", "An import with the number of rows so far.", IMPORT)
    async def get(self, request: Request, id: str) -> bytes:
        return ok(request, IMPORT.show(await request.detached(self._own(request, id))))

    @app.route("/contacts/imports/<id>/errors", methods=["GET"])
    @operation("Download the errors of an import", "A CSV file with the line, the reason and the wrong value of each row.", "text/csv")
    async def errors(self, request: Request, id: str) -> bytes:
        found = await request.detached(self._own(request, id))
        request.content_type = b"text/csv; charset=utf-8"
        request.setHeader("content-disposition", f'attachment; filename="import-{found.id}-errors.csv"')
        if found.counts.failed <= PAGE:
            return request.sized(200, b"".join([piece async for piece in error_lines(self.context, found)]))
        request.setResponseCode(200)
        await request.stream(error_lines(self.context, found))
        return b""

    async def _own(self, request: Request, id: str) -> Import:
        found = await self.context.imports.get(request.caller.account_id, parameters.uuid(id, "id"))
        if found is None:
            raise not_found("Contact import")
        return found


async def error_lines(context: AudienceContext, found: Import) -> AsyncGenerator[bytes, None]:
    """The invalid rows of an import as a CSV file."""
    yield csv_file.lines([("line", "reason", "value")])
    async for errors in context.imports.errors(found.account_id, found.id):
        yield csv_file.lines((each.line, each.reason, each.value) for each in errors)


def _option(found: Mapping[str, Part], name: str, file: Any, most: int) -> str | None:
    if name not in found:
        return None
    if found[name].end - found[name].start > most:
        raise invalid(f"The `{name}` field can have at most {most} bytes.")
    return found[name].read(file, most).decode("utf-8", "replace").strip() or None


def _json(option: str | None, name: str) -> Any:
    try:
        return None if option is None else strict_json.load(option.encode())
    except strict_json.Malformed:
        raise invalid(f"The `{name}` field must be JSON without duplicate names.") from None


def _column_map(value: Any) -> ColumnMap:
    if value is None or no_entries(value):
        return ColumnMap()
    if not isinstance(value, dict):
        raise invalid("The `column_map` field must be a JSON object.")
    given = {_CAMEL.get(name, name): each for name, each in value.items()}
    columns = {name: _text(given.get(name), name) for name in ("email", "first_name", "last_name", "unsubscribed")}
    properties = given.get("properties") or {}
    if not isinstance(properties, dict):
        raise invalid("The `column_map.properties` field must be a JSON object.")
    return ColumnMap(**columns, properties={key: _property(key, each) for key, each in properties.items()})


def _text(value: Any, name: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise invalid(f"The `column_map.{name}` field must be a string.")
    return value or None


def _property(key: str, value: Any) -> PropertyColumn:
    rules: Any = None
    place = f"column_map.properties.{key[:50]}"
    if not isinstance(value, dict) or not isinstance(value.get("column"), str):
        raise invalid(f"The `{place}.column` field must be a string.")
    kind = Choice(words=("string", "number", "boolean")).read(value.get("type") or "string", f"{place}.type", rules)
    PROPERTY_KEY.read(key, place, rules)
    return PropertyColumn(value["column"], "number" if kind == "number" else "string")
