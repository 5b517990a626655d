"""Serving one page: authentication, permissions, forms, redirects, error pages.

A page is a method that takes a `PageRequest` and returns bytes, registered with `@page`. What all pages share is in context.py.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import attrs
from klein import Klein
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from mailsvc.dashboard import safety, zones
from mailsvc.dashboard.access.routes import CHANGES, OWN, ROUTES, Access, Route, admits, nearest_page, opens, roles_with
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.http_request import HttpRequest, cookies_of, text_of
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin.password import Busy
from mailsvc.http import problem
from mailsvc.http.multipart import Part
from mailsvc.net import allow_list
from mailsvc.store.encryption.body_key_files import BodyKeyError
from mailsvc.store.encryption.secrets import EncryptionError
from mailsvc.store.people.api_keys import TooManyKeys
from mailsvc.store.people.audit import DENIED, Line
from mailsvc.store.people.roles import NAMES, Permission, permits
from mailsvc.store.people.sessions import Session
from mailsvc.store.postgres.errors import Transient


class Identified(Protocol):
    @property
    def id(self) -> UUID: ...


Named = TypeVar("Named", bound=Identified)
log = Logger()

SESSION, BROWSER, THEME, ZONE = "mailsvc", "mailsvc-form", "mailsvc-theme", "mailsvc-zone"
FIELDS = 200
SIGN_IN = f"{HOME}/sign-in"
SECURITY = f"{HOME}/settings/security"
SWITCH = f"{HOME}/settings/show"  # to another account
PASSKEYS = f"{HOME}/settings/passkeys"
REAUTHENTICATE = f"{SIGN_IN}/again"
PLAN = f"{HOME}/settings/plan"  # what everyone can open who cannot open the home page
FIRST = f"{SIGN_IN}/first"  # where somebody who signed in with a link chooses how to sign in from now on
REAUTHENTICATION_LIFETIME = timedelta(minutes=15)  # after it, dangerous changes ask for a proof again
SWITCHED = "You’ve switched accounts since this page was loaded, so nothing was changed. Go back and reload the page."
NEVER = datetime.fromtimestamp(0, UTC)  # `proved_at` of a session whose user signed in through a provider that reports no sign-in time


@attrs.frozen
class PageError(Exception):
    """Shown to the user as an error page with this status, title and message."""

    status: int
    title: str
    message: str


def not_found(what: str = "page") -> PageError:
    return PageError(404, "Not found", f"This {what} doesn’t exist, or you don’t have access to it.")


def forbidden(message: str) -> PageError:
    return PageError(403, "Not allowed", message)


@attrs.define(eq=False)
class PageRequest:
    """A request for a page, and its response.

    `session`: None if nobody is signed in. `binding`: the cookie that form tokens and tickets belong to, of the session or else of the
    browser. `streaming`: the response has begun, so an error can no longer be shown as a page. `file`: of a form that has one (uploads).
    """

    context: PageContext
    http: HttpRequest
    session: Session | None
    binding: str
    form: Mapping[str, str]
    theme: str
    streaming: bool = False
    file: Part | None = None

    # Request

    def query(self, name: str) -> str:
        return text_of(self.http.args.get(name.encode(), [b""])[0]).strip()

    def field(self, name: str) -> str:
        """A form field without surrounding white space. Passwords are read from `form` instead."""
        return self.form.get(name, "").strip()

    def single_line(self, name: str) -> str:
        """A form field such as a name: white space and line breaks become single spaces."""
        return " ".join(self.form.get(name, "").split())

    def uuid(self, text: str, what: str = "page") -> UUID:
        try:
            return UUID(text)
        except ValueError:
            raise not_found(what) from None

    def selected(self, name: str, choices: Iterable[Named], what: str) -> Named | None:
        """The choice whose ID is in the query; None if the query names none. An unknown ID is not found, rather than showing all."""
        text = self.query(name)
        found = next((one for one in choices if str(one.id) == text), None)
        if text and found is None:
            raise not_found(what)
        return found

    @property
    def address(self) -> str:
        return self.http.address()

    @property
    def agent(self) -> str:
        return self.header("user-agent")

    @property
    def path(self) -> str:
        return self.http.path.decode("latin-1")

    @property
    def return_path(self) -> str:
        """Where forms that are on every page lead back to."""
        return self.path if self.http.method in (b"GET", b"HEAD") else nearest_page(self.path)

    @property
    def section(self) -> str:
        """The section of the dashboard: emails, domains, …"""
        return [*self.path.split("/"), "", ""][2]

    def header(self, name: str) -> str:
        return text_of((self.http.requestHeaders.getRawHeaders(name.encode()) or [b""])[0])

    @property
    def user_session(self) -> Session:
        """The session, on pages that require one."""
        assert self.session is not None
        return self.session

    @property
    def account_id(self) -> UUID:
        assert self.user_session.account_id is not None
        return self.user_session.account_id

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of the user; UTC if it is not known."""
        return zones.named(self.session.time_zone if self.session is not None else "")

    @property
    def now(self) -> datetime:
        """The time, in the user's zone. Templates show all times in the zone of `now`."""
        return self.context.now().astimezone(self.zone)

    def may(self, permission: Permission) -> bool:
        return self.session is not None and permits(self.session.role, permission)

    def may_open(self, path: str) -> bool:
        """Whether the member's role can open a page; the others are not linked."""
        return self.session is not None and opens(self.session.role, path)

    @property
    def role_name(self) -> str:
        return NAMES.get(self.session.role, "") if self.session is not None and self.session.role is not None else ""

    @property
    def changes(self) -> bool:
        """Whether the member can use the forms of this section."""
        return self.section not in CHANGES or self.may(CHANGES[self.section])

    @property
    def reauthenticated(self) -> bool:
        """Whether the user proved their identity recently."""
        return self.context.now() - self.user_session.proved_at <= REAUTHENTICATION_LIFETIME

    def ask_to_reauthenticate(self) -> bytes:
        return self.redirect(REAUTHENTICATE, next=_return_path(self), **({"form": "1"} if self.http.method == b"POST" else {}))

    @property
    def token(self) -> str:
        return safety.token(self.context.secrets()[0], self.binding, self.session.account_id if self.session is not None else None)

    # Response

    def render(self, template: str, status: int = 200, **values: object) -> bytes:
        page = self.context.templates.get_template(template).render(
            request=self, now=self.now, context=self.context, section=self.section, **values
        )
        return self.send(page.encode("utf-8", "replace"), "text/html; charset=utf-8", status)

    def send(self, body: bytes, kind: str, status: int = 200, **headers: str) -> bytes:
        """`headers` are passed to safety.headers."""
        self.http.setResponseCode(status)
        self.set_header("Content-Type", kind)
        self.set_header("Content-Length", str(len(body)))
        for name, value in safety.headers(secure=self.context.secure, **headers).items():
            self.set_header(name, value)
        return body

    async def download(self, name: str, kind: str, chunks: AsyncGenerator[bytes, None]) -> bool:
        """Stream a file. Returns whether all of it was sent; nothing can be sent after it."""
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        self.send(b"", kind)
        self.http.responseHeaders.removeHeader(b"content-length")
        self.streaming = True
        return await self.http.stream(chunks)

    def set_header(self, name: str, value: str) -> None:
        self.http.responseHeaders.setRawHeaders(name.encode(), [value.encode("latin-1", "replace")])

    def redirect(self, path: str, **query: str) -> bytes:
        """Redirect to another page (303), so that a reload does not repeat a form. Requests of htmx get HX-Redirect."""
        to = f"{path}?{urlencode(query)}" if query else path
        part = self.header("hx-request") == "true"
        self.set_header("HX-Redirect" if part else "Location", to)
        return self.send(b"", "text/plain; charset=utf-8", 200 if part else 303)

    def set_cookie(self, name: str, value: str, seconds: int | None = None) -> None:
        line = safety.cookie(name, value, secure=self.context.secure, seconds=seconds)
        self.http.responseHeaders.addRawHeader(b"set-cookie", line.encode())

    def cookie(self, name: str) -> str:
        return cookies_of(self.http).get(safety.cookie_name(name, secure=self.context.secure), "")

    def audit_entry(self, action: str, subject: str = "") -> Line:
        """An entry for the account's audit log, to be written in the transaction of the change."""
        return Line(self.account_id, None, self.user_session.user_id, self.user_session.email, self.address, action, subject)

    def own_audit_entry(self, action: str, subject: str = "") -> Line:
        """An entry about the user, for the audit logs of all their accounts."""
        return Line(None, self.user_session.user_id, self.user_session.user_id, self.user_session.email, self.address, action, subject)

    async def mark_reauthenticated(self, how: str, at: datetime | None = None) -> None:
        """Record that the user proved their identity again, at `at` (now if None)."""
        await self.context.sessions.proved(self.user_session.hash, [self.own_audit_entry("identity confirmed", how)], at)

    async def write_audit_entry(self, action: str, subject: str = "") -> None:
        """Write to the account's audit log in a transaction of its own."""
        await self.context.audit.write(self.audit_entry(action, subject))


Function = Callable[..., Awaitable[bytes]]
ReadForm = Callable[[PageRequest], Awaitable[Mapping[str, str]]]


def section_app() -> Klein:
    """The Klein app of one section. Unknown paths and methods get an error page of the dashboard."""
    app = Klein()
    app.url_map.merge_slashes = False

    def unserved(self: Any, http: Any, failure: Failure) -> Deferred[bytes]:
        async def fail(request: PageRequest) -> bytes:
            raise (
                PageError(405, "Method not allowed", "This page doesn’t support this request method.")
                if failure.check(MethodNotAllowed)
                else not_found()
            )

        return http.detached(serve(self.context, http, "public", fail))  # type: ignore[no-any-return]

    handle: Any = app.handle_errors(HTTPException)
    handle(unserved)
    return app


def page(
    app: Klein, path: str, *methods: str, access: Access, reauthenticate: bool = False, form: ReadForm | None = None
) -> Callable[[Function], Function]:
    """Register a page.

    `access`: who may open it, or the permission that it requires (access/routes). `reauthenticate`: requires a recent proof of
    identity. `form`: reads another kind of form.
    """

    def registered(function: Function) -> Function:
        ROUTES.extend(Route(method, path, access, reauthenticate) for method in methods or ("GET",))

        @app.route(path, methods=list(methods or ("GET",)))
        @wraps(function)
        def served(self: Any, http: Any, **named: str) -> Deferred[bytes]:
            return http.detached(serve(self.context, http, access, lambda request: function(self, request, **named), reauthenticate, form))  # type: ignore[no-any-return]

        return function

    return registered


async def serve(
    context: PageContext,
    http: HttpRequest,
    access: Access,
    function: Callable[[PageRequest], Awaitable[bytes]],
    reauthenticate: bool = False,
    form: ReadForm | None = None,
) -> bytes:
    """The page, a redirect to where access can be gained, or an error page."""
    request = PageRequest(context, http, None, "", {}, "auto")
    try:
        await _authenticate(request)
        if http.method == b"POST" and (request.session is not None or access == "public"):  # others are asked to sign in
            request.form = await read_form(request, form or urlencoded)
        redirect = await _access_redirect(request, access)
        if redirect is None and reauthenticate and not request.reauthenticated:
            redirect = request.ask_to_reauthenticate()
        return redirect if redirect is not None else await function(request)
    except PageError as error:
        return error_page(request, error)
    except TooManyKeys as error:
        return error_page(request, PageError(422, "Too many API keys", str(error)))
    except Busy:
        return error_page(request, PageError(503, "Temporarily unavailable", "Too many sign-ins right now. Try again in a moment."))
    except BodyKeyError as error:
        if request.streaming:
            raise
        log.error("A message cannot be read: {reason}", reason=str(error))
        return error_page(request, PageError(503, "Temporarily unavailable", problem.UNREADABLE))
    except (Transient, EncryptionError) as error:
        if request.streaming:
            raise
        log.warn("page not available at the moment: {reason}", reason=str(error))
        return error_page(
            request, PageError(503, "Temporarily unavailable", "Data can’t be read or stored right now. Reload the page in a few seconds.")
        )
    except Exception:
        if request.streaming:
            raise  # cuts the connection, so that a partial file is not mistaken for a whole one
        error_id = uuid4().hex[:12]
        log.failure("page failed with error {error_id}", error_id=error_id)
        return error_page(request, PageError(500, "Something went wrong", f"The error is on our side. It’s logged as {error_id}."))


async def _authenticate(request: PageRequest) -> None:
    theme = request.cookie(THEME)
    request.theme = theme if theme in ("light", "dark") else "auto"
    secret = request.cookie(SESSION)
    request.session = await request.context.sessions.find(secret) if secret else None
    if request.session is not None:
        request.binding = secret
        request.session = await request.context.with_zone(request.session, request.cookie(ZONE))
        return
    request.binding = request.cookie(BROWSER)
    if len(request.binding) != 32 or not request.binding.isalnum():
        request.binding = secrets.token_hex(16)
        request.set_cookie(BROWSER, request.binding)


async def read_form(request: PageRequest, read: ReadForm) -> Mapping[str, str]:
    """The fields of a form that one of our pages sent. Raises PageError for anything else."""
    sent = {name: request.header(name) for name in ("sec-fetch-site", "origin")}
    if not safety.from_our_page(sent, request.header("host")):
        raise forbidden("This form was submitted from another site.")
    form = await read(request)
    nul = next((name for name, value in form.items() if "\0" in name + value), None)
    if nul is not None:
        raise PageError(400, "Invalid form", f"The field “{nul.replace(chr(0), '')}” contains a NUL character. Remove it and try again.")
    if not safety.same_token(request.context.secrets(), request.binding, form.get("token", "")):
        raise PageError(403, "Form expired", "Go back, reload the page and submit the form again.")
    return form


async def urlencoded(request: PageRequest) -> Mapping[str, str]:
    if request.header("content-type").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise PageError(415, "Invalid form", "This page only accepts its own form.")
    try:
        text = request.http.body().decode()
        return {name: values[0] for name, values in parse_qs(text, keep_blank_values=True, max_num_fields=FIELDS).items()}
    except ValueError:
        raise PageError(400, "Invalid form", "The form couldn’t be read.") from None


async def _access_redirect(request: PageRequest, access: Access) -> bytes | None:
    """A redirect to where access can be gained; None if access is allowed. Raises PageError if it cannot be gained."""
    session = request.session
    if access == "public":
        return None
    if session is None:
        lost = request.http.method == b"POST" and access != "first_factor"
        return request.redirect(SIGN_IN, next=_return_path(request), **({"form": "1"} if lost else {}))
    if access == "first_factor":
        return None
    if session.stage != "whole":
        return request.redirect(f"{SIGN_IN}/code", next=_return_path(request))
    return None if access == "user" else await _member_redirect(request, session, access)


async def _member_redirect(request: PageRequest, session: Session, access: Access) -> bytes | None:
    """The same for the pages of an account."""
    if session.no_way_back and not request.path.startswith(PASSKEYS):
        return request.redirect(FIRST)
    if session.role is None:
        accounts = await request.context.users.accounts(session.user_id)
        if not accounts:
            raise forbidden("You’re no longer a member of any account. Ask an account admin to invite you.")
        await request.context.sessions.show(session.hash, accounts[0].account_id)
        return request.redirect(HOME)
    if request.path == SWITCH:  # to an account whose rules they meet
        return None
    own = request.path.startswith(OWN)
    if not own and safety.of_another_account(request.form.get("token", ""), session.account_id):
        raise PageError(403, "Account switched", SWITCHED)
    if not own and not allow_list.allows(request.address, session.networks):
        await request.context.audit.write_denial(request.audit_entry(DENIED, f"{request.path}, network"))
        raise forbidden("This account can’t be opened from your network. Ask an admin of the account.")
    if session.must_use_provider:
        return request.render("signin/required.html", 403, email=session.email, next=_return_path(request))
    if session.lacks_second_factor and not request.path.startswith((SECURITY, PASSKEYS)):
        return request.redirect(SECURITY)
    if admits(session.role, access):
        return None
    if request.path == HOME:
        return request.redirect(PLAN)
    await request.context.audit.write_denial(request.audit_entry(DENIED, request.path))
    raise forbidden(f"Your role in this account doesn’t allow this. It needs: {roles_with(access)}.")  # type: ignore[arg-type]


def _return_path(request: PageRequest) -> str:
    """The page to return to after signing in: this one, or the one whose form was sent."""
    if request.http.method in (b"GET", b"HEAD"):
        return safety.inside(request.http.uri.decode("latin-1"))
    try:
        referer = urlsplit(request.header("referer"))
    except ValueError:
        return HOME
    page_ = nearest_page(referer.path)
    return safety.inside(f"{page_}?{referer.query}" if referer.query and page_ == referer.path else page_)


def error_page(request: PageRequest, error: PageError) -> bytes:
    if error.status == 503:
        request.set_header("Retry-After", "5")
    if error.status in (403, 404, 410) and request.header("hx-request") == "true":
        return request.redirect(_return_path(request))  # the whole page shows it, and no part of it is requested again
    return request.render("error.html", error.status, error=error)
