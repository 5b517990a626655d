"""Metrics: their format, access to them, and which are there without a database."""

from __future__ import annotations

import base64
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest_twisted
from prometheus_client.parser import text_string_to_metric_families
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.web.test.requesthelper import DummyChannel, DummyRequest

from mailsvc.clock import TimeOfDay, ahead, held, unix
from mailsvc.monitoring.latest import KEPT, PATIENCE, TIMES, Latest
from mailsvc.monitoring.listener import MetricsPage, private
from mailsvc.monitoring.metrics import Exposition, Metrics, certificate, database, disk, returned
from mailsvc.monitoring.reactor_lag import EVERY, ReactorLag
from mailsvc.outcome import Delivered
from mailsvc.store.events.ledger import Lag
from mailsvc.store.logs.figures import Figures, Reading, Vitals, Waiting
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.server_settings import Standbys
from mailsvc.store.queue.claims import Slowdown
from tests.store.fixtures import ACCOUNT, DAY, NOW, OTHER, REGION, StoreRig, email

READING = Reading(
    (Waiting("delayed", True, 1, 7.5, "eu"), Waiting("delayed", True, 2, 61.5, "us")),
    0,
    2.5,
    1,
    {"backoff": 2},
    {"delivery": 1},
    Lag(7, 0.5),
    4,
    9.5,
    8192,
    Standbys(1, True, 4096),
    True,
    ["eu"],
)


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Samples by name and label values, in the order of the label names."""
    families = text_string_to_metric_families(text.decode())
    return {(s.name, *(s.labels[name] for name in sorted(s.labels))): s.value for family in families for s in family.samples}


@pytest_twisted.ensureDeferred
async def test_metrics_of_the_process_and_the_database_are_one_response() -> None:
    async def read() -> Reading:
        return READING

    metrics = Metrics(read)
    metrics.add(lambda exposition: exposition.counter("accepted", "Emails.", {("api",): 5}, ("source",)))
    metrics.lag.observe(0.02)
    found = samples(await metrics.text())
    assert found["mailsvc_accepted_total", "api"] == 5
    assert found["mailsvc_queue_recipients", "bulk", "delayed"] == 3
    assert found["mailsvc_queue_oldest_seconds", "bulk", "delayed"] == 61.5
    assert found["mailsvc_queue_undelivered", "us"] == 2 and found["mailsvc_queue_undelivered", "eu"] == 0
    assert found["mailsvc_destinations_held", "backoff"] == found["mailsvc_destinations_resting", "backoff"] == 2
    assert found[("mailsvc_ledger_events",)] == 7
    assert found[("mailsvc_webhook_messages",)] == 4 and found[("mailsvc_webhook_oldest_seconds",)] == 9.5
    assert found[("mailsvc_database_up",)] == 1
    assert found[("mailsvc_database_bytes",)] == 8192 and found[("mailsvc_database_restored",)] == 1
    assert found["mailsvc_reactor_lag_seconds_bucket", "0.025"] == 1 and found["mailsvc_reactor_lag_seconds_bucket", "0.01"] == 0
    assert samples(await metrics.text())["mailsvc_accepted_total", "api"] == 5  # counters are not added up twice


@pytest_twisted.ensureDeferred
async def test_mail_to_return_paths_is_counted_by_kind() -> None:
    async def read() -> Reading:
        return READING

    taken = SimpleNamespace(counts=Counter({"bounce": 3, "forged": 2}))
    found = samples(await Metrics(read, [returned(taken)]).text())
    counted = {name[1]: value for name, value in found.items() if name[0] == "mailsvc_returned_total"}
    assert (counted["bounce"], counted["forged"], counted["complaint"], counted["automatic"]) == (3, 2, 0, 0)


@pytest_twisted.ensureDeferred
async def test_without_a_database_the_metrics_of_the_process_remain() -> None:
    async def read() -> Reading:
        raise OSError("away")

    def own(exposition: Exposition) -> None:
        exposition.gauge("lanes", "Lanes.", 4)

    with capturedLogs():
        found = samples(await Metrics(read, [own]).text())
    assert found[("mailsvc_database_up",)] == 0
    assert found[("mailsvc_lanes",)] == 4
    assert ("mailsvc_queue_unexplained",) not in found


@pytest_twisted.ensureDeferred
async def test_figures_that_take_long_are_those_of_the_last_time() -> None:
    clock, asked = Clock(), list[Deferred[Reading]]()

    def read() -> Deferred[Reading]:
        asked.append(Deferred())
        return asked[-1]

    metrics = Metrics(Latest(clock, read).get)
    first = [Deferred.fromCoroutine(metrics.text()) for _ in range(2)]
    with capturedLogs():
        clock.advance(PATIENCE)
    assert [samples(await each)[("mailsvc_database_up",)] for each in first] == [0, 0], "the database has not answered yet"
    asked[0].callback(READING)
    assert samples(await metrics.text())[("mailsvc_database_up",)] == 1
    clock.advance(TIMES * PATIENCE - 1)
    assert samples(await metrics.text())[("mailsvc_database_up",)] == 1
    assert len(asked) == 1, "it took so long that it is not repeated at once"
    clock.advance(1)
    second = Deferred.fromCoroutine(metrics.text())
    clock.advance(PATIENCE)
    found = samples(await second)
    assert found[("mailsvc_database_up",)] == 1 and found["mailsvc_queue_recipients", "bulk", "delayed"] == 3
    clock.advance(KEPT)
    for then in (lambda: clock.advance(PATIENCE), lambda: asked[1].errback(OSError("away"))):
        third = Deferred.fromCoroutine(metrics.text())
        with capturedLogs():
            then()
        assert samples(await third)[("mailsvc_database_up",)] == 0
    fourth = Deferred.fromCoroutine(metrics.text())
    asked[2].callback(READING)
    assert samples(await fourth)[("mailsvc_database_up",)] == 1 and len(asked) == 3


def test_what_this_machine_and_its_certificate_can_run_out_of(tmp_path: Path) -> None:
    exposition, expiry = Exposition(), datetime(2027, 1, 1, tzinfo=UTC)
    for source in (disk(str(tmp_path)), certificate(lambda: expiry)):
        source(exposition)
    found = samples(exposition.text())
    assert found[("mailsvc_certificate_expires_timestamp_seconds",)] == expiry.timestamp()
    assert found[("mailsvc_temporary_free_bytes",)] > 0


def test_a_database_that_cannot_write_is_visible() -> None:
    pool = SimpleNamespace(busy=0, connections=1, waiting=0, statements=0, commits=0)
    for problem, writable in ((None, 1), ("disk full", 0)):
        exposition = Exposition()
        database(pool, SimpleNamespace(sent=0), lambda problem=problem: problem)(exposition)  # type: ignore[misc]
        assert samples(exposition.text())[("mailsvc_database_writable",)] == writable


def get(path: bytes, token: str | None, authorization: str | None) -> tuple[int, bytes]:
    async def text() -> bytes:
        return b"mailsvc_up 1"

    request = DummyRequest([b""])
    request.path = path
    request.channel = DummyChannel()
    if authorization is not None:
        request.requestHeaders.setRawHeaders(b"authorization", [authorization.encode()])
    answer = MetricsPage(text, token).render_GET(request)
    return request.responseCode or 200, answer if isinstance(answer, bytes) else b"".join(request.written)


def test_a_token_is_required_if_set() -> None:
    assert get(b"/metrics", None, None) == (200, b"mailsvc_up 1")
    assert get(b"/metrics", "s3cret", "Bearer s3cret") == (200, b"mailsvc_up 1")
    assert get(b"/metrics", "s3cret", f"Basic {base64.b64encode(b'me:s3cret').decode()}") == (200, b"mailsvc_up 1")
    basic = [f"Basic {base64.b64encode(each).decode()}" for each in (b"s3cret", b"s3cret:", b"me:s3cre")]
    for authorization in (None, "s3cret", "Bearer s3cre", "Bearer s3crett", "Basic s3cret", "Basic =", *basic):
        status, text = get(b"/metrics", "s3cret", authorization)
        assert status == 401 and b"mailsvc_" not in text
    assert get(b"/other", None, None)[0] == 404


def test_a_unix_socket_is_private_unless_a_mode_is_given() -> None:
    assert private("unix:/run/m.sock") == "unix:/run/m.sock:mode=600:lockfile=1"
    assert private("unix:/run/m.sock:mode=660") == "unix:/run/m.sock:mode=660:lockfile=1"
    assert private("tcp:9125:interface=127.0.0.1") == "tcp:9125:interface=127.0.0.1"


def test_a_late_call_is_measured() -> None:
    clock, seen = Clock(), []
    lag = ReactorLag(clock, clock.seconds, seen.append)
    lag.start()
    clock.advance(EVERY)
    clock.rightNow += 0.3  # something blocked
    clock.advance(EVERY)
    assert seen[0] == 0 and abs(seen[1] - 0.3) < 1e-9
    lag.stop()
    assert not clock.getDelayedCalls()


@pytest_twisted.ensureDeferred
async def test_vital_signs_detect_a_wrong_clock(pool: Pool) -> None:
    clock: Any = Clock()
    clock.time_of_day = TimeOfDay(10.0)
    right = Vitals(pool, clock)
    await right.look()
    assert abs(ahead(clock)) < 1 and held(clock) is None
    clock.time_of_day = TimeOfDay(10.0, machine=lambda: time.time() + 3600)
    wrong = Vitals(pool, clock)
    await wrong.look()
    assert 3599 < ahead(clock) < 3601
    assert held(clock) == "this machine's clock is 3600 s ahead of the database's"
    assert abs(unix(clock) - time.time()) < 1, "dates are the database's"
    assert wrong.ledger == Lag(0, 0.0)


@pytest_twisted.ensureDeferred
async def test_mail_of_an_account_that_is_on_hold_is_not_the_oldest(pool: Pool) -> None:
    from twisted.internet import reactor

    store = StoreRig(pool, reactor)
    store.lease = await store.process()
    await store.accept(email(created_at=NOW))
    await store.pool.run("INSERT INTO account_pauses (account_id, reason, until) VALUES (%s, 'Spam.', %s)", (ACCOUNT, NOW + DAY))
    [waiting] = (await reading(store, pool, later=100)).waiting
    assert (waiting.count, waiting.oldest) == (1, 0)
    await store.accept(email(account_id=OTHER, created_at=NOW))
    [waiting] = (await reading(store, pool, later=100)).waiting
    assert waiting.count == 2 and 88 < waiting.oldest < 102


@pytest_twisted.ensureDeferred
async def test_the_queue_is_counted_by_state_and_class(pool: Pool) -> None:
    from twisted.internet import reactor

    store = StoreRig(pool, reactor)
    store.lease = await store.process()
    assert (await reading(store, pool)).waiting == ()
    sent, kept = email(bulk=True), email("one@example.net", "two@example.net", created_at=NOW)
    await store.accept(sent, kept)
    await store.claim("example.org")
    found = await reading(store, pool, later=100)
    counted = {(each.state, each.bulk, each.count, each.region) for each in found.waiting}
    assert counted == {("sending", True, 1, REGION), ("queued", False, 2, REGION)} and found.delivering == [REGION]
    assert all(88 < each.oldest < 102 for each in found.waiting)  # ids made meanwhile may be up to ten seconds ahead
    assert found.unexplained == 0 and found.leases == 1 and found.ledger.events > 0
    assert found.overdue == 100
    await store.queue.slow(REGION, "example.net", Slowdown(6.0, "It asked for less.", NOW + DAY), NOW)
    assert (await reading(store, pool, later=100)).overdue == 0
    await store.settle(sent, Delivered("250 2.0.0 ok"))
    assert store.settling.outcomes == {"delivered": 1}
    assert (await reading(store, pool)).leases == 0


async def reading(store: StoreRig, pool: Pool, later: float = 0.0) -> Reading:
    clock = Clock()
    clock.advance(NOW.timestamp() + later)
    return await Figures(pool, clock, lambda: store.lease).read()
