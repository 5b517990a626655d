"""Taking emails and logs away as CSV: what the list shows, all of it, written while it is read, with how far it has got."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import datetime
from typing import Literal
from urllib.parse import urlencode
from uuid import UUID, uuid4

import attrs

from mailsvc.dashboard import csv_file
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.emails.detail import EMAILS
from mailsvc.dashboard.emails.listing import EmailList
from mailsvc.dashboard.logs import LOGS, LogList
from mailsvc.dashboard.page import Visit, area, page
from mailsvc.store.mail.exports import Exports as Stored

BATCH = 1000  # rows that are read at a time
TOLD = 1.0  # seconds between two words of how far it is

Kind = Literal["emails", "logs"]
Batch = tuple[datetime | None, Sequence[Sequence[object]]]  # how far it reached, and rows


@attrs.frozen
class Sheet:
    """What is to be taken away. `kept`: the filters, as the address has them; `said`: as people read them."""

    kind: Kind
    columns: tuple[str, ...]
    batches: AsyncIterator[Batch]
    kept: dict[str, str]
    said: Sequence[tuple[str, str]]


@attrs.define(eq=False)
class ExportPages:
    app = area()
    desk: PageContext
    stored: Stored
    emails: EmailList
    logs: LogList

    @page(app, f"{EMAILS}/export")
    async def show_emails(self, visit: Visit) -> bytes:
        return await self._shown(visit, await self._emails(visit), EMAILS)

    @page(app, f"{EMAILS}/export", "POST")
    async def take_emails(self, visit: Visit) -> bytes:
        return await self._taken(visit, await self._emails(visit))

    @page(app, f"{LOGS}/export")
    async def show_logs(self, visit: Visit) -> bytes:
        return await self._shown(visit, await self._logs(visit), LOGS)

    @page(app, f"{LOGS}/export", "POST")
    async def take_logs(self, visit: Visit) -> bytes:
        return await self._taken(visit, await self._logs(visit))

    async def _shown(self, visit: Visit, sheet: Sheet, back: str) -> bytes:
        """The page has an id of its own from the beginning, so that it can follow what it began."""
        if not visit.query("id"):
            return visit.redirect(f"{back}/export", **sheet.kept, id=str(uuid4()))
        export = await self.stored.get(visit.account_id, visit.uuid(visit.query("id")))
        query = urlencode({**sheet.kept, "id": visit.query("id")})
        fresh = f"{back}/export?{urlencode(sheet.kept)}"
        return visit.render("export.html", sheet=sheet, export=export, back=back, query=query, fresh=fresh)

    async def _taken(self, visit: Visit, sheet: Sheet) -> bytes:
        export_id = visit.uuid(visit.query("id"))
        filters = ", ".join(f"{name}: {value}" for name, value in sheet.said) or "all"
        await self.stored.begin(visit.account_id, export_id, sheet.kind, [visit.line(f"{sheet.kind} exported", filters)])
        name = f"{sheet.kind}-{self.desk.now():%Y-%m-%d-%H%M}.csv"
        await visit.download(name, "text/csv; charset=utf-8; header=present", self._written(visit.account_id, export_id, sheet))
        return b""

    async def _written(self, account_id: UUID, export_id: UUID, sheet: Sheet) -> AsyncGenerator[bytes, None]:
        """The file, a batch at a time. Ended before its time, by whomever, it is told as stopped."""
        rows, reached, whole, told = 0, None, False, self.desk.clock.seconds()
        try:
            yield csv_file.lines([sheet.columns])
            async for reached, batch in sheet.batches:
                if batch:
                    yield csv_file.lines(batch)
                rows += len(batch)
                if self.desk.clock.seconds() - told >= TOLD:
                    told = self.desk.clock.seconds()
                    await self.stored.tell(account_id, export_id, "running", rows, reached)
            whole = True
        finally:
            await self.stored.tell(account_id, export_id, "done" if whole else "stopped", rows, reached)

    async def _emails(self, visit: Visit) -> Sheet:
        asked = await self.emails.asked(visit)
        keys = {key.id: key.name for key in asked.keys}
        domains = {domain.id: domain.name for domain in asked.domains}

        async def batches() -> AsyncIterator[Batch]:
            after = None
            while True:
                found = await self.emails.search.emails(visit.account_id, asked.filters, BATCH, after)
                rows = [
                    (
                        one.email_id, one.created_at.isoformat(), one.last_event.removeprefix("email."), one.sender,
                        ", ".join(one.recipients), one.subject, one.size, one.source,
                        domains.get(one.domain_id, ""), keys.get(one.key_id, "") if one.key_id else "",
                    )
                    for one in found.emails
                ]  # fmt: skip
                yield (found.emails[-1].created_at if found.emails else found.looked_until), rows
                after = found.after
                if after is None:
                    return

        columns = ("id", "accepted_at", "status", "from", "recipients", "subject", "size", "source", "domain", "key")
        return Sheet("emails", columns, batches(), asked.kept, asked.said)

    async def _logs(self, visit: Visit) -> Sheet:
        asked = await self.logs.asked(visit)
        keys = {key.id: key.name for key in asked.keys}

        async def batches() -> AsyncIterator[Batch]:
            after = None
            while True:
                found = await self.logs.search.page(visit.account_id, asked.filters, BATCH, after)
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
        return Sheet("logs", columns, batches(), asked.kept, asked.said)
