"""A twistd service around one coroutine that starts everything in order; it is stopped in reverse. What is started: tap.py."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, TimeoutError, maybeDeferred
from twisted.logger import ILogObserver, Logger

LAST = 0.25  # seconds that each part of the daemon gets to stop in when the time for all of them is over


class Stopping(Exception):
    """The daemon is told to stop while it still starts."""


@attrs.define(eq=False)
class Opened:
    """What was started, so that it can be closed again, the last one first."""

    log = Logger()

    _closers: list[tuple[str, Callable[[], Awaitable[object]], bool]] = attrs.field(factory=list)
    _alarms: list[Callable[[], None]] = attrs.field(factory=list)
    stopping: bool = False

    def add(self, name: str, close: Callable[[], Awaitable[object]], *, patient: bool = False) -> None:
        """`name` runs; `close` ends it. Raises Stopping when there is no point in starting more.

        `patient`: its end is waited for, however long that takes.
        """
        self._closers.append((name, close, patient))
        self.check()

    def at_stop(self, alarm: Callable[[], None]) -> None:
        """Call this before anything is closed."""
        self._alarms.append(alarm)

    def check(self) -> None:
        """Between two steps of the start."""
        if self.stopping:
            raise Stopping

    async def close(self, clock: Any = None, seconds: float | None = None) -> None:
        """End everything. What cannot be ended in good order does not keep the others from it.

        All of it together takes about `seconds` at most: what has not ended by then gets LAST more, each.
        """
        for alarm in self._alarms:
            alarm()
        deadline = None if seconds is None else clock.seconds() + seconds
        while self._closers:
            name, close, patient = self._closers.pop()
            try:
                ending = Deferred.fromCoroutine(_awaited(close))
                if deadline is not None and not patient:
                    ending.addTimeout(max(LAST, deadline - clock.seconds()), clock)
                await ending
            except TimeoutError:
                self.log.error("{name} did not stop in time, and is left as it is", name=name)
            except Exception:
                self.log.failure("{name} did not stop in good order", name=name)


async def _awaited(close: Callable[[], Awaitable[object]]) -> object:
    return await close()


class Lifespan(Service):
    """Runs `start` once the reactor runs. When it fails, its error becomes a sentence and an exit status other than 0.

    `explain` has the sentence, or None for what nobody expected: that goes into the log. Stopping takes about `stop_seconds` at most.
    """

    log = Logger()
    name = "mailsvc"

    def __init__(
        self,
        reactor: Any,
        start: Callable[[Opened], Awaitable[None]],
        explain: Callable[[BaseException], str | None],
        observer: Any = None,
        signals: bool = False,
        stop_seconds: float | None = None,
    ) -> None:
        self._reactor, self._start, self._explain, self._observer, self._signals = reactor, start, explain, observer, signals
        self._opened, self._stop_seconds = Opened(), stop_seconds
        self._started: Deferred[None] | None = None

    def setServiceParent(self, parent: Any) -> None:
        """Tells twistd which observer writes the log, before it begins to log."""
        super().setServiceParent(parent)
        if self._observer is not None:
            parent.setComponent(ILogObserver, self._observer)

    def startService(self) -> None:
        super().startService()
        self._reactor.callWhenRunning(self._begin)
        if self._signals:
            self._reactor.callWhenRunning(signal.signal, signal.SIGTERM, self._told_to_stop)

    def stopService(self) -> Deferred[None]:
        super().stopService()
        self._opened.stopping = True
        return Deferred.fromCoroutine(self._end())

    def _told_to_stop(self, *_: object) -> None:
        """By SIGTERM, which is how a daemon ends in good order: with status 0. Saying it twice changes nothing."""
        if not self._opened.stopping:
            self._opened.stopping = True
            self._reactor.callFromThread(self._reactor.stop)

    def _begin(self) -> None:
        self._started = Deferred.fromCoroutine(self._run())

    async def _run(self) -> None:
        try:
            await self._start(self._opened)
        except Stopping:
            pass
        except Exception as error:
            sentence = self._explain(error)
            if sentence is None:
                self.log.failure("mailsvc cannot start")
                sentence = f"{type(error).__name__}: {error}. The log has the details."
            say(f"mailsvc cannot start. {' '.join(sentence.split())}", sys.__stderr__)
            exit_with(1)
            self._reactor.stop()

    async def _end(self) -> None:
        if self._started is not None and not self._started.called:
            done: Deferred[None] = Deferred()
            self._started.addCallback(done.callback)
            await done
        await self._opened.close(self._reactor, self._stop_seconds)


def awaited(stop: Callable[[], Any]) -> Callable[[], Awaitable[object]]:
    """What Twisted's stop methods give, as something to await."""
    return lambda: maybeDeferred(stop)


def say(text: str, out: Any) -> None:
    """A line for the person in front, past the log: twistd turns what is printed into log events."""
    if out is not None:
        out.write(text + "\n")
        out.flush()


def exit_with(status: int) -> None:
    """Make the process end with this status; twistd itself ends with 0 whenever its reactor was stopped in good order."""
    atexit.register(_exit, status)


def _exit(status: int) -> None:
    for out in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if out is not None:
            out.flush()
    os._exit(status)
