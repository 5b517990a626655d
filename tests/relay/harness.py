"""The relay with connections in memory: API keys, an intake that records its emails, and everything that can refuse a mail."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from ipaddress import ip_network
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.accounts.ratelimit import RateLimit
from mailsvc.intake import Admitted, AsReceived, Incoming, Key
from mailsvc.mail import return_path
from mailsvc.net.dns import Mx, Records
from mailsvc.relay.connection_limits import ConnectionLimits, LoginFailures
from mailsvc.relay.inbound import InboundMail, PostmasterMail, ReturnedMail
from mailsvc.relay.null_mx import NullMx
from mailsvc.relay.ports import listener
from mailsvc.relay.session import Relay
from mailsvc.relay.session_log import SessionLog
from mailsvc.relay.submission import Submissions
from mailsvc.relay.trusted_networks import TrustedNetworks
from mailsvc.runtime.budget import Budgets
from mailsvc.smtp.server.session import Limits
from mailsvc.store.logs.smtp_sessions import SmtpSession
from mailsvc.store.people.api_keys import Caller, Moved, digest
from tests.smtp.harness import Client, Transport

ACCOUNT, KEY, SECRET = UUID(int=1), UUID(int=2), b"s" * 32
TOKEN, OTHER, SUSPENDED = "ms_good", "ms_sending", "ms_suspended"
ME = b"From: Me <me@example.com>\r\n"
BALANCER = ip_network("10.1.2.9/32")
TRUSTED = {
    "10.1.2.0/24": str(KEY),
    "2001:db8:1::/48": str(UUID(int=3)),
    "10.8.0.0/16": str(UUID(int=4)),  # of a suspended account
    "10.9.0.0/16": str(UUID(int=9)),  # revoked
}


class Keys:
    def __init__(self) -> None:
        self.error: Exception | None = None
        self.elsewhere: dict[bytes | UUID, Moved] = {}  # by the hash or ID of a key
        self.callers: dict[bytes, Caller] = {
            digest(TOKEN): Caller(ACCOUNT, KEY, "full_access", None, None),
            digest(OTHER): Caller(ACCOUNT, UUID(int=3), "sending_access", None, None),
            digest(SUSPENDED): Caller(ACCOUNT, UUID(int=4), "full_access", None, None, suspended=True),
        }

    async def find(self, hash: bytes) -> Caller | None:
        if self.error is not None:
            raise self.error
        return self.callers.get(hash)

    async def moved(self, key: bytes | UUID) -> Moved | None:
        if self.error is not None:
            raise self.error
        return self.elsewhere.get(key)

    async def find_by_id(self, key_id: UUID) -> Caller | None:
        if self.error is not None:
            raise self.error
        return next((caller for caller in self.callers.values() if caller.key_id == key_id), None)


class Intake:
    """`answer` is an admission, or an error to raise; without one each mail is admitted."""

    content_filter: Any = None

    def __init__(self) -> None:
        self.answer: Any = None
        self.emails: list[Incoming] = []
        self.callers: list[Caller] = []
        self.keys: list[Key | None] = []

    async def submit(self, caller: Caller, emails: Sequence[Incoming], key: Key | None = None, *, permissive: bool = False) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        self.emails += emails
        self.callers.append(caller)
        self.keys.append(key)
        return Admitted(tuple(self._id(email) for email in emails))

    def _id(self, email: Incoming) -> UUID:
        assert isinstance(email.content, AsReceived) and email.content.email_id is not None
        return email.content.email_id

    @property
    def messages(self) -> list[bytes]:
        return [b"".join(m) if not isinstance(m := e.content.message, bytes) else m for e in self.emails]  # type: ignore[union-attr]


class SessionStore:
    def __init__(self) -> None:
        self.entries: list[tuple[UUID, SmtpSession]] = []

    async def add(self, account_id: UUID, receipt: SmtpSession) -> None:
        self.entries.append((account_id, receipt))


class FakeResolver:
    """DNS answers. `known` is in the cache, `pending` are answered by the test; all other domains take mail."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.pending: dict[str, list[Deferred[Any]]] = {}

    def known_mx(self, domain: str) -> Any:
        return self.known.get(domain, None if domain in self.pending else Records(domain, (Mx(10, "mx.example"),)))

    async def mx(self, domain: str) -> Any:
        self.pending[domain].append(Deferred())
        return await self.pending[domain][-1]


class RelayRig:
    """One relay and its connections."""

    def __init__(self, *, in_flight: int = 1 << 28, spool: int = 1 << 31, rate: int = 1000, late: bool = True, **limits: Any) -> None:
        self.clock = Clock()
        self.clock.advance(1_795_000_000)
        self.keys, self.intake, self.sessions, self.budget = Keys(), Intake(), SessionStore(), Budgets.of(in_flight, spool, self.clock)
        self.resolver = FakeResolver()
        self.returned: list[ReturnedMail] = []
        self.forwarded: list[PostmasterMail] = []
        self.failure: Exception | None = None
        self.limits = Limits(**limits)

        async def in_thread(work: Callable[[], Any]) -> Any:
            return work()

        async def take(mail: ReturnedMail) -> None:
            if self.failure is not None:
                raise self.failure
            self.returned.append(mail)

        async def forward(mail: PostmasterMail) -> None:
            self.forwarded.append(mail)

        async def has_return_path(host: str) -> bool:
            if self.failure is not None:
                raise self.failure
            return host == "send.example.com"

        self.relay = Relay(
            user="mailsvc",
            keys=self.keys,
            well_formed=lambda token: token.startswith("ms_"),
            rate=RateLimit(self.clock, rate),
            budgets=self.budget,
            submissions=Submissions(self.intake, "mx.test", in_thread, self.clock.seconds),
            session_log=SessionLog(self.sessions, self.clock),
            inbound=InboundMail(
                ("mx.test",),
                lambda address: return_path.read(address, SECRET),
                take if late else None,
                forward if late else None,
                has_return_path=has_return_path,
            ),
            per_address=ConnectionLimits(3),
            per_key=ConnectionLimits(2),
            login_failures=LoginFailures(self.clock, 5),
            max_connections=5,
            null_mx=NullMx(self.resolver, self.clock, 0.25, lambda domain: domain == "routed.example"),
            trusted_networks=TrustedNetworks.of(TRUSTED, [BALANCER]),
        )

    def connect(self, number: str = "587", host: str = "192.0.2.1") -> RelayClient:
        return RelayClient(self, number, host)

    def logged_in(self, token: str = TOKEN) -> RelayClient:
        client = self.connect()
        assert client.command("EHLO me").startswith("250-mx.test")
        client.command("STARTTLS")
        client.command("EHLO me")
        assert client.login(token) == "235 2.7.0 Authenticated"
        return client


class RelayClient:
    """A client of the relay; `command` returns the replies."""

    def __init__(self, rig: RelayRig, number: str, host: str) -> None:
        self.rig = rig
        before = Transport.getPeer
        peer = type("Peer", (), {"host": host, "port": 4000})()
        Transport.getPeer = lambda self: peer  # type: ignore[method-assign, assignment]
        try:
            self.client = Client(listener(number, "mx.test", rig.limits, object()), rig.clock, rig.relay.open_session)
        finally:
            Transport.getPeer = before  # type: ignore[method-assign]
        self.greeting = self.client.received().decode()

    def command(self, *lines: str) -> str:
        return self.send("".join(line + "\r\n" for line in lines).encode())

    def send(self, data: bytes) -> str:
        self.client.send(data)
        return self.client.received().decode().removesuffix("\r\n")

    def login(self, token: str, user: str = "mailsvc") -> str:
        return self.command("AUTH PLAIN " + base64.b64encode(f"\0{user}\0{token}".encode()).decode())

    def mail(self, message: bytes, *recipients: str, sender: str = "me@example.com", parameters: str = "") -> str:
        """The reply to the last command that could be sent."""
        reply = self.command(f"MAIL FROM:<{sender}>{parameters}")
        for recipient in recipients or ("a@example.net",):
            if not reply.startswith("250"):
                return reply
            reply = self.command(f"RCPT TO:<{recipient}>")
        if not reply.startswith("250"):
            return reply
        reply = self.command("DATA")
        return self.send(message + b".\r\n") if reply.startswith("354") else reply

    @property
    def closed(self) -> bool:
        return self.client.closed

    def disconnect(self) -> None:
        self.client.disconnect()
