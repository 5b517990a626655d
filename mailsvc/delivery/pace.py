"""Waiting: sleeping by a clock, and repeating what the database could not do just now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.store.postgres.errors import DataRejected, StatementFailed

T = TypeVar("T")
_log = Logger()
_FIRST, _LONGEST = 0.5, 10.0


def now(clock: Any) -> datetime:
    return utc(clock)


def sleep(clock: Any, seconds: float) -> Deferred[None]:
    """Fires after `seconds`. Cancelling it stops its timer."""
    call: Any = None
    waiting: Deferred[None] = Deferred(lambda _: call.cancel())
    call = clock.callLater(seconds, waiting.callback, None)
    return waiting


def rejected(error: Exception) -> bool:
    """Whether the database would reject the same again."""
    return isinstance(error, DataRejected | StatementFailed)


def _never(error: Exception) -> bool:
    return False


async def keep_trying(clock: Any, what: str, do: Callable[[], Awaitable[T]], final: Callable[[Exception], bool] = _never) -> T:
    """The result of `do`, repeated with growing pauses while it raises an error that is not `final`.

    For what must not be lost: settling an outcome, giving back a lease. `do` may run twice, so it must be repeatable.
    """
    try:
        return await do()
    except Exception as error:
        return await keep_trying_after(error, clock, what, do, final)


async def keep_trying_after(
    error: Exception, clock: Any, what: str, do: Callable[[], Awaitable[T]], final: Callable[[Exception], bool] = _never
) -> T:
    """What `keep_trying` does after a first call that raised `error`. Hot paths make that call themselves: one coroutine less per mail."""
    pause = _FIRST
    while not final(error):
        _log.warn("{what} failed and is retried in {pause} s: {error!r}", what=what, pause=pause, error=error)
        await sleep(clock, pause)
        pause = min(pause * 2, _LONGEST)
        try:
            return await do()
        except Exception as another:
            error = another
    raise error
