"""Klein collections whose fixed paths, such as /emails, are looked up in a table. Paths with an ID are matched by Klein.

Both behave the same; a table is much faster, and emails are sent at fixed paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from klein import Klein
from klein.resource import KleinResource
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.server import NOT_DONE_YET
from werkzeug.routing import BaseConverter

from mailsvc.http.request import Request

Handler = Callable[[Any], Any]


class Segment(BaseConverter):
    """A placeholder. Its value may contain a slash, as an address can: `FixedRoutes` encodes it for Klein."""

    def to_python(self, value: str) -> str:
        return value.replace("%2F", "/").replace("%25", "%")


class Collection(Klein):
    def resource(self) -> FixedRoutes:
        return FixedRoutes(self)


class FixedRoutes(KleinResource):
    """The routes of one collection."""

    def __init__(self, app: Klein) -> None:
        super().__init__(app)
        self._handlers: Mapping[tuple[bytes, bytes], Handler] = {
            (method.encode(), rule.rule.encode()): partial(app.endpoints[rule.endpoint], app._instance)
            for rule in app.url_map.iter_rules()
            if not rule.arguments
            for method in rule.methods or ()
        }

    def render(self, request: IRequest) -> Any:
        asked = cast(Request, request)
        handler = self._handlers.get((asked.method, asked.path))
        if handler is None:
            if b"%" in asked.path:  # Klein joins the decoded segments with slashes
                asked.postpath = [segment.replace(b"%", b"%25").replace(b"/", b"%2F") for segment in asked.postpath or ()]
            return super().render(request)
        result: Deferred[Any] = maybeDeferred(handler, request)
        if not result.called:
            asked.notifyFinish().addErrback(lambda _: result.cancel())  # the client disconnected
        result.addErrback(self._failed, asked)
        result.addCallback(_answer, asked)
        result.addErrback(_not_handled, asked)
        return NOT_DONE_YET

    def _failed(self, failure: Failure, request: Request) -> Any:
        """The response of the collection's first error handler for this failure."""
        if request.finished or request._disconnected:
            return None if failure.check(CancelledError) else failure
        for errors, handler in self._app._error_handlers:
            if failure.check(*errors):
                return self._app.execute_error_handler(handler, request, failure)
        return failure


def _answer(body: bytes | None, request: Request) -> None:
    if request.finished or request._disconnected:
        return
    if body is not None:
        request.write(body)
    request.finish()


def _not_handled(failure: Failure, request: Request) -> None:
    """No error handler took the failure, or one failed itself: log it, and respond unless a response has begun."""
    request.processingFailed(failure)
