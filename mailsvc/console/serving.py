"""Serving a page of the console: which function answers, who is signed in, forms, the audit log. Requests and responses: dashboard/page.

Every page needs a session with both factors, except those to sign in and to set up the two factors.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, Literal, cast
from uuid import UUID, uuid4

import attrs
from jinja2 import Environment
from twisted.logger import Logger
from twisted.web.resource import Resource

from mailsvc.clock import utc
from mailsvc.console.listener import answered
from mailsvc.dashboard import safety
from mailsvc.dashboard.page import THEME, PageError, PageRequest, error_page, not_found, read_form, urlencoded
from mailsvc.dashboard.pages import static_file
from mailsvc.store.console.operators import Operators, OperatorSession
from mailsvc.store.encryption.secrets import EncryptionError
from mailsvc.store.people.audit import INSTALLATION, Line, by_named_operator
from mailsvc.store.postgres.errors import Transient

HOME = "/console"
SIGN_IN, SET_UP = f"{HOME}/sign-in", f"{HOME}/set-up"
SESSION, BROWSER = "mailsvc-console", "mailsvc-console-form"
Access = Literal["public", "operator"]
log = Logger()


@attrs.define(eq=False, kw_only=True)
class ConsoleContext:
    """What all pages share. `url`: where operators reach the console. `region`: whose queue and sources are shown."""

    operators: Operators
    templates: Environment
    secrets: Callable[[], Any]  # the first one signs form tokens, all verify them
    url: str
    clock: Any
    region: str
    has_status_page: bool = False

    @property
    def secure(self) -> bool:
        return self.url.startswith("https:")

    def now(self) -> datetime:
        return utc(self.clock)


class ConsolePage(PageRequest):
    """A request for a page of the console."""

    @property
    def operator(self) -> OperatorSession:
        """Who is signed in, on pages that require it."""
        assert self.session is not None
        return cast(OperatorSession, self.session)

    @property
    def token(self) -> str:
        return safety.token(self.context.secrets()[0], self.binding)

    def lines(self, action: str, subject: str = "", account_id: UUID = INSTALLATION, about: str = "") -> list[Line]:
        """Entries for the audit log, to be written in the transaction of the change."""
        return by_named_operator(self.operator.email, self.address, account_id, action, subject, about)


Function = Callable[..., Awaitable[bytes]]


@attrs.frozen
class Route:
    """A route: `path` has names in angle brackets for segments that vary."""

    method: str
    path: str
    access: Access
    function: Function

    def named(self, path: str) -> dict[str, str] | None:
        """The segments that vary; None for another path."""
        pattern, parts = self.path.split("/"), path.split("/")
        if len(pattern) != len(parts) or any(a != b and not a.startswith("<") for a, b in zip(pattern, parts, strict=True)):
            return None
        return {a.strip("<>"): b for a, b in zip(pattern, parts, strict=True) if a.startswith("<")}


ROUTES: list[Route] = []  # all routes of the console; docs/security.md lists them


def page(path: str, method: str = "GET", *, access: Access = "operator") -> Callable[[Function], Function]:
    """Register a method of a section."""

    def registered(function: Function) -> Function:
        ROUTES.append(Route(method, path, access, function))
        return function

    return registered


@attrs.define(eq=False)
class Console(Resource):
    """The root of the console's listener. `sections`: the objects whose methods answer."""

    context: ConsoleContext
    sections: Iterable[object]

    isLeaf = True

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    def render(self, request: Any) -> int:
        return answered(request, self.serve(request))

    async def serve(self, http: Any) -> bytes:
        request = ConsolePage(cast(Any, self.context), http, None, "", {}, "auto")
        try:
            return await self._page(request)
        except PageError as error:
            return error_page(request, error)
        except (Transient, EncryptionError) as error:
            log.warn("page of the console not available at the moment: {reason}", reason=str(error))
            return error_page(request, PageError(503, "Temporarily unavailable", "Data can’t be read or stored now. Reload the page."))
        except Exception:
            error_id = uuid4().hex[:12]
            log.failure("page of the console failed with error {error_id}", error_id=error_id)
            return error_page(request, PageError(500, "Something went wrong", f"It’s logged as {error_id}."))

    async def _page(self, request: ConsolePage) -> bytes:
        await self._authenticate(request)
        if getattr(request.http, "too_large", False):
            raise PageError(413, "Form too large", "Enter less text.")
        route, named = self._route(request)
        if request.session is None and route.access != "public":
            return request.redirect(SIGN_IN)
        if request.http.method == b"POST":
            request.form = await read_form(request, urlencoded)
        section = next(one for one in self.sections if getattr(type(one), route.function.__name__, None) is route.function)
        return await route.function(section, request, **named)

    def _route(self, request: ConsolePage) -> tuple[Route, dict[str, str]]:
        method = "GET" if request.http.method == b"HEAD" else request.http.method.decode("latin-1")
        found = [(route, named) for route in ROUTES if (named := route.named(request.path)) is not None]
        served = next(((route, named) for route, named in found if route.method == method), None)
        if served is None:
            raise PageError(405, "Method not allowed", "This page doesn’t support this request method.") if found else not_found()
        return served

    async def _authenticate(self, request: ConsolePage) -> None:
        theme, secret = request.cookie(THEME), request.cookie(SESSION)
        request.theme = theme if theme in ("light", "dark") else "auto"
        request.session = cast(Any, await self.context.operators.find(secret) if secret else None)
        request.binding = secret if request.session is not None else request.cookie(BROWSER)
        if request.session is None and (len(request.binding) != 32 or not request.binding.isalnum()):
            request.binding = secrets.token_hex(16)
            request.set_cookie(BROWSER, request.binding)


class CommonPages:
    """Pages that belong to no section."""

    @page("/", access="public")
    async def root(self, request: ConsolePage) -> bytes:
        return request.redirect(HOME)

    @page("/dashboard/static/<version>/<name>", access="public")
    async def static(self, request: ConsolePage, version: str, name: str) -> bytes:
        return static_file(request, version, name)
