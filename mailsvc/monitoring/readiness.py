"""Collects the daemon's metrics, and answers the checks of /readyz that depend on them."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs

from mailsvc.clock import ahead, held, unix
from mailsvc.monitoring import metrics, overview
from mailsvc.monitoring.coordinator import CoordinatorWatch
from mailsvc.monitoring.latest import Latest
from mailsvc.monitoring.listener import MetricsPage, QuietSite
from mailsvc.monitoring.metrics import Exposition, Metrics
from mailsvc.monitoring.overview import Overview, Shown
from mailsvc.monitoring.reactor_lag import ReactorLag
from mailsvc.monitoring.regions import RegionWatch
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import every
from mailsvc.store.cells.coordinator import unreachable
from mailsvc.store.logs.figures import Figures, Vitals
from mailsvc.store.mail import write_check
from mailsvc.store.mail.write_check import WriteCheck
from mailsvc.store.postgres.cells import cell_of
from mailsvc.store.postgres.pool import Pool

VITALS_EVERY = 10.0  # seconds
CLOCK_EVERY = 1.0  # seconds
LEDGER_BEHIND = 60.0  # seconds of lag that are reported


@attrs.define(eq=False)
class Monitoring:
    """`lease` returns the number of this process. `coordinator`: only if it serves a cell."""

    reactor: Any
    pool: Pool
    notifications: Any
    lease: Callable[[], int]
    regions: RegionWatch
    vitals: Vitals = attrs.field(init=False)
    writes: WriteCheck = attrs.field(init=False)
    figures: Figures = attrs.field(init=False)
    coordinator: CoordinatorWatch | None = attrs.field(default=None, init=False)
    _metrics: Metrics = attrs.field(init=False)
    _overview: Overview = attrs.field(factory=Overview, init=False)
    _batches: dict[str, Any] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.vitals, self.writes = Vitals(self.pool, self.reactor), WriteCheck(self.pool, self.reactor)
        own = [metrics.database(self.pool, self.notifications, self._unwritable), metrics.clock(lambda: ahead(self.reactor))]
        own += [metrics.batches(self._batches), metrics.disk(tempfile.gettempdir())]
        if cell_of(self.pool.dsn) is not None:
            self.coordinator = CoordinatorWatch(partial(unreachable, self.pool), self.reactor)
        own.append(metrics.coordinator(self.coordinator))
        self.figures = Figures(self.pool, self.reactor, self.lease)
        self._metrics = Metrics(Latest(self.reactor, self.figures.read).get, own)

    async def start(self, opened: Opened) -> None:
        await self.vitals.look()
        opened.add("vital signs", every(self.reactor, VITALS_EVERY, "checking clock and ledger", self.vitals.look))
        opened.add("writes", every(self.reactor, write_check.EVERY, "checking whether mail can be stored", self.writes.look))
        opened.add("regions", every(self.reactor, VITALS_EVERY, "looking for processes of all regions", self.regions.look))
        if self.coordinator is not None:
            loop = self.coordinator.loop()
            loop.start()
            opened.add("coordinator", loop.stop)
        opened.add("clock comparison", every(self.reactor, CLOCK_EVERY, "comparing the clocks", self.vitals.look_again))
        opened.add("recent metrics", every(self.reactor, overview.EVERY, "recording metrics", self._remember))
        lag = ReactorLag(self.reactor, time.monotonic, self._metrics.lag.observe)
        lag.start()

        async def stop() -> None:
            lag.stop()

        opened.add("reactor lag", stop)

    async def _remember(self) -> None:
        self._overview.remember(self._metrics.own().text())

    def add(self, *sources: Callable[[Exposition], None], **batches: Any) -> None:
        """Adds metrics, and shared commits by name."""
        for source in sources:
            self._metrics.add(source)
        self._batches.update(batches)

    def site(self, token: str | None) -> QuietSite:
        """Returns the site for [metrics] listen."""
        return QuietSite(MetricsPage(self._metrics.text, token), self.reactor)

    async def overview(self) -> Shown:
        """What the first page of the console shows."""
        return self._overview.shown(await self._metrics.text(), f"Process {self.lease()} on {socket.gethostname()}", unix(self.reactor))

    async def punctual(self) -> str | None:
        return held(self.reactor)

    @property
    def remarks(self) -> dict[str, Callable[[], Awaitable[str | None]]]:
        """Checks without an effect on readiness."""
        found: dict[str, Callable[[], Awaitable[str | None]]] = {
            "ledger": self.numbered, "connections": self.connected, "regions": self.regions.problem,
        }  # fmt: skip
        if self.coordinator is not None:
            found["coordinator"] = self.coordinator.problem
        return found

    async def numbered(self) -> str | None:
        lag = self.vitals.ledger
        return None if lag.seconds <= LEDGER_BEHIND else f"events since {lag.seconds:.0f} s ago are not numbered yet"

    async def writable(self) -> str | None:
        return self._unwritable()

    def _unwritable(self) -> str | None:
        return self.pool.problem or self.writes.problem

    async def connected(self) -> str | None:
        return self.pool.shortage
