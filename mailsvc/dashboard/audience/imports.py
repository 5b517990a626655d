"""Imports: uploading a file, choosing what its columns are, and following the import to its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO, Any
from uuid import UUID

import attrs

from mailsvc.dashboard import uploads
from mailsvc.dashboard.audience import mapping
from mailsvc.dashboard.audience.contacts import AUDIENCE, CHOICES
from mailsvc.dashboard.audience.mapping import Header, WrongChoice, WrongFile
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, not_found, page, section_app
from mailsvc.http import multipart
from mailsvc.http.multipart import Part
from mailsvc.http.problem import Problem
from mailsvc.http.resources.audience.context import AudienceContext, UploadsBusy
from mailsvc.http.resources.audience.import_orders import ImportOrders
from mailsvc.http.resources.audience.imports import error_lines
from mailsvc.store.audience.import_values import Import, RowError
from mailsvc.store.audience.imports import CHUNK
from mailsvc.store.audience.values import Choice, Full, Segment, Topic
from mailsvc.store.paging import ALL, Page

IMPORTS = f"{AUDIENCE}/imports"
ONE = f"{IMPORTS}/<text>"
PAGE = 20
ERRORS = 50  # that the page shows; the file has all of them
HEAD = 64 * 1024  # bytes in which the sample rows are looked for, if the header line is not longer
CONSENT = "All these people agreed to get mail from us."
STATUSES = {
    "queued": ("Queued", "info"), "in_progress": ("In progress", "info"), "completed": ("Completed", "good"), "failed": ("Failed", "bad"),
    "uploaded": ("Not started", "warn"),
}  # fmt: skip


@attrs.define(eq=False)
class ImportPages:
    """`largest`: bytes of a file."""

    app = section_app()
    context: PageContext
    audience: AudienceContext
    largest: int

    @page(app, IMPORTS, access="see_audience")
    async def list(self, request: PageRequest) -> bytes:
        return await self._listed(request)

    async def _listed(self, request: PageRequest, status: int = 200, error: str = "") -> bytes:
        after = request.uuid(request.query("after")) if request.query("after") else None
        found, more = await self.audience.imports.list(request.account_id, Page(PAGE, after))
        waiting = [] if after else (await self.audience.imports.list(request.account_id, Page(PAGE), "uploaded"))[0]
        older = f"{IMPORTS}?after={found[-1].id}" if more else None
        return request.render(
            "audience/imports.html", status, found=[*waiting, *found], older=older, first=after is None, error=error, statuses=STATUSES,
            largest=self.largest,
        )  # fmt: skip

    @page(app, IMPORTS, "POST", access="change_audience", form=uploads.form)
    async def upload(self, request: PageRequest) -> bytes:
        part, content = request.file, request.http.content
        if part is None or part.start == part.end or content is None:
            return await self._listed(request, 422, "Choose a file.")
        if part.end - part.start > self.largest:
            return await self._listed(request, 422, f"The file is larger than {self.largest >> 20} MB.")
        try:
            return await self._stored(request, part, content)
        except UploadsBusy:
            return await self._listed(request, 503, "Other files are being stored at the moment. Try again in a minute.")

    async def _stored(self, request: PageRequest, part: Part, content: IO[bytes]) -> bytes:
        size, run = part.end - part.start, partial(uploads.in_thread, request)
        async with self.audience.storing():
            head = await run(partial(part.read, content, self.audience.part))
            try:
                header = await self.context.in_thread(partial(mapping.read, head, {}))
            except WrongFile as wrong:
                return await self._listed(request, 422, str(wrong))
            line = request.audit_entry("contacts uploaded", f"{size} bytes")
            chunks = multipart.pieces(part, content, CHUNK, run)
            try:
                added = await self.audience.imports.add(request.account_id, None, size, header.start, chunks, [line])
            except Full as full:
                return await self._listed(request, 422, f"There are {full.most} imports in progress. Wait until one has ended.")
        return request.redirect(f"{IMPORTS}/{added.id}")

    # Choosing the columns

    @page(app, ONE, access="see_audience")
    async def show(self, request: PageRequest, text: str) -> bytes:
        import_id = request.uuid(text, "import")
        waiting = await self.audience.imports.uploaded(request.account_id, import_id)
        if waiting is not None:
            return await self._choices(request, waiting)
        found = await self._own(request, import_id)
        errors = await self._first_errors(found) if found.counts.failed else []
        return request.render(
            "audience/import.html", one=found, errors=errors, statuses=STATUSES, percent=100 * found.position // max(1, found.bytes),
        )  # fmt: skip

    async def _choices(self, request: PageRequest, waiting: Import, status: int = 200, error: str = "") -> bytes:
        header, known = await self._header(request, waiting)
        segments, topics = await self._targets(request)
        chosen = _chosen(request, header) if request.form else {each.number: each.guess for each in header.columns}
        return request.render(
            "audience/mapping.html", status, one=waiting, header=header, known=sorted(known), chosen=chosen, direct=mapping.DIRECT,
            segments=segments, topics=topics, error=error, form=request.form, consent=CONSENT,
        )  # fmt: skip

    async def _header(self, request: PageRequest, waiting: Import) -> tuple[Header, Mapping[str, Any]]:
        definitions, _ = await self.audience.properties.list(request.account_id, ALL)
        known = {each.key: each.type for each in definitions}
        data = await self.audience.imports.chunk(waiting, 0)
        return await self.context.in_thread(partial(mapping.read, data[: max(HEAD, waiting.position)], known)), known

    async def _targets(self, request: PageRequest) -> tuple[Sequence[Segment], Sequence[Topic]]:
        """Those that need no confirmation, which a file cannot give."""
        segments, _ = await self.audience.segments.list(request.account_id, CHOICES)
        topics, _ = await self.audience.topics.list(request.account_id, CHOICES)
        return [each for each in segments if each.confirmation is None], [each for each in topics if each.confirmation is None]

    @page(app, f"{ONE}/start", "POST", access="change_audience")
    async def start(self, request: PageRequest, text: str) -> bytes:
        import_id = request.uuid(text, "import")
        waiting = await self.audience.imports.uploaded(request.account_id, import_id)
        if waiting is None:
            await self._own(request, import_id)
            return request.redirect(f"{IMPORTS}/{import_id}")  # it was started already
        if request.field("consent") != "on":
            return await self._choices(request, waiting, 422, "Confirm that these people agreed to get mail from you.")
        header, known = await self._header(request, waiting)
        segments, topics = await self._targets(request)
        try:
            columns = mapping.planned(header, _chosen(request, header), known)
            segment, topic = _target(request, "segment", segments), _target(request, "topic", topics)
            orders = await ImportOrders(self.audience, request.account_id, request.audit_entry).make(
                columns,
                request.field("on_conflict") != "skip",
                [] if segment is None else [segment],
                [] if topic is None else [Choice(topic, True)],
            )
        except WrongChoice as wrong:
            return await self._choices(request, waiting, 422, str(wrong))
        except Problem as problem:
            return await self._choices(request, waiting, 422, problem.message)
        line = request.audit_entry("contacts imported", f"{waiting.bytes} bytes; confirmed: {CONSENT}")
        await self.audience.imports.start(request.account_id, import_id, orders, columns.start, [line])
        self.audience.on_import()
        return request.redirect(f"{IMPORTS}/{import_id}")

    @page(app, f"{ONE}/discard", "POST", access="change_audience")
    async def discard(self, request: PageRequest, text: str) -> bytes:
        line = request.audit_entry("uploaded contacts discarded")
        if not await self.audience.imports.discard(request.account_id, request.uuid(text, "import"), [line]):
            raise not_found("import")
        return request.redirect(IMPORTS)

    # The result

    async def _own(self, request: PageRequest, import_id: UUID) -> Import:
        found = await self.audience.imports.get(request.account_id, import_id)
        if found is None:
            raise not_found("import")
        return found

    async def _first_errors(self, found: Import) -> Sequence[RowError]:
        async for errors in self.audience.imports.errors(found.account_id, found.id):
            return errors[:ERRORS]
        return []

    @page(app, f"{ONE}/errors.csv", access="see_audience")
    async def errors(self, request: PageRequest, text: str) -> bytes:
        found = await self._own(request, request.uuid(text, "import"))
        await request.download(f"import-{found.id}-errors.csv", "text/csv; charset=utf-8", error_lines(self.audience, found))
        return b""


def _chosen(request: PageRequest, header: Header) -> Mapping[int, str]:
    return {each.number: request.field(f"column:{each.number}") for each in header.columns}


def _target(request: PageRequest, name: str, offered: Sequence[Segment | Topic]) -> UUID | None:
    """The chosen segment or topic. Raises WrongChoice if it was deleted, or asks for confirmation, since the form was shown."""
    chosen = request.field(name)
    found = next((each.id for each in offered if str(each.id) == chosen), None)
    if chosen and found is None:
        raise WrongChoice(f"The chosen {name} isn’t available any more. Choose another one.")
    return found
