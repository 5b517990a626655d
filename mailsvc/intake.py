"""The single entry point for mail: authorize → compose → store → enqueue. The API and the SMTP relay both call `Intake.submit`.

Knows no protocol: callers turn a request into `Incoming` values, and the `Admission` into a response. `policy` decides what can be sent,
`mail/compose` makes the bytes, and `store/mail/accept` makes everything durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol
from uuid import UUID

import attrs

from mailsvc import policy
from mailsvc.accounts.quota import Quotas
from mailsvc.mail import compose, html_to_text
from mailsvc.mail.address import Mailbox
from mailsvc.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.policy import Limits, Refusal
from mailsvc.settings.plans import Exhausted
from mailsvc.store.domains.domains import Domain, Domains
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.accept import (
    Acceptance,
    Accepted,
    AcceptResult,
    Idempotency,
    InProgress,
    Mismatch,
    NewEmail,
    NewRecipient,
    Pieces,
    Replayed,
    Submission,
)
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.people.audit import Line
from mailsvc.store.postgres.errors import StoreError, Unavailable
from mailsvc.store.postgres.notifications import Notifier

OFF_REACTOR = 256 * 1024  # bytes; larger content is composed in a thread
HEADER_WEIGHT = 16  # a character of a header takes as much work as this many bytes of content
IDEMPOTENCY_HOURS = 24


@attrs.frozen
class Content:
    """The content of an email to compose. `text` None: make it from `html`; "": leave it out."""

    html: str | None = None
    text: str | None = None
    attachments: tuple[compose.Attachment, ...] = ()

    def __len__(self) -> int:
        return len(self.html or "") + len(self.text or "") + sum(len(a.content) for a in self.attachments)


@attrs.frozen
class AsReceived:
    """A complete message and its envelope, as the relay received them: CRLF lines, changed only by prepended lines."""

    message: bytes | Pieces
    recipients: tuple[str, ...]
    message_id: str
    envelope: StoredEnvelope = EMPTY
    email_id: UUID | None = None  # the ID if the message already contains one; otherwise a new one is generated


@attrs.frozen
class Incoming:
    """One email to submit. Its addresses are valid, its size is not checked yet."""

    sender: Mailbox
    to: tuple[Mailbox, ...]
    subject: str
    content: Content | AsReceived
    cc: tuple[Mailbox, ...] = ()
    bcc: tuple[Mailbox, ...] = ()
    reply_to: tuple[Mailbox, ...] = ()
    headers: Mapping[str, str] = attrs.field(factory=dict)
    tags: tuple[tuple[str, str], ...] = ()
    scheduled_at: datetime | None = None
    source: str = "api"
    bulk: bool = False


@attrs.frozen
class Key:
    """An idempotency key. `fingerprint` is the SHA-256 of the canonical request, `endpoint` the key's scope in the account."""

    endpoint: str
    key: str
    fingerprint: bytes


@attrs.frozen
class Admitted:
    """The result for each email, by index: its ID, or why it was refused. `replayed`: of an earlier request; nothing was sent."""

    results: tuple[UUID | Refusal, ...]
    replayed: bool = False


@attrs.frozen
class Rejected:
    """Nothing was stored. The refusals by index."""

    refusals: Mapping[int, Refusal]


@attrs.frozen
class Busy:
    """A request with the same idempotency key is still in progress."""


@attrs.frozen
class OtherRequest:
    """The idempotency key was used for a different request."""


Admission = Admitted | Rejected | Busy | OtherRequest | Exhausted
COUNTED = frozenset({"api", "smtp", "again"})  # sources that count towards a plan; system mail doesn't


class Reservation(Protocol):
    """A place in a lane for the recipients of one email at one domain; if not `leased`, just the destination to queue them under."""

    @property
    def destination(self) -> str: ...
    @property
    def leased(self) -> bool: ...


class Handoff(Protocol):
    """From acceptance to delivery within one process. `delivery/handoff` implements it."""

    def reserve(self, domain: str, size: int, bulk: bool) -> Reservation:
        """Where mail for `domain` is queued, and a lease if this process can send it now. Never waits."""

    def deliver(self, email: NewEmail, reservations: Mapping[str, Reservation]) -> None:
        """After the commit: put the leased recipients into their lanes."""

    def release(self, reservations: Mapping[str, Reservation]) -> None:
        """The email was not committed: drop its reservations."""

    @property
    def lease(self) -> int:
        """The number that this process leases under."""


@attrs.frozen
class _Ready:
    """An email about to be stored, and its reservations by recipient domain."""

    email: NewEmail
    reservations: Mapping[str, Reservation]


async def _no_pause() -> None:
    """Don't pause."""


@attrs.define(eq=False)
class Intake:
    """Accepts mail. `in_thread` runs a function outside of the reactor thread, `clock` returns Unix time.

    `held` returns why nothing can be accepted now. `pause` gives others a turn before long work (runtime/slices).
    """

    store: Acceptance
    domains: Domains
    handoff: Handoff
    notifications: Notifier
    limits: Limits
    expiry: timedelta
    in_thread: Callable[[Callable[[], bytes]], Awaitable[bytes]]
    clock: Callable[[], float]
    quotas: Quotas | None = None
    pause: Callable[[], Awaitable[None]] = _no_pause
    held: Callable[[], str | None] = lambda: None
    accepted: Counter[str] = attrs.field(factory=Counter, init=False)  # emails since the start, by source

    async def submit(
        self, caller: Caller, emails: Sequence[Incoming], key: Key | None = None, *, permissive: bool = False, lines: Sequence[Line] = ()
    ) -> Admission:
        """Accept `emails` in one transaction.

        By default one refusal refuses all. If `permissive`, valid emails are accepted and the others returned as refusals. Returns after
        the commit, which also contains `lines` for the audit log. Raises Unavailable if there was no commit.
        """
        held = self.held()
        if held is not None:
            raise Unavailable(held)
        admitted = [await self._admit(caller, email) for email in emails]
        refusals = {i: a for i, a in enumerate(admitted) if isinstance(a, Refusal)}
        if refusals and (not permissive or len(refusals) == len(emails)):
            return Rejected(refusals)
        ready: dict[int, _Ready] = {}
        texts: dict[str, str] = {}
        try:
            for i, (email, domain) in enumerate(zip(emails, admitted, strict=True)):
                if isinstance(domain, Refusal):
                    continue
                if isinstance(email.content, Content):
                    await self.pause()
                made = await self._make(caller, email, domain, texts)
                if isinstance(made, Refusal):
                    refusals[i] = made
                else:
                    ready[i] = made
        except BaseException:
            self._release(ready.values())
            raise
        if refusals and (not permissive or not ready):
            self._release(ready.values())
            return Rejected(refusals)
        results = tuple(refusals[i] if i in refusals else ready[i].email.email_id for i in range(len(emails)))
        submission = Submission(caller.account_id, tuple(r.email for r in ready.values()), self._idempotency(key, results), tuple(lines))
        return await self._store(caller, submission, list(ready.values()), results)

    async def _admit(self, caller: Caller, email: Incoming) -> Domain | Refusal:
        if isinstance(email.content, Content):
            fields = {name: [m.address for m in getattr(email, name)] for name in ("to", "cc", "bcc", "reply_to")}
            refusal = policy.recipients_refusal(fields, self.limits)
            refusal = refusal or policy.attachments_refusal([each.filename for each in email.content.attachments], self.limits)
            if refusal is not None:
                return refusal
        name = email.sender.domain
        domain = await self.domains.find(caller.account_id, name)
        refusal = policy.domain_refusal(name, domain, caller.domain_id)
        if refusal is not None:
            return refusal
        assert domain is not None
        return domain

    async def _make(self, caller: Caller, email: Incoming, domain: Domain, texts: dict[str, str]) -> _Ready | Refusal:
        """`texts` caches the plain text for each HTML version, because the emails of a batch often share it."""
        now = self.clock()
        received = email.content if isinstance(email.content, AsReceived) else None
        email_id = (received and received.email_id) or uuid7(now)
        created_at = datetime.fromtimestamp(now, UTC)
        message_id = received.message_id if received else f"<{email_id}@{domain.name}>"
        try:
            message = await self._message(email, message_id, email.scheduled_at or created_at, texts)
        except compose.ComposeError as error:
            return Refusal("content", error.field, str(error))
        if received is None:  # a received message was checked on arrival; our own lines don't count
            refusal = policy.size_refusal(len(message), self.limits)
            if refusal is not None:
                return refusal
        addresses = [(address, _domain(address)) for address in _addresses(email)]
        reservations = self._reservations(email, [name for _, name in addresses], len(message))
        recipients = tuple(
            [NewRecipient(address, reservations[name].destination, reservations[name].leased) for address, name in addresses]
        )
        return _Ready(
            NewEmail(
                email_id=email_id,
                account_id=caller.account_id,
                domain_id=domain.id,
                key_id=caller.key_id,
                region=domain.region,
                source=email.source,
                created_at=created_at,
                message_id=message_id,
                sender=email.sender.display,
                to=_displayed(email.to),
                cc=_displayed(email.cc),
                bcc=_displayed(email.bcc),
                reply_to=_displayed(email.reply_to),
                recipients=recipients,
                subject=email.subject,
                tags=email.tags,
                headers=email.headers,
                envelope=received.envelope if received else EMPTY,
                message=message,
                scheduled_at=email.scheduled_at,
                expires_at=(email.scheduled_at or created_at) + self.expiry,
                bulk=email.bulk,
                lease=self.handoff.lease,
            ),
            reservations,
        )

    async def _message(self, email: Incoming, message_id: str, date: datetime, texts: dict[str, str]) -> bytes | Pieces:
        content = email.content
        if isinstance(content, AsReceived):
            return content.message

        def make() -> bytes:
            text = content.text
            if text is None and content.html:
                text = texts.get(content.html)
                if text is None:
                    text = texts[content.html] = html_to_text.text_of(content.html)
            return compose.compose(
                compose.Draft(
                    sender=email.sender,
                    to=email.to,
                    cc=email.cc,
                    reply_to=email.reply_to,
                    subject=email.subject,
                    html=content.html or None,
                    text=text or None,
                    headers=email.headers,
                    attachments=content.attachments,
                    date=date,
                    message_id=message_id,
                )
            )

        heading = len(email.subject) + sum(len(value) for value in email.headers.values())
        return make() if len(content) + HEADER_WEIGHT * heading <= OFF_REACTOR else await self.in_thread(make)

    def _reservations(self, email: Incoming, domains: Sequence[str], size: int) -> dict[str, Reservation]:
        """A reservation for each recipient domain; none of a scheduled email is leased."""
        if email.scheduled_at is not None:
            return {domain: _QueueOnly(domain) for domain in dict.fromkeys(domains)}
        return {domain: self.handoff.reserve(domain, size, email.bulk) for domain in dict.fromkeys(domains)}

    async def _store(self, caller: Caller, submission: Submission, ready: list[_Ready], results: tuple[UUID | Refusal, ...]) -> Admission:
        try:
            answer = await self._accept(caller, submission)
        except BaseException:
            self._release(ready)
            raise
        if not isinstance(answer, Accepted):
            self._release(ready)
        match answer:
            case Exhausted():
                return answer
            case Accepted():
                for r in ready:
                    self.accepted[r.email.source] += 1
                    self.handoff.deliver(answer.left(r.email), r.reservations)
                if any(not each.leased for r in ready for each in r.reservations.values()):
                    self.notifications.notify("queue")
                self.notifications.notify("events")
                return Admitted(results)
            case Replayed(stored):
                return Admitted(_read(stored), replayed=True)
            case InProgress():
                return Busy()
            case Mismatch():
                return OtherRequest()

    async def _accept(self, caller: Caller, submission: Submission) -> AcceptResult | Exhausted:
        """Accept within the account's plan. All recipients are counted before; those not sent to are refunded."""
        count = sum(len(email.recipients) for email in submission.emails if email.source in COUNTED)
        if self.quotas is None or not count:
            return await self.store.accept(submission)
        taken = await self.quotas.take(caller.account_id, caller.plan, count)
        if isinstance(taken, Exhausted):
            return await self.store.recall(submission) or taken  # a repeated request gets its first result
        try:
            answer = await self.store.accept(submission)
        except StoreError as error:
            if not (isinstance(error, Unavailable) and error.unknown):
                self.quotas.refund(taken)
            raise
        if isinstance(answer, Accepted):
            self.quotas.refund(taken, sum(len(left) for left in answer.suppressed.values()))
        else:
            self.quotas.refund(taken)
        return answer

    def _idempotency(self, key: Key | None, results: tuple[UUID | Refusal, ...]) -> Idempotency | None:
        if key is None:
            return None
        expires_at = datetime.fromtimestamp(self.clock(), UTC) + timedelta(hours=IDEMPOTENCY_HOURS)
        return Idempotency(key.endpoint, key.key, key.fingerprint, _write(results), expires_at)

    def _release(self, ready: Iterable[_Ready]) -> None:
        for r in ready:
            self.handoff.release(r.reservations)


@attrs.frozen
class _QueueOnly:
    """The reservation of a scheduled email: it is queued under its domain."""

    destination: str
    leased: bool = False


def _addresses(email: Incoming) -> tuple[str, ...]:
    """The envelope recipients: every address once, in the order to, cc, bcc; for the relay, as the client sent them."""
    if isinstance(email.content, AsReceived):
        return email.content.recipients
    return tuple(dict.fromkeys(m.address for m in (*email.to, *email.cc, *email.bcc)))


def _displayed(mailboxes: tuple[Mailbox, ...]) -> tuple[str, ...]:
    return tuple([mailbox.display for mailbox in mailboxes]) if mailboxes else ()


def _domain(address: str) -> str:
    return address.rpartition("@")[2]


def _write(results: Sequence[UUID | Refusal]) -> list[object]:
    """The results for the idempotency record."""
    return [str(r) if isinstance(r, UUID) else attrs.asdict(r) for r in results]


def _read(stored: object) -> tuple[UUID | Refusal, ...]:
    assert isinstance(stored, list)
    return tuple(UUID(r) if isinstance(r, str) else Refusal(**r) for r in stored)
