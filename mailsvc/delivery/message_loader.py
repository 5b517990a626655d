"""What goes over the wire: an email's stored message behind its DKIM signature, and the envelope it travels in.

The signature is made once, by whoever attempts first, and kept for all other attempts, so that these send the same bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Any, Protocol
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred, DeferredSemaphore

from mailsvc.delivery import pace
from mailsvc.delivery.admission.slots import MemoryBudget
from mailsvc.delivery.transaction import Transaction
from mailsvc.mail.envelope import EMPTY, StoredEnvelope
from mailsvc.store.mail.accept import Pieces
from mailsvc.store.mail.messages import StoredMessage, StoredPieces
from mailsvc.store.postgres.errors import Transient

_SIGNATURES = 1000  # remembered, for the other destinations of the same email
_COPIES = 16 << 20  # octets of copies in seven bits, remembered for other destinations and attempts
_COPIES_MOST = 100
_LOADS = 4  # messages read at once: each may be 40 MB


class Gone(Exception):
    """There is nothing to send any more: the message or its sending domain is not there. The text is a sentence for people."""


@attrs.frozen
class Origin:
    """What the sending domain asks of an attempt. `return_path` is the envelope sender."""

    return_path: str
    tls_required: bool = False


class Messages(Protocol):
    """Where messages are kept."""

    async def load(self, account_id: UUID, email_id: UUID) -> StoredMessage | StoredPieces | None: ...


class Sending(Protocol):
    """The sending domain's side. Either may raise Gone.

    `sign` gives DKIM-Signature fields, each ended by CRLF, made off the reactor thread; or nothing.
    """

    async def origin(self, parcel: Transaction) -> Origin: ...

    async def sign(self, parcel: Transaction, body: bytes | Pieces) -> bytes: ...

    async def eight_bit(self, body: Pieces) -> bool:
        """Whether a large message has octets above 127, looked for off the reactor thread."""

    async def seven_bit(self, body: bytes | Pieces) -> bytes:
        """The message for a server without 8BITMIME, made off the reactor thread."""


@attrs.define(eq=False)
class LoadedMessage:
    """A message ready to go out. `made`: its signature is new and is to be kept if somebody has to wait."""

    body: bytes | Pieces
    signature: bytes
    made: bool
    freight: int
    eight_bit: bool
    envelope: StoredEnvelope = EMPTY

    def __len__(self) -> int:
        return len(self.signature) + len(self.body)

    def __iter__(self) -> Iterator[bytes]:
        body = (self.body,) if isinstance(self.body, bytes) else self.body
        return chain((self.signature,), body)


class MessageLoader:
    """Loads and signs. What is in memory because of it counts as freight until it is unloaded."""

    def __init__(self, clock: Any, messages: Messages, sending: Sending, freight: MemoryBudget) -> None:
        self._clock, self._messages, self._sending, self._freight = clock, messages, sending, freight
        self._loads = DeferredSemaphore(_LOADS)
        self._copies: OrderedDict[UUID, tuple[bytes, bytes]] = OrderedDict()  # in seven bits, with their signatures
        self._signatures: OrderedDict[UUID, bytes | list[Deferred[bytes]]] = OrderedDict()  # made; or who waits while it is

    async def origin(self, parcel: Transaction) -> Origin:
        try:
            return await self._sending.origin(parcel)
        except Exception as error:
            return await pace.again(self._clock, "reading a sending domain", lambda: self._sending.origin(parcel), error, _not_away)

    async def load(self, parcel: Transaction) -> LoadedMessage:
        """The message of a parcel, from memory or the store; the database is waited for. Raises Gone."""
        body, size, signature, envelope = parcel.body, 0, None, parcel.envelope
        if body is None:
            stored = await self._stored(parcel)
            body, size, signature, envelope = stored.body, len(stored.body), stored.signature, stored.envelope
        try:
            made = signature is None
            if signature is None:
                signature = await self._sign(parcel, body)
            eight_bit = not body.isascii() if isinstance(body, bytes) else await self._sending.eight_bit(body)
            return LoadedMessage(body, signature, made, size, eight_bit, envelope)
        except BaseException:
            self._freight.unload(size)
            raise

    async def seven_bit(self, parcel: Transaction, loaded: LoadedMessage) -> LoadedMessage:
        """A copy for a server without 8BITMIME, signed anew. It is not stored, only remembered for a while."""
        if parcel.email_id in self._copies:
            self._copies.move_to_end(parcel.email_id)
            body, signature = self._copies[parcel.email_id]
        else:
            body = await self._sending.seven_bit(loaded.body)
            signature = await pace.insist(self._clock, "signing", lambda: self._sending.sign(parcel, body), _not_away)
            self._remember(parcel.email_id, body, signature)
        self._freight.load(len(body))
        return LoadedMessage(body, signature, False, len(body), False, loaded.envelope)

    def _remember(self, email_id: UUID, body: bytes, signature: bytes) -> None:
        self._copies[email_id] = body, signature
        while len(self._copies) > _COPIES_MOST or sum(len(copy) for copy, _ in self._copies.values()) > _COPIES:
            self._copies.popitem(last=False)

    def unload(self, loaded: LoadedMessage) -> None:
        if loaded.freight:
            self._freight.unload(loaded.freight)
            loaded.freight = 0

    async def _stored(self, parcel: Transaction) -> StoredMessage | StoredPieces:
        async with self._loads:
            while not self._freight.room(0):
                await pace.sleep(self._clock, 0.05)
            account, email = parcel.account_id, parcel.email_id
            stored = await pace.insist(self._clock, "loading a message", lambda: self._messages.load(account, email), _not_away)
            if stored is None:
                raise Gone("The message is no longer stored.")
            self._freight.load(len(stored.body))
            return stored

    async def _sign(self, parcel: Transaction, body: bytes | Pieces) -> bytes:
        """Once for an email, whatever number of destinations it goes to: whoever comes while it is made waits for it."""
        email_id = parcel.email_id
        made = self._signatures.get(email_id)
        if isinstance(made, bytes):
            return made
        if made is not None:
            waiting: Deferred[bytes] = Deferred()
            made.append(waiting)
            return await waiting
        others: list[Deferred[bytes]] = []
        self._signatures[email_id] = others
        try:
            try:
                signature = await self._sending.sign(parcel, body)
            except Exception as error:
                signature = await pace.again(self._clock, "signing", lambda: self._sending.sign(parcel, body), error, _not_away)
        except BaseException as error:
            self._signatures.pop(email_id, None)
            for waiting in others:
                waiting.errback(error)
            raise
        self._signatures[email_id] = signature
        if len(self._signatures) > _SIGNATURES:
            self._signatures.popitem(last=False)
        for waiting in others:
            waiting.callback(signature)
        return signature


def _not_away(error: Exception) -> bool:
    """Whether this is more than the database being away for a moment: that is no fault of the message's."""
    return not isinstance(error, Transient)
