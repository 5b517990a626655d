"""Whether the process reports that mail cannot be stored."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import pytest_twisted
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from mailsvc.monitoring.readiness import Monitoring
from mailsvc.monitoring.regions import RegionWatch
from mailsvc.runtime.lifecycle import Opened
from mailsvc.store.logs.figures import Vitals
from mailsvc.store.mail.write_check import EVERY, PATIENCE
from mailsvc.store.postgres.errors import Contention
from mailsvc.store.postgres.pool import Pool


class Locked(Pool):
    """It has connections, and every statement meets a lock."""

    problem = None  # type: ignore[assignment]

    async def rows(self, sql: object, params: object = ()) -> list[tuple[object, ...]]:
        raise Contention("55P03", "canceling statement due to lock timeout")


async def _nothing(vitals: Vitals) -> None:
    """Reads nothing."""


@pytest_twisted.ensureDeferred
async def test_a_locked_table_fails_the_check_and_shows_in_the_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, opened = Clock(), Opened()
    monkeypatch.setattr(Vitals, "look", _nothing)
    pool = Locked("", clock)
    monitoring = Monitoring(clock, pool, SimpleNamespace(sent=0), lambda: 1, RegionWatch(pool, []))
    await monitoring.start(opened)
    with capturedLogs() as events:
        clock.advance(EVERY)
    assert "checking whether mail can be stored" in [event.get("what") for event in events]
    assert await monitoring.writable() is None and b"mailsvc_database_writable 1" in monitoring._metrics.own().text()
    clock.advance(PATIENCE)
    problem = await monitoring.writable()
    assert problem is not None and "no mail could be stored" in problem
    assert b"mailsvc_database_writable 0" in monitoring._metrics.own().text()
    await opened.close()
