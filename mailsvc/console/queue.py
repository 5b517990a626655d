"""The queue by destination, with pause, resume and retry; and source addresses with their warm-up. Both of this process's region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs

from mailsvc.accounts.onboarding import Refused
from mailsvc.console.serving import HOME, ConsoleContext, ConsolePage, page
from mailsvc.dashboard.page import PageError
from mailsvc.delivery.shaping import DEFAULT_POOL, Shaping
from mailsvc.monitoring.operator_commands import OperatorCommands
from mailsvc.store.people.audit import INSTALLATION, Line
from mailsvc.store.queue.sources import ABSENT, SourceTable, StoredSource

QUEUE, SOURCES = f"{HOME}/queue", f"{HOME}/sources"
LONGEST = 300  # characters of a reason
_DONE = {"pause": "Paused: {}.", "resume": "Resumed: {}.", "retry": "Due again now: {}."}


@attrs.define(eq=False)
class QueuePages:
    context: ConsoleContext
    commands: OperatorCommands

    @page(QUEUE)
    async def shown(self, request: ConsolePage) -> bytes:
        return await self._shown(request)

    async def _shown(self, request: ConsolePage, status: int = 200, error: str = "") -> bytes:
        """`error`: about the name in the form."""
        done = _DONE.get(request.query("done"), "").format(request.query("name")[:200])
        return request.render("queue.html", status, queue=await self.commands.show(), done=done, error=error)

    @page(f"{QUEUE}/pause", "POST")
    async def pause(self, request: ConsolePage) -> bytes:
        reason = request.single_line("reason")[:LONGEST].rstrip(".")
        return await self._done(request, "pause", lambda commands, name: commands.pause("destination", name, reason or None))

    @page(f"{QUEUE}/resume", "POST")
    async def resume(self, request: ConsolePage) -> bytes:
        return await self._done(request, "resume", lambda commands, name: commands.resume("destination", name))

    @page(f"{QUEUE}/retry", "POST")
    async def retry(self, request: ConsolePage) -> bytes:
        """Commands do not record this, since it changes no decision; here, everything is recorded."""

        async def retry(commands: OperatorCommands, name: str) -> None:
            await commands.retry("destination", name)
            [line] = request.lines("destination retried", name)
            await commands.operating.record(line, self.context.now())

        return await self._done(request, "retry", retry)

    async def _done(self, request: ConsolePage, what: str, work: Callable[[OperatorCommands, str], Any]) -> bytes:
        name = request.single_line("name")[:LONGEST]

        def line(account_id: Any, action: str, subject: str = "") -> Line:
            assert account_id == INSTALLATION
            return request.lines(action, subject)[0]

        try:
            await work(attrs.evolve(self.commands, line=line), name)
        except Refused as refused:
            if what == "pause":
                return await self._shown(request, 422, str(refused))
            raise PageError(422, "Not possible", str(refused)) from None
        return request.redirect(QUEUE, done=what, name=name)


@attrs.frozen
class SourceView:
    """`day` of the warm-up; None if it is warm or does not warm up. `sent`: provider, emails today, the day's limit."""

    address: str
    pool: str
    day: int | None
    sent: Sequence[tuple[str, int, int | None]]
    listed: Sequence[str]
    running: bool


@attrs.define(eq=False)
class SourcePages:
    context: ConsoleContext
    table: SourceTable
    shaping: Shaping

    @page(SOURCES)
    async def shown(self, request: ConsolePage) -> bytes:
        now = self.context.now()
        taken = await self.table.taken(now.astimezone(UTC).date())
        views = [self._view(one, now, [(p, n) for (address, p), n in sorted(taken.items()) if address == one.address])
                 for one in await self.table.read()]  # fmt: skip
        return request.render("sources.html", sources=views)

    def _view(self, source: StoredSource, now: datetime, sent: Sequence[tuple[str, int]]) -> SourceView:
        day = None if source.since is None else (now.astimezone(UTC).date() - source.since).days + 1
        if day is not None and day > self.shaping.warm_up_days:
            day = None
        today = [] if day is None else [(provider, count, self.shaping.warm_up_limit(provider, day)) for provider, count in sent]
        running = now - source.seen_at <= ABSENT
        return SourceView(source.address, source.pool or DEFAULT_POOL, day, today, source.listed, running)
