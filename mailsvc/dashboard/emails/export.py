"""CSV exports of emails and logs with the filters of their lists, streamed, with their progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import datetime
from typing import Literal
from urllib.parse import urlencode
from uuid import UUID, uuid4

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.emails.detail import EMAILS
from mailsvc.dashboard.emails.listing import EmailList
from mailsvc.dashboard.logs import LOGS, LogList
from mailsvc.dashboard.page import PageError, PageRequest, page, section_app
from mailsvc.mail import csv_file
from mailsvc.store.mail.exports import Exports as Stored

BATCH = 1000  # rows read at a time
PROGRESS_SECONDS = 1.0  # between two updates of the progress
AT_ONCE = 3  # exports of one account in this process: each reads one batch after another from the database

Kind = Literal["emails", "logs"]
Batch = tuple[datetime | None, Sequence[Sequence[object]]]  # time of the oldest row read, rows


@attrs.frozen
class Sheet:
    """The content of an export. `params`: the filters as in the query string. `labels`: the same for people."""

    kind: Kind
    columns: tuple[str, ...]
    batches: AsyncIterator[Batch]
    params: dict[str, str]
    labels: Sequence[tuple[str, str]]


@attrs.define(eq=False)
class ExportPages:
    app = section_app()
    context: PageContext
    stored: Stored
    emails: EmailList
    logs: LogList
    _running: Counter[UUID] = attrs.field(factory=Counter, init=False)  # by account

    @page(app, f"{EMAILS}/export", access="read_mail")
    async def show_emails(self, request: PageRequest) -> bytes:
        return await self._shown(request, await self._emails(request), EMAILS)

    @page(app, f"{EMAILS}/export", "POST", access="read_mail")
    async def download_emails(self, request: PageRequest) -> bytes:
        return await self._download(request, await self._emails(request))

    @page(app, f"{LOGS}/export", access="read_mail")
    async def show_logs(self, request: PageRequest) -> bytes:
        return await self._shown(request, await self._logs(request), LOGS)

    @page(app, f"{LOGS}/export", "POST", access="read_mail")
    async def download_logs(self, request: PageRequest) -> bytes:
        return await self._download(request, await self._logs(request))

    async def _shown(self, request: PageRequest, sheet: Sheet, back: str) -> bytes:
        """The page gets an export ID first, so that it can show the progress of the download that it starts."""
        if not request.query("id"):
            return request.redirect(f"{back}/export", **sheet.params, id=str(uuid4()))
        export = await self.stored.get(request.account_id, request.uuid(request.query("id")))
        query = urlencode({**sheet.params, "id": request.query("id")})
        fresh = f"{back}/export?{urlencode(sheet.params)}"
        return request.render("export.html", sheet=sheet, export=export, back=back, query=query, fresh=fresh)

    async def _download(self, request: PageRequest, sheet: Sheet) -> bytes:
        export_id, account_id = request.uuid(request.query("id")), request.account_id
        if self._running[account_id] >= AT_ONCE:
            raise PageError(429, "Too many exports", f"{AT_ONCE} exports of this account are running. Try again when one has finished.")
        self._running[account_id] += 1
        try:
            return await self._stream(request, export_id, sheet)
        finally:
            self._running[account_id] -= 1
            self._running += Counter()  # drops accounts without exports

    async def _stream(self, request: PageRequest, export_id: UUID, sheet: Sheet) -> bytes:
        filters = ", ".join(f"{name}: {value}" for name, value in sheet.labels) or "all"
        await self.stored.begin(request.account_id, export_id, sheet.kind, [request.audit_entry(f"{sheet.kind} exported", filters)])
        name = f"{sheet.kind}-{self.context.now():%Y-%m-%d-%H%M}.csv"
        await request.download(name, "text/csv; charset=utf-8; header=present", self._csv(request.account_id, export_id, sheet))
        return b""

    async def _csv(self, account_id: UUID, export_id: UUID, sheet: Sheet) -> AsyncGenerator[bytes, None]:
        """The file in batches. If the download ends early, the export is recorded as stopped."""
        rows, reached, whole, updated = 0, None, False, self.context.clock.seconds()
        try:
            yield csv_file.lines([sheet.columns])
            async for reached, batch in sheet.batches:
                if batch:
                    yield csv_file.lines(batch)
                rows += len(batch)
                if self.context.clock.seconds() - updated >= PROGRESS_SECONDS:
                    updated = self.context.clock.seconds()
                    await self.stored.tell(account_id, export_id, "running", rows, reached)
            whole = True
        finally:
            await self.stored.tell(account_id, export_id, "done" if whole else "stopped", rows, reached)

    async def _emails(self, request: PageRequest) -> Sheet:
        selection = await self.emails.read_filters(request)
        keys = {key.id: key.name for key in selection.keys}
        domains = {domain.id: domain.name for domain in selection.domains}

        async def batches() -> AsyncIterator[Batch]:
            after = None
            while True:
                found = await self.emails.search.emails(request.account_id, selection.filters, BATCH, after)
                rows = [
                    (
                        one.email_id, one.created_at.isoformat(), one.last_event.removeprefix("email."), one.sender,
                        ", ".join(one.recipients), one.subject, one.size or "", one.source,
                        domains.get(one.domain_id, ""), keys.get(one.key_id, "") if one.key_id else "",
                    )
                    for one in found.emails
                ]  # fmt: skip
                yield (found.emails[-1].created_at if found.emails else found.looked_until), rows
                after = found.after
                if after is None:
                    return

        columns = ("id", "accepted_at", "status", "from", "recipients", "subject", "size", "source", "domain", "key")
        return Sheet("emails", columns, batches(), selection.params, selection.labels)

    async def _logs(self, request: PageRequest) -> Sheet:
        selection = await self.logs.read_filters(request)
        keys = {key.id: key.name for key in selection.keys}

        async def batches() -> AsyncIterator[Batch]:
            after = None
            while True:
                found = await self.logs.search.page(request.account_id, selection.filters, BATCH, after)
                rows = [
                    (
                        one.id, one.created_at.isoformat(), one.source, one.method, one.path, one.status, f"{one.milliseconds:.1f}",
                        one.user_agent, one.mails if one.source == "smtp" else "", one.refusals if one.source == "smtp" else "",
                        keys.get(one.key_id, "") if one.key_id else "",
                    )
                    for one in found.entries
                ]  # fmt: skip
                yield (found.entries[-1].created_at if found.entries else found.looked_until), rows
                after = found.after
                if after is None:
                    return

        columns = ("id", "at", "source", "method", "path", "status", "milliseconds", "client", "mails", "refusals", "key")
        return Sheet("logs", columns, batches(), selection.params, selection.labels)
