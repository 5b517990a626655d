"""The single entry point for mail: authorize → compose → filter → store → enqueue. The API and the SMTP relay both call `Intake.submit`.

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
from mailsvc.broadcasts.topics import TopicMail
from mailsvc.content_filter import ContentFilter, FilterRequest
from mailsvc.incoming import SHARED_TEST, AsReceived, Content, Incoming, bulk_of, envelope_of, recipients_of, sender_of
from mailsvc.mail import compose, html_to_text
from mailsvc.mail.address import Mailbox
from mailsvc.net.rspamd import Envelope
from mailsvc.policy import Limits, Refusal
from mailsvc.runtime.offload import InThread
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
    Replayed,
    Submission,
)
from mailsvc.store.mail.values import NewEmail, NewRecipient, Pieces, in_memory
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.people.audit import Line
from mailsvc.store.postgres.errors import StoreError, Unavailable
from mailsvc.store.postgres.notifications import Notifier
from mailsvc.tracking.outgoing import OutgoingTracking

__all__ = [
    "Admission", "Admitted", "AsReceived", "Busy", "Content", "Handoff", "Incoming", "Intake", "Key", "OtherRequest", "Rejected",
    "Reservation",
]  # fmt: skip

OFF_REACTOR = 256 * 1024  # bytes; larger content is composed in a thread
HEADER_WEIGHT = 16  # a character of a header takes as much work as this many bytes of content
IDEMPOTENCY_HOURS = 24


@attrs.frozen
class Key:
    """An idempotency key. `fingerprint` is the SHA-256 of the canonical request, `endpoint` the key's scope in the account.

    `invalid`: the emails of the request that are not submitted, by place. A repeated request gets the results of all places.
    """

    endpoint: str
    key: str
    fingerprint: bytes
    invalid: Mapping[int, Refusal] = attrs.field(factory=dict)


@attrs.frozen
class Admitted:
    """The result for each email, by index: its ID, or its refusal. `replayed`: for all places of an earlier request; nothing was sent."""

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
COUNTED = frozenset({"api", "smtp", "again", "test"})  # sources that count towards a plan; system mail doesn't


@attrs.frozen
class _Composed:
    """An email with its message, before anything is reserved."""

    email: Incoming
    domain: Domain
    email_id: UUID
    created_at: datetime
    message_id: str
    message: bytes | Pieces


class Reservation(Protocol):
    """A place in a lane for the recipients of one email at one domain, stored with `lease`; if not `leased`, just the destination."""

    @property
    def destination(self) -> str: ...
    @property
    def lease(self) -> int: ...
    @property
    def leased(self) -> bool: ...


class Handoff(Protocol):
    """From acceptance to delivery within one process or one machine. delivery/handoff and delivery/passing/handoff implement it."""

    def reserve(
        self, domain: str, size: int, bulk: bool, pool: str = "", region: str | None = None, account_id: UUID | None = None
    ) -> Reservation:
        """Where mail for `domain` from the addresses of `pool` is queued, and a lease if it can be sent now. Never waits.

        The reservations of one email are made together, and all have the same lease or none. Processes only send mail of their own
        `region`, and none of an account that is paused.
        """

    def prepare(self, email: NewEmail) -> None:
        """Before the commit. `deliver` or `release` follows."""

    def writing(self, emails: Sequence[NewEmail]) -> None:
        """These are about to be committed, as store/mail/accept says."""

    def deliver(self, email: NewEmail, reservations: Mapping[str, Reservation]) -> None:
        """After the commit: put the leased recipients into their lanes."""

    def release(self, email_id: UUID, reservations: Mapping[str, Reservation]) -> None:
        """The email was not committed, or it is not known whether it was: drop its reservations."""


@attrs.frozen
class _Ready:
    """An email about to be stored, and its reservations by recipient domain."""

    email: NewEmail
    reservations: Mapping[str, Reservation]


async def _no_pause() -> None:
    """Don't pause."""


def _default_pool(account_id: UUID, domain_id: UUID, bulk: bool) -> str:
    return ""


@attrs.define(eq=False)
class Intake:
    """Accepts mail. `in_thread` runs a function outside of the reactor thread, `clock` returns Unix time.

    `held` returns why nothing can be accepted now. `pool_of` returns the pool of source addresses for the mail of an account and a domain,
    and whether it is bulk. `pause` gives others a turn before long work (runtime/slices). `content_filter` is asked about each
    message of customers.
    """

    store: Acceptance
    domains: Domains
    handoff: Handoff
    notifications: Notifier
    limits: Limits
    expiry: timedelta
    in_thread: InThread
    clock: Callable[[], float]
    quotas: Quotas | None = None
    pause: Callable[[], Awaitable[None]] = _no_pause
    held: Callable[[], str | None] = lambda: None
    pool_of: Callable[[UUID, UUID, bool], str] = _default_pool
    topics: TopicMail | None = None
    tracking: OutgoingTracking | None = None
    content_filter: ContentFilter | None = None
    accepted: Counter[str] = attrs.field(factory=Counter, init=False)  # emails since the start, by source
    texts: html_to_text.RecentTexts = attrs.field(factory=html_to_text.RecentTexts, init=False, repr=False)

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
            return await self.recall(caller, key) or Rejected(refusals)
        composed: dict[int, _Composed] = {}
        for i, (email, domain) in enumerate(zip(emails, admitted, strict=True)):
            if isinstance(domain, Refusal):
                continue
            if isinstance(email.content, Content):
                await self.pause()
            result = await self._compose(email, domain)
            if isinstance(result, Refusal):
                refusals[i] = result
            else:
                composed[i] = result
        if self.content_filter is not None and (permissive or not refusals):
            known = await self.recall(caller, key)
            if known is not None:
                return known
            refusals |= await self.content_filter.check(_requests(caller, composed))
        if refusals and (not permissive or len(refusals) == len(emails)):
            return await self.recall(caller, key) or Rejected(refusals)
        bulk = bulk_of(emails)
        ready = {i: self._reserve(caller, each, i in bulk) for i, each in composed.items() if i not in refusals}
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
        if domain is not None and email.source == SHARED_TEST and domain.may_send_tests:
            return domain
        refusal = policy.domain_refusal(name, domain, caller.domain_id)
        if refusal is not None:
            return refusal
        assert domain is not None
        return domain

    async def _compose(self, email: Incoming, domain: Domain) -> _Composed | Refusal:
        now = self.clock()
        received = email.content if isinstance(email.content, AsReceived) else None
        email_id = (received and received.email_id) or uuid7(now)
        created_at = datetime.fromtimestamp(now, UTC)
        message_id = received.message_id if received else f"<{email_id}@{domain.name}>"
        if email.topic_id is not None and self.topics is not None:
            more = await self.topics.headers(domain.account_id, email_id, email.topic_id, recipients_of(email))
            if more is None:
                return Refusal("content", "topic_id", "There is no such topic.")
            if not any(name.lower() == "list-unsubscribe" for name in email.headers):
                email = attrs.evolve(email, headers={**email.headers, **more})
        date = email.scheduled_at or created_at
        tracked = email if self.tracking is None else await self.tracking.track(email, domain, email_id, date)
        try:
            message = await self._message(tracked, domain, message_id, date)
            if tracked is not email and policy.size_refusal(len(message), self.limits) is not None:
                message = await self._message(email, domain, message_id, date)
        except compose.ComposeError as error:
            return Refusal("content", error.field, str(error))
        if received is None:  # a received message was checked on arrival; our own lines don't count
            refusal = policy.size_refusal(len(message), self.limits)
            if refusal is not None:
                return refusal
        return _Composed(email, domain, email_id, created_at, message_id, message)

    def _reserve(self, caller: Caller, composed: _Composed, bulk: bool) -> _Ready:
        email, domain, message = composed.email, composed.domain, composed.message
        addresses = [(address, _domain(address)) for address in recipients_of(email)]
        pool = self.pool_of(caller.account_id, domain.id, bulk)
        reservations = self._reservations(caller, composed, [name for _, name in addresses], pool, bulk)
        recipients = tuple(
            [NewRecipient(address, reservations[name].destination, reservations[name].leased) for address, name in addresses]
        )
        return _Ready(
            NewEmail(
                email_id=composed.email_id,
                account_id=caller.account_id,
                domain_id=domain.id,
                key_id=caller.key_id,
                region=domain.region,
                source=email.source,
                created_at=composed.created_at,
                message_id=composed.message_id,
                sender=email.sender.display,
                to=_displayed(email.to),
                cc=_displayed(email.cc),
                bcc=_displayed(email.bcc),
                reply_to=_displayed(email.reply_to),
                recipients=recipients,
                subject=email.subject,
                tags=email.tags,
                headers=email.headers,
                envelope=envelope_of(email),
                message=message,
                scheduled_at=email.scheduled_at,
                expires_at=(email.scheduled_at or composed.created_at) + (email.lifetime or self.expiry),
                bulk=bulk,
                lease=next((each.lease for each in reservations.values() if each.leased), None),
                topic_id=email.topic_id,
                encrypted=domain.encrypted,
            ),
            reservations,
        )

    async def _message(self, email: Incoming, domain: Domain, message_id: str, date: datetime) -> bytes | Pieces:
        content = email.content
        if isinstance(content, AsReceived):
            return content.message

        def make() -> bytes:
            text = content.text
            if text is None and content.html:
                text = self.texts.text_of(domain.account_id, content.html)
            draft = compose.Draft(
                sender=email.sender, to=email.to, cc=email.cc, reply_to=email.reply_to, subject=email.subject, date=date,
                message_id=message_id, html=content.tracked or content.html or None, text=text or None, headers=email.headers,
                attachments=content.attachments,
            )  # fmt: skip
            return compose.compose(draft)

        heading = len(email.subject) + sum(len(value) for value in email.headers.values())
        return make() if len(content) + HEADER_WEIGHT * heading <= OFF_REACTOR else await self.in_thread(make)

    def _reservations(self, caller: Caller, composed: _Composed, names: Sequence[str], pool: str, bulk: bool) -> dict[str, Reservation]:
        """A reservation for each recipient domain. None of a scheduled email is leased, nor of one for which consent is asked later."""
        email, size, region = composed.email, in_memory(composed.message), composed.domain.region
        if email.scheduled_at is not None or email.topic_id is not None:
            return {name: _QueueOnly(name) for name in dict.fromkeys(names)}
        return {name: self.handoff.reserve(name, size, bulk, pool, region, caller.account_id) for name in dict.fromkeys(names)}

    async def _store(self, caller: Caller, submission: Submission, ready: list[_Ready], results: tuple[UUID | Refusal, ...]) -> Admission:
        for r in ready:
            self.handoff.prepare(r.email)
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
        return _known(answer)

    async def recall(self, caller: Caller, key: Key | None) -> Admission | None:
        """The result of an earlier request with this key, which no check can change any more."""
        found = None if key is None else await self.store.recall(Submission(caller.account_id, (), self._idempotency(key, ())))
        return None if found is None or isinstance(found, Accepted) else _known(found)

    async def _accept(self, caller: Caller, submission: Submission) -> AcceptResult | Exhausted:
        """Accept within the account's plan. All recipients are counted before; those not sent to are refunded."""
        count = sum(len(email.recipients) for email in submission.emails if email.source in COUNTED)
        if self.quotas is None or not count:
            return await self.store.accept(submission)
        taken = await self.quotas.take(caller.account_id, caller.plan, count, caller.ramp)
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
        return Idempotency(key.endpoint, key.key, key.fingerprint, _write(results, key.invalid), expires_at)

    def _release(self, ready: Iterable[_Ready]) -> None:
        for r in ready:
            self.handoff.release(r.email.email_id, r.reservations)


@attrs.frozen
class _QueueOnly:
    """The reservation of a scheduled email: it is queued under its domain."""

    destination: str
    lease: int = 0
    leased: bool = False


def _known(answer: Replayed | InProgress | Mismatch) -> Admission:
    """The answer to a request whose idempotency key was used before."""
    match answer:
        case Replayed(stored):
            return Admitted(_read(stored), replayed=True)
        case InProgress():
            return Busy()
        case Mismatch():
            return OtherRequest()


def _requests(caller: Caller, composed: Mapping[int, _Composed]) -> dict[int, FilterRequest]:
    """What the content filter is asked: everything but the mail of the service itself."""
    return {
        i: FilterRequest(
            Envelope(str(each.email_id), sender_of(each.email), recipients_of(each.email), str(caller.account_id), each.email.client),
            each.message,
        )
        for i, each in composed.items()
        if each.email.source not in ("system", SHARED_TEST)
    }


def _displayed(mailboxes: tuple[Mailbox, ...]) -> tuple[str, ...]:
    return tuple([mailbox.display for mailbox in mailboxes]) if mailboxes else ()


def _domain(address: str) -> str:
    return address.rpartition("@")[2]


def _write(results: Sequence[UUID | Refusal], invalid: Mapping[int, Refusal]) -> list[object]:
    """The results for the idempotency record, by place in the request."""
    every = list(results)
    for place in sorted(invalid):
        every.insert(place, invalid[place])
    return [str(r) if isinstance(r, UUID) else attrs.asdict(r) for r in every]


def _read(stored: object) -> tuple[UUID | Refusal, ...]:
    assert isinstance(stored, list)
    return tuple(UUID(r) if isinstance(r, str) else Refusal(**r) for r in stored)
