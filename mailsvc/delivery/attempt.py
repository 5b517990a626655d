"""One attempt: load, sign, send, read the replies, settle. The connection takes nothing else until that is written down.

Whatever fails on our side is an outcome too, so that no recipient is lost and no lane stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.bounces.diagnosis import known
from mailsvc.clock import held
from mailsvc.delivery import pace
from mailsvc.delivery.connection.chunking import Chunking
from mailsvc.delivery.connection.connect import OpenConnection, Result, Unreachable
from mailsvc.delivery.connection.tls_counts import TlsCounts
from mailsvc.delivery.connection.tls_policy import TlsPolicy, demand_of
from mailsvc.delivery.dsn_options import envelope_of
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.message_loader import Gone, LoadedMessage, MessageLoader, Origin
from mailsvc.delivery.reading import Moment, Reading, closed, deferred, read, refused
from mailsvc.delivery.retry import Random, Schedule
from mailsvc.delivery.transaction import Transaction, domain_of, expired
from mailsvc.mail.authentication.mta_sts import Policy
from mailsvc.mail.reply import Reply
from mailsvc.outcome import Bounced, Delivered, Failed, Outcome
from mailsvc.store.encryption.secrets import EncryptionError
from mailsvc.store.postgres.errors import DataRejected, StatementFailed, StoreError
from mailsvc.store.queue.claims import Leased
from mailsvc.store.queue.settle import AttemptRecord, RecipientOutcome, Settlement

_UNWRITTEN = 300.0  # seconds before an email whose outcome could not be written is touched again


class Settling(Protocol):
    """Where outcomes are written."""

    async def settle(self, settlement: Settlement) -> Collection[int]: ...


class Fresh(Protocol):
    """This process, as the others see it: its number, and whether its heartbeat is young enough to send under it."""

    @property
    def id(self) -> int: ...

    @property
    def fresh(self) -> bool: ...

    def holds(self, lease: int) -> bool: ...

    def peers(self, role: str) -> int:
        """How many processes of this region have the role, this one counted."""


class PolicySource(Protocol):
    """What recipients' domains demand: policies."""

    async def of(self, domains: Collection[str]) -> Sequence[tuple[str, Policy]]: ...


class LeaseKeeper(Protocol):
    """Whoever knows what is in memory: dispatch."""

    def disown(self, parcel: Transaction) -> None:
        """Its outcome is written down."""

    def returned(self, parcel: Transaction, pause: float = 0.0) -> None:
        """Its lease goes back, for no use within `pause` seconds."""


@attrs.frozen
class Report:
    """How an attempt went for the lane. `usable`: the line may take another.

    `again`: nothing was tried, the line was dead or not what it said. `unsent`: it was not to be finished by this process; the
    lease goes back. `tried`: it tells something about the destination. `rest`: those for whom the server had no place among the others.
    `replies`: what it refused with. `demand`: nothing was tried, the line is not what this mail needs.
    """

    usable: bool = True
    trouble: str | None = None
    again: bool = False
    unsent: bool = False
    tried: bool = True
    rest: Transaction | None = None
    replies: tuple[Reply, ...] = ()
    demand: TlsPolicy | None = None


class Attempts:
    """Makes attempts, for all lanes."""

    log = Logger()

    def __init__(
        self,
        clock: Any,
        terms: DeliveryLimits,
        process: Fresh,
        cargo: MessageLoader,
        settling: Settling,
        new_id: Callable[[], UUID],
        random: Random,
        keeper: LeaseKeeper,
        chunking: Chunking,
        policies: PolicySource | None = None,
        tally: TlsCounts | None = None,
    ) -> None:
        self._clock, self._terms, self._process = clock, terms, process
        self._cargo, self._settling = cargo, settling
        self._new_id, self._random, self._keeper = new_id, random, keeper
        self._chunking, self._policies, self.tally = chunking, policies, tally or TlsCounts(clock)
        self._schedule = Schedule.of(terms)
        self.stopping = False  # connections are being cut: what was not sent goes back to the queue

    @property
    def moment(self) -> Moment:
        return self._moment(pace.now(self._clock))

    def _moment(self, now: datetime) -> Moment:
        return Moment(now, self._schedule, self._random)

    async def run(self, line: OpenConnection, parcel: Transaction) -> Report:
        """One transaction over `line`, settled when this returns. Never raises."""
        loaded: LoadedMessage | None = None
        try:
            if not self._process.fresh:
                await self._freshness(parcel)
            if self.stopping or held(self._clock) or not self._process.holds(parcel.lease):
                return Report(unsent=True)
            started = pace.now(self._clock)
            if expired(parcel, started):
                await self.settle(parcel, [_too_late(leased) for leased in parcel.recipients])
                return Report(tried=False)
            origin = await self._cargo.origin(parcel)
            demand = await self._demand(parcel, origin, line)
            if demand.verified and not demand.met_by(line.secured):
                return Report(demand=demand, tried=False)
            if not line.sent and not line.operator:
                self._count(parcel, demand, line)
            loaded = await self._cargo.load(parcel)
            fresh = not line.reused
            if not self._process.holds(parcel.lease):
                return Report(unsent=True)
            result = await self._send(line, parcel, origin, loaded)
            if result.lost is not None and not result.sent_dot and (self.stopping or not self._process.holds(parcel.lease)):
                return Report(usable=False, unsent=True)
            if result.unchunked:
                self._chunking.failed(line.host)
            if result.stale and (result.unchunked or not (fresh or parcel.again)):
                parcel.again = True
                return Report(usable=False, again=True)
            ended = pace.now(self._clock)
            reading = read(result, parcel.recipients, line.host, self._moment(ended), tls_failed=line.mode == "clear")
            rest = parcel.split(reading.crowded)
            await self._settle(parcel, self._settlement(line, parcel, loaded, result, reading, started, ended))
        except Exception as error:
            return await self._fault(parcel, error)
        finally:
            if loaded is not None:
                self._cargo.unload(loaded)
        asked = any(stage != "ours" for stage in result.stages)  # of what was not even sent the destination knows nothing
        return Report(trouble=reading.trouble, rest=rest, replies=_refusals(result), tried=asked)

    async def _freshness(self, parcel: Transaction) -> None:
        """Wait for a heartbeat that is late; without one nothing may be finished anyway."""
        while not self._process.fresh and self._process.id == parcel.lease and not self.stopping:
            await pace.sleep(self._clock, 1.0)

    async def _fault(self, parcel: Transaction, error: Exception) -> Report:
        try:
            await self.poisoned(parcel, error)
        except Exception:
            self.log.failure("an attempt at {email_id} was not written down", email_id=parcel.email_id)
            self._keeper.returned(parcel, _UNWRITTEN)
            return Report(usable=False, tried=False)
        return Report(tried=False)

    async def unreachable(self, parcel: Transaction, why: Unreachable) -> None:
        """The one parcel that shows what happened to all that wait for a destination without a host."""
        outcomes: list[Outcome] = []
        for leased in parcel.recipients:
            if why.permanent:
                outcomes.append(refused(f"550 5.4.4 {why.reason}") if why.reply is None else closed(why.reply, why.reason, why.meaning))
            else:
                outcomes.append(deferred(why.reason, leased, self.moment, meaning=why.meaning))
        record = AttemptRecord(self._new_id(), None, None, None, pace.now(self._clock), 0.0, why.transcript or f"* {why.reason}")
        await self.settle(parcel, outcomes, record)

    async def deferred(self, parcel: Transaction, sentence: str) -> None:
        """Not sent, for a reason that is not this email's."""
        await self.settle(parcel, [deferred(sentence, leased, self.moment) for leased in parcel.recipients])

    async def settle(
        self, parcel: Transaction, outcomes: Collection[Outcome], record: AttemptRecord | None = None, *, fault: bool = False
    ) -> None:
        """Write down outcomes, in the order of the parcel's recipients, that came about without a transaction."""
        pairs = tuple(
            RecipientOutcome(leased.recipient, outcome, fault) for leased, outcome in zip(parcel.recipients, outcomes, strict=True)
        )
        await self._settle(parcel, _settlement(parcel, pace.now(self._clock), pairs, record))

    async def poisoned(self, parcel: Transaction, error: BaseException) -> None:
        """An error of ours: this email waits, and after some such tries ends, while all others go on."""
        if (installation := _fault_of_installation(error)) is not None:
            self.log.error("an attempt at {email_id} is deferred: {error}", email_id=parcel.email_id, error=str(error))
            await self.deferred(parcel, installation)
            return
        tries = max(leased.faults for leased in parcel.recipients) + 1
        gone = isinstance(error, Gone)
        if not gone:
            self.log.error("attempt {tries} at {email_id} failed: {error!r}", tries=tries, email_id=parcel.email_id, error=error)
        if gone or tries >= self._terms.poison_tries:
            why = str(error) if gone else f"Sending failed {tries} times on our side ({type(error).__name__})."
            await self.settle(parcel, [Failed(why) for _ in parcel.recipients])
        else:
            sentence = f"Sending failed on our side ({type(error).__name__}); it will be tried again."
            await self.settle(parcel, [deferred(sentence, leased, self.moment) for leased in parcel.recipients], fault=True)

    async def unmet(self, parcel: Transaction, demand: TlsPolicy, why: Unreachable) -> None:
        """No host meets what this mail needs; others to the same destination may need less."""
        for domain, _ in demand.policies:
            for host, result in why.tls:
                self.tally.count(domain, "sts", host, result)
        await self.unreachable(parcel, attrs.evolve(why, reason=f"{why.reason} Verified TLS is needed: {demand.because}.", permanent=False))

    async def _demand(self, parcel: Transaction, origin: Origin, line: OpenConnection) -> TlsPolicy:
        if self._policies is None or line.operator:
            return demand_of(origin.tls_required, ())
        return demand_of(origin.tls_required, await self._policies.of({domain_of(leased.address) for leased in parcel.recipients}))

    def _count(self, parcel: Transaction, demand: TlsPolicy, line: OpenConnection) -> None:
        """The first mail of a connection stands for it."""
        result = "success" if line.courier.tls is not None else "starttls-not-supported"
        if line.mode == "dane":
            self.tally.count(line.host, "tlsa", line.host, result)
        for domain, _ in demand.policies:
            self.tally.count(domain, "sts", line.host, result)
        if line.mode != "dane" and not demand.policies:
            self.tally.count(domain_of(parcel.recipients[0].address), "no-policy-found", line.host, result)

    def _send(self, line: OpenConnection, parcel: Transaction, origin: Origin, loaded: LoadedMessage) -> Awaitable[Result]:
        offers = line.courier.offers
        if loaded.eight_bit and offers is not None and not (offers.eight_bit or loaded.envelope.smtputf8):
            return self._send_copy(line, parcel, origin, loaded)
        return self._deliver(line, parcel, origin, loaded)

    async def _send_copy(self, line: OpenConnection, parcel: Transaction, origin: Origin, loaded: LoadedMessage) -> Result:
        """In seven bits."""
        copy = await self._cargo.seven_bit(parcel, loaded)
        try:
            return await self._deliver(line, parcel, origin, copy)
        finally:
            self._cargo.unload(copy)

    def _deliver(self, line: OpenConnection, parcel: Transaction, origin: Origin, loaded: LoadedMessage) -> Awaitable[Result]:
        envelope = envelope_of(loaded.envelope, origin.return_path, parcel.recipients, len(loaded), eight_bit=loaded.eight_bit)
        line.sent += 1
        manner = self._chunking.manner(parcel.destination, line.host, line.proven)
        return line.courier.deliver(envelope, loaded, lambda: self._process.holds(parcel.lease), manner)

    def _settlement(
        self,
        line: OpenConnection,
        parcel: Transaction,
        loaded: LoadedMessage,
        result: Result,
        reading: Reading,
        started: datetime,
        ended: datetime,
    ) -> Settlement:
        seconds = (ended - started).total_seconds()
        record = AttemptRecord(self._new_id(), line.host, line.address, line.tls, started, seconds, result.transcript, line.source)
        keep = loaded.signature if loaded.made and reading.waits else None
        offers = line.courier.offers
        told = offers is not None and offers.dsn and bool(loaded.envelope.notify)
        return _settlement(parcel, ended, reading.outcomes, record, keep, told)

    async def _settle(self, parcel: Transaction, settlement: Settlement) -> None:
        """Until it is written; never raises."""
        try:
            await self._settling.settle(settlement)
        except Exception as error:
            if not await self._settled_later(parcel, settlement, error):
                return
        self._keeper.disown(parcel)
        self._tell(parcel, settlement)

    async def _settled_later(self, parcel: Transaction, settlement: Settlement, error: Exception) -> bool:
        """When the database refuses a text of the peer's, without the peer's texts."""
        try:
            try:
                await pace.again(self._clock, "settling", lambda: self._settling.settle(settlement), error, _refused)
            except (DataRejected, StatementFailed) as refusal:
                self.log.error("the outcome of {email_id} was refused: {error}", email_id=parcel.email_id, error=str(refusal))
                bare = attrs.evolve(settlement, attempt=None, outcomes=tuple(_bare(each) for each in settlement.outcomes))
                await pace.insist(self._clock, "settling", lambda: self._settling.settle(bare), _refused)
        except Exception:
            self.log.failure("the outcome of {email_id} cannot be written", email_id=parcel.email_id)
            self._keeper.returned(parcel, _UNWRITTEN)
            return False
        return True

    def _tell(self, parcel: Transaction, settlement: Settlement) -> None:
        """A line for what was not delivered, without addresses; what was delivered stands in the figures."""
        undelivered = [each.outcome for each in settlement.outcomes if not isinstance(each.outcome, Delivered)]
        if undelivered:
            kinds = Counter(type(outcome).__name__.lower() for outcome in undelivered)
            said = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            host = settlement.attempt.host if settlement.attempt is not None else None
            self.log.info("{email_id}: {outcomes} at {host}", email_id=str(parcel.email_id), outcomes=said, host=host or "no host")


def _settlement(
    parcel: Transaction,
    at: datetime,
    outcomes: tuple[RecipientOutcome, ...],
    record: AttemptRecord | None,
    signature: bytes | None = None,
    passed_on: bool = False,
) -> Settlement:
    return Settlement(parcel.account_id, parcel.email_id, parcel.domain_id, parcel.lease, at, outcomes, record, signature, passed_on)


def _too_late(leased: Leased) -> Outcome:
    """Its time ended while it waited for its turn."""
    if leased.attempts == 0 and leased.status == "queued":
        return Failed("It could not be sent before it expired.")
    return Bounced("It could not be delivered before it expired.", "Transient", "General", meaning=known("expired"))


def _refusals(result: Result) -> tuple[Reply, ...]:
    """Each refusal once."""
    refusals = [reply for reply in (result.sender, *result.recipients, result.final) if reply is not None and reply.code >= 400]
    return tuple({str(reply): reply for reply in refusals}.values()) if refusals else ()


def _refused(error: Exception) -> bool:
    """The database would refuse it again."""
    return isinstance(error, DataRejected | StatementFailed)


def _fault_of_installation(error: BaseException) -> str | None:
    """What to say if the installation is at fault: every email would fail like this one, so however often it happens, none may end."""
    if isinstance(error, EncryptionError):
        return "It cannot be signed at present: the domain's DKIM key cannot be decrypted on our side. It will be tried again."
    if isinstance(error, StoreError) and not isinstance(error, DataRejected):
        return "It cannot be loaded or signed at present: our database reports an error. It will be tried again."
    return None


def _bare(each: RecipientOutcome) -> RecipientOutcome:
    """The same outcome in plain ASCII."""
    outcome: Any = each.outcome
    texts = {field: getattr(outcome, field) for field in ("reason", "reply") if hasattr(outcome, field)}
    plain = {field: "".join(char if " " <= char <= "~" else "?" for char in text) for field, text in texts.items()}
    return attrs.evolve(each, outcome=attrs.evolve(outcome, **plain))
