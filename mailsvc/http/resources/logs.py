"""The request log of an account, read by full keys alone. How it is written: requestlog.py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import collection, ok
from mailsvc.http.describe import COUNT, ID, PAGING, TEXT, TIME, Parameter, const, listed, maybe, obj, told
from mailsvc.http.problem import invalid, not_found
from mailsvc.http.request import Request
from mailsvc.http.resources.email_views import time
from mailsvc.store.logs.smtp_sessions import SmtpSession
from mailsvc.store.paging import Page

STATUS = Parameter("status", {"type": "string", "pattern": "^([1-5]([0-9]{2}|xx))?$"}, "One status, `422`, or a class of them, `4xx`.")
ENTRY = {
    "id": ID,
    "created_at": TIME,
    "endpoint": TEXT,
    "method": TEXT,
    "response_status": COUNT,
    "user_agent": maybe(TEXT),
    "api_key_id": maybe(ID),
    "duration_ms": {"type": "number", "minimum": 0},
}
SOURCE = Parameter("source", {"enum": ["api", "smtp", ""]}, "`smtp`: the sessions of the relay in which the account logged in, instead.")
# A session has the keys of a request, so that every client can read it, and `smtp`.
SMTP = obj({"port": COUNT, "tls": TEXT, "mails": COUNT, "refusals": COUNT, "transcript": TEXT}, optional=["transcript"])
LISTED = {**ENTRY, "smtp": SMTP}
BODY = {"description": "As it was, without secrets and the contents of files; a long one is left out."}


class LogView(Protocol):
    """store/logs/requests.LogView"""

    @property
    def id(self) -> UUID: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def key_id(self) -> UUID | None: ...
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def user_agent(self) -> str | None: ...
    @property
    def milliseconds(self) -> float: ...
    @property
    def request_body(self) -> Any: ...
    @property
    def response_body(self) -> Any: ...


class Stored(Protocol):
    """store/logs/requests"""

    async def list(self, account_id: UUID, page: Page, statuses: tuple[int, int] | None = None) -> tuple[Sequence[LogView], bool]: ...
    async def get(self, account_id: UUID, log_id: UUID) -> LogView | None: ...


class Receipts(Protocol):
    """store/logs/smtp_sessions"""

    async def list(self, account_id: UUID, page: Page = ...) -> tuple[Sequence[SmtpSession], bool]: ...
    async def get(self, account_id: UUID, receipt_id: UUID) -> SmtpSession | None: ...


@attrs.define(eq=False)
class Logs:
    app = collection()
    stored: Stored
    receipts: Receipts

    @app.route("/logs", methods=["GET"])
    @told("The requests of the account, newest first.", listed(obj(LISTED, ["smtp"])), parameters=(*PAGING, STATUS, SOURCE))
    async def list(self, request: Request) -> bytes:
        page, statuses = parameters.page(request), _statuses(parameters.one(request, "status"))
        source, account_id = parameters.one(request, "source"), request.caller.account_id
        if source not in ("", "api", "smtp"):
            raise invalid("The `source` parameter must be `api` or `smtp`.")
        if source == "smtp":
            if statuses is not None:
                raise invalid("The `status` parameter does not go with `source=smtp`: a session has many replies.")
            sessions, has_more = await request.detached(self.receipts.list(account_id, page))
            return ok(request, {"object": "list", "has_more": has_more, "data": [_session(one) for one in sessions]})
        found, has_more = await request.detached(self.stored.list(account_id, page, statuses))
        return ok(request, {"object": "list", "has_more": has_more, "data": [_listed(entry) for entry in found]})

    @app.route("/logs/<id>", methods=["GET"])
    @told("A request with its bodies.", obj({"object": const("log"), **LISTED, "request_body": BODY, "response_body": BODY}, ["smtp"]))
    async def get(self, request: Request, id: str) -> bytes:
        return await request.detached(self._get(request, parameters.uuid(id, "id")))

    async def _get(self, request: Request, log_id: UUID) -> bytes:
        account_id = request.caller.account_id
        entry = await self.stored.get(account_id, log_id)
        if entry is not None:
            bodies = {"request_body": entry.request_body, "response_body": entry.response_body}
            return ok(request, {"object": "log", **_listed(entry), **bodies})
        session = await self.receipts.get(account_id, log_id)
        if session is None:
            raise not_found("Log")
        return ok(request, {"object": "log", **_session(session), "request_body": None, "response_body": None})


def _statuses(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    if not re.fullmatch(r"[1-5](\d\d|xx)", text, re.ASCII):
        raise invalid("The `status` parameter must be a status such as `422`, or a class such as `4xx`.")
    return (int(text[0]) * 100, int(text[0]) * 100 + 99) if text.endswith("xx") else (int(text), int(text))


def _listed(entry: LogView) -> dict[str, object]:
    return {
        "id": str(entry.id),
        "created_at": time(entry.created_at),
        "endpoint": entry.path,
        "method": entry.method,
        "response_status": entry.status,
        "user_agent": entry.user_agent,
        "api_key_id": None if entry.key_id is None else str(entry.key_id),
        "duration_ms": round(entry.milliseconds, 1),
    }


def _session(receipt: SmtpSession) -> dict[str, object]:
    """An SMTP session in the keys of a request. Its status: 250, or 550 when some reply refused something."""
    smtp: dict[str, object] = {"port": receipt.port, "tls": receipt.tls, "mails": receipt.mails, "refusals": receipt.refusals}
    return {
        "id": str(receipt.receipt_id),
        "created_at": time(receipt.closed_at),
        "endpoint": "smtp",
        "method": "SMTP",
        "response_status": 550 if receipt.refusals else 250,
        "user_agent": None,
        "api_key_id": None if receipt.key_id is None else str(receipt.key_id),
        "duration_ms": round((receipt.closed_at - receipt.opened_at).total_seconds() * 1000, 1),
        "smtp": smtp if receipt.transcript is None else {**smtp, "transcript": receipt.transcript},
    }
