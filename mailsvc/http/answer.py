"""From the result of a handler to a response: JSON, pages of lists, and the errors that all collections have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

import orjson
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from mailsvc.http import problem
from mailsvc.http.fixed_routes import Collection, Segment
from mailsvc.http.problem import Problem
from mailsvc.http.request import Request
from mailsvc.http.views import View
from mailsvc.runtime.failures import forget
from mailsvc.store.encryption.body_key_files import BodyKeyError
from mailsvc.store.encryption.secrets import EncryptionError
from mailsvc.store.people.audit import Line
from mailsvc.store.postgres.errors import Contention, Transient

log = Logger()


def ok(request: Request, value: Mapping[str, object] | Sequence[object], status: int = 200) -> bytes:
    if request.method == b"GET" and (moved := request.moved):
        raise moved  # it may have found less than there is
    request.response_json = value
    return request.sized(status, orjson.dumps(value))


def created(request: Request, value: Mapping[str, object]) -> bytes:
    return ok(request, value, 201)


def page(request: Request, row: View, rows: Iterable[object], has_more: bool) -> bytes:
    """A page of a list."""
    return ok(request, {"object": "list", "has_more": has_more, "data": [row.show(each) for each in rows]})


def audited(request: Request, action: str, subject: str = "") -> Line:
    """An entry for the account's audit log that names the API key of the request."""
    caller = request.caller
    return Line(caller.account_id, None, None, "", request.address(), action, subject, caller.key_id)


def translated(failure: Failure) -> Problem:
    """The problem that the client gets for a failure. An unexpected one is logged with an ID that the client gets, too."""
    error = failure.value
    if isinstance(error, Problem):
        return error
    if isinstance(error, BodyKeyError):
        log.error("A message cannot be read: {reason}", reason=str(error))
        return problem.unreadable()
    if isinstance(error, Transient | EncryptionError):
        log.warn("A request cannot be served at the moment: {reason}", reason=str(error))
        return problem.unavailable()
    error_id = uuid4().hex[:12]
    log.failure("Error {error_id} in a request", failure=failure, error_id=error_id)
    return problem.unexpected(error_id)


def collection(*fixed: str) -> Collection:
    """A Klein app with the errors that all collections share.

    `fixed` are path segments with routes of their own. A placeholder such as `<id>` never matches them, so the `Allow` header of
    `/emails/batch` does not list the methods of `/emails/<id>`.
    """
    app = Collection()
    app.url_map.merge_slashes = False
    app.url_map.converters["default"] = Segment
    if fixed:
        excluded = "|".join(map(re.escape, fixed))
        app.url_map.converters["default"] = type("Other", (Segment,), {"regex": rf"(?!(?:{excluded})\Z)[^/]+", "part_isolating": True})

    def not_found(collection: Any, request: IRequest, failure: Failure) -> bytes:
        return _problem(request, problem.no_endpoint())

    def not_allowed(collection: Any, request: IRequest, failure: Failure) -> bytes:
        allowed = ", ".join(sorted({*(failure.value.valid_methods or ()), "OPTIONS"}))  # type: ignore[union-attr]
        if cast(Request, request).method != b"OPTIONS":
            return _problem(request, problem.method_not_allowed(allowed))
        request.setResponseCode(204)
        request.setHeader(b"allow", allowed.encode())
        return b""

    def failed(collection: Any, request: IRequest, failure: Failure) -> bytes:
        wrong = translated(failure)
        if isinstance(failure.value, Contention):  # nothing was done
            wrong = cast(Request, request).moved or wrong
        forget(failure.value)
        return _problem(request, wrong)

    table: Sequence[tuple[type[Exception], Any]] = ((MethodNotAllowed, not_allowed), (HTTPException, not_found), (Exception, failed))
    for error, answered in table:
        app.handle_errors(error)(answered)
    return app


def _problem(request: IRequest, wrong: Problem) -> bytes:
    return cast(Request, request).problem_body(wrong)
