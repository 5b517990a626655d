"""The files of body keys: one secret for each account with encrypted messages, in a folder outside the database and its backups.

Without its file, the key of an account (store/encryption/body_keys) cannot be decrypted, not even from an old backup of the database.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from uuid import UUID

import attrs

from mailsvc.store.encryption import key_file
from mailsvc.store.encryption.secrets import EncryptionError

SIZE = 32  # bytes of a secret


class BodyKeyError(EncryptionError):
    """The key of an account's messages is not available. The message says why, for the operator, without showing any of it."""


@attrs.frozen
class BodyKeyFiles:
    """All methods block: call them in a thread. They raise BodyKeyError."""

    folder: Path

    def path(self, account_id: UUID) -> Path:
        return self.folder / str(account_id)

    def read(self, account_id: UUID) -> bytes:
        path = self.path(account_id)
        try:
            secret = base64.b64decode(path.read_bytes().strip(), validate=True)
        except FileNotFoundError:
            raise BodyKeyError(f"The key file of the account's messages, {path}, does not exist. Restore it from its copy.") from None
        except OSError as error:
            raise BodyKeyError(f"The key file of the account's messages, {path}, cannot be read: {error.strerror}.") from None
        except binascii.Error:
            secret = b""
        if len(secret) != SIZE:
            raise BodyKeyError(f"The key file of the account's messages, {path}, is damaged. Restore it from its copy.")
        return secret

    def make(self, account_id: UUID) -> bytes:
        """The secret of an account: a new one, unless it has one. Of several processes, only the first creates it."""
        path = self.path(account_id)
        try:
            self._create(path)
        except OSError as error:
            raise BodyKeyError(f"The key file {path} cannot be created: {error.strerror}.") from None
        return self.read(account_id)

    def shred(self, account_id: UUID) -> None:
        """Delete the secret of an account, for ever. It is overwritten before, as far as the file system really does that."""
        path = self.path(account_id)
        try:
            with path.open("r+b") as file:
                file.write(bytes(path.stat().st_size))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
            key_file.sync(self.folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise BodyKeyError(f"The key file {path} cannot be deleted: {error.strerror}.") from None

    def accounts(self) -> Collection[UUID]:
        """The accounts that have a file; none if the folder cannot be read."""
        found: set[UUID] = set()
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                with contextlib.suppress(ValueError):
                    found.add(UUID(path.name))
        return found

    def _create(self, path: Path) -> None:
        """The folder and the file belong to the owner of the folder above, whoever runs the command."""
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True)
            key_file.give(self.folder, self.folder.parent)
        if path.exists():
            return
        temporary = key_file.written(path, base64.b64encode(os.urandom(SIZE)).decode() + "\n")
        try:
            key_file.give(temporary, self.folder)
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink()
        key_file.sync(self.folder)  # without this secret everything that it encrypts is lost
