"""The public status page: what it says for given figures and incidents, and that it is the same cacheable page for everybody."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.console.assembly import environment
from mailsvc.console.status import StatusPage, components
from mailsvc.settings.console import COMPONENTS
from mailsvc.store.console.incidents import Impact, Incident, Incidents, Note
from mailsvc.store.events.ledger import Lag
from mailsvc.store.logs.figures import Reading
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.server_settings import Standbys

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
ROLES = {"http": 1, "smtp": 1, "delivery": 2, "webhooks": 1}
HEALTHY = Reading((), 0, 0.0, 0, {}, ROLES, Lag(0, 0.0), 0, 0.0, 0, Standbys(0, False), False, ())


def incident(impact: Impact, *names: str, ended: bool = False) -> Incident:
    notes = [Note(NOW, "We <look> into it.\nMore at 10:00.")]
    return Incident(UUID(int=1), "Slow & late", impact, names, NOW, NOW if ended else None, notes)


def states(reading: Reading | None, *incidents: Incident) -> dict[str, str]:
    return {one.name: one.state for one in components(COMPONENTS, reading, incidents) if one.state != "good"}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, {}),
        ({"processes": {**ROLES, "smtp": 0}}, {"SMTP": "down"}),
        ({"processes": {"delivery": 1}}, {"API": "down", "SMTP": "down", "Webhooks": "down", "Dashboard": "down"}),
        ({"overdue": 301.0}, {"Delivery": "degraded"}),
        ({"restored": True}, {"Delivery": "degraded"}),
        ({"ledger": Lag(9, 61.0)}, {"Webhooks": "degraded"}),
    ],
)
def test_the_state_follows_from_the_figures(changes: dict[str, Any], found: dict[str, str]) -> None:
    assert states(attrs.evolve(HEALTHY, **changes)) == found


def test_without_the_database_everything_is_down() -> None:
    assert set(states(None)) == set(COMPONENTS)


def test_an_incident_makes_its_components_worse_and_never_better() -> None:
    assert states(HEALTHY, incident("maintenance", "API", "SMTP")) == {"API": "maintenance", "SMTP": "maintenance"}
    assert states(attrs.evolve(HEALTHY, overdue=999.0), incident("maintenance", "Delivery")) == {"Delivery": "degraded"}
    assert states(HEALTHY, incident("down", "API", ended=True)) == {}
    assert states(HEALTHY, incident("degraded", "API"), incident("down", "API")) == {"API": "down"}


class FakeRequest:
    """Keeps the answer."""

    def __init__(self, method: bytes = b"GET", path: bytes = b"/status") -> None:
        self.method, self.path = method, path
        self.headers: dict[str, str] = {}
        self.status, self.body = 0, b""

    def setHeader(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def sized(self, status: int, body: bytes) -> bytes:
        self.status = status
        return body

    def write(self, body: bytes) -> None:
        self.body = body

    def finish(self) -> None: ...


def answer(page: StatusPage, **of: bytes) -> FakeRequest:
    request = FakeRequest(**of)
    page.render(request)
    return request


@pytest_twisted.ensureDeferred
async def test_the_page_is_public_and_cacheable_and_keeps_incidents_without_the_database() -> None:
    clock, works = Clock(), [True]
    clock.advance(NOW.timestamp())

    async def read() -> Reading:
        if not works[0]:
            raise Unavailable("gone")
        return HEALTHY

    async def recent() -> list[Incident]:
        return [incident("degraded", "Delivery")]

    page = StatusPage(COMPONENTS, environment(), clock, read, recent)
    await page.refresh()
    shown = answer(page)
    text = shown.body.decode()
    assert (shown.status, shown.headers["cache-control"]) == (200, "public, max-age=30") and "set-cookie" not in shown.headers
    assert "script" not in text and " style=" not in text and "default-src 'none'" in shown.headers["content-security-policy"]
    assert (
        "Slow &amp; late" in text
        and "We &lt;look&gt; into it.\nMore at 10:00." in text
        and 'class="wrap lines"' in text
        and "Degraded" in text
        and "2026-01-02 03:04:00 UTC" in text
    )
    works[0] = False
    await page.refresh()
    text = answer(page).body.decode()
    assert "Down" in text and "Slow &amp; late" in text
    assert answer(page, path=b"/status/x").status == answer(page, method=b"POST").status == 404


@pytest_twisted.ensureDeferred
async def test_incidents_are_shown_until_two_weeks_after_their_end(pool: Pool) -> None:
    clock = Clock()
    clock.advance(NOW.timestamp())
    stored = Incidents(pool, clock)
    id_ = await stored.begin("Slow", "degraded", ["Delivery"], "We know.", [])
    clock.advance(86400 * 30)
    [found] = await stored.recent()
    assert found.ended_at is None and [note.text for note in found.notes] == ["We know."]
    assert await stored.note(id_, "Fixed.", True, [])
    [found] = await stored.recent()
    assert found.ended_at is not None and [note.text for note in found.notes] == ["Fixed.", "We know."]
    assert not await stored.note(UUID(int=5), "x", False, [])
    clock.advance(86400 * 15)
    assert await stored.recent() == []
