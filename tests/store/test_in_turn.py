"""Each item gets its turn, and every error is raised or logged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import capturedLogs

from mailsvc.store.in_turn import in_turn
from mailsvc.store.postgres.errors import TimedOut, Unavailable
from mailsvc.store.privacy.journal import JournalError


def run(*errors: Exception | None) -> tuple[Any, list[Any], list[int]]:
    """What is raised, what is logged, and which items got their turn. Each fails with its error."""
    done, raised = list[int](), list[Any]()

    def item(number: int, error: Exception | None) -> Callable[[], Awaitable[object]]:
        def work() -> Deferred[Any]:
            done.append(number)
            return succeed(None) if error is None else fail(error)

        return work

    with capturedLogs() as logged:
        Deferred.fromCoroutine(in_turn([item(n, error) for n, error in enumerate(errors)])).addErrback(
            lambda failure: raised.append(failure.value)
        )
    return (raised or [None])[0], [event.get("error") or event["log_failure"].value for event in logged], done


def test_every_error_is_raised_or_logged() -> None:
    first, second, third = ValueError("first"), ValueError("second"), TimedOut("third")
    assert run(first, None, second, third, None) == (first, [second, str(third)], [0, 1, 2, 3, 4])
    unusable = JournalError("full")  # expected: without a traceback
    assert run(first, unusable) == (first, ["full"], [0, 1])
    away = Unavailable("away")
    assert run(first, second, away, None) == (away, [second, first], [0, 1, 2])
    assert run(None, None) == (None, [], [0, 1])
