"""Work that continues when its caller is cancelled."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

T = TypeVar("T")
log = Logger()


def detached(work: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
    """Start `work` now. Cancelling the returned Deferred does not cancel the work."""
    waiting: Deferred[T] = Deferred()

    def done(result: T | Failure) -> None:
        if not waiting.called:
            waiting.callback(result)
        elif isinstance(result, Failure):
            log.info("work whose caller was cancelled failed: {reason}", reason=result.getErrorMessage())

    Deferred.fromCoroutine(work).addBoth(done)
    return waiting
