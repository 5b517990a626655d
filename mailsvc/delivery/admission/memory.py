"""How many bytes of messages a process holds: a budget, and a cache of messages that it may need again."""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.mail.spooled import Spooled
from mailsvc.store.mail.values import in_memory

_FILES = 32  # kept: each needs a descriptor


class MemoryBudget:
    """Bytes of messages in memory: of mail in lanes, and of what was loaded for an attempt."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    @property
    def left(self) -> int:
        return max(0, self._limit - self.used)

    def has_room(self, size: int) -> bool:
        return self.used + size <= self._limit

    def charge(self, size: int) -> None:
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size


class RecentMessages:
    """Messages that were accepted here and then queued, or that a claim brought: whoever claims them need not read them back.

    The oldest make room for new ones. Those in files are also forgotten soon, because they fill a disk.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._kept: OrderedDict[UUID, tuple[bytes | Spooled, StoredEnvelope]] = OrderedDict()
        self._files: dict[UUID, bool] = {}  # of those in files, whether they were there at the last look

    def __contains__(self, email_id: object) -> bool:
        return email_id in self._kept

    def keep(self, email_id: UUID, body: bytes | Spooled, envelope: StoredEnvelope) -> None:
        """Only if it is small, or in a file."""
        self.pop(email_id)
        share = 4 if isinstance(body, Spooled) else 8
        if in_memory(body) > self._limit // share:
            return
        self._kept[email_id] = body, envelope
        self._used += in_memory(body)
        if isinstance(body, Spooled):
            self._files[email_id] = False
        while self._used > self._limit:
            self.pop(next(iter(self._kept)))
        while len(self._files) > _FILES:
            self.pop(next(iter(self._files)))

    def pop(self, email_id: UUID) -> tuple[bytes | Spooled, StoredEnvelope] | None:
        """The message and its stored envelope."""
        kept = self._kept.pop(email_id, None)
        if kept is not None:
            self._used -= in_memory(kept[0])
            self._files.pop(email_id, None)
        return kept

    def forget_files(self) -> None:
        """Those that were already there at the last call."""
        for email_id in [each for each, old in self._files.items() if old]:
            self.pop(email_id)
        self._files = dict.fromkeys(self._files, True)
