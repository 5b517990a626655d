"""Works through several items, one after the other. One that fails does not hold up those behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from twisted.logger import Logger
from twisted.python.failure import Failure

from mailsvc.store.encryption.secrets import EncryptionError
from mailsvc.store.postgres.errors import StoreError, Unavailable

log = Logger()


async def in_turn(works: Iterable[Callable[[], Awaitable[object]]], ends: tuple[type[Exception], ...] = (Unavailable,)) -> None:
    """The first error is raised at the end, one of `ends` at once: without the database, all others would fail too.

    The caller logs the error that it gets; all others are logged here.
    """
    failed: Exception | None = None
    for work in works:
        try:
            await work()
        except ends:
            if failed is not None:
                _log(failed)
            raise
        except Exception as error:
            if failed is None:
                failed = error
            else:
                _log(error)
    if failed is not None:
        raise failed


async def all_in_turn(works: Iterable[Callable[[], Awaitable[bool]]]) -> bool:
    """The same for works that say whether they succeeded. Returns whether all did."""
    results: list[bool] = []

    async def keep(work: Callable[[], Awaitable[bool]]) -> None:
        results.append(await work())

    await in_turn([partial(keep, work) for work in works])
    return all(results)


def _log(error: Exception) -> None:
    if isinstance(error, StoreError | EncryptionError):
        log.warn("One of several tasks failed and is tried again: {error}", error=str(error))
    else:
        log.failure("One of several tasks failed and is tried again", Failure(error))
