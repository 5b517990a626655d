"""The dashboard without a daemon: pages on a database, a fake clock, and browsers that keep cookies."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock, deferLater
from twisted.web.http import parse_qs as query_of
from twisted.web.server import Request
from twisted.web.test.requesthelper import DummyChannel

from mailsvc.accounts.quota import Quotas
from mailsvc.dashboard.assembly import Assembly
from mailsvc.dashboard.page import SESSION
from mailsvc.dashboard.signin import password
from mailsvc.dashboard.signin.mails import SignInEmail
from mailsvc.dashboard.signin.providers import Provider
from mailsvc.dashboard.signin.throttle import Throttle
from mailsvc.domains.maintenance import DomainMaintenance
from mailsvc.domains.records import Publishing
from mailsvc.domains.rotation import Rules
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.insights.reputation import Reputation
from mailsvc.intake import Admitted, Content, Incoming, Intake
from mailsvc.mail.address import Mailbox
from mailsvc.net import urls
from mailsvc.net.dns import Records, Temporary
from mailsvc.net.fetch import Fetcher
from mailsvc.policy import Limits
from mailsvc.settings.schema import Dashboard as DashboardSettings
from mailsvc.settings.schema import Settings
from mailsvc.store.domains.checks import DomainChecks
from mailsvc.store.domains.claims import DomainClaims
from mailsvc.store.domains.domains import Domains
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.events.rollups import Rollups
from mailsvc.store.events.webhooks import Webhooks
from mailsvc.store.mail.accept import Acceptance
from mailsvc.store.mail.messages import Messages
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.api_keys import Caller, Keys
from mailsvc.store.people.quota import Quota
from mailsvc.store.people.roles import Role
from mailsvc.store.people.users import VERIFIED, User
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy.eraser import Eraser
from mailsvc.store.privacy.journal import Recorded
from tests.store.fixtures import NOW as TODAY

ENCRYPTION = Encryption.read(f"1 {'A' * 43}=", "here")
NOW = TODAY.timestamp()  # there are partitions for today
PASSWORD = "seven quiet green lamps"
HASHED = password._HASHER.hash(PASSWORD)


@attrs.define
class FakeMailer:
    """Keeps the emails that would have been sent."""

    sent: list[tuple[str, SignInEmail]] = attrs.field(factory=list)

    async def send(self, address: str, email: SignInEmail) -> None:
        self.sent.append((address, email))

    def link(self, to: str) -> str:
        """The path of the link in the last email to an address."""
        email = next(email for address, email in reversed(self.sent) if address == to)
        assert email.link is not None
        return email.link[1][email.link[1].index("/dashboard") :]

    def subjects(self, to: str) -> list[str]:
        return [email.subject for address, email in self.sent if address == to]


class FakeRequest(Request):
    """A request that keeps its response."""

    large = False

    def address(self) -> str:
        return "192.0.2.1"

    async def turn(self, size: int) -> bool:
        return True

    async def stream(self, chunks: AsyncGenerator[bytes, None]) -> bool:
        self.written = b"".join([chunk async for chunk in chunks])
        return True

    def body(self) -> bytes:
        assert self.content is not None
        return self.content.read()

    def detached(self, work: Any) -> Deferred[Any]:
        return Deferred.fromCoroutine(work)

    def write(self, data: bytes) -> None:
        self.written += data

    def finish(self) -> None:
        self.done.callback(None)


@attrs.frozen
class Response:
    """A response."""

    status: int
    headers: Mapping[str, str]
    cookies: tuple[str, ...]
    text: str

    @property
    def location(self) -> str:
        return self.headers.get("location", "")

    @property
    def query(self) -> dict[str, str]:
        """The query of the location."""
        return {name: values[0] for name, values in parse_qs(urlsplit(self.location).query).items()}

    def found(self, pattern: str) -> str:
        match = re.search(pattern, self.text)
        assert match, (pattern, self.status, self.location, self.text)
        return unescape(match[1])


@attrs.define
class Browser:
    """Follows pages and sends their forms, with cookies and form token."""

    rig: DashboardRig
    cookies: dict[str, str] = attrs.field(factory=dict)
    token: str = ""
    at: str = ""

    async def get(self, path: str) -> Response:
        shown = await self._request(b"GET", path, b"", {})
        if shown.status == 200:
            self.at = path
        return shown

    async def post(self, path: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None) -> Response:
        body = urlencode({"token": self.token, **(form or {})}).encode()
        given = {"Content-Type": "application/x-www-form-urlencoded", "Referer": f"{self.rig.base_url}{self.at}", **(headers or {})}
        return await self._request(b"POST", path, body, given)

    async def upload(self, path: str, file: bytes, token: str | None = None, headers: Mapping[str, str] | None = None) -> Response:
        """Send a form with a file."""
        parts = (("token", self.token.encode() if token is None else token.encode()), ("file", file))
        lines = [b'--x-x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), value) for name, value in parts]
        given = {"Content-Type": "multipart/form-data; boundary=x-x", **(headers or {})}
        return await self._request(b"POST", path, b"".join([*lines, b"--x-x--\r\n"]), given)

    async def sign_in(self, email: str, password: str = PASSWORD, next_: str = "") -> Response:
        await self.get("/dashboard/sign-in")
        return await self.post("/dashboard/sign-in", {"email": email, "password": password, "next": next_})

    async def _request(self, method: bytes, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        request = FakeRequest(DummyChannel(), False)
        request.done = Deferred()
        request.written = b""
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        for name, value in {
            "Host": urlsplit(self.rig.base_url).netloc,
            "User-Agent": "Firefox/130 Linux",
            "Cookie": cookies,
            **headers,
        }.items():
            request.requestHeaders.addRawHeader(name, value)
        request.gotLength(len(body))
        request.content.write(body)
        request.content.seek(0)
        request.method, request.uri, request.clientproto = method, path.encode(), b"HTTP/1.1"
        request.path, _, query = request.uri.partition(b"?")
        request.args = query_of(query)
        request.prepath, request.postpath = [], request.path.split(b"/")[1:]
        self.rig.pages.render(request)
        await request.done
        lines = tuple(line.decode() for line in request.responseHeaders.getRawHeaders(b"set-cookie") or [])
        for line in lines:
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
        text = request.written.decode()
        token = re.search(r'name="token" value="([0-9a-f]+)"', text)
        self.token = token[1] if token else self.token
        given = {name.decode().lower(): values[0].decode() for name, values in request.responseHeaders.getAllRawHeaders()}
        return Response(request.code, given, lines, text)


class NoDelivery:
    """Stands for delivery, DNS and notifications, and does nothing."""

    destination, leased, lease = "example.net", False, 0

    def reserve(
        self, domain: str, size: int, bulk: bool, pool: str = "", region: str | None = None, account_id: UUID | None = None
    ) -> NoDelivery:
        return self

    def prepare(self, email: Any) -> None: ...
    def deliver(self, email: Any, reservations: Any) -> None: ...
    def release(self, email_id: Any, reservations: Any) -> None: ...
    def notify(self, channel: str) -> None: ...

    async def mx(self, name: str) -> Temporary:
        return Temporary("There is no DNS here")

    txt = ns = mx

    async def at_once(self, work: Callable[[], Any]) -> Any:
        return work()


class Loopback:
    """A resolver that only accepts addresses."""

    async def addresses(self, host: str) -> Records[str]:
        return Records(host, (host,))


async def called(work: Callable[..., Any], *given: Any) -> Any:
    return work(*given)


@attrs.define(eq=False)
class DashboardRig:
    """A dashboard with its users."""

    pool: Pool
    base_url: str = "http://localhost:8025"
    providers: Mapping[str, Provider] = attrs.field(factory=dict)
    sign_up: bool = True
    rules: urls.Rules = urls.Rules()  # for URLs that customers give
    test_sender: str | None = None
    clock: Clock = attrs.field(factory=Clock)
    mailer: FakeMailer = attrs.field(factory=FakeMailer)
    in_thread: Callable[[Callable[[], Any]], Any] = lambda work: succeed(work())

    def __attrs_post_init__(self) -> None:
        self.clock.rightNow = NOW
        reserved = (self.test_sender or "").rpartition("@")[2]
        domains, acceptance = Domains(self.pool, self.clock, ENCRYPTION, reserved=reserved), Acceptance(self.pool, self.pool.reactor)
        publishing = Publishing({"us-east-1": "out.example.net", "eu-west-1": "out.eu.example.net"}, tracking_host="track.example.net")
        rules = Rules(timedelta(days=7), timedelta(days=180))
        nobody: Any = NoDelivery()
        maintenance = DomainMaintenance(
            domains, DomainChecks(self.pool, domains), DomainClaims(self.pool, domains), nobody, publishing, rules, nobody.at_once
        )
        self.intake = Intake(acceptance, domains, nobody, nobody, Limits(), timedelta(days=5), nobody.at_once, self.clock.seconds)
        given: dict[str, Any] = {
            "maintenance": maintenance, "intake": self.intake, "reputation": Reputation(nobody, Rollups(self.pool), (), (), (), self.clock),
            "pool": self.pool, "clock": self.clock, "encryption": ENCRYPTION, "in_thread": self.in_thread,
            "base_url": self.base_url, "accounts": Accounts(self.pool, self.clock), "domains": domains,
            "keys": Keys(self.pool, self.clock), "messages": Messages(self.pool, self.pool.reactor), "mailer": self.mailer,
            "sign_up": self.sign_up, "notify": lambda name: None, "providers": self.providers, "relay_ports": {},
            "webhooks": Webhooks(self.pool, self.clock, ENCRYPTION), "most_webhooks": 9,
            "erasing": Recorded(Eraser(self.pool, self.pool.reactor, ENCRYPTION, called, patience=0.0), None),
            "fetcher": Fetcher(self.pool.reactor, Loopback(), self.rules),
            "audience": AudienceContext.of(self.pool, self.clock, ENCRYPTION, Settings().audience),
            "settings": Settings(base_url=self.base_url, dashboard=DashboardSettings(test_sender=self.test_sender)),
            "quotas": Quotas(Quota(self.pool), self.clock, {}),
        }  # fmt: skip
        # Arguments that none of these tests uses.
        needed = [field.name for field in attrs.fields(Assembly) if field.init and field.default is attrs.NOTHING]
        self.assembly = Assembly(**{name: None for name in needed if name not in given}, **given)
        self.pages = self.assembly.resource()

    intake: Intake = attrs.field(init=False)
    assembly: Assembly = attrs.field(init=False)
    pages: Any = attrs.field(init=False)

    @property
    def throttle(self) -> Throttle:
        return Throttle(self.assembly.attempts, self.clock.seconds, lambda: b"secret")

    def browser(self) -> Browser:
        return Browser(self)

    async def account(self, name: str = "Acme") -> UUID:
        found: UUID = (await self.assembly.accounts.create(name)).id
        return found

    async def person(self, email: str, account_id: UUID | None = None, role: Role = "admin", password: str | None = HASHED) -> User:
        user = await self.assembly.users.create(email, "", password)
        await self.pool.run(VERIFIED, (datetime.fromtimestamp(NOW, UTC), user.id))
        await self.assembly.users.join(account_id or await self.account(), user.id, role)
        return user

    async def inside(self, email: str, password: str = PASSWORD) -> Browser:
        """A browser signed in with a password."""
        browser = self.browser()
        shown = await browser.sign_in(email, password)
        assert shown.location == "/dashboard", (shown.status, shown.location, shown.text)
        return browser

    async def mail(self, account_id: UUID, domain: str, scheduled_at: datetime | None = None) -> UUID:
        """Queue an email from a domain that is ready to send."""
        sender, to = Mailbox("", "hello", domain), Mailbox("", "bob", "example.net")
        caller = Caller(account_id, None, "full_access", None, None)
        incoming = Incoming(sender, (to,), "Hi", Content(text="Hello."), scheduled_at=scheduled_at)
        match await self.intake.submit(caller, [incoming]):
            case Admitted((UUID() as email_id,)):
                return email_id
            case other:
                raise AssertionError(other)

    async def settled(self) -> None:
        """Wait for the work that pages leave in the background."""
        while self.pool.busy or self.pool.waiting:
            await deferLater(self.pool.reactor, 0)

    async def audit(self, account_id: UUID) -> list[tuple[str, str]]:
        """The account's audit log, oldest first, including entries written in the background."""
        await self.settled()
        rows = await self.pool.rows("SELECT action, subject FROM audit_entries WHERE account_id = %s ORDER BY id", (account_id,))
        return [(action, subject) for action, subject in rows]


def session(browser: Browser) -> str:
    return browser.cookies.get(SESSION, "") or browser.cookies.get(f"__Host-{SESSION}", "")
