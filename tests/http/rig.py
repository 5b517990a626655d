"""An API on string transports, with fakes behind it and a clock that the test advances."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.web.http_headers import Headers

from mailsvc.accounts.ratelimit import RateLimit
from mailsvc.http.api import Api, EventApi
from mailsvc.http.gate import Limits
from mailsvc.http.request_log import Recorder
from mailsvc.http.resources.attachment_links import Links
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.http.resources.broadcasts.context import BroadcastContext
from mailsvc.http.resources.domains import DomainContext
from mailsvc.http.resources.suppressions import Suppressions
from mailsvc.http.resources.webhooks import Webhooks
from mailsvc.intake import Admitted
from mailsvc.net.fetch import FetchError, Reply
from mailsvc.net.urls import Rules, read
from mailsvc.runtime.budget import Budgets
from mailsvc.store.logs.requests import NewLog
from mailsvc.store.mail.emails import EmailView, RecipientView
from mailsvc.store.mail.envelope import EMPTY
from mailsvc.store.mail.messages import StoredMessage
from mailsvc.store.people.api_keys import Caller, Moved
from tests.http.contract import Contract

ACCOUNT = UUID(int=1)
EMAIL = UUID("0190a8e6-0000-7000-8000-000000000001")
NOW = datetime(2026, 11, 21, 0, 15, tzinfo=UTC)
KEYS = {
    "ms_full": Caller(ACCOUNT, UUID(int=11), "full_access", None, None),
    "ms_send": Caller(ACCOUNT, UUID(int=12), "sending_access", None, None),
    "ms_three": Caller(UUID(int=2), UUID(int=13), "full_access", None, 3),
    "ms_near": Caller(ACCOUNT, UUID(int=15), "full_access", None, None, networks=("203.0.113.0/24",)),
    "ms_suspended": Caller(UUID(int=3), UUID(int=14), "full_access", None, None, suspended=True),
}
GOOD = {"from": "A <a@example.com>", "to": "b@example.net", "subject": "Hi", "html": "<p>x</p>"}


class Nothing:
    """Collections that have nothing in them."""

    async def list(self, *_: Any) -> Any:
        return [], False

    async def get(self, *_: Any) -> None:
        return None

    async def own(self, *_: Any) -> None:
        return None


class Keys(Nothing):
    """`slow`: look-ups wait until `go` is called."""

    def __init__(self) -> None:
        self.slow = False
        self.lookups = 0
        self.broken: Exception | None = None
        self.elsewhere: dict[bytes, Moved] = {}  # by the hash of a key
        self._waiting: list[Deferred[None]] = []

    async def find(self, hash: bytes) -> Caller | None:
        self.lookups += 1
        if self.slow:
            waiting: Deferred[None] = Deferred()
            self._waiting.append(waiting)
            await waiting
        if self.broken is not None:
            raise self.broken
        return {hashlib.sha256(token.encode()).digest(): caller for token, caller in KEYS.items()}.get(hash)

    async def moved(self, hash: bytes) -> Moved | None:
        return self.elsewhere.get(hash)

    def go(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(None)


class Intake:
    """Admits everything, until `answer` says otherwise."""

    def __init__(self) -> None:
        self.submitted: list[Any] = []
        self.answer: Callable[[Any], Any] | None = None

    async def submit(self, caller: Any, emails: Any, key: Any = None, *, permissive: bool = False) -> Any:
        self.submitted.append((caller, list(emails), key, permissive))
        if self.answer is not None:
            answer = self.answer(emails)
            return await answer if isinstance(answer, Deferred) else answer
        return Admitted(tuple(UUID(int=100 + i) for i, _ in enumerate(emails)))

    async def recall(self, caller: Any, key: Any) -> Any:
        return None


def view(**changes: Any) -> EmailView:
    one = EmailView(
        account_id=ACCOUNT, email_id=EMAIL, created_at=datetime(2023, 4, 3, 22, 13, 42, 674980, UTC), source="api", key_id=None,
        domain_id=UUID(int=5), message_id="<x@example.com>", sender="A <a@example.com>", to=("b@example.net",), cc=(), bcc=(),
        reply_to=(), recipients=("b@example.net",), subject="Hi", tags=(("k", "v"),), headers={}, envelope=EMPTY, size=10, bulk=False,
        scheduled_at=None, last_event="email.delivery_delayed",
    )  # fmt: skip
    return attrs.evolve(one, **changes)


class Stored:
    def __init__(self) -> None:
        self.emails = {EMAIL: view()}
        self.calls: list[Any] = []
        self.changed = "canceled"
        self.error: Exception | None = None

    async def get(self, account_id: UUID, email_id: UUID) -> EmailView | None:
        if self.error is not None:
            raise self.error
        return self.emails.get(email_id) if account_id == ACCOUNT else None

    async def recipients(self, account_id: UUID, email_id: UUID) -> list[RecipientView]:
        return [RecipientView(0, "b@example.net", "delayed", "451 later", NOW, 2, "451 later", "system", "4xx")]

    async def list(self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None) -> Any:
        self.calls.append(("list", limit, after, before))
        return list(self.emails.values())[:limit], False

    async def cancel(self, account_id: UUID, email_id: UUID, now: datetime) -> Any:
        return self.changed

    async def reschedule(self, account_id: UUID, email_id: UUID, at: datetime, now: datetime) -> Any:
        self.calls.append(("reschedule", at))
        return self.changed


class Messages:
    async def load(self, account_id: UUID, email_id: UUID, before_rest: object = None) -> StoredMessage | None:
        return StoredMessage(None, b"MIME-Version: 1.0\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<p>x</p>\r\n")


@attrs.frozen
class Verdict:
    domain: str = "example.com"
    result: str = "pass"


@attrs.frozen
class Received:
    id: UUID = UUID(int=77)
    email_id: UUID | None = EMAIL
    received_at: datetime = NOW
    sender: str = "a@example.com"
    recipients: tuple[str, ...] = ("b@example.net",)
    tls: str | None = None
    dkim: tuple[Verdict, ...] = (Verdict(),)
    size: int = 18
    message: bytes | None = b"Subject: Hi\r\n\r\nx\r\n"


class Web:
    """What links lead to: bytes with a content type, or a sentence why not."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, bytes, str]] = {}
        self.requests: list[str] = []

    async def fetch(self, method: str, url: str, *, seconds: float, keep: int, reserve: Any, **_: Any) -> Reply:
        self.requests.append(url)
        if url not in self.pages:
            raise FetchError("The connection was refused.")
        status, data, kind = self.pages[url]
        if not reserve(len(data[:keep])):
            raise FetchError("There is not enough memory for the response at the moment.")
        return Reply(status, Headers({"content-type": [kind]}), data[:keep], len(data) <= keep)


class Inbox:
    async def list(self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None) -> Any:
        return ([Received(message=None)] if account_id == ACCOUNT else []), False

    async def get(self, account_id: UUID, id_: UUID) -> Received | None:
        return Received() if (account_id, id_) == (ACCOUNT, UUID(int=77)) else None


@attrs.frozen
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def any(self) -> Any:
        """The JSON, if it is some."""
        kind = self.headers.get("content-type", "")
        return self.json if self.body and "json" in kind and "ndjson" not in kind else None

    @property
    def problem(self) -> tuple[int, str]:
        """Status and name; the body must say the same as the status line."""
        assert list(self.json) == ["statusCode", "message", "name"]
        assert self.json["statusCode"] == self.status
        return self.status, self.json["name"]


class Rig:
    def __init__(
        self, *, rate: int = 1000, intake: Any = None, recorded: bool = False, in_flight: int = 1 << 28, spool: int = 1 << 31, **limits: Any
    ) -> None:
        self.clock = Clock()
        self.clock.advance(NOW.timestamp())
        self.limits = Limits(**limits)
        self.keys, self.intake, self.stored = Keys(), intake or Intake(), Stored()
        self.checks: dict[str, Any] = {}
        self.web = Web()
        self.threads: list[int] = []
        self.logged: list[NewLog] = []
        self.recorder = Recorder(self._write, self.clock)
        self.api = Api(
            reactor=self.clock,
            keys=self.keys,
            well_formed=lambda token: token.startswith("ms_"),
            intake=self.intake,
            emails=self.stored,
            messages=Messages(),
            links=Links(self.web, 1000, self.clock),
            rate=RateLimit(self.clock, rate),
            budgets=Budgets.of(in_flight, spool, self.clock),
            in_thread=self._in_thread,
            checks=self.checks,
            inbox=Inbox(),
            limits=self.limits,
            domains=DomainContext(Nothing(), Nothing(), Nothing(), Nothing()),
            requests=Nothing(),
            sessions=Nothing(),
            rollups=Nothing(),
            events=EventApi(
                Nothing(),
                lambda reader: Webhooks(Nothing(), Nothing(), reader, partial(read, rules=Rules())),
                lambda reader: Suppressions(Nothing(), reader),
            ),
            broadcasts=BroadcastContext(*[Nothing()] * 8, "", self._in_thread, Nothing(), lambda: NOW, Nothing()),
            audience=AudienceContext(*[Nothing()] * 12),
            erasing=Nothing(),
            link_secrets=lambda: (b"secret",),
            base_url="http://localhost",
            recorder=self.recorder if recorded else None,
        )
        self.site = self.api.site()
        self.contract = Contract(self.api.document())
        self.budget = self.site.gate.budgets

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        self.threads.append(1)
        return work()

    def connect(self, host: str = "192.0.2.1") -> Connection:
        return Connection(self, host)

    def request(self, method: str, path: str, body: object = b"", key: str | None = "ms_full", **headers: str) -> Response:
        """One request on a connection of its own."""
        connection = self.connect()
        connection.send(request(method, path, body, key, **headers))
        [response] = connection.responses(head=method == "HEAD")
        if method != "HEAD":
            self.contract.check(method, path, response.status, response.headers.get("content-type", ""), response.any)
        return response

    def request_from(self, host: str, data: bytes) -> Response:
        connection = self.connect(host)
        connection.send(data)
        return connection.responses()[-1]

    async def _write(self, entries: Sequence[NewLog]) -> None:
        self.logged += entries


class Connection:
    def __init__(self, rig: Rig, host: str) -> None:
        self.rig = rig
        self.transport = StringTransport(peerAddress=IPv4Address("TCP", host, 50000))
        self.channel = rig.site.buildProtocol(None)
        self.channel.makeConnection(self.transport)

    def send(self, data: bytes, size: int | None = None) -> None:
        for at in range(0, len(data), size or len(data) or 1):
            self.channel.dataReceived(data[at : at + (size or len(data))])

    def hang_up(self) -> None:
        from twisted.internet.error import ConnectionDone
        from twisted.python.failure import Failure

        self.channel.connectionLost(Failure(ConnectionDone()))

    def responses(self, *, head: bool = False) -> list[Response]:
        """All that came, read as strictly as a client would."""
        data, found = self.transport.value(), []
        while data:
            block, _, data = data.partition(b"\r\n\r\n")
            first, *lines = block.decode("latin-1").split("\r\n")
            if first == "HTTP/1.1 100 Continue":
                continue
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            if headers.get("transfer-encoding") == "chunked":
                if b"0\r\n\r\n" not in data:
                    break  # more of it will come
                body, data = _whole(data)
                headers["content-length"] = str(len(body))  # what came in the end
                found.append(Response(int(first.split(" ")[1]), headers, body))
                continue
            length = 0 if head else int(headers.get("content-length", 0))
            found.append(Response(int(first.split(" ")[1]), headers, data[:length]))
            data = data[length:]
        return found


def _whole(data: bytes) -> tuple[bytes, bytes]:
    """A body that came in chunks, and what follows it."""
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body, data = body + data[:length], data[length + 2 :]
        if length == 0:
            return body, data


def request(method: str, path: str, body: object = b"", key: str | None = "ms_full", **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if content:
        lines.append(f"Content-Length: {len(content)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content
