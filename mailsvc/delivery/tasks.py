"""Background tasks of delivery: started without waiting for them, logged if they fail, awaited at shutdown."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from mailsvc.delivery import pace
from mailsvc.store.postgres.errors import StoreError


class Tasks:
    """Those that are running."""

    log = Logger()

    def __init__(self) -> None:
        self._running: set[Deferred[Any]] = set()

    @property
    def running(self) -> list[Deferred[Any]]:
        return list(self._running)

    def spawn(self, work: Awaitable[None]) -> Deferred[None]:
        """Run `work` in the background. The result never fails: errors are logged."""
        task: Deferred[None] = Deferred.fromCoroutine(work)  # type: ignore[arg-type]
        self._running.add(task)

        def ended(result: Any) -> None:
            self._running.discard(task)

        task.addErrback(self._failed)
        return task.addBoth(ended)

    def _failed(self, failure: Failure) -> None:
        if failure.check(StoreError):  # the database is unavailable; the work is repeated later
            self.log.warn("a delivery task failed: {error!r}", error=failure.value)
        else:
            self.log.failure("a delivery task failed", failure=failure)


async def finished(clock: Any, tasks: Sequence[Deferred[Any]], seconds: float) -> bool:
    """Wait until all of `tasks` have fired, at most `seconds`. Returns whether they have."""
    left = [task for task in tasks if not task.called]
    deadline = clock.seconds() + seconds
    while left and clock.seconds() < deadline:
        await pace.sleep(clock, min(0.1, deadline - clock.seconds()))
        left = [task for task in left if not task.called]
    return not left
