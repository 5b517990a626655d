"""The engine: puts one email for each contact of a broadcast's segment into the queue, a few hundred in a transaction.

It can be killed at any point: the position is moved in the transaction that writes the emails. Only so many recipients of a broadcast
are in the queue at once (`ahead`), so that a pause, a cancellation or an unsubscribe has its effect soon. From the queue on they are
ordinary emails, behind transactional mail (`bulk`). The statements: store/broadcasts/sending.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import attrs
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mailsvc import policy
from mailsvc.audience.consent import refusal
from mailsvc.broadcasts.breaker import Breaker
from mailsvc.broadcasts.consent import TOPIC_DELETED
from mailsvc.broadcasts.review import lacks
from mailsvc.broadcasts.sample import Sample, sample
from mailsvc.clock import held, unix
from mailsvc.mail import merge
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.mail.merge import Template, Values
from mailsvc.runtime.offload import InThread
from mailsvc.settings.plans import Exhausted
from mailsvc.store.audience.figures import AudienceFigures
from mailsvc.store.broadcasts.broadcasts import Broadcasts, outcomes
from mailsvc.store.broadcasts.personal import SentContent
from mailsvc.store.broadcasts.sending import Advance, Limits, Member, Overtaken, Sending
from mailsvc.store.broadcasts.values import Broadcast
from mailsvc.store.domains.domains import Domain, Domains
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.envelope import StoredEnvelope, for_header
from mailsvc.store.mail.values import NewEmail, NewRecipient, Personal
from mailsvc.store.postgres.errors import Transient
from mailsvc.store.postgres.notifications import Notifier
from mailsvc.tracking.outgoing import OutgoingTracking

CHANNEL = "broadcasts"
PAGE = 500  # contacts in one transaction
GENTLE_PAGE = 100  # contacts, while a tenth of `ahead` waits; between these transactions are pauses as long as they took, for other mail
PAGES = 10  # transactions after which other broadcasts have their turn
CLAIMED = 30.0  # seconds after which another process takes over
AGAIN = 1.0  # seconds until a broadcast is looked at again that waits for its emails to be sent
SUSPENDED = 60.0  # seconds until the broadcast of a suspended account is looked at again
EXHAUSTED = 600.0  # seconds, at most, until a broadcast whose quota is used up is looked at again: the account may have a larger plan
SCREENING = 150.0  # seconds for the content filter, after which another process takes over
POSTPONED = 60.0  # seconds until the content filter is asked again, if it said later or nothing
SLOWEST = 10.0  # seconds of an hourly rate in one transaction
# Why a broadcast failed that was complete when it was scheduled.
_LACKING = {
    "from": "The broadcast has no valid From address.",
    "subject": "The subject is empty.",
    "content": "The broadcast has no content.",
}
_DOMAIN_GONE = "The sending domain no longer exists."

MOVES = ("started", "refused", "paused", "sent")  # outcomes of a broadcast so far

# Asks the content filter about a message of an account's broadcast.
Screen = Callable[[Broadcast, Sample], Awaitable[policy.Refusal | None]]
# Under which name mail waits in the queue: of an account and a sending domain, for a recipient's domain.
Destination = Callable[[UUID, UUID, str], str]


class Quotas(Protocol):
    """accounts/quota"""

    def contacts(self, plan: str | None) -> int | None: ...
    async def take(self, account_id: UUID, plan: str | None, count: int, ramp: int | None) -> Any: ...
    def refund(self, taken: Any, count: int | None = None) -> None: ...


@attrs.frozen
class Pace:
    """`ahead`: recipients of a broadcast in the queue at once. `hourly_rate`: of an account's broadcasts together; 0: no limit."""

    ahead: int = 20_000
    hourly_rate: int = 0


@attrs.frozen
class _Started:
    """What a running broadcast needs for its emails."""

    domain: Domain
    subject: Template
    default: bool | None
    limits: Limits
    per_hour: float | None
    envelope: StoredEnvelope


@attrs.define(eq=False)
class Fanout:
    """`expiry`: how long an email is tried. `screen`: None without a content filter."""

    sending: Sending
    broadcasts: Broadcasts
    figures: AudienceFigures
    domains: Domains
    quotas: Quotas
    destination: Destination
    notifications: Notifier
    clock: Any
    in_thread: InThread
    base_url: str
    expiry: timedelta
    breaker: Breaker = attrs.field(factory=Breaker)
    pace: Pace = attrs.field(factory=Pace)
    screen: Screen | None = None
    tracking: OutgoingTracking | None = None
    queued: int = attrs.field(default=0, init=False)  # recipients since the start
    passed: int = attrs.field(default=0, init=False)  # contacts since the start
    moved: Counter[str] = attrs.field(factory=Counter, init=False)  # broadcasts since the start, by outcome
    log = Logger()

    async def run(self) -> None:
        """Work on all broadcasts that are due, in turn."""
        while not held(self.clock):
            now = self._now()
            found = await self.sending.claim(now, now + timedelta(seconds=CLAIMED))
            if found is None:
                return
            try:
                await self._work(found)
            except Overtaken:
                continue
            except Transient:
                raise
            except Exception:  # the others that are due do not wait until the loop tries again
                self.log.failure("broadcast {id} failed and is tried again", id=str(found.id))

    async def _work(self, found: Broadcast) -> None:
        if found.status == "canceled":
            left = await self.sending.drop(found, self._now())
            await self.sending.set(found, next_at=self._soon() if left else None)
        elif found.status not in ("scheduled", "queued"):
            await self.sending.set(found, next_at=None)
        elif found.started_at is None:
            if found.scheduled_at is not None and found.scheduled_at > self._now():  # it was scheduled again, for later
                await self.sending.set(found, next_at=found.scheduled_at)
            else:
                await self._begin(found)
        elif not await self._tripped(found):
            await (self._continue(found) if found.ended_at is None else self._finish(found))

    # Starting

    async def _begin(self, found: Broadcast) -> None:
        """Fix everything that the emails depend on. It can be changed until then."""
        total = None if found.segment_id is None else await self.sending.total(found.account_id, found.segment_id)
        if (reason := await self._changed_since(found, total)) is not None:
            await self._not_started(found, "draft", reason)
            return
        bodies = html, text = await self.broadcasts.bodies(found.account_id, found.id)
        if (lacking := lacks(found.sender, found.subject, html, text)) is not None:
            await self._not_started(found, "failed", _LACKING[lacking])
            return
        sender = parse_mailbox(found.sender)
        domain = await self.domains.find(found.account_id, sender.domain)
        refused = policy.domain_refusal(sender.domain, domain, None)
        if refused is not None or domain is None:
            await self._not_started(found, "failed", refused.message if refused else _DOMAIN_GONE)
            return
        properties = await self.sending.properties(found.account_id)
        text, keys = await self.in_thread(partial(_read, html, text, (found.subject, found.preview_text), properties))
        used = {key: properties[key].number if key in properties else "" for key in keys}
        fallbacks = {key: each.fallback for key, each in properties.items()}
        content = SentContent(found.sender, tuple(found.reply_to), found.preview_text, html, text, fallbacks, self.base_url)
        if await self._screened(attrs.evolve(found, numbers=used), content, domain):
            started = await self.sending.start(
                found, bodies, status="queued", started_at=self._now(), domain_id=domain.id, region=domain.region, base_url=self.base_url,
                total=total, text=text or "", fallbacks=fallbacks, numbers=used, next_at=self._now(), reason=None,
                tracking=None if self.tracking is None else self.tracking.fixed(domain),
            )  # fmt: skip
            if started:
                self.moved["started"] += 1
            else:  # it was changed, so all of this begins again
                await self.sending.set(found, next_at=self._now())

    async def _changed_since(self, found: Broadcast, total: int | None) -> str | None:
        """Why it becomes a draft again: something has changed since somebody sent or scheduled it. `total`: contacts of its segment."""
        if total is None:
            return "The segment was deleted before the broadcast was sent."
        if found.topic_id is not None and await self._default(found) is None:
            return "The topic was deleted before the broadcast was sent."
        limits = await self.sending.limits(found.account_id)
        most = None if limits is None else self.quotas.contacts(limits.plan)
        if most is not None and await self.figures.exceeds(found.account_id, most):
            return f"Your plan allows broadcasts with up to {most:,} contacts, and you have more."
        return None

    async def _screened(self, found: Broadcast, content: SentContent, domain: Domain) -> bool:
        """Whether it can start: the content filter sees the message for the first contact."""
        if self.screen is None:
            return True
        await self.sending.set(found, next_at=self._now() + timedelta(seconds=SCREENING))
        members = await self.sending.members(found, 1)
        to, values = found.sender, dict[str, str]()
        for member in members:
            if member.email is not None:
                to, values = member.email, own_values(found.numbers or {}, member)
        refused = await self.screen(found, await self.in_thread(lambda: sample(found, content, to, values, domain.name, self._now())))
        if refused is None:
            return True
        if refused.kind == "later":
            await self.sending.set(found, next_at=self._now() + timedelta(seconds=POSTPONED), reason=refused.message)
        else:
            await self._not_started(found, "failed", refused.message)
        return False

    async def _not_started(self, found: Broadcast, status: str, reason: str) -> None:
        await self.sending.set(found, status=status, reason=reason, scheduled_at=None, next_at=None)
        self.moved["refused"] += 1

    # Pausing and ending

    async def _tripped(self, found: Broadcast) -> bool:
        reason = self.breaker.reason(found.total or 0, outcomes(await self.sending.counts(found)), found.baseline)
        if reason is None:
            return False
        await self._pause(found, reason)
        return True

    async def _pause(self, found: Broadcast, reason: str) -> None:
        await self.sending.pause(found, reason, self._now())
        self.moved["paused"] += 1
        self.log.warn("broadcast {id} is paused: {reason}", id=str(found.id), reason=reason)

    async def _finish(self, found: Broadcast) -> None:
        """It is sent once every recipient was tried."""
        if not await self.sending.untried(found):
            if (reason := await self._ended_untried(found)) is not None:
                await self.sending.set(found, status="failed", reason=reason, next_at=None)
                return
            await self.sending.set(found, status="sent", sent_at=self._now(), next_at=None, reason=None)
            self.moved["sent"] += 1
        elif found.topic_id is not None and await self._default(found) is None:
            await self._pause(found, TOPIC_DELETED)
        else:
            await self.sending.set(found, next_at=self._soon())

    async def _ended_untried(self, found: Broadcast) -> str | None:
        """Why not everybody was tried: the domain's queued emails have failed with it."""
        assert found.domain_id is not None
        domain = await self.domains.get(found.domain_id)
        if domain is not None and domain.lost is None:
            return None
        if not (await self.sending.counts(found)).get("email.failed"):  # everybody was tried before
            return None
        return _DOMAIN_GONE if domain is None else domain.lost

    # Sending

    async def _continue(self, found: Broadcast) -> None:
        limits = await self.sending.limits(found.account_id)
        if limits is None:
            later = self._now() + timedelta(seconds=SUSPENDED)
            await self.sending.set(found, next_at=later, reason="The account is suspended. Sending continues when it no longer is.")
            return
        default = await self._default(found)
        if found.topic_id is not None and default is None:  # without the topic, everybody would get it
            await self._pause(found, TOPIC_DELETED)
            return
        room = self.pace.ahead - await self.sending.waiting(found, self.pace.ahead)
        if room <= 0:
            await self.sending.set(found, next_at=self._soon())
            return
        started = await self._started(found, limits, default)
        if started is None:
            await self.sending.set(found, status="failed", reason=_DOMAIN_GONE, next_at=None)
            return
        if (domain := started.domain).missing is not None:  # a broadcast can take weeks
            await self._pause(
                found, f"{domain.name} cannot send any more. {domain.missing} Fix this and continue, or cancel the broadcast."
            )
            return
        for _ in range(PAGES):
            began, enough = self.clock.seconds(), self.pace.ahead - room > self.pace.ahead // 10
            size = min(GENTLE_PAGE if enough else PAGE, room, _at_once(started.per_hour))
            following = await self._page(found, started, size) if size > 0 else None
            if following is None or following.ended_at is not None or (following.next_at or self._now()) > self._now():
                break
            found, room = following, room - (following.queued - found.queued)
            if enough and (took := self.clock.seconds() - began) > 0:
                await deferLater(self.clock, took)
        self.notifications.notify("queue")
        self.notifications.notify("events")

    async def _default(self, found: Broadcast) -> bool | None:
        """Whether contacts without a choice are subscribed to its topic. None: it has no topic, or the topic was deleted."""
        return None if found.topic_id is None else await self.sending.default(found.account_id, found.topic_id)

    async def _started(self, found: Broadcast, limits: Limits, default: bool | None) -> _Started | None:
        assert found.domain_id is not None
        domain = await self.domains.get(found.domain_id)
        if domain is None:
            return None
        own, running = await self.sending.rate(found.account_id)
        account = own or self.pace.hourly_rate or None
        rates = [each for each in (found.hourly_rate, account and account / max(running, 1)) if each]
        envelope = for_header(parse_mailbox(found.sender), map(parse_mailbox, found.reply_to))
        return _Started(domain, merge.parse(found.subject), default, limits, min(rates) if rates else None, envelope)

    async def _page(self, found: Broadcast, started: _Started, size: int) -> Broadcast | None:
        """One transaction. Returns the broadcast after it, or None if it has to wait."""
        members = await self.sending.members(found, size)
        emails = [email for member in members if (email := self._email(found, started, member)) is not None]
        taken = await self.quotas.take(found.account_id, started.limits.plan, len(emails), started.limits.ramp)
        if isinstance(taken, Exhausted):
            if 0 < (left := taken.limit - taken.used) < size:
                return await self._page(found, started, left)
            taken = attrs.evolve(taken, wanted=max(1, min(taken.wanted, taken.limit)))  # the next page is smaller
            later = min(taken.resets_at, self._now() + timedelta(seconds=EXHAUSTED))
            await self.sending.set(found, next_at=later, reason=f"{taken.message} Sending continues when it resets.")
            return None
        now = self._now()
        pause = 0.0 if started.per_hour is None else len(emails) * 3600 / started.per_hour
        ended = now if len(members) < size else None
        step = Advance(
            members[-1].contact_id if members else found.position, len(members), emails, ended, now + timedelta(seconds=pause)
        )  # fmt: skip
        try:
            suppressed = await self.sending.advance(found, step)
        except BaseException:
            self.quotas.refund(taken)
            raise
        self.quotas.refund(taken, suppressed)
        self.queued += len(emails)
        self.passed += len(members)
        return attrs.evolve(
            found, position=step.position, passed=found.passed + len(members), queued=found.queued + len(emails), ended_at=ended,
            next_at=step.next_at,
        )  # fmt: skip

    def _email(self, found: Broadcast, started: _Started, member: Member) -> NewEmail | None:
        """The email for a contact; None if the contact does not want it or is gone."""
        if member.email is None or refusal(bool(member.unsubscribed), started.default, member.choice) is not None:
            return None
        try:
            to = parse_mailbox(member.email)
        except AddressError:
            return None
        seconds = unix(self.clock)
        now, email_id = datetime.fromtimestamp(seconds, UTC), uuid7(seconds)
        values = own_values(found.numbers or {}, member)
        subject = started.subject.subject(Values(values, "", found.fallbacks or {}))
        return NewEmail(
            email_id=email_id,
            account_id=found.account_id,
            domain_id=started.domain.id,
            key_id=found.key_id,
            region=started.domain.region,
            source="broadcast",
            created_at=now,
            message_id=f"<{email_id}@{started.domain.name}>",
            sender=found.sender,
            to=(to.address,),
            cc=(),
            bcc=(),
            reply_to=tuple(found.reply_to),
            recipients=(NewRecipient(to.address, self.destination(found.account_id, started.domain.id, to.domain)),),
            subject=subject,
            tags=(),
            headers={},
            envelope=started.envelope,
            message=b"",
            scheduled_at=None,
            expires_at=now + self.expiry,
            bulk=True,
            topic_id=found.topic_id,
            personal=Personal(found.id, member.contact_id, values, 0, self._untracked(member, to.address)),
        )

    def _untracked(self, member: Member, address: str) -> bool:
        return bool(member.untracked) or (self.tracking is not None and self.tracking.lists(address))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(unix(self.clock), UTC)

    def _soon(self) -> datetime:
        return self._now() + timedelta(seconds=AGAIN)


def _read(html: str | None, text: str | None, lines: Sequence[str], properties: Collection[str]) -> tuple[str | None, frozenset[str]]:
    """The text, which is made from the HTML if there is none, and the fields and properties that the content uses."""
    text = merge.text_of(html) if text is None and html else text
    return text, merge.keys([merge.parse(each) for each in (html or "", text or "", *lines)], properties)


def own_values(numbers: Mapping[str, str], member: Member) -> dict[str, str]:
    """A contact's values by key, of those that the content uses. `numbers`: of properties; "" for fields that every contact has."""
    properties = member.properties or {}
    fields = {"first_name": member.first_name, "last_name": member.last_name, "email": member.email}
    found = {key: fields.get(key) if number == "" else _text(properties.get(number)) for key, number in numbers.items()}
    return {key: value for key, value in found.items() if value}


def _text(value: Any) -> str | None:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return None if value is None else str(value)


def _at_once(per_hour: float | None) -> int:
    """How many recipients one transaction may have."""
    return PAGE if per_hour is None else max(1, int(per_hour * SLOWEST / 3600))
