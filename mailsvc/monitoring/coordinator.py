"""Whether this process can connect to the coordinator of its cell's cluster: for /readyz, the metrics and `mailsvc doctor`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import attrs
from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.monitoring.doctor import Finding
from mailsvc.runtime.polling import PollingLoop

CHECK = "coordinator"
EVERY = 15.0  # seconds between the end of an attempt and the next one
MEANING = "mail flows, but cells cannot be moved, migrations wait, and after about two weeks partitions for new mail are missing"


@attrs.define(eq=False)
class CoordinatorWatch:
    """`ask` tries to connect, and returns why that failed, or None. `since`: when the first of the failed attempts began."""

    log = Logger()

    ask: Callable[[], Awaitable[str | None]]
    clock: Any
    since: datetime | None = attrs.field(default=None, init=False)

    def loop(self) -> PollingLoop:
        return PollingLoop(self.clock, "looking for the coordinator", self.look, EVERY)

    async def look(self) -> None:
        began = utc(self.clock)
        why = await self.ask()
        if why is None:
            if self.since is not None:
                self.log.info("can connect to the cluster's coordinator again")
            self.since = None
        elif self.since is None:
            self.since = began
            self.log.warn("cannot connect to the cluster's coordinator ({why}): {meaning}", why=why, meaning=MEANING)

    async def problem(self) -> str | None:
        """For /readyz, which is public; the reason is in the log."""
        if self.since is None:
            return None
        return f"this process has been unable to connect to the cluster's coordinator since {self.since:%Y-%m-%d %H:%M:%S} UTC: {MEANING}"


def finding(why: str | None) -> Finding:
    """`why`: what `CoordinatorWatch.ask` returns."""
    if why is None:
        return Finding(CHECK, "ok", "This machine can connect to the cluster's coordinator.")
    remedy = "Start it, or repair the network between (docs/operations.md, Without the coordinator)."
    return Finding(CHECK, "warning", f"This machine cannot connect to the cluster's coordinator ({why}): {MEANING}.", remedy)
