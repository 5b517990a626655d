"""Waiting on a clock, and doing again what the database could not take just now. Every loop of this room sleeps here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.clock import utc

T = TypeVar("T")
_log = Logger()
_FIRST, _LONGEST = 0.5, 10.0


def now(clock: Any) -> datetime:
    return utc(clock)


def sleep(clock: Any, seconds: float) -> Deferred[None]:
    """Fires after so many seconds; cancelling it stops its timer."""
    call: Any = None
    waiting: Deferred[None] = Deferred(lambda _: call.cancel())
    call = clock.callLater(seconds, waiting.callback, None)
    return waiting


def _never(error: Exception) -> bool:
    return False


async def insist(clock: Any, what: str, do: Callable[[], Awaitable[T]], final: Callable[[Exception], bool] = _never) -> T:
    """The result of `do`, tried again with growing pauses while it raises anything that is not `final`.

    For what must not be lost: an outcome to settle, a lease to give back. It may run twice, so `do` must be repeatable.
    """
    try:
        return await do()
    except Exception as error:
        return await again(clock, what, do, error, final)


async def again(clock: Any, what: str, do: Callable[[], Awaitable[T]], error: Exception, final: Callable[[Exception], bool] = _never) -> T:
    """Go on as `insist` does after a first time that failed with `error`. What is called for every mail is spared a layer by this."""
    pause = _FIRST
    while not final(error):
        _log.warn("{what} failed, tried again in {pause} s: {error!r}", what=what, pause=pause, error=error)
        await sleep(clock, pause)
        pause = min(pause * 2, _LONGEST)
        try:
            return await do()
        except Exception as another:
            error = another
    raise error
