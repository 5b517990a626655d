"""Logs: the API requests of the account, each with what was asked and answered."""

from __future__ import annotations

import attrs
import orjson

from mailsvc.dashboard.desk import Desk
from mailsvc.dashboard.page import Visit, area, not_found, page
from mailsvc.dashboard.safety import HOME
from mailsvc.store.keys import Keys
from mailsvc.store.paging import Page
from mailsvc.store.requestlog import RequestLog

LOGS = f"{HOME}/logs"
PAGE = 50
STATUSES = {"ok": ("Successes", (200, 399)), "errors": ("Errors", (400, 599))}


@attrs.define(eq=False)
class LogPages:
    app = area()
    desk: Desk
    stored: RequestLog
    keys: Keys

    @page(app, LOGS)
    async def list(self, visit: Visit) -> bytes:
        chosen = visit.query("status") if visit.query("status") in STATUSES else ""
        after = visit.uuid(visit.query("after")) if visit.query("after") else None
        found, more = await self.stored.list(visit.account_id, Page(PAGE, after), STATUSES[chosen][1] if chosen else None)
        older = f"{LOGS}?status={chosen}&after={found[-1].id}" if more else None
        return visit.render("logs/list.html", found=found, older=older, first=after is None, chosen=chosen, statuses=STATUSES)

    @page(app, f"{LOGS}/<text>")
    async def one(self, visit: Visit, text: str) -> bytes:
        log = await self.stored.get(visit.account_id, visit.uuid(text, "request"))
        if log is None:
            raise not_found("request")
        keys, _ = await self.keys.list(visit.account_id)
        key = next((k for k in keys if k.id == log.key_id), None)
        return visit.render("logs/one.html", log=log, key=key, asked=_shown(log.request_body), answered=_shown(log.response_body))


def _shown(body: object) -> str:
    return "" if body is None else orjson.dumps(body, option=orjson.OPT_INDENT_2).decode()
