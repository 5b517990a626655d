"""The erasure journal: a file outside the database, by which erasures are applied again to a database that was restored from a backup.

One line for each erasure: its ID, the day, and the address, encrypted with the encryption keys. A line is written and synced before
anything is erased. It expires with the oldest backup that can contain the address.
"""

from __future__ import annotations

import base64
import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import orjson
from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.store.encryption import key_file
from mailsvc.store.encryption.secrets import Encryption, EncryptionError
from mailsvc.store.privacy.eraser import Eraser
from mailsvc.store.privacy.finding import Turn

LONGEST = 4096  # bytes of a line at most
_LOOK = 0.02  # seconds between two tries to lock the file

log = Logger()


class JournalError(EncryptionError):
    """The journal cannot be used. The message says why, and what to do."""


@attrs.frozen
class Entry:
    """An erasure as the journal has it."""

    id: UUID
    day: date
    account: UUID | None
    email: str = attrs.field(repr=False)
    suppress: bool = False


@attrs.frozen
class Journal:
    """`days`: how long backups are kept. `patience`: seconds to wait while another process has locked the file.

    The daemon calls it in threads only, because a process that was stopped keeps the lock.
    """

    file: Path
    encryption: Encryption
    days: int
    patience: float = 10.0

    def add(self, entry: Entry) -> None:
        """Write an entry. Afterwards it survives a power failure. Raises JournalError, for example if the disk is full."""
        content = {"account": entry.account, "email": entry.email, "suppress": entry.suppress}
        encrypted = self.encryption.encrypt(orjson.dumps(content), entry.id)
        with self._opened() as fd:
            end = _end(fd)
            os.ftruncate(fd, end)  # otherwise the line would continue one that was cut off, and neither could be read
            try:
                _write(fd, f"{entry.id} {entry.day} {base64.b64encode(encrypted).decode()}\n".encode(), end)
                os.fsync(fd)
            except OSError as error:
                os.ftruncate(fd, end)
                raise JournalError(f"The erasure journal {self.file} cannot be written: {error.strerror}.") from None
        if not end:
            key_file.sync(self.file.parent)

    def entries(self) -> Sequence[Entry]:
        """All entries, oldest first. Creates the file. Raises JournalError if it cannot be used, or if one cannot be read."""
        with self._opened() as fd:
            lines = _lines(fd)
        return [self._entry(line, number) for number, line in enumerate(lines, 1)]

    def keys(self) -> Mapping[int, int]:
        """How many entries each encryption key has encrypted, by its number."""
        if not self.file.exists():
            return {}
        with self._opened() as fd:
            return Counter(base64.b64decode(line.split(" ")[2])[0] for line in _lines(fd))

    def expire(self, now: datetime) -> int:
        """Remove entries of erasures that no backup needs any more. Returns how many. Damaged lines stay, so that `entries` finds them."""
        before = (now - timedelta(days=self.days)).date()
        if not self.file.exists():
            return 0
        with self._opened() as fd:
            lines = _lines(fd)
            kept = [line for line in lines if not _is_older(line, before)]
            if len(kept) < len(lines):
                self._replace("".join(f"{line}\n" for line in kept).encode())
            return len(lines) - len(kept)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The file, locked. A new one belongs to the owner of its folder, whoever runs the command. Raises JournalError."""
        while True:
            try:
                new = not self.file.exists()
                fd = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o600)
                if new:
                    key_file.give(self.file, self.file.parent)
            except OSError as error:
                raise JournalError(
                    f"The setting privacy.journal is {self.file}, which cannot be written: {error.strerror}. Without it, erased data would "
                    "come back from a backup."
                ) from None
            try:
                self._lock(fd)
                if os.path.samestat(os.fstat(fd), self.file.stat()):  # otherwise it was replaced meanwhile
                    yield fd
                    return
            except OSError as error:
                raise JournalError(f"The erasure journal {self.file} cannot be used: {error.strerror}.") from None
            finally:
                os.close(fd)

    def _lock(self, fd: int) -> None:
        until = time.monotonic() + self.patience
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise JournalError(
                        f"The erasure journal {self.file} is locked by another process, which may have been stopped. `lslocks` names it."
                    ) from None
            time.sleep(_LOOK)

    def _replace(self, content: bytes) -> None:
        """Atomically: a crash leaves the old file or the new one."""
        temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.file)
        except OSError:
            temporary.unlink()
            raise
        key_file.sync(self.file.parent)

    def _entry(self, line: str, number: int) -> Entry:
        try:
            id_, day, encoded = line.split(" ")
            content = orjson.loads(self.encryption.decrypt(base64.b64decode(encoded), UUID(id_)))
            account = None if content["account"] is None else UUID(content["account"])
            return Entry(UUID(id_), date.fromisoformat(day), account, content["email"], content["suppress"])
        except EncryptionError as error:
            raise self._unreadable(number, str(error)) from None
        except (ValueError, KeyError):
            raise self._unreadable(number) from None

    def _unreadable(self, number: int, why: str = "it is damaged.") -> JournalError:
        return JournalError(
            f"Line {number} of the erasure journal {self.file} cannot be read: {why} Restore the file, or the encryption keys that "
            "it was written with; without it, erased data would come back from the backup."
        )


def _is_older(line: str, before: date) -> bool:
    try:
        return date.fromisoformat(line.split(" ")[1]) < before
    except (ValueError, IndexError):
        return False


def _end(fd: int) -> int:
    """Where the complete lines end: what a crash or a full disk cut off was never begun."""
    size = os.fstat(fd).st_size
    last = os.pread(fd, LONGEST, max(0, size - LONGEST))
    return size - len(last) + last.rfind(b"\n") + 1


def _write(fd: int, data: bytes, at: int) -> None:
    """Write all of it. On a full disk, the first part can succeed."""
    while data:
        count = os.pwrite(fd, data, at)
        data, at = data[count:], at + count


def _lines(fd: int) -> list[str]:
    """The complete lines."""
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(os.dup(fd), "rb") as file:
        *lines, _ = file.read().decode("utf-8", "replace").split("\n")
    return lines


@attrs.frozen
class Recorded:
    """Begins erasures: in the journal first, if there is one, then in the database."""

    eraser: Eraser
    journal: Journal | None
    turn: Turn = attrs.field(factory=Turn, init=False)

    async def begin(self, account: UUID | None, email: str, suppress: bool, origin: str, lines: Sequence[Any] = ()) -> Any:
        """The new erasure, or the one of this address that is not finished yet."""
        erasures = self.eraser.erasures
        id_ = erasures.new_id()

        async def record() -> None:
            if self.journal is not None:
                entry = Entry(id_, utc(erasures.clock).astimezone(UTC).date(), account, email, suppress)
                await self.eraser.in_thread(partial(self.journal.add, entry))

        return await erasures.begin(account, id_, email, suppress, origin, lines, record)


async def apply(eraser: Eraser, journal: Journal, *, restored: bool) -> int:
    """Run the erasures of the journal that this database does not have, or if it was `restored`, has not finished. Returns how many."""
    entries = await eraser.in_thread(journal.entries)
    known = await eraser.erasures.known([entry.id for entry in entries], begun=not restored)
    missing = [entry for entry in entries if entry.id not in known]
    for number, entry in enumerate(missing, 1):
        log.warn("erasing again what a backup brought back: {number} of {count}", number=number, count=len(missing))
        erasure = await eraser.erasures.begin(entry.account, entry.id, entry.email, entry.suppress, "journal")
        await eraser.run(erasure, entry.email, alone=restored)
    return len(missing)
