"""The processes of several cells, one for each: started, started again when they end, and stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger

from mailsvc.store.postgres.backoff import Backoff

SOON = 30.0  # seconds: a process that ends within them has failed to start
FAILURES = 3  # in a row, after which `on_failures` is called
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a process is started again
INHERITED = {0: 0, 1: 1, 2: 2}  # standard input, output and error


class _Process(ProcessProtocol):
    """One process. `ended` fires with how it ended."""

    def __init__(self) -> None:
        self.ended: Deferred[ProcessDone | ProcessTerminated] = Deferred()

    def processEnded(self, reason: Any) -> None:
        self.ended.callback(reason.value)


@attrs.define(eq=False)
class Children:
    """`command`: the program of a cell, with its arguments. `variables`: what is added to its environment.

    `seconds`: how long a process may take to stop before it is killed. `on_failures`: called with a cell whose processes cannot start.
    """

    log = Logger()

    reactor: Any = attrs.field(repr=False)
    command: Callable[[str], Sequence[str]]
    variables: Callable[[str], Mapping[str, str]]
    seconds: float
    on_failures: Callable[[str], object] = lambda cell: None
    _running: dict[str, _Child] = attrs.field(factory=dict, init=False)

    def __contains__(self, cell: object) -> bool:
        """Whether it is being run, or still stopping."""
        return cell in self._running

    def start(self, cell: str) -> None:
        """Keep a process of the cell running until `stop`."""
        if cell not in self._running:
            child = self._running[cell] = _Child(cell, self)
            Deferred.fromCoroutine(child.run()).addBoth(self._forget, cell)

    async def stop(self, cell: str) -> None:
        """Returns when its process has ended."""
        if cell in self._running:
            await self._running[cell].stop()

    async def stop_all(self) -> None:
        await gatherResults([Deferred.fromCoroutine(self.stop(cell)) for cell in list(self._running)])

    def _forget(self, result: Any, cell: str) -> Any:
        child = self._running.pop(cell)
        child.forgotten()
        return result


@attrs.define(eq=False)
class _Child:
    cell: str
    children: Children
    _wanted: bool = attrs.field(default=True, init=False)
    _process: Any = attrs.field(default=None, init=False)
    _failures: int = attrs.field(default=0, init=False)
    _waiting: list[Deferred[None]] = attrs.field(factory=list, init=False)
    _backoff: Backoff = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._backoff = Backoff(self.children.reactor, FIRST_PAUSE, LONGEST_PAUSE)

    async def run(self) -> None:
        """Start one process after the other."""
        while self._wanted:
            began = self.children.reactor.seconds()
            how = await self._run_once()
            if not self._wanted:
                return
            self.children.log.error("the process for the cell {cell} ended: {how}", cell=self.cell, how=how)
            if self.children.reactor.seconds() - began < SOON:
                self._failures += 1
            else:
                self._failures = 0
                self._backoff.reset()
            if self._failures >= FAILURES:
                self.children.on_failures(self.cell)
            if self._wanted:
                await self._backoff.pause()

    async def stop(self) -> None:
        self._wanted = False
        ended: Deferred[None] = Deferred()
        self._waiting.append(ended)
        killing = self.children.reactor.callLater(self.children.seconds, self._signal, "KILL")
        self._backoff.wake()
        self._signal("TERM")
        await ended
        if killing.active():
            killing.cancel()

    def forgotten(self) -> None:
        """It runs no more."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)

    async def _run_once(self) -> str:
        """Returns how the process ended."""
        process = _Process()
        program, *arguments = self.children.command(self.cell)
        environment = {**os.environ, **self.children.variables(self.cell)}
        try:
            self._process = self.children.reactor.spawnProcess(process, program, [program, *arguments], environment, childFDs=INHERITED)
        except OSError as error:
            return f"it cannot be started: {error.strerror}"
        self.children.log.info("started a process for the cell {cell}, with the ID {pid}", cell=self.cell, pid=self._process.pid)
        how = await process.ended
        self._process = None
        return str(how)

    def _signal(self, name: str) -> None:
        if self._process is not None:
            with suppress(ProcessExitedAlready):
                self._process.signalProcess(name)
