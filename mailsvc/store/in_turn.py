"""Works through several items, one after the other. One that fails does not hold up those behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from mailsvc.store.postgres.errors import Unavailable


async def in_turn(works: Iterable[Callable[[], Awaitable[object]]], ends: tuple[type[Exception], ...] = (Unavailable,)) -> None:
    """The first error is raised at the end, one of `ends` at once: without the database, all others would fail too."""
    failed: Exception | None = None
    for work in works:
        try:
            await work()
        except ends:
            raise
        except Exception as error:
            failed = failed or error
    if failed is not None:
        raise failed
