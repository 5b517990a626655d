"""Serving one page: who looks, whether they may, and what goes back. The areas' functions get a `Visit` and give bytes."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit
from uuid import UUID, uuid4

import attrs
from klein import Klein
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http_headers import Headers
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from mailsvc.dashboard import safety
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin.password import Busy
from mailsvc.store.encryption.secrets import EncryptionError
from mailsvc.store.people.audit import Line
from mailsvc.store.people.sessions import Session
from mailsvc.store.postgres.errors import Transient

T = TypeVar("T")


class Identified(Protocol):
    @property
    def id(self) -> UUID: ...


Named = TypeVar("Named", bound=Identified)
log = Logger()

SESSION, BROWSER, THEME = "mailsvc", "mailsvc-form", "mailsvc-theme"
FIELDS = 200
SIGN_IN = f"{HOME}/sign-in"
SECURITY = f"{HOME}/settings/security"
PASSKEYS = f"{HOME}/settings/passkeys"
AGAIN = f"{SIGN_IN}/again"
FRESH = timedelta(minutes=15)  # how long a proof of who it is counts for what is dangerous
NEVER = datetime.fromtimestamp(0, UTC)  # of a session whose person has not proved who they are: another service said so


class Request(Protocol):
    """What the pages ask of a request; http/request has the real one."""

    method: bytes
    path: bytes
    uri: bytes
    args: dict[bytes, list[bytes]]
    requestHeaders: Headers
    responseHeaders: Headers

    def setResponseCode(self, code: int) -> None: ...
    def address(self) -> str: ...
    def body(self) -> bytes: ...
    async def turn(self, octets: int) -> bool: ...
    async def stream(self, chunks: AsyncGenerator[bytes, None]) -> bool: ...
    def detached(self, work: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]: ...


@attrs.frozen
class Stop(Exception):
    """The page cannot be shown: a status, what to call it, and a sentence."""

    status: int
    title: str
    sentence: str


def not_found(what: str = "page") -> Stop:
    return Stop(404, "Not found", f"This {what} doesn’t exist, or you don’t have access to it.")


def forbidden(sentence: str) -> Stop:
    return Stop(403, "Not allowed", sentence)


@attrs.define(eq=False)
class Visit:
    """One request of one browser. `session` is None for who is not signed in."""

    desk: PageContext
    request: Request
    session: Session | None
    anchor: str
    form: Mapping[str, str]
    theme: str
    streaming: bool = False

    # What came in

    def query(self, name: str) -> str:
        return _text(self.request.args.get(name.encode(), [b""])[0]).strip()

    def field(self, name: str) -> str:
        """Of the form, without white space around it; passwords are read from `form`."""
        return self.form.get(name, "").strip()

    def words(self, name: str) -> str:
        """A field for one line of text, such as a name: white space and line ends in it become single spaces."""
        return " ".join(self.form.get(name, "").split())

    def uuid(self, text: str, what: str = "page") -> UUID:
        try:
            return UUID(text)
        except ValueError:
            raise not_found(what) from None

    def chosen(self, name: str, choices: Iterable[Named], what: str) -> Named | None:
        """Which of these the query of the page names; None: it names none. An unknown one is not found: nothing wider is shown instead."""
        text = self.query(name)
        found = next((one for one in choices if str(one.id) == text), None)
        if text and found is None:
            raise not_found(what)
        return found

    @property
    def address(self) -> str:
        return self.request.address()

    @property
    def agent(self) -> str:
        return self.header("user-agent")

    @property
    def path(self) -> str:
        return self.request.path.decode("latin-1")

    @property
    def here(self) -> str:
        """Where a form leads back to that any page may have."""
        return self.path if self.request.method in (b"GET", b"HEAD") else f"{HOME}/{self.area}" if self.area != "start" else HOME

    @property
    def area(self) -> str:
        """The part of the dashboard: emails, domains, …"""
        return [*self.path.split("/"), "", ""][2]

    def header(self, name: str) -> str:
        return _text((self.request.requestHeaders.getRawHeaders(name.encode()) or [b""])[0])

    @property
    def who(self) -> Session:
        """Who is signed in. Only asked on pages that nobody else gets to."""
        assert self.session is not None
        return self.session

    @property
    def account_id(self) -> UUID:
        assert self.who.account_id is not None
        return self.who.account_id

    @property
    def admin(self) -> bool:
        return self.session is not None and self.session.role == "admin"

    @property
    def fresh(self) -> bool:
        """Whether they have shown lately who they are."""
        return self.desk.now() - self.who.proved_at <= FRESH

    def prove_again(self) -> bytes:
        return self.redirect(AGAIN, next=_back(self))

    @property
    def token(self) -> str:
        return safety.token(self.desk.secrets()[0], self.anchor)

    # What goes out

    def render(self, template: str, status: int = 200, **values: object) -> bytes:
        page = self.desk.templates.get_template(template).render(visit=self, now=self.desk.now(), desk=self.desk, area=self.area, **values)
        return self.send(page.encode("utf-8", "replace"), "text/html; charset=utf-8", status)

    def send(self, body: bytes, kind: str, status: int = 200, **headers: str) -> bytes:
        """`headers`: those of safety.headers that differ."""
        self.request.setResponseCode(status)
        self.set_header("Content-Type", kind)
        self.set_header("Content-Length", str(len(body)))
        for name, value in safety.headers(secure=self.desk.secure, **headers).items():
            self.set_header(name, value)
        return body

    async def download(self, name: str, kind: str, chunks: AsyncGenerator[bytes, None]) -> bool:
        """A file that is made while it is sent; whether all of it was. It ends the page: what follows sends nothing."""
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        self.send(b"", kind)
        self.request.responseHeaders.removeHeader(b"content-length")
        self.streaming = True
        return await self.request.stream(chunks)

    def set_header(self, name: str, value: str) -> None:
        self.request.responseHeaders.setRawHeaders(name.encode(), [value.encode("latin-1", "replace")])

    def redirect(self, path: str, **query: str) -> bytes:
        """To a page of ours (303), so that a reload repeats nothing. Where htmx asks for parts of a page, the whole page goes there."""
        to = f"{path}?{urlencode(query)}" if query else path
        part = self.header("hx-request") == "true"
        self.set_header("HX-Redirect" if part else "Location", to)
        return self.send(b"", "text/plain; charset=utf-8", 200 if part else 303)

    def set_cookie(self, name: str, value: str, seconds: int | None = None) -> None:
        line = safety.cookie(name, value, secure=self.desk.secure, seconds=seconds)
        self.request.responseHeaders.addRawHeader(b"set-cookie", line.encode())

    def cookie(self, name: str) -> str:
        return _cookies(self.request).get(safety.cookie_name(name, secure=self.desk.secure), "")

    def line(self, action: str, subject: str = "") -> Line:
        """For the account's audit log, to be written with the change itself."""
        return Line(self.account_id, None, self.who.user_id, self.who.email, self.address, action, subject)

    def own_line(self, action: str, subject: str = "") -> Line:
        """The same for what concerns a person: into the logs of all their accounts."""
        return Line(None, self.who.user_id, self.who.user_id, self.who.email, self.address, action, subject)

    async def proved(self, how: str, at: datetime | None = None) -> None:
        """They have shown again who they are, at `at` or just now."""
        await self.desk.sessions.proved(self.who.hash, [self.own_line("identity confirmed", how)], at)

    async def note(self, action: str, subject: str = "") -> None:
        """Write it into the account's audit log, by itself."""
        await self.desk.audit.write(self.line(action, subject))


Function = Callable[..., Awaitable[bytes]]
Who = Literal["anybody", "half", "person", "member", "admin"]


@attrs.frozen
class Served:
    """A route and the permission it requires."""

    method: str
    path: str
    who: Who
    fresh: bool


SERVED: list[Served] = []  # every route of every area; docs/security.md lists them


def area() -> Klein:
    """The app of one area, in which a path or a method that nobody serves has a page of ours too."""
    app = Klein()
    app.url_map.merge_slashes = False

    def unserved(self: Any, request: Any, failure: Failure) -> Deferred[bytes]:
        async def stop(visit: Visit) -> bytes:
            raise (
                Stop(405, "Method not allowed", "This page doesn’t support this request method.")
                if failure.check(MethodNotAllowed)
                else not_found()
            )

        return request.detached(serve(self.desk, request, "anybody", stop))  # type: ignore[no-any-return]

    handle: Any = app.handle_errors(HTTPException)
    handle(unserved)
    return app


def page(app: Klein, path: str, *methods: str, who: Who = "member", fresh: bool = False) -> Callable[[Function], Function]:
    """Serve `path` to `who`: anybody, a person after the first (half) or the last step of signing in, a member of an account, an admin.

    `fresh`: only to who has shown lately who they are.
    """

    def registered(function: Function) -> Function:
        SERVED.extend(Served(method, path, who, fresh) for method in methods or ("GET",))

        @app.route(path, methods=list(methods or ("GET",)))
        @wraps(function)
        def served(self: Any, request: Any, **named: str) -> Deferred[bytes]:
            return request.detached(serve(self.desk, request, who, lambda visit: function(self, visit, **named), fresh))  # type: ignore[no-any-return]

        return function

    return registered


async def serve(desk: PageContext, request: Request, who: Who, function: Callable[[Visit], Awaitable[bytes]], fresh: bool = False) -> bytes:
    """The page, or the page that says why there is none."""
    visit = Visit(desk, request, None, "", {}, "auto")
    try:
        await _recognise(visit)
        if request.method == b"POST":
            visit.form = _form(visit)
        elsewhere = await _elsewhere(visit, who)
        if elsewhere is None and fresh and not visit.fresh:
            elsewhere = visit.prove_again()
        return elsewhere if elsewhere is not None else await function(visit)
    except Stop as stop:
        return _stopped(visit, stop)
    except Busy:
        return _stopped(visit, Stop(503, "Temporarily unavailable", "Too many sign-ins right now. Try again in a moment."))
    except (Transient, EncryptionError) as error:
        if visit.streaming:
            raise
        log.warn("the store could not serve a page: {reason}", reason=str(error))
        return _stopped(visit, Stop(503, "Temporarily unavailable", "The database is unreachable. Reload the page in a few seconds."))
    except Exception:
        if visit.streaming:
            raise  # the connection is cut, so that nobody takes a part for the whole
        error_id = uuid4().hex[:12]
        log.failure("error {error_id} in a page", error_id=error_id)
        return _stopped(visit, Stop(500, "Something went wrong", f"The error is on our side. It’s logged as {error_id}."))


async def _recognise(visit: Visit) -> None:
    theme = visit.cookie(THEME)
    visit.theme = theme if theme in ("light", "dark") else "auto"
    secret = visit.cookie(SESSION)
    visit.session = await visit.desk.sessions.find(secret) if secret else None
    if visit.session is not None:
        visit.anchor = secret
        return
    visit.anchor = visit.cookie(BROWSER)
    if len(visit.anchor) != 32 or not visit.anchor.isalnum():
        visit.anchor = secrets.token_hex(16)
        visit.set_cookie(BROWSER, visit.anchor)


def _form(visit: Visit) -> dict[str, str]:
    """What a form of ours sent. Anything else stops here."""
    sent = {name: visit.header(name) for name in ("sec-fetch-site", "origin")}
    if not safety.from_our_page(sent, visit.header("host")):
        raise forbidden("This form was submitted from another site.")
    if visit.header("content-type").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise Stop(415, "Invalid form", "This page only accepts its own form.")
    try:
        text = visit.request.body().decode()
        form = {name: values[0] for name, values in parse_qs(text, keep_blank_values=True, max_num_fields=FIELDS).items()}
    except ValueError:
        raise Stop(400, "Invalid form", "The form couldn’t be read.") from None
    nul = next((name for name, value in form.items() if "\0" in name + value), None)
    if nul is not None:
        raise Stop(400, "Invalid form", f"The field “{nul.replace(chr(0), '')}” contains a NUL character. Remove it and try again.")
    if not safety.same_token(visit.desk.secrets(), visit.anchor, form.get("token", "")):
        raise Stop(403, "Form expired", "Go back, reload the page and submit the form again.")
    return form


async def _elsewhere(visit: Visit, who: Who) -> bytes | None:
    """Where somebody is sent who may not see this page yet."""
    session = visit.session
    if who == "anybody":
        return None
    if session is None:
        return visit.redirect(SIGN_IN, next=_back(visit))
    if who == "half":
        return None
    if session.stage != "whole":
        return visit.redirect(f"{SIGN_IN}/code", next=_back(visit))
    if who == "person":
        return None
    if session.role is None:
        accounts = await visit.desk.users.accounts(session.user_id)
        if not accounts:
            raise forbidden("You’re no longer a member of any account. Ask an account admin to invite you.")
        await visit.desk.sessions.show(session.hash, accounts[0].account_id)
        return visit.redirect(HOME)
    if session.mfa_required and not session.second_factor and not visit.path.startswith((SECURITY, PASSKEYS)):
        return visit.redirect(SECURITY)
    if who == "admin" and session.role != "admin":
        await visit.note("refused", visit.path)
        raise forbidden("Only account admins can do this.")
    return None


def _back(visit: Visit) -> str:
    """The page to come back to after signing in: this one, or the one with the form that was sent."""
    if visit.request.method in (b"GET", b"HEAD"):
        return safety.inside(visit.request.uri.decode("latin-1"))
    try:
        referer = urlsplit(visit.header("referer"))
    except ValueError:
        return HOME
    return safety.inside(referer.path + (f"?{referer.query}" if referer.query else ""))


def _text(given: bytes) -> str:
    """What a browser sent, as text that the database can hold."""
    return given.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _stopped(visit: Visit, stop: Stop) -> bytes:
    if stop.status == 503:
        visit.set_header("Retry-After", "5")
    return visit.render("stopped.html", stop.status, stop=stop)


def _cookies(request: Request) -> dict[str, str]:
    return safety.cookies(value.decode("latin-1") for value in request.requestHeaders.getRawHeaders(b"cookie") or [])
