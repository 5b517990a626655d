"""Fakes for delivery: a clock, a queue in memory, DNS, and scripted mail servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock, deferLater

from mailsvc.delivery.connection.connect import CannotConnect, Connector
from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.connection.tls_policy import DialOptions
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.message_loader import Origin
from mailsvc.delivery.service import Delivery
from mailsvc.delivery.shaping import NO_RULES, Shaping, provider_of
from mailsvc.mail import seven_bit as sevenbit
from mailsvc.mail.reply import Reply
from mailsvc.net.dns import Mx, NxDomain, Records, Temporary
from mailsvc.outcome import Deferred as Later
from mailsvc.outcome import Outcome, Uncertain
from mailsvc.smtp.client.capabilities import Capabilities
from mailsvc.smtp.client.client import Result
from mailsvc.smtp.client.envelope import Envelope
from mailsvc.smtp.client.plan import SendMode
from mailsvc.store.mail.accept import NewEmail, NewRecipient
from mailsvc.store.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.store.mail.messages import StoredPieces
from mailsvc.store.queue.claims import Claimed, Hold, Leased, Ready, Slowdown
from mailsvc.store.queue.settle import Settlement

LATENCY = 0.001  # seconds of a round trip
START = 1_800_000_000.0
MESSAGE = b"From: a@sender.example\r\nSubject: hello\r\n\r\nhello\r\n"
OK = Reply(250, "queued", "2.0.0")


def number(value: int) -> UUID:
    return UUID(int=value)


@attrs.define
class Row:
    leased: Leased
    next_at: datetime
    lease: int | None = None
    reason: str | None = None
    place: int = 0  # another one after each change


def clock_at(seconds: float) -> Clock:
    clock = Clock()
    clock.advance(seconds)
    return clock


class Store:
    """The queue, settling and messages in memory. `calls` counts calls by name."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.rows: dict[tuple[UUID, int], Row] = {}
        self.settled: list[Settlement] = []
        self.outcomes: dict[tuple[UUID, int], list[Outcome]] = {}
        self.signatures: dict[UUID, bytes] = {}
        self.bodies: dict[UUID, bytes | Exception | None] = {}
        self.envelopes: dict[UUID, StoredEnvelope] = {}
        self.hold_rows: dict[str, Hold] = {}
        self.slow_rows: dict[str, Slowdown] = {}
        self.paused: dict[UUID, datetime] = {}
        self.calls: Counter[str] = Counter()
        self.claims_made: list[tuple[dict[str, int], int]] = []  # of claims: how many of each destination, and bytes of messages
        self.brings = False  # whether claims bring messages
        self.failing: dict[str, Exception] = {}
        self.expected: list[int | None] = []  # settlements at once, as their callers said
        self.settle_waits: list[Deferred[None]] | None = None  # a list: settles wait until a test fires them

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.seconds(), UTC)

    def add(
        self,
        email: int,
        address: str,
        *,
        destination: str | None = None,
        account: int = 1,
        recipient: int = 0,
        bulk: bool = False,
        lease: int | None = None,
        attempts: int = 0,
        status: str = "queued",
        expires: float = 3 * 86400.0,
        due: float = 0.0,
    ) -> tuple[UUID, int]:
        destination = destination or address.rpartition("@")[2]
        leased = Leased(
            number(account), number(email), recipient, number(9), "eu", address, destination, attempts, status,
            self.now + timedelta(seconds=expires), bulk,
        )  # fmt: skip
        key = (number(email), recipient)
        self.rows[key] = Row(leased, self.now + timedelta(seconds=due), lease)
        return key

    def _call(self, name: str) -> None:
        self.calls[name] += 1
        if name in self.failing:
            raise self.failing[name]

    # QueueStore

    async def ready(self, region: str, now: datetime, skip: Collection[str], limit: int) -> list[Ready]:
        self._call("ready")
        found: dict[str, Ready] = {}
        for row in sorted(self.rows.values(), key=lambda row: (row.leased.bulk, row.next_at)):
            name = row.leased.destination
            held = any(hold and hold.until > now for hold in map(self.hold_rows.get, (name, provider_of(name))))
            if row.lease is None and name not in skip and not held:
                found.setdefault(name, Ready(name, row.leased.bulk, row.next_at))
        return list(found.values())[:limit]

    async def claim(self, region: str, wanted: Mapping[str, int], now: datetime, lease: int, message_bytes: int) -> Claimed:
        self._call("claim")
        self.claims_made.append((dict(wanted), message_bytes))
        claimed: list[Leased] = []
        for destination, limit in wanted.items():
            ready = [
                row for row in self.rows.values() if row.lease is None and row.leased.destination == destination and row.next_at <= now
            ]
            ready.sort(key=lambda row: (row.leased.bulk, row.next_at, row.leased.email_id, row.leased.recipient))
            for row in ready[:limit]:
                row.lease, row.place = lease, row.place + 1
            claimed += [row.leased for row in ready[:limit]]
        bodies = {row.email_id: self.bodies.get(row.email_id, MESSAGE) for row in claimed if message_bytes and row.attempts == 0}
        along = {email: (body, self.envelopes.get(email, EMPTY)) for email, body in bodies.items() if isinstance(body, bytes)}
        return Claimed(claimed, along if self.brings else {})

    async def release(
        self, keys: Sequence[tuple[UUID, int]], lease: int, *, destination: Any = None, next_at: Any = None, reason: Any = None
    ) -> None:
        self._call("release")
        for key in keys:
            row = self.rows.get(key)
            if row is not None and row.lease == lease:
                row.lease, row.place = None, row.place + 1
                row.leased = attrs.evolve(row.leased, destination=destination or row.leased.destination)
                row.next_at, row.reason = next_at or row.next_at, reason or row.reason

    async def leased(self, lease: int) -> dict[tuple[UUID, int], str]:
        self._call("leased")
        return {key: str(row.place) for key, row in self.rows.items() if row.lease == lease}

    async def release_scheduled(self, now: datetime, limit: int) -> int:
        self._call("release_scheduled")
        return 0

    async def expire(self, now: datetime, limit: int) -> int:
        self._call("expire")
        over = [key for key, row in self.rows.items() if row.lease is None and row.leased.expires_at <= now]
        for key in over[:limit]:
            del self.rows[key]
        return len(over[:limit])

    async def hold(self, region: str, destination: str, state: Any, reason: str, until: datetime, failures: int) -> None:
        self._call("hold")
        self.hold_rows[destination] = Hold(state, reason, until, failures)

    async def lift(self, region: str, destination: str) -> None:
        self._call("lift")
        self.hold_rows.pop(destination, None)

    async def holds(self, region: str) -> Mapping[str, Hold]:
        self._call("holds")
        return dict(self.hold_rows)

    async def end_wait(self, region: str, destination: str) -> None:
        self._call("end_wait")
        self.hold_rows.pop(destination, None)

    async def slow(self, region: str, name: str, slowdown: Slowdown, now: datetime) -> None:
        self._call("slow")
        self.slow_rows[name] = slowdown

    async def slowed(self, region: str, now: datetime) -> Mapping[str, Slowdown]:
        return {name: slowdown for name, slowdown in self.slow_rows.items() if slowdown.until > now}

    async def forget_holds(self, region: str, before: datetime) -> int:
        return 0

    async def release_paused(self, keys: Sequence[tuple[UUID, int]], lease: int, account_id: UUID, now: datetime) -> None:
        await self.release(keys, lease, next_at=self.paused.get(account_id))

    async def paused_accounts(self, now: datetime) -> Mapping[UUID, datetime]:
        return self.paused

    # Settling

    async def settle(self, settlement: Settlement, expected: int | None = None) -> frozenset[int]:
        self._call("settle")
        self.expected.append(expected)
        if self.settle_waits is not None:
            waiting: Deferred[None] = Deferred()
            self.settle_waits.append(waiting)
            await waiting
        self.settled.append(settlement)
        done = set()
        for each in settlement.outcomes:
            key = (settlement.email_id, each.recipient)
            row = self.rows.get(key)
            if row is None or row.lease != settlement.lease:
                continue
            done.add(each.recipient)
            self.outcomes.setdefault(key, []).append(each.outcome)
            if isinstance(each.outcome, Later | Uncertain):
                status = "delayed" if isinstance(each.outcome, Later) else "uncertain"
                tried = settlement.attempt
                row.leased = attrs.evolve(
                    row.leased, attempts=row.leased.attempts + 1, status=status, faults=row.leased.faults + each.fault,
                    host=(tried and tried.host) or row.leased.host, source=(tried and tried.source) or row.leased.source,
                )  # fmt: skip
                row.next_at, row.lease, row.reason, row.place = each.outcome.next_at, None, each.outcome.reason, row.place + 1
            else:
                del self.rows[key]
        if settlement.signature is not None and done:
            self.signatures.setdefault(settlement.email_id, settlement.signature)
        return frozenset(done)

    # Messages

    async def load(self, account_id: UUID, email_id: UUID, before_rest: Any) -> StoredPieces | None:
        self._call("load")
        body = self.bodies.get(email_id, MESSAGE)
        if isinstance(body, Exception):
            raise body
        if body is not None:
            await before_rest(len(body))
        return None if body is None else StoredPieces(self.signatures.get(email_id), body, self.envelopes.get(email_id, EMPTY))

    def last(self, email: int, recipient: int = 0) -> Outcome:
        return self.outcomes[number(email), recipient][-1]


@attrs.define
class Process:
    id: int = 7
    fresh: bool = True
    count: int = 1

    def holds(self, lease: int) -> bool:
        return self.fresh and lease == self.id

    def peers(self, role: str) -> int:
        return self.count


class Sending:
    small, batch = 100, 1

    def __init__(self) -> None:
        self.signed: list[UUID] = []
        self.error: Exception | None = None
        self.tls_required = False

    async def origin(self, transaction: Any) -> Origin:
        return Origin(lambda: f"b-{transaction.email_id.int}@send.sender.example", self.tls_required)

    async def sign(self, transaction: Any, body: Any) -> bytes:
        self.signed.append(transaction.email_id)
        if self.error:
            raise self.error
        return b"DKIM-Signature: %d\r\n" % len(self.signed)

    async def eight_bit(self, body: Any) -> bool:
        return not all(piece.isascii() for piece in body)

    async def seven_bit(self, body: Any) -> bytes:
        return sevenbit.convert(body)


class Names:
    """DNS as dicts. Names in neither do not exist."""

    def __init__(self) -> None:
        self.mxs: dict[str, list[tuple[int, str]] | str] = {}
        self.hosts: dict[str, list[str] | str] = {}
        self.lookups: Counter[str] = Counter()

    async def mx(self, domain: str) -> Any:
        self.lookups[domain] += 1
        found = self.mxs.get(domain)
        if isinstance(found, str):
            return Temporary(found)
        if found is None:
            return Records(domain) if domain in self.hosts else NxDomain(domain)
        return Records(domain, tuple(Mx(preference, host) for preference, host in found))

    async def addresses(self, host: str) -> Any:
        found = self.hosts.get(host)
        if isinstance(found, str):
            return Temporary(found)
        return NxDomain(host) if found is None else Records(host, tuple(found))


@attrs.define(eq=False)
class Mail:
    sender: str
    recipients: tuple[str, ...]
    data: bytes
    at: float
    connection: int


class Server:
    """A mail server. `answer` returns a Result, or a Deferred of one, for each mail; `greeting` may return an error."""

    def __init__(self, rig: DeliveryRig) -> None:
        self.rig = rig
        self.answer: Callable[[Envelope], Any] = taken
        self.greeting: Callable[[], Any] = lambda: None
        self.tls: str | None = None
        self.untrusted = False
        self.dialled: list[DialOptions] = []
        self.sent_dot = False  # whether those who wait have sent the whole message
        self.capabilities: Capabilities | None = Capabilities(eight_bit=True)
        self.connections = 0
        self.open: set[FakeClient] = set()
        self.most_open = 0
        self.mails: list[Mail] = []
        self.modes: list[SendMode] = []  # of each of these
        self.dials: list[float] = []


class FakeClient:
    def __init__(self, server: Server) -> None:
        server.connections += 1
        self.server, self.number = server, server.connections
        self.usable, self.tls, self.tls_refused, self.sent = True, server.tls, False, 0
        self.capabilities = server.capabilities
        self.waiting: Deferred[Any] | None = None
        self.sent_dot = False
        server.open.add(self)
        server.most_open = max(server.most_open, len(server.open))

    def certificate_fault(self) -> str | None:
        return "the certificate is not for it" if self.server.untrusted else None

    def deliver(self, envelope: Envelope, pieces: Iterable[bytes], may_send_dot: Callable[[], bool], mode: SendMode) -> Deferred[Any]:
        assert self.waiting is None, "one mail at a time"
        self.sent += 1
        data = b"".join(pieces)
        assert len(data) == envelope.size
        if not may_send_dot():
            self.usable = False
            return succeed(lost(envelope, "withheld", stale=self.sent > 1))
        self.server.modes.append(mode)
        self.server.mails.append(Mail(envelope.sender, envelope.recipients, data, self.server.rig.clock.seconds(), self.number))
        answer = self.server.answer(envelope)
        if not isinstance(answer, Deferred):
            answer = deferLater(self.server.rig.clock, LATENCY, lambda result=answer: result)
        self.waiting, self.envelope = answer, envelope
        answer.addCallback(self._answered)
        return answer

    def _answered(self, result: Any) -> Any:
        self.waiting = None
        if result.lost or any(reply and reply.code == 421 for reply in result.recipients):
            self.usable = False
            self.server.open.discard(self)
        return result

    def quit(self) -> None:
        self.usable = False
        self.server.open.discard(self)

    def give_up(self, reason: str) -> None:
        if self.waiting is None or not self.server.sent_dot:
            self.abort(reason, sent_dot=False)

    def abort(self, reason: str, sent_dot: bool = True) -> None:
        self.usable = False
        self.server.open.discard(self)
        if self.waiting is not None:
            self.waiting.callback(lost(self.envelope, reason, sent_dot=sent_dot))


def taken(envelope: Envelope) -> Result:
    return answered(envelope, OK, "dot")


def answered(envelope: Envelope, reply: Reply, stage: Any = "rcpt") -> Result:
    return each(envelope, [(reply, stage)] * len(envelope.recipients))


def each(envelope: Envelope, replies: Sequence[tuple[Reply, Any]]) -> Result:
    final = next((reply for reply, stage in replies if stage == "dot"), None)
    return Result(
        sender=OK, recipients=tuple(reply for reply, _ in replies), stages=tuple(stage for _, stage in replies),
        final=final, sent_dot=final is not None, lost=None, transcript="C: …",
    )  # fmt: skip


def lost(envelope: Envelope, why: str, *, sent_dot: bool = False, stale: bool = False) -> Result:
    nobody = (None,) * len(envelope.recipients)
    return Result(sender=None if stale else OK, recipients=nobody, stages=nobody, final=None, sent_dot=sent_dot, lost=why, stale=stale)


class DeliveryRig:
    """All of delivery with fakes around it. `run` advances the clock from one event to the next."""

    def __init__(
        self,
        shaping: Shaping = NO_RULES,
        policies: Any = None,
        sources: Any = None,
        pools: Any = None,
        clock: Any = None,
        random: Callable[[], float] = lambda: 0.5,
        **settings: Any,
    ) -> None:
        self.clock = clock or clock_at(START)
        self.store = Store(self.clock)
        self.process = Process()
        self.names = Names()
        self.sending = Sending()
        self.servers: dict[str, Server] = {}
        self.unbound: set[str] = set()  # sources that this machine does not have
        self.limits = DeliveryLimits(**settings)
        self.routes = Routes(
            self.clock, self.names, self.limits.routes, port=self.limits.port, own=self.limits.own_names, provider=shaping.provider
        )
        connector = Connector(self.clock, self.names, self.dial, self.limits, shuffle=lambda hosts: None, sources=sources)
        self._ids = 0
        self.delivery = Delivery(
            self.clock, self.limits, "eu", self.process, self.store, self.routes, connector, self.store, self.store, self.sending,
            self.new_id, random, shaping, policies, pools=pools,
        )  # fmt: skip

    def new_id(self) -> UUID:
        self._ids += 1
        return number(10**6 + self._ids)

    def server(self, domain: str, address: str, *, host: str | None = None, preference: int = 10) -> Server:
        """A mail server for a domain, with its MX record."""
        host = host or f"mx.{domain}"
        mxs = self.names.mxs.setdefault(domain, [])
        assert isinstance(mxs, list)
        mxs.append((preference, host))
        self.names.hosts[host] = [address]
        return self.servers.setdefault(address, Server(self))

    async def dial(self, address: str, port: int, host: str, how: DialOptions) -> Any:
        server = self.servers.get(address)
        if server is None:
            raise CannotConnect("refused the connection")
        server.dials.append(self.clock.seconds())
        server.dialled.append(how)
        if how.source is not None and how.source.address in self.unbound:
            raise CannotConnect("cannot be connected to (Couldn't bind: 99)", unbound=True)
        if how.mode in ("encrypted", "verified", "dane") and server.tls is None:
            raise CannotConnect("failed at TLS: it does not offer STARTTLS", tls=True, result="starttls-not-supported")
        if how.mode == "verified" and server.untrusted:
            raise CannotConnect("failed at TLS: the certificate is not for it", tls=True, result="certificate-host-mismatch")
        await deferLater(self.clock, LATENCY)
        refusal = server.greeting()
        if isinstance(refusal, Exception):
            raise refusal
        if refusal is not None:
            await refusal
        return FakeClient(server)

    def start(self) -> DeliveryRig:
        self.delivery.startService()
        return self

    def stop(self) -> Deferred[None]:
        return self.delivery.stopService()

    def run(self, seconds: float = 1.0) -> None:
        until = self.clock.seconds() + seconds
        steps = 0
        while True:
            calls = [call.getTime() for call in self.clock.getDelayedCalls()]
            if not calls or min(calls) > until:
                break
            self.clock.advance(max(0.0, min(calls) - self.clock.seconds()))
            steps += 1
            assert steps < 200_000, "a busy loop"
        self.clock.advance(max(0.0, until - self.clock.seconds()))

    def email(self, identity: int, *addresses: str, account: int = 1, bulk: bool = False) -> tuple[NewEmail, dict[str, Any]]:
        """An email as intake makes it, with its reservations."""
        reservations: dict[str, Any] = {}
        for domain in {address.rpartition("@")[2] for address in addresses}:
            reservations[domain] = self.delivery.handoff.reserve(domain, len(MESSAGE), bulk)
        recipients = []
        for address in addresses:
            reservation = reservations[address.rpartition("@")[2]]
            recipients.append(NewRecipient(address, reservation.destination, reservation.leased))
        now = self.store.now
        email = NewEmail(
            number(identity), number(account), number(9), None, "eu", "api", now, "<1@x>", "a@sender.example", addresses, (), (), (),
            tuple(recipients), "hello", (), {}, EMPTY, MESSAGE, None, now + timedelta(days=3), bulk,
        )  # fmt: skip
        return email, {domain: each for domain, each in reservations.items() if each.leased}

    def commit(self, email: NewEmail, reservations: dict[str, Any]) -> None:
        """What intake does: store the email, then hand it off."""
        for index, new in enumerate(email.recipients):
            self.store.add(
                email.email_id.int, new.address, destination=new.destination, account=email.account_id.int, recipient=index,
                bulk=email.bulk, lease=self.process.id if new.leased else None,
            )  # fmt: skip
        self.delivery.handoff.deliver(email, reservations)
        if any(not new.leased for new in email.recipients):
            self.delivery.wake()
