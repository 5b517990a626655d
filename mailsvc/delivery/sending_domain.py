"""What the sending domain adds to its mail: the return path, the DKIM signatures, and whether TLS is required.

Implements message_loader.Sending. The formats: mail/return_path, mail/authentication/dkim.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, TypeVar
from uuid import UUID

import attrs

from mailsvc.delivery.message_loader import Gone, Origin, ToSign
from mailsvc.delivery.signing.signer import Signer
from mailsvc.delivery.transaction import Transaction
from mailsvc.mail import return_path
from mailsvc.mail import seven_bit as sevenbit
from mailsvc.mail.authentication import dkim, rsa_batch
from mailsvc.mail.authentication.dkim import SigningKey, Unsigned
from mailsvc.runtime.offload import InThread
from mailsvc.store.domains.domains import Domain, Domains, StoredKey
from mailsvc.store.ids import uuid7_seconds
from mailsvc.store.mail.values import Pieces
from mailsvc.store.people.accounts import Accounts

T = TypeVar("T")
_LOADED = 2000  # signing keys in memory; loading one costs more than a signature
_NUMBERS = 10_000  # accounts whose number is remembered. It never changes.


_GONE = "The sending domain no longer exists."


@attrs.define(eq=False)
class SendingDomains:
    """`sign_small` signs what a function returns, for small messages; `body_thread` is for long work.

    The first secret signs return paths.
    """

    small: ClassVar[int] = 64 * 1024  # bytes; such a message is signed in about half a millisecond
    batch: ClassVar[int] = rsa_batch.LANES if rsa_batch.available else 1

    domains: Domains
    accounts: Accounts
    secrets: Callable[[], Sequence[bytes]]
    sign_small: Signer
    body_thread: InThread
    _loaded: OrderedDict[tuple[str, bytes], SigningKey] = attrs.field(factory=OrderedDict, init=False, repr=False)
    _numbers: OrderedDict[UUID, int] = attrs.field(factory=OrderedDict, init=False)

    async def origin(self, transaction: Transaction) -> Origin:
        domain = await self._domain(transaction.domain_id)
        number = await self._number(transaction.account_id)
        host, enforced = f"{domain.return_path}.{domain.name}", domain.tls == "enforced"
        return Origin(lambda: return_path.make(host, number, transaction.email_id, self.secrets()[0]), enforced, domain.region)

    async def sign(self, email: ToSign, body: bytes | Pieces) -> bytes:
        """The DKIM-Signature fields that precede the message, one for each of the domain's keys.

        They are always the same: their times are those of the email's acceptance and expiry, and both algorithms are deterministic.
        So two processes, of which each believes that it makes the first attempt, send the same bytes.
        """
        domain = await self._domain(email.domain_id)
        stored = await self.domains.signing_keys(email.domain_id)
        if not stored:
            return b""
        begins = int(uuid7_seconds(email.email_id))
        ends = int(email.expires_at.timestamp()) + dkim.AFTER_EXPIRY
        if domain.reserved:  # a copy of a test email cannot be used to send spam in the domain's name
            ends = begins + dkim.TEST_LIFETIME

        def prepare() -> Unsigned:
            return dkim.prepare(body, domain.name, [(key.selector, self._load(key)) for key in stored], begins, ends - begins)

        return await (self.sign_small(prepare) if len(body) <= self.small else self._with_body(lambda: dkim.complete([prepare()])[0]))

    async def eight_bit(self, body: Pieces) -> bool:
        return await self._with_body(lambda: not all(piece.isascii() for piece in body))

    async def seven_bit(self, body: bytes | Pieces) -> bytes:
        return await self._with_body(lambda: sevenbit.convert(body if isinstance(body, bytes) else b"".join(body)))

    def _with_body(self, work: Callable[[], T]) -> Awaitable[T]:
        return self.body_thread(work)

    async def _domain(self, domain_id: UUID) -> Domain:
        domain = await self.domains.get(domain_id)
        if domain is None:
            raise Gone(_GONE)
        if domain.lost is not None:  # its DKIM keys are no longer in DNS
            raise Gone(f"The sending domain {domain.name} now belongs to another account.")
        return domain

    async def _number(self, account_id: UUID) -> int:
        number = self._numbers.get(account_id)
        if number is None:
            account = await self.accounts.get(account_id)
            if account is None:
                raise Gone(_GONE)
            number = self._numbers[account_id] = account.number
            while len(self._numbers) > _NUMBERS:
                self._numbers.popitem(last=False)
        return number

    def _load(self, key: StoredKey) -> SigningKey:
        """Can run in a thread. Two threads may load the same key, which does no harm."""
        loaded = self._loaded.get((key.selector, key.der))
        if loaded is None:
            loaded = self._loaded[(key.selector, key.der)] = dkim.load_key(key.algorithm, key.der)
            while len(self._loaded) > _LOADED:
                self._loaded.popitem(last=False)
        return loaded
