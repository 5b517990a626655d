"""How many bytes of messages a process holds: a budget, and a cache of messages that it may need again."""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

from mailsvc.store.mail.envelope import StoredEnvelope


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

    The oldest make room for new ones.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._kept: OrderedDict[UUID, tuple[bytes, StoredEnvelope]] = OrderedDict()

    def __contains__(self, email_id: object) -> bool:
        return email_id in self._kept

    def keep(self, email_id: UUID, body: object, envelope: StoredEnvelope) -> None:
        """Only if it is in one piece, and small."""
        self.pop(email_id)
        if isinstance(body, bytes) and len(body) <= self._limit // 8:
            self._kept[email_id] = body, envelope
            self._used += len(body)
            while self._used > self._limit:
                self._used -= len(self._kept.popitem(last=False)[1][0])

    def pop(self, email_id: UUID) -> tuple[bytes, StoredEnvelope] | None:
        """The message and its stored envelope."""
        kept = self._kept.pop(email_id, None)
        if kept is not None:
            self._used -= len(kept[0])
        return kept
