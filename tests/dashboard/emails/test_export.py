"""Exports of emails and logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from uuid import uuid4

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from mailsvc.dashboard.emails.export import AT_ONCE
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.fixtures import DashboardRig, FakeRequest


@pytest_twisted.ensureDeferred
async def test_an_account_runs_few_exports_at_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, begun, reading = DashboardRig(pool), Deferred[None](), []

    async def stream(_request: FakeRequest, chunks: AsyncGenerator[bytes, None]) -> bool:
        mine = Deferred[None]()
        reading.append(mine)
        if len(reading) == AT_ONCE:
            begun.callback(None)
        await mine
        await chunks.aclose()
        return True

    monkeypatch.setattr(FakeRequest, "stream", stream)
    await rig.person("ann@example.com", await rig.account(), "read-only")
    ann = await rig.inside("ann@example.com")
    await ann.get("/dashboard/emails")
    running = [Deferred.fromCoroutine(ann.post(f"/dashboard/emails/export?id={uuid4()}")) for _ in range(AT_ONCE)]
    await begun
    refused = await ann.post(f"/dashboard/logs/export?id={uuid4()}")
    assert refused.status == 429
    assert "3 exports of this account are running" in refused.text
    reading[0].callback(None)
    while not any(one.called for one in running):
        await rig.account()  # a round trip to the database
    last = Deferred.fromCoroutine(ann.post(f"/dashboard/logs/export?id={uuid4()}"))
    for one in reading[1:AT_ONCE]:
        one.callback(None)
    for waiting in running:
        await waiting
    while len(reading) <= AT_ONCE:
        await rig.account()
    reading[-1].callback(None)
    assert (await last).status == 200
