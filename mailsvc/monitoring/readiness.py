"""Watching the daemon: which figures there are, and what of them speaks against taking mail."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import attrs

from mailsvc.clock import ahead, held
from mailsvc.monitoring import metrics, overview
from mailsvc.monitoring.listener import MetricsSite, Page
from mailsvc.monitoring.metrics import Metrics, Sheet
from mailsvc.monitoring.overview import Overview
from mailsvc.monitoring.reactor_lag import Lateness
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import every
from mailsvc.store.logs.figures import Figures, Vitals
from mailsvc.store.postgres.pool import Pool

VITALS_EVERY = 10.0
CLOCK_EVERY = 1.0  # seconds between two looks at the clocks
LEDGER_BEHIND = 60.0  # seconds above which it is told


@attrs.define(eq=False)
class Watching:
    """`lease` tells the number of this process."""

    reactor: Any
    pool: Pool
    notifications: Any
    lease: Callable[[], int]
    vitals: Vitals = attrs.field(init=False)
    _metrics: Metrics = attrs.field(init=False)
    _overview: Overview = attrs.field(factory=Overview, init=False)
    _batches: dict[str, Any] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.vitals = Vitals(self.pool, self.reactor)
        own = [metrics.database(self.pool, self.notifications), metrics.clock(lambda: ahead(self.reactor)), metrics.batches(self._batches)]
        self._metrics = Metrics(Figures(self.pool, self.reactor, self.lease).read, own)

    async def start(self, opened: Opened) -> None:
        await self.vitals.look()
        opened.add("the vitals", every(self.reactor, VITALS_EVERY, "looking at clock and ledger", self.vitals.look))
        opened.add("the clocks", every(self.reactor, CLOCK_EVERY, "comparing the clocks", self.vitals.look_again))
        opened.add("the hour that is shown", every(self.reactor, overview.EVERY, "remembering figures", self._remember))
        lateness = Lateness(self.reactor, time.monotonic, self._metrics.lag.observe)
        lateness.start()

        async def stop() -> None:
            lateness.stop()

        opened.add("the reactor's lateness", stop)

    async def _remember(self) -> None:
        self._overview.remember(self._metrics.own().text())

    def add(self, source: Callable[[Sheet], None], **batches: Any) -> None:
        """Figures of a room, and its shared commits by name."""
        self._metrics.add(source)
        self._batches.update(batches)

    def site(self, token: str | None) -> MetricsSite:
        """The door for the monitor."""
        return MetricsSite(Page(self._metrics.text, token, lambda text: self._overview.page(text, self._title())), self.reactor)

    def _title(self) -> str:
        return f"mailsvc, process {self.lease()} on {socket.gethostname()}"

    async def punctual(self) -> str | None:
        return held(self.reactor)

    async def numbered(self) -> str | None:
        lag = self.vitals.ledger
        return None if lag.seconds <= LEDGER_BEHIND else f"events since {lag.seconds:.0f} s ago are not numbered yet"

    async def writable(self) -> str | None:
        return self.pool.problem

    async def connected(self) -> str | None:
        return self.pool.shortage
