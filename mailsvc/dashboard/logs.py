"""Logs: the account's API requests and SMTP sessions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, cast
from urllib.parse import urlencode
from uuid import UUID

import attrs
import orjson

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.news import answer, of
from mailsvc.dashboard.page import PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.store.logs.requests import RequestLog
from mailsvc.store.logs.search import Filters, LogSearch, Source
from mailsvc.store.logs.smtp_sessions import SmtpSessions
from mailsvc.store.people.api_keys import Keys, KeyView

LOGS = f"{HOME}/logs"
PAGE = 50
SOURCES = {"api": "API requests", "smtp": "SMTP sessions"}
OUTCOMES = {"ok": "Successful", "errors": "Errors"}
SPANS = {"1": "Last 24 hours", "3": "Last 3 days", "7": "Last 7 days", "30": "Last 30 days"}

_QUEUED = re.compile(r"[Qq]ueued as ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


@attrs.frozen
class Selection:
    """The filters in a query string. `params`: those that apply, for links. `labels`: the same for people, as name and value."""

    filters: Filters
    params: dict[str, str]
    labels: Sequence[tuple[str, str]]
    keys: Sequence[KeyView]

    @property
    def query(self) -> str:
        return urlencode(self.params)


@attrs.define(eq=False)
class LogList:
    """The list of log entries, and one entry."""

    app = section_app()
    context: PageContext
    search: LogSearch
    stored: RequestLog
    sessions: SmtpSessions
    keys: Keys

    @page(app, LOGS, access="read_mail")
    async def list(self, request: PageRequest) -> bytes:
        news = await answer(request, LOGS, {}, ("entry", "entries"), partial(self.search.newer, request.account_id))
        if news is not None:
            return news
        selection = await self.read_filters(request)
        after = request.uuid(request.query("after")) if request.query("after") else None
        found = await self.search.page(request.account_id, selection.filters, PAGE, after)
        older = f"{LOGS}?{urlencode({**selection.params, 'after': str(found.after)})}" if found.after else None
        return request.render(
            "logs/list.html", page=found, older=older, first=after is None, selection=selection,
            sources=SOURCES, outcomes=OUTCOMES, spans=SPANS,
            news=of(request, LOGS, {}, found.entries[0].id if found.entries else None) if selection.filters.empty and not after else None,
        )  # fmt: skip

    async def read_filters(self, request: PageRequest) -> Selection:
        """Unknown filter values are ignored, an unknown key is not found. `status` may be a status code such as 429."""
        keys = await self.keys.ever(request.account_id)
        given = {name: request.query(name)[:200] for name in ("q", "source", "status", "days", "key")}
        key = request.selected("key", keys, "API key")
        status = int(given["status"]) if re.fullmatch(r"[1-5]\d\d", given["status"], re.ASCII) else None
        filters = Filters(
            source=cast(Source, given["source"]) if given["source"] in SOURCES else "",
            refused={"ok": False, "errors": True}.get(given["status"]),
            status=status,
            since=self.context.now() - timedelta(days=int(given["days"])) if given["days"] in SPANS else None,
            key_id=key.id if key else None,
            text=given["q"],
        )
        labels = {
            "q": ("Text", given["q"]),
            "source": ("Source", SOURCES.get(given["source"], "")),
            "status": ("Status", given["status"] if status else OUTCOMES.get(given["status"], "")),
            "days": ("Time", SPANS.get(given["days"], "")),
            "key": ("API key", key.name if key else ""),
        }
        params = {name: given[name] for name, (_, value) in labels.items() if value}
        return Selection(filters, params, [labels[name] for name in params], keys)

    @page(app, f"{LOGS}/<text>", access="read_mail")
    async def one(self, request: PageRequest, text: str) -> bytes:
        log_id = request.uuid(text, "entry")
        log = await self.stored.get(request.account_id, log_id)
        keys = await self.keys.ever(request.account_id)
        if log is None:
            return await self._session(request, log_id, keys)
        key = next((k for k in keys if k.id == log.key_id), None)
        emails = _email_ids(log.response_body) if log.method == "POST" and log.path.startswith("/emails") else []
        return request.render(
            "logs/one.html", log=log, key=key, emails=emails,
            request_body=_shown(log.request_body), response_body=_shown(log.response_body),
        )  # fmt: skip

    async def _session(self, request: PageRequest, log_id: UUID, keys: Sequence[KeyView]) -> bytes:
        """One SMTP session."""
        session = await self.sessions.get(request.account_id, log_id)
        if session is None:
            raise not_found("entry")
        key = next((k for k in keys if k.id == session.key_id), None)
        return request.render("logs/session.html", session=session, key=key, emails=_QUEUED.findall(session.transcript or ""))


def _shown(body: object) -> str:
    return "" if body is None else orjson.dumps(body, option=orjson.OPT_INDENT_2).decode()


def _email_ids(body: Any) -> list[str]:
    """The IDs of the emails in the response to a request."""
    created = body.get("data", [body]) if isinstance(body, dict) else []
    return [str(one["id"]) for one in created if isinstance(one, dict) and "id" in one] if isinstance(created, list) else []
