"""One attempt: load, sign, send, read the replies, settle. The connection takes no other mail until the outcome is written.

Internal errors become outcomes too, so that no recipient is lost and no lane stops. What replies mean: reading, classify.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.broadcasts.consent import BroadcastCanceled
from mailsvc.clock import held
from mailsvc.delivery import pace
from mailsvc.delivery.attempt_envelope import envelope_of, needs_copy
from mailsvc.delivery.connection.connect import OpenConnection, TlsFailure, Unreachable
from mailsvc.delivery.connection.mta_sts import Policies, StillLookedUp
from mailsvc.delivery.connection.send_modes import SendModes
from mailsvc.delivery.connection.tls_counts import TlsCounts, result_if_trusted
from mailsvc.delivery.connection.tls_policy import NO_POLICY, TlsPolicy, required_policy
from mailsvc.delivery.connection.transaction_sizes import TransactionSizes
from mailsvc.delivery.leases import LeaseBook
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.message_loader import Gone, LoadedMessage, MessageLoader, Origin, Waits
from mailsvc.delivery.reading import Moment, Reading, canceled, closed, deferred, lapsed, read, refused, refused_as_too_many, withdrawn
from mailsvc.delivery.retry import Random, Schedule
from mailsvc.delivery.transaction import Transaction, domain_of, expired
from mailsvc.mail.reply import Reply
from mailsvc.outcome import Delivered, Failed, Meaning, Outcome
from mailsvc.runtime.tracing import Tracing
from mailsvc.smtp.client.client import Result
from mailsvc.store.cache import MAX_AGE
from mailsvc.store.encryption.body_key_files import BodyKeyError
from mailsvc.store.encryption.secrets import EncryptionError
from mailsvc.store.postgres.errors import DataRejected, StatementFailed, StoreError
from mailsvc.store.queue.processes import ProcessRegistration
from mailsvc.store.queue.settle import AttemptRecord, RecipientOutcome, Settlement, Settling

_PAUSED = 3600.0  # seconds before an email of a paused broadcast is looked at again; whoever continues it changes that
_LOOKED_UP = 5.0  # seconds before an email is tried again whose recipient's MTA-STS policy was not known in time
_NOT_WRITTEN = 300.0  # seconds before an email whose outcome could not be written is touched again


@attrs.frozen
class AttemptResult:
    """How an attempt went, for the lane.

    `reusable`: the connection may take another mail. `trouble`: why the host, rather than the mail, failed. `repeat`: nothing was
    tried, because the connection was already closed, or the mail has to be divided or sent without parameters. `unsent`: this process must
    not send the mail; its lease goes back. `tried`: it says something about the destination. `remaining`: recipients that did not fit into
    the transaction. `refusals`: replies. `required`: nothing was tried, because the mail needs a connection with this TLS policy.
    """

    reusable: bool = True
    trouble: str | None = None
    repeat: bool = False
    unsent: bool = False
    tried: bool = True
    remaining: Transaction | None = None
    refusals: tuple[Reply, ...] = ()
    required: TlsPolicy | None = None


class Attempts:
    """Makes the attempts of all lanes."""

    log = Logger()

    def __init__(
        self,
        clock: Any,
        limits: DeliveryLimits,
        process: ProcessRegistration,
        loader: MessageLoader,
        settling: Settling,
        new_id: Callable[[], UUID],
        random: Random,
        leases: LeaseBook,
        modes: SendModes,
        policies: Policies | None = None,
        tls_counts: TlsCounts | None = None,
        region: str | None = None,
        signed: Callable[[str], Awaitable[bool | None]] | None = None,
    ) -> None:
        self._signed = signed  # whether the MX records of a domain are signed; None: DANE is not used
        self._clock, self._limits, self._process, self._region = clock, limits, process, region
        self._loader, self._settling = loader, settling
        self._new_id, self._random, self._leases = new_id, random, leases
        self._modes, self._policies, self.tls_counts = modes, policies, tls_counts or TlsCounts(clock)
        self._schedule = Schedule.of(limits)
        self.sizes = TransactionSizes(clock)
        self.tracing: Tracing | None = None
        self._running = 0  # attempts in progress
        self.stopping = False  # connections are being cut: mail that was not sent goes back to the queue

    @property
    def moment(self) -> Moment:
        return self._moment(pace.now(self._clock))

    def _moment(self, now: datetime) -> Moment:
        """With one delay for all recipients that are deferred together, so that the next attempt is one transaction again."""
        drawn = self._random()
        return Moment(now, self._schedule, lambda: drawn)

    async def run(self, connection: OpenConnection, transaction: Transaction) -> AttemptResult:
        """One transaction over `connection`, settled when this returns. Never raises."""
        loaded: LoadedMessage | None = None
        self._running += 1
        try:
            if not self._process.fresh:
                await self._heartbeat(transaction)
            if self.stopping or held(self._clock) or not self._process.holds(transaction.lease):
                return AttemptResult(unsent=True)
            started = pace.now(self._clock)
            origin = await self._origin(transaction, started)
            if origin is None:
                return AttemptResult(tried=False)
            policy = await self._required(transaction, origin, connection)
            if policy.strict and not policy.met_by(connection.actual_tls):
                return AttemptResult(required=policy, tried=False)
            self._count_tls(transaction, policy, connection)
            loaded = await self._loader.load(transaction)
            transaction.envelope = loaded.envelope
            if loaded.unwanted and await self._leave_out(transaction, loaded.unwanted):
                return AttemptResult(tried=False)
            fresh = not connection.reused
            if not self._process.holds(transaction.lease):
                return AttemptResult(unsent=True)
            result = await self._send(connection, transaction, origin, loaded)
            if result.lost is not None and not result.sent_dot and (self.stopping or not self._process.holds(transaction.lease)):
                return AttemptResult(reusable=False, unsent=True)
            self._learn(connection, transaction, result)
            if (again := self._again(connection, transaction, result, fresh)) is not None:
                return again
            ended = pace.now(self._clock)
            reading = read(result, transaction.recipients, connection.host, self._moment(ended), tls_failed=connection.tls_failed)
            connection.failed = reading.host_failed
            remaining = transaction.split(reading.left_out)
            settlement = self._settlement(connection, transaction, loaded, result, reading, started, ended)
            await self._settle(transaction, settlement, awaited=connection.awaited)
        except Exception as error:
            return await self._internal_error(transaction, error)
        finally:
            self._running -= 1
            if loaded is not None:
                self._loader.unload(loaded)
        tried = any(stage != "ours" for stage in result.stages)  # otherwise nothing reached the server
        return AttemptResult(trouble=reading.trouble, remaining=remaining, refusals=_refusals(result), tried=tried)

    def _again(self, connection: OpenConnection, transaction: Transaction, result: Result, fresh: bool) -> AttemptResult | None:
        """Whether to send it again at once, because what happened says nothing about the recipients."""
        if result.stale and (result.unchunked or not (fresh or transaction.repeated)):
            transaction.repeated = True
            return AttemptResult(reusable=False, repeat=True)
        if result.parameters_refused and not transaction.plain:
            transaction.plain = True
            return AttemptResult(repeat=True)
        if (accepted := refused_as_too_many(result)) > 0:
            self.sizes.failed(connection.host, accepted, 0)
            return AttemptResult(repeat=True)
        return None

    async def _origin(self, transaction: Transaction, started: datetime) -> Origin | None:
        """What the sending domain says. None if this process has nothing to send: the mail has expired, or its domain has moved."""
        if expired(transaction, started):
            await self.settle(transaction, [lapsed(leased) for leased in transaction.recipients])
            return None
        origin = await self._loader.origin(transaction)
        if origin.region not in (None, self._region):  # so does the mail, when its lease ends
            self._leases.return_unsent(transaction, MAX_AGE)
            return None
        return origin

    async def _leave_out(self, transaction: Transaction, unwanted: Mapping[str, str]) -> bool:
        """Settle recipients who no longer want the email. Returns whether nobody is left."""
        others = transaction.split(tuple(leased for leased in transaction.recipients if leased.address in unwanted))
        if others is not None:
            await self.settle(others, [Failed(unwanted[leased.address]) for leased in others.recipients])
        return not transaction.recipients

    async def _heartbeat(self, transaction: Transaction) -> None:
        """Wait for a heartbeat that is late: without one, this process must not finish any mail."""
        while not self._process.fresh and self._process.id == transaction.lease and not self.stopping:
            await pace.sleep(self._clock, 1.0)

    async def _internal_error(self, transaction: Transaction, error: Exception) -> AttemptResult:
        try:
            await self.poisoned(transaction, error)
        except Exception:
            self.log.failure("the outcome of an attempt at {email_id} could not be written", email_id=transaction.email_id)
            self._leases.return_unsent(transaction, _NOT_WRITTEN)
            return AttemptResult(reusable=False, tried=False)
        return AttemptResult(tried=False)

    # Outcomes without a transaction

    async def unreachable(self, transaction: Transaction, why: Unreachable) -> None:
        """Settle one of the mails that wait for a destination that cannot be reached."""
        self._count_failures(transaction, NO_POLICY, why.tls)
        outcomes: list[Outcome] = []
        moment = self.moment
        for leased in transaction.recipients:
            if why.permanent:
                outcomes.append(refused(f"550 5.4.4 {why.reason}") if why.reply is None else closed(why.reply, why.reason, why.meaning))
            else:
                outcomes.append(deferred(why.reason, leased, moment, meaning=why.meaning))
        record = AttemptRecord(self._new_id(), None, None, None, pace.now(self._clock), 0.0, why.transcript or f"* {why.reason}")
        await self.settle(transaction, outcomes, record)

    async def deferred(self, transaction: Transaction, reason: str, meaning: Meaning | None = None) -> None:
        """Not sent, for a reason that has nothing to do with this email."""
        moment = self.moment
        await self.settle(transaction, [deferred(reason, leased, moment, meaning=meaning) for leased in transaction.recipients])

    async def _wait(self, transaction: Transaction, reason: str) -> None:
        """For somebody who continues its broadcast. What nobody was sent yet goes back as it was: no attempt was made."""
        if any(leased.attempts for leased in transaction.recipients):
            await self.deferred(transaction, reason)
        else:
            self._leases.return_unsent(transaction, _PAUSED, reason)

    async def poisoned(self, transaction: Transaction, error: BaseException) -> None:
        """An internal error: this email is deferred, and fails after `poison_tries` of them. Other mail goes on."""
        if isinstance(error, Waits):
            await self._wait(transaction, str(error))
            return
        if isinstance(error, BroadcastCanceled):
            await self.settle(transaction, [canceled(leased) for leased in transaction.recipients])
            return
        if isinstance(error, StillLookedUp):
            self._leases.return_unsent(transaction, _LOOKED_UP, str(error))
            return
        if (reason := _installation_error(error)) is not None:
            self.log.error("an attempt at {email_id} is deferred: {error}", email_id=transaction.email_id, error=str(error))
            await self.deferred(transaction, reason)
            return
        tries = max(leased.faults for leased in transaction.recipients) + 1
        gone = isinstance(error, Gone)
        if not gone:
            self.log.error("attempt {tries} at {email_id} failed: {error!r}", tries=tries, email_id=transaction.email_id, error=error)
        if gone or tries >= self._limits.poison_tries:
            why = str(error) if gone else f"Sending failed {tries} times because of an internal error ({type(error).__name__})."
            await self.settle(transaction, [withdrawn(leased, why) if gone else Failed(why) for leased in transaction.recipients])
        else:
            reason = f"Sending failed because of an internal error ({type(error).__name__}). It will be retried."
            moment = self.moment
            await self.settle(transaction, [deferred(reason, leased, moment) for leased in transaction.recipients], fault=True)

    async def tls_unavailable(self, transaction: Transaction, policy: TlsPolicy, why: Unreachable) -> None:
        """No host has the TLS that this mail requires. Other mail to the same destination may require less."""
        self._count_failures(transaction, policy, why.tls)
        reason = f"{why.reason} Verified TLS is required: {policy.because}."
        await self.unreachable(transaction, attrs.evolve(why, reason=reason, permanent=False, tls=()))

    async def settle(
        self, transaction: Transaction, outcomes: Collection[Outcome], record: AttemptRecord | None = None, *, fault: bool = False
    ) -> None:
        """Settle outcomes that came about without an SMTP transaction, in the order of the recipients."""
        pairs = tuple(
            RecipientOutcome(leased.recipient, outcome, fault) for leased, outcome in zip(transaction.recipients, outcomes, strict=True)
        )
        await self._settle(transaction, _settlement(transaction, pace.now(self._clock), pairs, record))

    # Sending

    async def _required(self, transaction: Transaction, origin: Origin, connection: OpenConnection) -> TlsPolicy:
        if connection.operator or (self._policies is None and self._signed is None):
            return required_policy(origin.tls_required, ())
        domains = {domain_of(leased.address) for leased in transaction.recipients}
        policies = [] if self._policies is None else await self._policies.of(domains)
        signed = [] if self._signed is None else [await self._signed(domain) for domain in domains]
        return required_policy(origin.tls_required, policies, signed)

    def _count_tls(self, transaction: Transaction, policy: TlsPolicy, connection: OpenConnection) -> None:
        """For TLS reports (RFC 8460): once per connection, with its first mail. Servers of the operator's are not reported."""
        if connection.sent or connection.operator:
            return
        self._count_failures(transaction, policy, connection.tls_failures)
        result = "success" if connection.client.tls is not None else "starttls-not-supported"
        for domain, _ in policy.policies:
            self.tls_counts.count(domain, "sts", connection.host, result)
        trusted = result_if_trusted(connection) if policy.testing else ""
        for domain, tested in policy.testing:  # as if it were enforced (8461 §5)
            named = tested.allows(connection.host) or trusted == "starttls-not-supported"
            self.tls_counts.count(domain, "sts", connection.host, trusted if named else "validation-failure")
        if connection.mode == "dane" or not (policy.policies or policy.testing):
            kind = "tlsa" if connection.mode == "dane" else "no-policy-found"
            self.tls_counts.count(domain_of(transaction.recipients[0].address), kind, connection.host, result)

    def _count_failures(self, transaction: Transaction, policy: TlsPolicy, failures: Collection[TlsFailure]) -> None:
        for failure in failures:
            for domain, _ in policy.policies:
                self.tls_counts.count(domain, "sts", failure.host, failure.result)
            if failure.dane:
                self.tls_counts.count(domain_of(transaction.recipients[0].address), "tlsa", failure.host, failure.result)

    def _send(self, connection: OpenConnection, transaction: Transaction, origin: Origin, loaded: LoadedMessage) -> Awaitable[Result]:
        if transaction.plain:
            connection.client.leave_out_parameters()
        if loaded.eight_bit and needs_copy(connection.client.capabilities, loaded.envelope):
            return self._send_copy(connection, transaction, origin, loaded)
        return self._transmit(connection, transaction, origin, loaded)

    async def _send_copy(self, connection: OpenConnection, transaction: Transaction, origin: Origin, loaded: LoadedMessage) -> Result:
        """In seven bits."""
        copy = await self._loader.seven_bit(transaction, loaded)
        try:
            return await self._transmit(connection, transaction, origin, copy)
        finally:
            self._loader.unload(copy)

    def _transmit(self, connection: OpenConnection, transaction: Transaction, origin: Origin, loaded: LoadedMessage) -> Awaitable[Result]:
        mode = self._modes.mode(transaction.destination, connection.host, connection.proven)
        envelope = envelope_of(loaded.envelope, origin.return_path, transaction.recipients, len(loaded), eight_bit=loaded.eight_bit)
        connection.sent += 1
        return connection.client.deliver(envelope, loaded, lambda: self._process.holds(transaction.lease), mode)

    def _learn(self, connection: OpenConnection, transaction: Transaction, result: Result) -> None:
        """What later mail to this host should do differently."""
        host = connection.host
        if result.unchunked:
            self._modes.unchunked(host)
        if result.unpipelined and not connection.proven:  # a host that takes mail is only slow this time
            self._modes.unpipelined(host)
        elif result.cut_after is not None and not result.stale:
            self.sizes.failed(host, len(transaction.recipients), result.cut_after)

    # Settling

    def _settlement(
        self,
        connection: OpenConnection,
        transaction: Transaction,
        loaded: LoadedMessage,
        result: Result,
        reading: Reading,
        started: datetime,
        ended: datetime,
    ) -> Settlement:
        host, address, source, tls = connection.host, connection.address, connection.source, connection.tls
        seconds = (ended - started).total_seconds()
        record = AttemptRecord(self._new_id(), host, address, tls, started, seconds, result.transcript, source)
        signature = loaded.signature if loaded.new_signature and reading.retried else None
        capabilities = connection.client.capabilities
        passed_on = capabilities is not None and capabilities.dsn and bool(loaded.envelope.notify)
        return _settlement(transaction, ended, reading.outcomes, record, signature, passed_on, brief=loaded.broadcast)

    async def _settle(self, transaction: Transaction, settlement: Settlement, *, awaited: bool = False) -> None:
        """Until it is written. Never raises. If mail waits for the connection, this waits for other attempts only while there are some."""
        try:
            await self._settling.settle(settlement, self._running if awaited else None)
        except Exception as error:
            if not await self._settle_later(transaction, settlement, error):
                return
        self._leases.remove(transaction)
        if self.tracing is not None and transaction.envelope.trace is not None:
            _trace(self.tracing, transaction.envelope.trace, transaction, settlement)
        self._log(transaction, settlement)

    async def _settle_later(self, transaction: Transaction, settlement: Settlement, error: Exception) -> bool:
        """Retry. If the database rejects the server's texts, settle in plain ASCII and without the attempt."""

        async def settle(given: Settlement) -> None:
            if self._leases.has(transaction):  # otherwise it was written, and a recipient that is retried was claimed again
                await self._settling.settle(given)

        try:
            try:
                await pace.keep_trying_after(error, self._clock, "settling", lambda: settle(settlement), pace.rejected)
            except (DataRejected, StatementFailed) as rejection:
                self.log.error("the outcome of {email_id} was rejected: {error}", email_id=transaction.email_id, error=str(rejection))
                plain = attrs.evolve(settlement, attempt=None, outcomes=tuple(_plain(each) for each in settlement.outcomes))
                await pace.keep_trying(self._clock, "settling", lambda: settle(plain), pace.rejected)
        except Exception:
            self.log.failure("the outcome of {email_id} cannot be written", email_id=transaction.email_id)
            self._leases.return_unsent(transaction, _NOT_WRITTEN)
            return False
        return True

    def _log(self, transaction: Transaction, settlement: Settlement) -> None:
        """One line for what was not delivered, without addresses. Deliveries are counted in metrics."""
        undelivered = [each.outcome for each in settlement.outcomes if not isinstance(each.outcome, Delivered)]
        if undelivered:
            counts = _counts(undelivered)
            host = settlement.attempt.host if settlement.attempt is not None else None
            self.log.info("{email_id}: {outcomes} at {host}", email_id=str(transaction.email_id), outcomes=counts, host=host or "no host")


def _counts(outcomes: Collection[Outcome]) -> str:
    kinds = Counter(type(outcome).__name__.lower() for outcome in outcomes)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _trace(tracing: Tracing, parent: str, transaction: Transaction, settlement: Settlement) -> None:
    """A span from the beginning of the attempt to the commit of its outcome; none if nothing was attempted."""
    attempt, outcomes = settlement.attempt, [each.outcome for each in settlement.outcomes]
    if attempt is None:
        return
    span = tracing.begin("attempt", attempt.started_at.timestamp(), parent, "client")
    error = None if all(isinstance(outcome, Delivered) for outcome in outcomes) else _counts(outcomes)
    facts: dict[str, str | int] = {"mailsvc.email.id": str(transaction.email_id), "mailsvc.account.id": str(transaction.account_id)}
    facts |= {"mailsvc.attempt": transaction.recipients[0].attempts + 1, "mailsvc.outcomes": _counts(outcomes)}
    if attempt.host is not None:
        facts["server.address"] = attempt.host
    span.end(settlement.at.timestamp(), facts, error)


def _settlement(
    transaction: Transaction,
    at: datetime,
    outcomes: tuple[RecipientOutcome, ...],
    record: AttemptRecord | None,
    signature: bytes | None = None,
    passed_on: bool = False,
    brief: bool = False,
) -> Settlement:
    of = transaction
    return Settlement(of.account_id, of.email_id, of.domain_id, of.lease, at, outcomes, record, signature, passed_on, brief)


def _refusals(result: Result) -> tuple[Reply, ...]:
    """Each distinct refusal once."""
    refusals = [reply for reply in (result.sender, *result.recipients, result.final) if reply is not None and reply.code >= 400]
    return tuple({str(reply): reply for reply in refusals}.values()) if refusals else ()


def _installation_error(error: BaseException) -> str | None:
    """What to say if the installation is at fault: every email would fail like this one, so no email may fail for good because of it."""
    if isinstance(error, BodyKeyError):
        return "It cannot be sent at the moment: its content is encrypted, and the key is not available. It will be retried."
    if isinstance(error, EncryptionError):
        return "It cannot be signed at the moment: the domain's DKIM key cannot be decrypted. It will be retried."
    if isinstance(error, StoreError) and not isinstance(error, DataRejected):
        return "It cannot be loaded or signed at the moment: our database reports an error. It will be retried."
    return None


def _plain(each: RecipientOutcome) -> RecipientOutcome:
    """The same outcome in plain ASCII."""
    outcome: Any = each.outcome
    texts = {field: getattr(outcome, field) for field in ("reason", "reply") if hasattr(outcome, field)}
    plain = {field: "".join(char if " " <= char <= "~" else "?" for char in text) for field, text in texts.items()}
    return attrs.evolve(each, outcome=attrs.evolve(outcome, **plain))
