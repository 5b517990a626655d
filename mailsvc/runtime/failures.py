"""Frees what an error keeps alive once it has been handled."""

from __future__ import annotations


def forget(error: BaseException | None) -> None:
    """Drop the traceback of an error that has been handled, and the errors that it was raised from.

    A traceback keeps the frames that the error passed through, and they keep the request or the message. They often refer back to the
    error, or to a Failure of it. Such a cycle stays in memory until the garbage collector finds it.
    """
    while error is not None:
        trace, error.__traceback__ = error.__traceback__, None
        while trace is not None:  # earlier Failures keep a part of it
            following, trace.tb_next = trace.tb_next, None
            trace = following
        earlier, error.__context__, error.__cause__ = error.__context__, None, None
        error = earlier
