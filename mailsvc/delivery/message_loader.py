"""The message loader: an email's stored message behind its DKIM signature, charged to the memory budget while it is in memory.

The first attempt makes the signature. All later attempts use it, so that they send the same bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, ClassVar, Protocol
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred

from mailsvc.broadcasts.consent import OnHold
from mailsvc.delivery import pace
from mailsvc.delivery.admission.memory import MemoryBudget
from mailsvc.delivery.transaction import NewMail, Transaction
from mailsvc.semaphore import Semaphore
from mailsvc.store.mail.accept import Pieces
from mailsvc.store.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.store.mail.messages import InPieces, StoredPieces
from mailsvc.store.postgres.errors import Transient

_SIGNATURES = 1000  # kept, for the other destinations of the same email
_COPIES = 16 << 20  # bytes of 7-bit copies kept for other destinations and attempts
_COPIES_MOST = 100
_LOADS = 4  # messages read at once: each may have 40 MB


class Gone(Exception):
    """There is nothing to send: the message or its sending domain no longer exists. The text is a sentence for people."""


class Waits(Exception):
    """It cannot be sent now, but later: its broadcast is paused. The text is a sentence for people."""


class Consent(Protocol):
    """Who still wants an email of a broadcast or about a topic: store/broadcasts/consent."""

    async def unwanted(
        self, account_id: UUID, broadcast_id: UUID | None, topic_id: UUID | None, addresses: Sequence[str]
    ) -> Mapping[str, str]:
        """Why the email must not be sent, by address. Raises OnHold while the broadcast is paused, or its topic deleted.

        Raises BroadcastCanceled.
        """


@attrs.frozen
class Origin:
    """What the sending domain sets for an attempt. `return_path` makes the envelope sender, which is signed."""

    return_path: Callable[[], str]
    tls_required: bool = False
    region: str | None = None  # which it sends from; None: any


class ToSign(Protocol):
    """What a signature depends on besides the message."""

    @property
    def email_id(self) -> UUID: ...
    @property
    def domain_id(self) -> UUID: ...
    @property
    def expires_at(self) -> datetime: ...


class Sending(Protocol):
    """The sending domain's part: sending_domain. `origin` and `sign` may raise Gone.

    `sign` returns DKIM-Signature fields, each ended by CRLF, or nothing. Messages of up to `small` bytes are signed `batch` at once.
    """

    small: ClassVar[int]
    batch: ClassVar[int]

    async def origin(self, transaction: Transaction) -> Origin: ...

    async def sign(self, email: ToSign, body: bytes | Pieces) -> bytes: ...

    async def eight_bit(self, body: Pieces) -> bool:
        """Whether a large message has bytes above 127. Runs off the reactor thread."""

    async def seven_bit(self, body: bytes | Pieces) -> bytes:
        """The message for a server without 8BITMIME or SMTPUTF8. Runs off the reactor thread."""


@attrs.define(eq=False)
class LoadedMessage:
    """A message that can be sent. `new_signature`: store its signature if a recipient has to be retried."""

    body: bytes | Pieces
    signature: bytes
    new_signature: bool
    charged: int
    eight_bit: bool
    envelope: StoredEnvelope = EMPTY
    unwanted: Mapping[str, str] = attrs.field(factory=dict)  # why it must not be sent to an address
    broadcast: bool = False  # it is of a broadcast

    def __len__(self) -> int:
        return len(self.signature) + len(self.body)

    def __iter__(self) -> Iterator[bytes]:
        body = (self.body,) if isinstance(self.body, bytes) else self.body
        return chain((self.signature,), body)


@attrs.define(eq=False)
class _Read:
    """A large message that is signed: reading it also finds out whether it has bytes above 127. None: not known yet."""

    body: Pieces
    eight_bit: bool | None = None

    def __len__(self) -> int:
        return len(self.body)

    def __iter__(self) -> Iterator[bytes]:
        found = False
        for piece in self.body:
            found = found or not piece.isascii()
            yield piece
        self.eight_bit = found


class MessageLoader:
    """Loads and signs. `unload` a message when its attempt has ended."""

    def __init__(self, clock: Any, messages: InPieces, sending: Sending, memory: MemoryBudget, consent: Consent | None = None) -> None:
        self._clock, self._messages, self._sending, self._memory, self._consent = clock, messages, sending, memory, consent
        self._loads = Semaphore(_LOADS)
        self._loaded = 0  # bytes of the budget that are charged for loaded messages
        self._copies: OrderedDict[UUID, tuple[bytes, bytes]] = OrderedDict()  # 7-bit copies with their signatures
        self._signatures: OrderedDict[UUID, bytes | list[Deferred[None]]] = OrderedDict()  # or those that wait for one

    async def origin(self, transaction: Transaction) -> Origin:
        try:
            return await self._sending.origin(transaction)
        except Exception as error:
            retry = lambda: self._sending.origin(transaction)  # noqa: E731
            return await pace.keep_trying_after(error, self._clock, "reading a sending domain", retry, _lasting)

    async def load(self, transaction: Transaction) -> LoadedMessage:
        """The message, from memory or the store; waits while the database is unavailable.

        Raises Gone, Waits and BroadcastCanceled.
        """
        body, size, signature, envelope = transaction.body, 0, None, transaction.envelope
        stored = None
        if body is None:
            stored = await self._stored(transaction)
            body, size, signature, envelope = stored.body, len(stored.body), stored.signature, stored.envelope
        try:
            unwanted = await self._unwanted(transaction, stored) if stored is not None else {}
            new_signature = signature is None
            read = body if isinstance(body, bytes) else _Read(body)
            if signature is None:
                signature = await self._sign(transaction, read)
            if isinstance(read, bytes):
                eight_bit = not read.isascii()
            else:
                eight_bit = await self._sending.eight_bit(read) if read.eight_bit is None else read.eight_bit
            broadcast = stored is not None and stored.broadcast_id is not None
            return LoadedMessage(body, signature, new_signature, size, eight_bit, envelope, unwanted, broadcast)
        except BaseException:
            self._release(size)
            raise

    async def _unwanted(self, transaction: Transaction, stored: StoredPieces) -> Mapping[str, str]:
        """Asked right before sending, because people unsubscribe while their mail waits."""
        if self._consent is None or (stored.broadcast_id is None and stored.topic_id is None):
            return {}
        addresses = [leased.address for leased in transaction.recipients]
        account_id, consent = transaction.account_id, self._consent
        read = lambda: consent.unwanted(account_id, stored.broadcast_id, stored.topic_id, addresses)  # noqa: E731
        try:
            return await pace.keep_trying(self._clock, "reading consent", read, _lasting)
        except OnHold as hold:
            raise Waits(str(hold)) from None

    async def seven_bit(self, transaction: Transaction, loaded: LoadedMessage) -> LoadedMessage:
        """A copy for a server without 8BITMIME or SMTPUTF8, with its own signature. Not stored, only kept in memory for a while."""
        email_id = transaction.email_id
        if email_id in self._copies:
            self._copies.move_to_end(email_id)
            body, signature = self._copies[email_id]
        else:
            body = await self._sending.seven_bit(loaded.body)
            signature = await pace.keep_trying(self._clock, "signing", lambda: self._sending.sign(transaction, body), _lasting)
            self._keep_copy(email_id, body, signature)
        self._charge(len(body))
        return LoadedMessage(body, signature, False, len(body), False, loaded.envelope)

    def _keep_copy(self, email_id: UUID, body: bytes, signature: bytes) -> None:
        self._copies[email_id] = body, signature
        while len(self._copies) > _COPIES_MOST or sum(len(copy) for copy, _ in self._copies.values()) > _COPIES:
            self._copies.popitem(last=False)

    def unload(self, loaded: LoadedMessage) -> None:
        if loaded.charged:
            self._release(loaded.charged)
            loaded.charged = 0

    async def _stored(self, transaction: Transaction) -> StoredPieces:
        """Charged before it is read, so that large messages that are loaded together do not exceed the budget."""
        charged = 0

        async def charge(size: int) -> None:
            nonlocal charged
            if not charged:  # a load that failed is repeated
                await self._room(size)
                charged = size
                self._charge(size)

        load = lambda: self._messages.load(transaction.account_id, transaction.email_id, charge)  # noqa: E731
        try:
            if (personal := transaction.personal) is not None:
                compose = lambda: self._messages.compose(personal, charge)  # noqa: E731
                stored = await pace.keep_trying(self._clock, "composing a message", compose, _lasting)
            else:
                async with self._loads:
                    stored = await pace.keep_trying(self._clock, "loading a message", load, _lasting)
            if stored is None:
                raise Gone("The message is no longer stored.")
        except BaseException:
            self._release(charged)
            raise
        self._charge(len(stored.body) - charged)
        return stored

    async def _room(self, size: int) -> None:
        """Wait for room in the budget. One message at a time may exceed it, otherwise a large one might never be sent."""
        while self._loaded and not self._memory.has_room(size):
            await pace.sleep(self._clock, 0.05)

    def _charge(self, size: int) -> None:
        self._loaded += size
        self._memory.charge(size)

    def _release(self, size: int) -> None:
        self._loaded -= size
        self._memory.release(size)

    def sign_ahead(self, emails: Sequence[NewMail]) -> None:
        """Begin to sign what will be sent in a moment: small messages, as many as fill batches. Attempts sign the others."""
        small = [
            each
            for each in emails
            if isinstance(each.message, bytes) and len(each.message) <= self._sending.small and each.email_id not in self._signatures
        ]
        for each in small[: full(len(small), self._sending.batch)]:
            assert each.message is not None
            signing = Deferred.fromCoroutine(self._make(each.email_id, self._sending.sign(each, each.message)))
            signing.addErrback(lambda _: None)  # the attempt tries again, and reports the error

    async def _sign(self, transaction: Transaction, body: bytes | Pieces) -> bytes:
        """Once for an email, however many destinations it has: later callers wait for the first, and try themselves if it failed."""
        while (signature := self._signatures.get(transaction.email_id)) is not None:
            if isinstance(signature, bytes):
                return signature
            waiting: Deferred[None] = Deferred()
            signature.append(waiting)
            await waiting
        return await self._make(transaction.email_id, self._signed(transaction, body))

    async def _signed(self, transaction: Transaction, body: bytes | Pieces) -> bytes:
        try:
            return await self._sending.sign(transaction, body)
        except Exception as error:
            retry = lambda: self._sending.sign(transaction, body)  # noqa: E731
            return await pace.keep_trying_after(error, self._clock, "signing", retry, _lasting)

    async def _make(self, email_id: UUID, signing: Awaitable[bytes]) -> bytes:
        others: list[Deferred[None]] = []
        self._signatures[email_id] = others
        try:
            signature = self._signatures[email_id] = await signing
        except BaseException:
            self._signatures.pop(email_id, None)
            raise
        finally:
            for waiting in others:
                waiting.callback(None)
        if len(self._signatures) > _SIGNATURES:
            self._signatures.popitem(last=False)
        return signature


def full(count: int, batch: int) -> int:
    """How many of `count` messages fill batches, of which one may be incomplete by less than half."""
    rest = count % batch
    return count if 2 * rest > batch else count - rest


def _lasting(error: Exception) -> bool:
    """Not that the database is unavailable for a moment: that is no fault of the message."""
    return not isinstance(error, Transient)
