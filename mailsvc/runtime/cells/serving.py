"""Runs the processes of several cells: of those that the operator names, or of this machine's share of them.

`twistd mailsvc --cells` starts it instead of a daemon. Each process is a daemon of its own, with the settings of its cell; this one
handles no mail.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.defer import Deferred, TimeoutError, gatherResults
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mailsvc.runtime.cells import share
from mailsvc.runtime.cells.children import Children
from mailsvc.runtime.database import server_of
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.options import Options
from mailsvc.runtime.polling import PollingLoop
from mailsvc.settings import cells
from mailsvc.settings.schema import Settings
from mailsvc.store.cells.lease import CellLease, machine_name
from mailsvc.store.postgres.errors import StoreError

LOOK_EVERY = 5.0  # seconds
PATIENCE = 15.0  # seconds for the nodes to answer
REST = 300.0  # seconds without a cell whose processes cannot start here
HANDOVER = 10.0  # seconds that a process runs on after its cell was given up, until another machine's accepts mail
STOP = 30.0  # seconds that a process may take to stop, beyond delivery.drain_seconds
_TWISTD = "import sys; sys.argv[0] = 'twistd'; from twisted.scripts.twistd import run; run()"


async def serve(reactor: Any, options: Options, opened: Opened) -> None:
    """Run processes until `opened` is closed."""
    settings: Mapping[str, Settings] = options["by cell"]
    seconds = max(each.delivery.drain_seconds for each in settings.values()) + STOP
    children = Children(reactor, partial(_command, Path(options["config"])), lambda cell: {cells.CELL: cell}, seconds)
    opened.add("the processes of cells", children.stop_all, no_timeout=True)
    if not options["share-cells"]:
        for cell in settings:
            children.start(cell)
        return
    machine = machine_name(socket.gethostname(), os.getpid())
    leases = {cell: CellLease(server_of(each), machine, reactor) for cell, each in settings.items()}
    sharing = Sharing(reactor, children, leases, machine)
    children.on_failures = sharing.rest
    opened.add("the leases of cells", sharing.close)
    loop = PollingLoop(reactor, "sharing cells", sharing.look, LOOK_EVERY, expected=(StoreError,))
    sharing.look_again = loop.wake
    loop.start()
    opened.add("looking for cells", loop.stop)


@attrs.define(eq=False)
class Sharing:
    """Takes and gives up cells, one at a time, and runs the processes of those that this machine has."""

    log = Logger()

    clock: Any = attrs.field(repr=False)
    children: Children
    leases: Mapping[str, CellLease]
    machine: str
    look_again: Callable[[], object] = lambda: None
    _resting: dict[str, float] = attrs.field(factory=dict, init=False)  # until when
    _unreachable: set[str] = attrs.field(factory=set, init=False)
    _stopping: set[str] = attrs.field(factory=set, init=False)

    async def look(self) -> None:
        """See what other machines have, and take or give up one cell."""
        found = await gatherResults([Deferred.fromCoroutine(self._seen(cell)) for cell in self.leases])
        seen = {cell: machines for cell, machines in zip(self.leases, found, strict=True) if machines is not None}
        for each in seen:
            await self._agree(each, seen)
        now = self.clock.seconds()
        self._resting = {cell: until for cell, until in self._resting.items() if until > now}
        if (cell := share.to_take(self.machine, seen, {*self._resting, *self._stopping})) is not None:
            if await self._try(self.leases[cell].take()):
                self.log.info("this machine has the cell {cell} now", cell=cell)
                self.children.start(cell)
            self.look_again()
        elif (other := share.to_give_up(self.machine, seen)) is not None and not self._stopping:
            self.log.info("the cell {cell} is left to another machine, which has fewer", cell=other)
            self._give_up(other)

    def rest(self, cell: str) -> None:
        """Leave a cell to other machines for a while: its processes cannot start here."""
        self.log.error("gives the cell {cell} up for {seconds:g} s: its processes cannot start here", cell=cell, seconds=REST)
        self._resting[cell] = self.clock.seconds() + REST
        self._give_up(cell, 0.0)

    async def close(self) -> None:
        for lease in self.leases.values():
            lease.close()

    async def _seen(self, cell: str) -> Mapping[str, bool] | None:
        """None if its node cannot be reached. What runs there is left alone then: nobody else can take it."""
        asking = Deferred.fromCoroutine(self.leases[cell].machines())
        try:
            machines: Mapping[str, bool] = await asking.addTimeout(PATIENCE, self.clock)
        except (StoreError, TimeoutError) as error:
            self.leases[cell].close()
            if cell not in self._unreachable:
                self._unreachable.add(cell)
                self.log.warn("the cell {cell} cannot be reached: {error}", cell=cell, error=str(error) or type(error).__name__)
            return None
        if cell in self._unreachable:
            self._unreachable.discard(cell)
            self.log.info("the cell {cell} can be reached again", cell=cell)
        return machines

    async def _agree(self, cell: str, seen: dict[str, Mapping[str, bool]]) -> None:
        """After a lost connection, take the lease again; if another machine has it, stop the process here."""
        if cell not in self.children or cell in self._stopping or self.leases[cell].held:
            return
        others = [each for each, has in seen[cell].items() if has and each != self.machine]
        if not others and await self._try(self.leases[cell].take()):
            seen[cell] = {**seen[cell], self.machine: True}
        elif others:
            self.log.warn("{other} has the cell {cell} now: its process here is stopped", other=others[0], cell=cell)
            self._give_up(cell)

    def _give_up(self, cell: str, seconds: float = HANDOVER) -> None:
        """Let others have the cell, and stop its process some seconds later."""
        if cell not in self._stopping:
            self._stopping.add(cell)
            stopping = Deferred.fromCoroutine(self._stop(cell, seconds))
            stopping.addErrback(lambda failure: self.log.failure("giving up a cell failed", failure=failure))

    async def _stop(self, cell: str, seconds: float) -> None:
        try:
            await self._try(self.leases[cell].give_up())
            await deferLater(self.clock, seconds)
            await self.children.stop(cell)
        finally:
            self._stopping.discard(cell)
        self.look_again()

    async def _try(self, asking: Awaitable[bool | None]) -> bool | None:
        try:
            return await asking
        except StoreError as error:
            self.log.warn("{error}", error=str(error))
            return False


def _command(config: Path, cell: str) -> list[str]:
    """The daemon of a cell. It is told to stop if this process is killed."""
    program = [sys.executable, "-c", _TWISTD, "--nodaemon", "--pidfile=", "mailsvc", "--config", str(config)]
    bound = shutil.which("setpriv")
    return program if bound is None else [bound, "--pdeathsig", "TERM", "--", *program]
