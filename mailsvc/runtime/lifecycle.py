"""The twistd service: one coroutine starts everything in order, and it is stopped in reverse. What is started: tap.py."""

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

FINAL_TIMEOUT = 0.25  # seconds each part gets to stop once the time for all of them has passed


class Stopping(Exception):
    """The daemon was told to stop before it had started."""


@attrs.define(eq=False)
class Opened:
    """What has been started, to be closed in reverse order."""

    log = Logger()

    _closers: list[tuple[str, Callable[[], Awaitable[object]], bool]] = attrs.field(factory=list)
    _alarms: list[Callable[[], None]] = attrs.field(factory=list)
    stopping: bool = False

    def add(self, name: str, close: Callable[[], Awaitable[object]], *, no_timeout: bool = False) -> None:
        """`name` has been started; `close` stops it. Raises Stopping if the daemon is already stopping.

        `no_timeout`: wait until it has stopped, however long that takes.
        """
        self._closers.append((name, close, no_timeout))
        self.check()

    def at_stop(self, alarm: Callable[[], None]) -> None:
        """Call `alarm` before anything is closed."""
        self._alarms.append(alarm)

    def check(self) -> None:
        """Raise Stopping if the daemon is stopping. Called between the steps of a start."""
        if self.stopping:
            raise Stopping

    async def close(self, clock: Any = None, seconds: float | None = None) -> None:
        """Close everything, also when some of it fails to close.

        Takes about `seconds` in total: what is still running then gets FINAL_TIMEOUT each.
        """
        for alarm in self._alarms:
            alarm()
        deadline = None if seconds is None else clock.seconds() + seconds
        while self._closers:
            name, close, no_timeout = self._closers.pop()
            closing = Deferred.fromCoroutine(_awaited(close))
            closed: Deferred[object] = Deferred()  # of its own, because not everything ends when it is canceled
            closing.addBoth(closed.callback)
            try:
                if deadline is not None and not no_timeout:
                    closed.addTimeout(max(FINAL_TIMEOUT, deadline - clock.seconds()), clock)
                await closed
            except TimeoutError:
                self.log.error("{name} did not stop in time; giving up on it", name=name)
                closing.cancel()
            except Exception:
                self.log.failure("stopping {name} failed", name=name)


async def _awaited(close: Callable[[], Awaitable[object]]) -> object:
    return await close()


class Lifespan(Service):
    """Calls `start` once the reactor runs. If that fails, prints why and exits with a non-zero status.

    `explain` returns the sentence to print, or None for an unexpected error, which is logged. Stopping takes about `stop_seconds` at most.
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
        """Give twistd the log observer before it logs anything."""
        super().setServiceParent(parent)
        if self._observer is not None:
            parent.setComponent(ILogObserver, self._observer)

    def startService(self) -> None:
        super().startService()
        self._reactor.callWhenRunning(self._begin)
        if self._signals:
            self._reactor.callWhenRunning(self._handle_signals)

    def stopService(self) -> Deferred[None]:
        super().stopService()
        self._opened.stopping = True
        return Deferred.fromCoroutine(self._end())

    def _handle_signals(self) -> None:
        signal.signal(signal.SIGTERM, self._sigterm)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
            signal.signal(signal.SIGHUP, self._sigterm if os.isatty(0) else self._sighup)  # of a terminal: it was closed

    def _sighup(self, *_: object) -> None:
        """Otherwise it would end the process without a word, and systemd would not start it again."""
        text = "SIGHUP is ignored: renewed certificates and keys and a moved log file need no signal, and settings need a restart"
        self._reactor.callFromThread(self.log.warn, text)

    def _sigterm(self, *_: object) -> None:
        """SIGTERM ends the daemon with status 0. Further signals change nothing."""
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
    """Make the result of Twisted's stop methods awaitable."""
    return lambda: maybeDeferred(stop)


def say(text: str, out: Any) -> None:
    """Print a line past the log: twistd turns what is printed into log events."""
    if out is not None:
        out.write(text + "\n")
        out.flush()


def exit_with(status: int) -> None:
    """Make the process exit with this status. twistd exits with 0 whenever its reactor was stopped normally."""
    atexit.register(_exit, status)


def _exit(status: int) -> None:
    for out in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if out is not None:
            out.flush()
    os._exit(status)
