"""Experiments with clock steps. libfaketime changes the time of day of a running process, but not its monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock
from uuid import UUID

import attrs

from mailsvc.store.ids import uuid7_seconds
from mailsvc.store.postgres import embedded
from tests.chaos.ground import Client, Figures, Ground, ground, sink, until
from tests.end_to_end.rig import Daemon, free_port

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
SIX_DAYS = 6 * 86400


@attrs.frozen
class FakeTime:
    """The clock of every process that has `variables`."""

    file: Path

    @property
    def variables(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, seconds: int) -> None:
        """Sets the clock off by this many seconds."""
        unfinished = self.file.with_suffix(".new")
        unfinished.write_text(f"{seconds:+d}\n")
        unfinished.chmod(0o644)
        unfinished.replace(self.file)


@contextmanager
def fake_time() -> Iterator[FakeTime]:
    with TemporaryDirectory(prefix="mailsvc-clock-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        clock = FakeTime(Path(folder) / "offset")
        clock.step(0)
        yield clock


def wrong_clock(emails: int, seconds: float, off: int = SIX_DAYS) -> Figures:
    """T24: the process's clock is wrong for a while, Postgres's is right. Mail is queued, some of it scheduled."""
    figures, began = Figures(f"T24 a process clock off by {off} s for {seconds:.0f} s"), time.monotonic()
    with fake_time() as clock, ground() as place:
        port = free_port()
        route = {"routes": {"*": f"smtp://127.0.0.1:{port}"}, "hold_first": 1, "hold_longest": 2}
        daemon = place.daemon({"delivery": route}, clock.variables)
        client = Client(daemon)
        client.batch(f"q{n}@example.net" for n in range(emails))
        later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        scheduled = daemon.call("POST", "/emails", client.email("s@example.net") | {"scheduled_at": later}).body["id"]
        until(lambda: place.rows("SELECT 1 FROM queue WHERE attempts > 0"), 30, "a first attempt")
        clock.step(off)
        _held(daemon, client)
        with sink(port) as target:  # from here on mail could be delivered
            ended = time.monotonic() + seconds
            while time.monotonic() < ended:
                assert daemon.call("POST", "/emails", client.email("no@example.net")).status == 503
                time.sleep(0.25)
            assert not target.ids(), "nothing is attempted"
            assert place.rows("SELECT count(*) FROM events WHERE type IN ('email.bounced', 'email.failed')") == [(0,)]
            clock.step(0)
            back = time.monotonic()
            until(lambda: daemon.call("POST", "/emails", client.email("again@example.net")).status == 200, 20, "acceptance")
            figures.notes["accepts again after"] = f"{time.monotonic() - back:.1f} s"
            until(lambda: target.ids() >= set(client.ids), 60, lambda: f"all mail; what waits: {place.summary()}")
            figures.notes["backlog drained after"] = f"{time.monotonic() - back:.1f} s"
            figures.accepted, figures.delivered = len(client.ids), len(target.ids() & set(client.ids))
            figures.duplicates, figures.lost = target.duplicates(), len(set(client.ids) - target.ids())
            assert scheduled not in target.ids()
        assert place.rows("SELECT status FROM queue WHERE email_id = %s", scheduled) == [("scheduled",)]
        assert _latest(place) < time.time() + 10, "no id is dated in the future"
        figures.waiting = place.waiting()
    assert (figures.lost, figures.duplicates) == (0, 0)
    figures.seconds = time.monotonic() - began
    return figures


def _held(daemon: Daemon, client: Client) -> None:
    """The API refuses mail at once, and /readyz reports the reason."""
    refused = daemon.call("POST", "/emails", client.email("no@example.net"))
    headers = {name.lower(): value for name, value in refused.headers.items()}
    assert refused.status == 503 and int(headers["retry-after"]) > 0, refused
    ready = daemon.call("GET", "/readyz")
    assert ready.status == 503 and "the database's" in str(ready.body), ready


def _latest(place: Ground) -> float:
    """Returns the newest time in an ID, in Unix seconds."""
    [(email, event)] = place.rows("SELECT (SELECT max(email_id::text) FROM emails), (SELECT max(event_id::text) FROM events)")
    return max(uuid7_seconds(UUID(email)), uuid7_seconds(UUID(event)))


@contextmanager
def _postgres_has(clock: FakeTime) -> Iterator[None]:
    """An embedded Postgres started here has the same clock, as on one machine."""
    plain = embedded._environment()
    with mock.patch.object(embedded, "_environment", lambda: plain | clock.variables):
        yield


def step_back(emails: int, off: int = -120) -> Figures:
    """T25: the whole machine's clock steps, including Postgres's. Delivery, heartbeats and timers continue."""
    figures, began = Figures(f"T25 the machine's clock stepped by {off} s"), time.monotonic()
    with fake_time() as clock, _postgres_has(clock), ground() as place, sink() as target:
        daemon = place.daemon({"delivery": {"routes": {"*": f"smtp://127.0.0.1:{target.port}"}}}, clock.variables)
        client = Client(daemon)
        client.batch(f"a{n}@example.net" for n in range(emails))
        until(lambda: target.ids() >= set(client.ids), 60, "the first mails")
        clock.step(off)
        stepped = time.monotonic()
        until(lambda: daemon.call("POST", "/emails", client.email("first@example.net")).status == 200, 20, "acceptance")
        client.batch((f"b{n}@example.net" for n in range(emails)), "b")
        figures.notes["accepts again after"] = f"{time.monotonic() - stepped:.1f} s"
        until(lambda: target.ids() >= set(client.ids), 30, lambda: f"the mails after the step; what waits: {place.summary()}")
        figures.notes["all delivered after"] = f"{time.monotonic() - stepped:.1f} s"
        [(beaten,)] = place.rows("SELECT heartbeat_at FROM processes WHERE ended_at IS NULL")
        until(lambda: place.rows("SELECT 1 FROM processes WHERE heartbeat_at <> %s", beaten), 25, "another heartbeat")
        figures.notes["a heartbeat after"] = f"{time.monotonic() - stepped:.1f} s"
        figures.accepted, figures.delivered = len(client.ids), len(target.ids() & set(client.ids))
        figures.duplicates, figures.lost = target.duplicates(), len(set(client.ids) - target.ids())
        figures.waiting = place.waiting()
    assert (figures.lost, figures.duplicates) == (0, 0)
    figures.seconds = time.monotonic() - began
    return figures
