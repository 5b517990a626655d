"""The queue as one process uses it: its region, the number of its leases and its clock are the same in every call."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import attrs

from mailsvc.clock import held
from mailsvc.delivery import pace
from mailsvc.delivery.transaction import Key
from mailsvc.store.queue.claims import Claimed, Queue, Ready
from mailsvc.store.queue.processes import ProcessRegistration


@attrs.frozen
class ProcessQueue:
    clock: Any
    region: str
    process: ProcessRegistration
    store: Queue

    @property
    def usable(self) -> bool:
        """Whether this process may claim: it is registered, and its clock agrees with the database's."""
        return self.process.fresh and not held(self.clock)

    @property
    def lease(self) -> int:
        return self.process.id

    def ready(self, skip: Collection[str], limit: int) -> Awaitable[list[Ready]]:
        return self.store.ready(self.region, pace.now(self.clock), skip, limit)

    def claim(self, wanted: Mapping[str, int], lease: int, message_bytes: int) -> Awaitable[Claimed]:
        return self.store.claim(self.region, wanted, pace.now(self.clock), lease, message_bytes)

    def leased(self, lease: int) -> Awaitable[dict[Key, str]]:
        return self.store.leased(lease)

    def release(self, keys: Sequence[Key], lease: int) -> Awaitable[None]:
        return self.store.release(keys, lease)

    def release_scheduled(self, limit: int) -> Awaitable[int]:
        return self.store.release_scheduled(pace.now(self.clock), limit)

    def expire(self, limit: int) -> Awaitable[int]:
        return self.store.expire(pace.now(self.clock), limit)

    def forget_holds(self, age: timedelta) -> Awaitable[int]:
        """Delete holds that ended longer ago than `age`."""
        return self.store.forget_holds(self.region, pace.now(self.clock) - age)
