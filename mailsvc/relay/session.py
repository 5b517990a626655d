"""Who may submit mail, and to whom: the policy of the relay's SMTP sessions. The protocol: smtp/server. A single mail: submission.

A customer logs in with an API key and sends from its domains to any recipient; a client in a trusted network is logged in with the
key that the operator configured. Without a login, mail on port 25 is accepted only for the service itself (inbound). `rcpt`
answers RCPT TO; it does not look at suppressions, store/mail/insert_emails.sql does.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from uuid import UUID

import attrs

from mailsvc.accounts.ratelimit import RateLimit
from mailsvc.mail.address import Path
from mailsvc.mail.reply import Reply
from mailsvc.net import allow_list
from mailsvc.relay import replies as relay_replies
from mailsvc.relay.connection_limits import ConnectionLimits, LoginFailures, client_network
from mailsvc.relay.inbound import InboundMail
from mailsvc.relay.null_mx import NullMx, NullMxCheck
from mailsvc.relay.session_log import SessionLog
from mailsvc.relay.spool import NO_ROOM, SPOOL_ABOVE, Arrived, Spool
from mailsvc.relay.submission import Submissions
from mailsvc.relay.trusted_networks import TrustedNetworks
from mailsvc.runtime.budget import Budgets, Hold
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.extensions import MailParameters
from mailsvc.smtp.server.session import Envelope, Login, Recipient, Session, SessionPolicy, Sink
from mailsvc.store.people.api_keys import Caller, Keys, digest
from mailsvc.store.postgres.errors import StoreError

KEPT_FOR_SUBMISSION = 5  # port 25, which is open to everybody, leaves one in so many connections to customers


@attrs.define(eq=False)
class Relay:
    """Opens the sessions of all ports; `open_session` goes to smtp.server.ServerFactory.

    `rate`: an account's mails count together with its API requests.
    """

    user: str
    keys: Keys
    well_formed: Callable[[str], bool]
    rate: RateLimit
    budgets: Budgets
    submissions: Submissions
    session_log: SessionLog
    inbound: InboundMail
    per_address: ConnectionLimits
    per_key: ConnectionLimits
    login_failures: LoginFailures
    max_connections: int
    null_mx: NullMx
    trusted_networks: TrustedNetworks = TrustedNetworks()
    _on_exchange: int = attrs.field(default=0, init=False)  # open connections to port 25, other than those of trusted networks

    def open_session(self, session: Session) -> SessionPolicy | Reply:
        if len(self.per_address) >= self.max_connections:
            return relay_replies.TOO_MANY_CONNECTIONS
        network_key = self.trusted_networks.key_of(session.peer.host)
        on_exchange = not session.login_required and network_key is None
        if on_exchange and self._on_exchange >= self.max_connections - self.max_connections // KEPT_FOR_SUBMISSION:
            return relay_replies.TOO_MANY_CONNECTIONS
        client = client_network(session.peer.host)
        if not self.per_address.enter(client):
            return relay_replies.TOO_MANY_FOR_ADDRESS
        self._on_exchange += on_exchange
        session.trusted_network = network_key is not None
        return RelaySession(self, session, client, network_key, on_exchange)

    def leave(self, client: str, *, on_exchange: bool) -> None:
        self.per_address.leave(client)
        self._on_exchange -= on_exchange

    async def moved(self, token: bytes | UUID, left: Reply) -> Reply | None:
        """The reply to a key whose account is about to arrive in this cell, or `left` if it has left. None if it did not move.

        `token`: the SHA-256 of the key, or its ID.
        """
        try:
            found = await self.keys.moved(token)
        except StoreError:
            return relay_replies.LOGIN_UNAVAILABLE
        if found is None:
            return None
        return relay_replies.LOGIN_UNAVAILABLE if found.cell is None else left

    async def find_caller(self, token: bytes | UUID) -> Caller | Reply | None:
        """The caller whose key has this SHA-256 or ID; a reply if the store is unavailable."""
        try:
            return await (self.keys.find_by_id(token) if isinstance(token, UUID) else self.keys.find(token))
        except StoreError:
            return relay_replies.LOGIN_UNAVAILABLE


@attrs.frozen
class Authenticated:
    """The caller, and the SHA-256 of its key; in a trusted network the key's ID."""

    caller: Caller
    token: bytes | UUID = attrs.field(repr=False)


@attrs.define(eq=False)
class RelaySession:
    """The policy of one connection."""

    _relay: Relay
    _session: Session
    _client: str
    _network_key: UUID | None  # the ID of the API key for the client's network
    _on_exchange: bool
    _login: Authenticated | None = None
    _null_mx: NullMxCheck | None = None  # of the present mail
    _bounce: bool = False  # the present mail has the null sender, and all its recipients are return paths of this service

    async def authenticate(self, user: str, password: str) -> Login | Reply:
        relay = self._relay
        token = digest(password)
        caller = await relay.find_caller(token) or await relay.moved(token, relay_replies.MOVED) if relay.well_formed(password) else None
        if isinstance(caller, Reply):
            return caller
        if caller is None or not _names(relay.user, user):
            if relay.login_failures.exceeded(self._client):
                return relay_replies.TOO_MANY_FAILURES
            relay.login_failures.add(self._client)
            return replies.LOGIN_FAILED
        return self._log_in(Authenticated(caller, token)) or Login(user, caller)

    async def login_by_address(self) -> Login | Reply | None:
        relay, key = self._relay, self._network_key
        if key is None:
            return None
        caller = await relay.find_caller(key) or await relay.moved(key, relay_replies.NETWORK_MOVED)
        if caller is None or isinstance(caller, Reply):
            return caller
        return self._log_in(Authenticated(caller, key)) or Login(relay.user, caller, by_address=True)

    def _log_in(self, login: Authenticated) -> Reply | None:
        """Replace the present login, if any, or return the reply that refuses it."""
        before, key = self._login, login.caller.key_id
        if login.caller.suspended:
            return relay_replies.SUSPENDED
        if not allow_list.allows(self._session.peer.host, login.caller.networks):
            return relay_replies.FOREIGN_NETWORK
        if before is None or before.caller.key_id != key:
            if not self._relay.per_key.enter(key):
                return relay_replies.TOO_MANY_FOR_KEY
            if before is not None:
                self._log_out(before)
                self._session.change_login()
        self._login = login
        return None

    def _log_out(self, login: Authenticated) -> None:
        self._relay.per_key.leave(login.caller.key_id)
        self._relay.session_log.add(login.caller, self._session)

    async def mail(self, sender: Path, parameters: MailParameters) -> Reply:
        if self._login is None:
            return replies.SENDER_OK
        caller = await self._caller(self._login.token)
        if isinstance(caller, Reply):
            return caller
        self._login = Authenticated(caller, self._login.token)  # its plan and limits may have changed
        self._null_mx = self._relay.null_mx.check()
        self._bounce = False
        quota = await self._relay.rate.take_shared(caller.account_id, caller.rate_limit)
        return replies.SENDER_OK if quota.allowed else relay_replies.TOO_FAST

    async def _caller(self, token: bytes | UUID) -> Caller | Reply:
        """The caller that is logged in, if it may still send; otherwise the reply that says why not."""
        caller = await self._relay.find_caller(token)
        if isinstance(caller, Reply):
            return relay_replies.STORE_UNAVAILABLE
        if caller is None:
            return await self._no_caller(token)
        return relay_replies.SUSPENDED if caller.suspended else caller

    async def _no_caller(self, token: bytes | UUID) -> Reply:
        """The reply to a mail whose key no longer has a caller. If the account has moved meanwhile, the client has to connect again."""
        moved = await self._relay.moved(token, relay_replies.LEFT)
        if moved is not None:
            return relay_replies.STORE_UNAVAILABLE if moved is relay_replies.LOGIN_UNAVAILABLE else moved
        return replies.LOGIN_FIRST if isinstance(token, UUID) else relay_replies.REVOKED

    async def rcpt(self, envelope: Envelope, recipient: Recipient) -> Reply:
        path, inbound = recipient.path, self._relay.inbound
        if self._login is None:
            return await inbound.refusal(envelope, path) or replies.RECIPIENT_OK
        # A customer's server that sends everything through the relay also bounces mail that this service delivered to it.
        bounce = not envelope.sender.address and (self._bounce or not envelope.recipients) and inbound.takes(path.address)
        refusal = await inbound.refusal(envelope, path) if bounce else await self._refusal(path)
        self._bounce = bounce if refusal is None else self._bounce
        return refusal or replies.RECIPIENT_OK

    async def _refusal(self, path: Path) -> Reply | None:
        """The reply that refuses a recipient of a customer's mail."""
        if path.literal:
            return relay_replies.NO_LITERALS
        if not path.domain:
            return relay_replies.NO_DOMAIN
        return None if self._null_mx is None else await self._null_mx.refusal(path.domain)

    async def body(self, envelope: Envelope) -> Sink | Reply:
        relay, login = self._relay, None if self._bounce else self._login
        if login is None:
            hold = Hold(relay.budgets.inbound, self._client)
        else:
            hold = Hold(relay.budgets.submission, login.caller.account_id)
        if not hold.room(envelope.parameters.size or 0, SPOOL_ABOVE):
            return NO_ROOM
        if login is None:
            return relay.inbound.sink(self._session, envelope, hold, relay.submissions.in_thread)
        token, submissions = login.token, relay.submissions
        return Spool(
            hold,
            lambda arrived: self._submit(token, envelope, arrived),
            submissions.in_thread,
            working_memory=submissions.working_memory,
        )

    async def _submit(self, token: bytes | UUID, envelope: Envelope, arrived: Arrived) -> Reply:
        """The reply to a message. Look its key up again: a message may take an hour to arrive."""
        caller = await self._caller(token)
        if isinstance(caller, Reply):
            return relay_replies.STORE_UNAVAILABLE if caller is relay_replies.LEFT else caller
        return await self._relay.submissions.submit(caller, self._session, envelope, arrived)

    def closed(self) -> None:
        self._relay.leave(self._client, on_exchange=self._on_exchange)
        if self._login is not None:
            self._log_out(self._login)


def _names(name: str, given: str) -> bool:
    """Whether a client gave this user name. A domain may follow, because some programs take only an address."""
    text, expected = given.encode("utf-8", "surrogateescape"), name.encode()
    return hmac.compare_digest(text, expected) or hmac.compare_digest(text.rpartition(b"@")[0], expected)
