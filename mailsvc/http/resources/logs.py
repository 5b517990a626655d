"""The request log of an account: its API requests and SMTP sessions. What writes it: `http/request_log` and `relay/session_log`."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import collection, ok, page
from mailsvc.http.operations import PAGING, Parameter, one_of, operation
from mailsvc.http.problem import invalid, not_found
from mailsvc.http.request import Request
from mailsvc.http.views import Listing, View, const, count, free, maybe, number, one, optional, text, time, uuid
from mailsvc.store.logs.requests import RequestLog
from mailsvc.store.logs.smtp_sessions import SmtpSession, SmtpSessions

STATUS = Parameter(
    "status", "Returns only requests with this status, or with a class of statuses such as `4xx`.", "422",
    {"type": "string", "pattern": "^([1-5]([0-9]{2}|xx))?$"},
)  # fmt: skip
SOURCE = Parameter("source", "`api` (default) or `smtp`: sessions of the SMTP relay that authenticated.", "api", one_of("api", "smtp"))

_SMTP = View(
    "LogSmtpSession",
    {
        "port": count("The port.", 587),
        "tls": text("The version of TLS.", "TLSv1.3"),
        "mails": count("How many emails were accepted.", 1),
        "refusals": count("How many commands were refused.", 0),
        "transcript": optional(text("The commands and replies, in the details only.", "S: 220 smtp.example.com ESMTP")),
    },
)
ROW = View(
    "LogRow",
    {
        "id": uuid("The log's ID."),
        "created_at": time("When the response was sent."),
        "endpoint": text("The path, or `smtp`.", "/emails", "path"),
        "method": text("The method, or `SMTP`.", "POST"),
        "response_status": count("The status of the response. SMTP sessions: 250, or 550 if something was refused.", 200, "status"),
        "user_agent": maybe(text("The client.", "resend-python:2.51.0")),
        "api_key_id": maybe(uuid("The API key.", "key_id")),
        "duration_ms": number("How long it took.", 12.3, lambda entry: round(entry.milliseconds, 1)),
        "smtp": optional(one(_SMTP, "Details of an SMTP session.", lambda entry: None)),
    },
)
_BODY = "The JSON, without secrets and file contents. Long ones are shortened."
LOG = View(
    "Log",
    {
        "object": const("log", "Always `log`."),
        **ROW.values,
        "request_body": free(f"The body of the request. {_BODY}", {"to": "someone@example.net"}),
        "response_body": free(f"The body of the response. {_BODY}", {"id": "0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e"}),
    },
)


@attrs.define(eq=False)
class Logs:
    app = collection()
    requests: RequestLog
    sessions: SmtpSessions

    @app.route("/logs", methods=["GET"])
    @operation(
        "List logs",
        "The API requests of the account, or its SMTP sessions, newest first.",
        Listing(ROW),
        parameters=(*PAGING, STATUS, SOURCE),
    )
    async def list(self, request: Request) -> bytes:
        wanted, statuses = parameters.page(request), _statuses(parameters.one(request, "status"))
        source, account_id = parameters.one(request, "source"), request.caller.account_id
        if source not in ("", "api", "smtp"):
            raise invalid("The `source` parameter must be `api` or `smtp`.")
        if source == "smtp":
            if statuses is not None:
                raise invalid("The `status` parameter cannot be combined with `source=smtp`: a session has many replies.")
            sessions, has_more = await request.detached(self.sessions.list(account_id, wanted))
            return ok(request, {"object": "list", "has_more": has_more, "data": [ROW.show(**_session(one)) for one in sessions]})
        found, has_more = await request.detached(self.requests.list(account_id, wanted, statuses))
        return page(request, ROW, found, has_more)

    @app.route("/logs/<id>", methods=["GET"])
    @operation("Retrieve a log", "An API request with its bodies, or an SMTP session with its transcript.", LOG)
    async def get(self, request: Request, id: str) -> bytes:
        return await request.detached(self._get(request, parameters.uuid(id, "id")))

    async def _get(self, request: Request, log_id: UUID) -> bytes:
        account_id = request.caller.account_id
        entry = await self.requests.get(account_id, log_id)
        if entry is not None:
            return ok(request, LOG.show(entry))
        session = await self.sessions.get(account_id, log_id)
        if session is None:
            raise not_found("Log")
        return ok(request, LOG.show(**_session(session), request_body=None, response_body=None))


def _statuses(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    if not re.fullmatch(r"[1-5](\d\d|xx)", text, re.ASCII):
        raise invalid("The `status` parameter must be a status such as `422`, or a class such as `4xx`.")
    return (int(text[0]) * 100, int(text[0]) * 100 + 99) if text.endswith("xx") else (int(text), int(text))


def _session(session: SmtpSession) -> dict[str, Any]:
    """An SMTP session with the fields of a request, so that every client library can read it."""
    return {
        "id": session.receipt_id,
        "created_at": session.closed_at,
        "endpoint": "smtp",
        "method": "SMTP",
        "response_status": 550 if session.refusals else 250,
        "user_agent": None,
        "api_key_id": session.key_id,
        "duration_ms": round((session.closed_at - session.opened_at).total_seconds() * 1000, 1),
        "smtp": session,
    }
