"""The keys of encrypted messages: one per account, made when it is switched on, and cached in memory for a minute.

A key is encrypted twice: with the secret in the account's file (store/encryption/body_key_files), and around that with the encryption keys
of the installation, which can be rotated without the files. It takes the row, the file and the encryption keys to read a message; to make
all messages of an account unreadable, in backups too, it is enough to delete its file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from twisted.internet.defer import Deferred, TimeoutError, maybeDeferred
from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.store.cache import CHANNEL, Cache
from mailsvc.store.encryption.body_cipher import NONCE, BodyCipher
from mailsvc.store.encryption.body_key_files import SIZE, BodyKeyError, BodyKeyFiles
from mailsvc.store.encryption.secrets import Encryption, EncryptionError
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.cells import cell_of
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.postgres.notifications import Notifier
from mailsvc.store.postgres.pool import Pool, Transaction

TABLE = "body_keys"
MAX_AGE, MAX_KEYS = 60.0, 1000  # of the cache: seconds, accounts
READ_SECONDS = 10.0  # for a file, which may be on another machine
SILENT_SECONDS = 30.0  # after that, in which no file is read

_KEY = "SELECT key FROM body_keys WHERE account_id = %s"
_ALL = "SELECT account_id, key FROM body_keys ORDER BY account_id"
_ADD = "INSERT INTO body_keys (account_id, key, created_at) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_SWITCH = "UPDATE accounts SET encrypt_bodies = %s WHERE id = %s AND encrypt_bodies <> %s"

log = Logger()


class BodyKeys:
    """`files` None: the setting secrets.body_keys is not set. `in_thread` runs a function outside of the reactor thread."""

    def __init__(
        self,
        pool: Pool,
        clock: Any,
        encryption: Encryption,
        files: BodyKeyFiles | None,
        in_thread: Callable[[Callable[[], Any]], Deferred[Any]] = maybeDeferred,
    ) -> None:
        self._pool, self._clock, self._encryption, self._files, self._in_thread = pool, clock, encryption, files, in_thread
        self._silent_until: float | None = None
        self._cache: Cache[UUID, BodyCipher] = Cache(clock, max_age=MAX_AGE, entries=MAX_KEYS)

    def follow(self, notifications: Notifier) -> None:
        """Forget the keys when an account is changed or closed."""
        notifications.listen(CHANNEL, self._cache.drop)

    async def of(self, account_id: UUID) -> BodyCipher:
        """Raises BodyKeyError."""
        return await self._cache.get(account_id, lambda: self._load(account_id))

    def known(self, account_id: UUID) -> BodyCipher | None:
        """What is in memory: never waits."""
        return self._cache.known(account_id)

    async def for_new(self, account_id: UUID) -> BodyCipher:
        """For a new message. Raises Unavailable if the key cannot be used, so that the message is refused with a temporary error."""
        try:
            return await self.of(account_id)
        except BodyKeyError as error:
            log.error("Mail of {account} cannot be accepted: {reason}", account=str(account_id), reason=str(error))
            raise Unavailable("the key that encrypts the account's messages is not available") from None

    # Switching it on and off

    async def turn_on(self, account_id: UUID, lines: Sequence[Line]) -> None:
        """Encrypt new messages. The account gets a key, or continues with the one that it has. Raises BodyKeyError."""
        key = None
        if await self._pool.rows(_KEY, (account_id,)):
            await self._load(account_id)
        else:
            key = await self._new(account_id)

        async def switch(tx: Transaction) -> None:
            if key is not None:
                await tx.run(_ADD, (account_id, key, utc(self._clock)))
            await self._switch(tx, account_id, True, lines)

        await self._pool.transact(switch)

    async def turn_off(self, account_id: UUID, lines: Sequence[Line]) -> None:
        """Store new messages as they are. Earlier ones stay encrypted, and readable."""
        await self._pool.transact(lambda tx: self._switch(tx, account_id, False, lines))

    async def _switch(self, tx: Transaction, account_id: UUID, on: bool, lines: Sequence[Line]) -> None:
        if await tx.run(_SWITCH, (on, account_id, on)):
            await write(tx, lines, utc(self._clock).timestamp())

    # Erasing, moving, checking

    async def shred(self, account_id: UUID, *, must: bool) -> None:
        """Delete the account's file, after its row: all its messages become unreadable. `must`: it has one. Raises BodyKeyError."""
        if self._files is not None or must:
            files = self._folder()
            await self._read(lambda: files.shred(account_id))
        self._cache.drop()

    async def exported(self, row: dict[str, Any], transfer: Encryption) -> None:
        """Change a row for an archive: the key is encrypted with the archive's key only."""
        account_id = UUID(row["account_id"])
        row["key"] = _hex(transfer.encrypt((await self._load(account_id)).key, account_id))

    async def imported(self, row: dict[str, Any], transfer: Encryption) -> None:
        """The reverse. The account gets a file here, unless an interrupted import made it."""
        account_id = UUID(row["account_id"])
        key, files = transfer.decrypt(bytes.fromhex(row["key"][2:]), account_id), self._folder()
        row["key"] = _hex(self._wrapped(account_id, key, await self._read(lambda: files.make(account_id))))

    async def problems(self) -> tuple[Mapping[UUID, str], Sequence[Path]]:
        """For which accounts the key is not available here, and why; and files of accounts that have no key any more, if that is known."""
        found: dict[UUID, str] = {}
        rows: dict[UUID, bytes] = dict(await self._pool.rows(_ALL))
        for account_id, encrypted in rows.items():
            try:
                await self._unwrapped(account_id, bytes(encrypted))
            except BodyKeyError as error:
                found[account_id] = str(error)
        files = self._files
        if files is None or cell_of(self._pool.dsn) is not None:  # other cells keep the files of their accounts in the same folder
            return found, []
        return found, [files.path(account_id) for account_id in sorted(set(await self._read(files.accounts)) - rows.keys())]

    # The key itself

    async def _new(self, account_id: UUID) -> bytes:
        files = self._folder()
        return self._wrapped(account_id, os.urandom(SIZE), await self._read(lambda: files.make(account_id)))

    async def _load(self, account_id: UUID) -> BodyCipher:
        rows = await self._pool.rows(_KEY, (account_id,))
        if not rows:
            raise BodyKeyError(f"The key of the messages of {account_id} was erased.")
        return await self._unwrapped(account_id, bytes(rows[0][0]))

    async def _unwrapped(self, account_id: UUID, encrypted: bytes) -> BodyCipher:
        files = self._folder()
        try:
            inner = self._encryption.decrypt(encrypted, account_id)
        except EncryptionError as error:
            raise BodyKeyError(str(error)) from None
        secret = await self._read(lambda: files.read(account_id))
        try:
            key = AESGCM(secret).decrypt(inner[:NONCE], inner[NONCE:], account_id.bytes)
        except (InvalidTag, ValueError):
            path = files.path(account_id)
            raise BodyKeyError(f"The key file of the account's messages, {path}, is another one. Restore it from its copy.") from None
        return BodyCipher(account_id, key)

    def _wrapped(self, account_id: UUID, key: bytes, secret: bytes) -> bytes:
        nonce = os.urandom(NONCE)
        return self._encryption.encrypt(nonce + AESGCM(secret).encrypt(nonce, key, account_id.bytes), account_id)

    async def _read(self, work: Callable[[], Any]) -> Any:
        """In a thread. A folder that does not answer holds up one caller, not all of them one after the other."""
        silent = self._silent_until is not None and self._clock.seconds() < self._silent_until
        try:
            if not silent:
                return await self._in_thread(work).addTimeout(READ_SECONDS, self._clock)
        except TimeoutError:
            self._silent_until = self._clock.seconds() + SILENT_SECONDS
        raise BodyKeyError(f"The folder {self._folder().folder} (secrets.body_keys) does not answer.")

    def _folder(self) -> BodyKeyFiles:
        if self._files is None:
            raise BodyKeyError("The setting secrets.body_keys is not set. It names the folder with the keys of messages.")
        return self._files


def _hex(value: bytes) -> str:
    """Bytes as Postgres writes them in JSON."""
    return r"\x" + value.hex()
