"""Waiting in tests with a real server: on the reactor for something in this process, or by polling another process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from twisted.internet.task import deferLater

SECONDS = 30.0  # until another process has noticed something


def reactor() -> Any:
    from twisted.internet import reactor

    return reactor


async def until(condition: Callable[[], Any]) -> None:
    """Run the reactor until the condition is true."""
    for _ in range(5000):
        if condition():
            return
        await deferLater(reactor(), 0.001)
    raise AssertionError("The condition never became true.")


def eventually(condition: Callable[[], Any]) -> None:
    """Block until another process has made the condition true."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # another process: it has to be polled
