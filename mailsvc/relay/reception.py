"""Who may hand in mail and for whom: the relay's side of an SMTP session. What is said on the wire: smtp/. A mail itself: submission.

A customer logs in with an API key and sends from domains of theirs to anybody; for a neighbour the operator has named the key. Whoever
has not logged in may, on the port for other mail servers, write to our own addresses alone (inbound).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

import attrs

from mailsvc.mail.address import Path
from mailsvc.mail.reply import Reply
from mailsvc.relay import replies as answers
from mailsvc.relay.connection_limits import ConnectionLimits, Failures, subscriber
from mailsvc.relay.null_mx import NullMx, Patience
from mailsvc.relay.session_log import SessionLog
from mailsvc.relay.spool import NO_ROOM, SPOOL_ABOVE, InThread, Spool
from mailsvc.relay.submission import Submissions
from mailsvc.relay.trusted_networks import TrustedNetworks
from mailsvc.runtime.budget import Budgets, Hold
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.extensions import MailParameters
from mailsvc.smtp.server.session import Envelope, Login, Reception, Recipient, Session, Sink
from mailsvc.store.people.api_keys import Caller, digest
from mailsvc.store.postgres.errors import StoreError


class Keys(Protocol):
    """store/people/api_keys"""

    async def find(self, hash: bytes) -> Caller | None: ...
    async def find_by_id(self, key_id: UUID) -> Caller | None: ...


class Quota(Protocol):
    @property
    def allowed(self) -> bool: ...


class Rate(Protocol):
    """How many mails an account may hand in, together with its calls of the API."""

    async def take_shared(self, account_id: UUID, limit: int | None = None) -> Quota: ...


class Own(Protocol):
    """Our own addresses, for whoever has not logged in (inbound)."""

    def takes(self, recipient: Path) -> bool: ...

    def sink(self, envelope: Envelope, hold: Hold, in_thread: InThread) -> Sink: ...


@attrs.define(eq=False)
class Relay:
    """Welcomes the connections of all ports; `welcome` goes to smtp.server.Receivers."""

    user: str
    keys: Keys
    well_formed: Callable[[str], bool]
    rate: Rate
    budgets: Budgets
    submissions: Submissions
    receipts: SessionLog
    own: Own
    addresses: ConnectionLimits  # connections by address
    with_key: ConnectionLimits  # and by key
    failures: Failures
    connections: int  # of all together
    null_mx: NullMx
    neighbours: TrustedNetworks = TrustedNetworks()

    def welcome(self, session: Session) -> Reception | Reply:
        if len(self.addresses) >= self.connections:
            return answers.TOO_MANY_CONNECTIONS
        who = subscriber(session.peer.host)
        if not self.addresses.enter(who):
            return answers.TOO_MANY_FOR_ADDRESS
        neighbour = self.neighbours.key_of(session.peer.host)
        session.neighbour = neighbour is not None
        return RelaySession(self, session, who, neighbour)

    async def caller(self, token: bytes | UUID) -> Caller | Reply | None:
        """Whose key has this SHA-256 or id, or why nobody knows just now."""
        try:
            return await (self.keys.find_by_id(token) if isinstance(token, UUID) else self.keys.find(token))
        except StoreError:
            return answers.LOGIN_UNAVAILABLE


@attrs.frozen
class Customer:
    """Who logged in, and the SHA-256 of the key they did it with; of a neighbour the key's id."""

    caller: Caller
    token: bytes | UUID = attrs.field(repr=False)


@attrs.define(eq=False)
class RelaySession:
    """The reception of one connection."""

    _relay: Relay
    _session: Session
    _who: str
    _neighbour: UUID | None  # the key that the address stands for
    _customer: Customer | None = None
    _patience: Patience | None = None  # with DNS, for the mail that is under way

    async def authenticate(self, user: str, password: str) -> Login | Reply:
        relay = self._relay
        if relay.failures.exceeded(self._who):
            return answers.TOO_MANY_FAILURES
        token = digest(password)
        known = await relay.caller(token) if relay.well_formed(password) else None
        if isinstance(known, Reply):
            return known
        right_user = hmac.compare_digest(user.encode("utf-8", "surrogateescape"), relay.user.encode())
        if known is None or not right_user:
            relay.failures.add(self._who)
            return replies.LOGIN_FAILED
        return self._enter(Customer(known, token)) or Login(user, known)

    async def vouched(self) -> Login | Reply | None:
        relay, key = self._relay, self._neighbour
        if key is None:
            return None
        known = await relay.caller(key)
        if known is None or isinstance(known, Reply):
            return known
        return self._enter(Customer(known, key)) or Login(relay.user, known, vouched=True)

    def _enter(self, customer: Customer) -> Reply | None:
        """The customer is in, in the place of who was; or why they may not."""
        before, key = self._customer, customer.caller.key_id
        if customer.caller.suspended:
            return answers.SUSPENDED
        if before is None or before.caller.key_id != key:
            if not self._relay.with_key.enter(key):
                return answers.TOO_MANY_FOR_KEY
            if before is not None:
                self._leave(before)
                self._session.anew()
        self._customer = customer
        return None

    def _leave(self, customer: Customer) -> None:
        self._relay.with_key.leave(customer.caller.key_id)
        self._relay.receipts.keep(customer.caller, self._session)

    async def mail(self, sender: Path, parameters: MailParameters) -> Reply:
        if self._customer is None:
            return replies.SENDER_OK
        caller = await self._relay.caller(self._customer.token)
        if isinstance(caller, Reply):
            return answers.STORE_AWAY
        if caller is None:
            return replies.LOGIN_FIRST if self._customer.token == self._neighbour else answers.REVOKED
        if caller.suspended:
            return answers.SUSPENDED
        self._patience = self._relay.null_mx.patience()
        quota = await self._relay.rate.take_shared(caller.account_id, caller.rate_limit)
        return replies.SENDER_OK if quota.allowed else answers.TOO_FAST

    async def rcpt(self, envelope: Envelope, recipient: Recipient) -> Reply:
        path = recipient.path
        if self._customer is None:
            return replies.RECIPIENT_OK if self._relay.own.takes(path) else answers.NOT_OURS
        if path.literal:
            return answers.NO_LITERALS
        if not path.domain:
            return answers.NO_DOMAIN
        refusal = None if self._patience is None else await self._patience.refusal(path.domain)
        return refusal or replies.RECIPIENT_OK

    async def body(self, envelope: Envelope) -> Sink | Reply:
        relay, customer = self._relay, self._customer
        if customer is None:
            hold = Hold(relay.budgets.inbound, self._who)
        else:
            hold = Hold(relay.budgets.submission, customer.caller.account_id)
        if not hold.room(envelope.parameters.size or 0, SPOOL_ABOVE):
            return NO_ROOM
        if customer is None:
            return relay.own.sink(envelope, hold, relay.submissions.in_thread)
        caller, session, submissions = customer.caller, self._session, relay.submissions
        return Spool(hold, lambda arrived: submissions.submit(caller, session, envelope, arrived), submissions.in_thread)

    def dropped(self) -> None:
        self._relay.addresses.leave(self._who)
        if self._customer is not None:
            self._leave(self._customer)
