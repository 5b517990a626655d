"""The fault experiments of `make chaos`, small. Those that mostly wait run beside the others, and their results are read last."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.chaos import broadcasts, commands, databases, experiments, handoffs, takeovers
from tests.chaos.cluster import can_mount
from tests.chaos.ground import SMTP_SINK, Figures
from tests.chaos.patroni import INSTALLED

pytestmark = pytest.mark.slow
needs_sink = pytest.mark.skipif(
    SMTP_SINK is None and os.environ.get("MAILSVC_TEST_POSTFIX") != "required", reason="Postfix's smtp-sink is not here (Debian: postfix)"
)


@pytest.fixture(scope="module")
def beside() -> Iterator[dict[str, Future[Figures]]]:
    with ThreadPoolExecutor(2) as threads:
        yield {
            "T12": threads.submit(experiments.stopped_process, 100, 50.0),  # 45 seconds of silence have to pass
            "T35": threads.submit(handoffs.stopped, 200, 40.0),  # what was handed over is given back after 20 seconds
            "T9": threads.submit(experiments.bad_dns, 4),  # a look-up that failed counts for 15 seconds
            "T4": threads.submit(experiments.restarted_postgres, 100, 2.0),  # callers wait 5 seconds for a connection
            "T15": threads.submit(databases.killed_backends, 100, 6),
            "T23": threads.submit(takeovers.standby, 100),
            "T28": threads.submit(takeovers.fallen_behind, 20),
            **({"T33": threads.submit(takeovers.promoted, 100)} if INSTALLED else {}),
        }


@pytest.mark.usefixtures("beside")
def test_postgres_ends_at_random_moments() -> None:
    figures = experiments.killed_postgres(400, 3)
    assert (figures.accepted, figures.lost) == (400, 0)


@needs_sink
def test_the_reply_to_the_final_dot_is_lost() -> None:
    experiments.lost_replies(10)


@needs_sink
def test_storms_of_refusals_are_met_by_the_schedule() -> None:
    experiments.refusals(60, 8.0)


def test_the_process_that_accepts_or_the_one_that_delivers_is_killed() -> None:
    figures = handoffs.killed(400, 4)
    assert figures.lost == 0 and int(str(figures.notes["handed over"])) > 0


def test_a_broadcast_while_the_daemon_and_postgres_are_killed() -> None:
    figures = broadcasts.killed(2000, 3, 1)
    assert (figures.accepted, figures.lost, figures.waiting) == (2000, 0, 0)


@pytest.mark.skipif(not can_mount(), reason="small file systems cannot be mounted here")
def test_a_disk_that_is_full() -> None:
    assert databases.full_disk(20).lost == 0


@pytest.mark.skipif(databases.COMPILER is None, reason="there is no C compiler here")
def test_power_cuts() -> None:
    assert databases.power_cuts(200, 2).lost == 0


@pytest.mark.skipif(databases.COMPILER is None, reason="there is no C compiler here")
def test_a_power_cut_leaves_only_what_was_synced(tmp_path: Path) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    data.mkdir()
    program = f"""
import os
folder = {str(data)!r}
def write(name, data, sync):
    with open(os.path.join(folder, name), 'r+b' if os.path.exists(os.path.join(folder, name)) else 'w+b') as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
write('synced', b'1' * 100_000, True)
write('synced', b'2' * 10, False)
write('rewritten', b'1' * 100_000, True)
write('rewritten', b'2' * 10, True)
write('unsynced', b'1', False)
for name in ('removed', 'kept'):
    write(name, b'1', True)
os.unlink(os.path.join(folder, 'removed'))
descriptor = os.open(folder, os.O_RDONLY)
os.fsync(descriptor)
os.unlink(os.path.join(folder, 'kept'))
"""
    preloaded = {"LD_PRELOAD": str(databases.shim(tmp_path)), "POWERCUT_DATA": str(data), "POWERCUT_KEPT": str(kept)}
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, **preloaded}, timeout=30)
    assert {path.name for path in kept.iterdir()} == {"synced", "rewritten", "kept"}
    assert (kept / "synced").read_bytes() == b"1" * 100_000
    assert (kept / "rewritten").read_bytes() == b"2" * 10 + b"1" * 99_990


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory, postgres: str) -> Iterator[tuple[commands.Place, commands.Given]]:
    place = commands.Place(tmp_path_factory.mktemp("commands"), postgres)
    given = commands.prepare(place, 200)
    yield place, given
    for name in (given.full, given.empty):
        place.drop(name)


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_commands_are_killed_at_any_moment(account: tuple[commands.Place, commands.Given], name: str) -> None:
    commands.kill(*account, name, 3)


def test_the_database_is_away_for_a_while(beside: dict[str, Future[Figures]]) -> None:
    figures = beside["T4"].result(120)
    assert (figures.lost, figures.duplicates) == (0, 0)


def test_dns_that_fails(beside: dict[str, Future[Figures]]) -> None:
    figures = beside["T9"].result(120)
    assert (figures.lost, figures.waiting) == (0, 0)


def test_a_process_that_is_stopped_and_continued(beside: dict[str, Future[Figures]]) -> None:
    figures = beside["T12"].result(180)
    assert (figures.lost, figures.notes["sent after it went on"]) == (0, 0)


def test_backends_end_under_large_statements(beside: dict[str, Future[Figures]]) -> None:
    assert beside["T15"].result(180).lost == 0


def test_a_standby_takes_over(beside: dict[str, Future[Figures]]) -> None:
    assert beside["T23"].result(180).lost == 0


def test_an_asynchronous_standby_takes_over(beside: dict[str, Future[Figures]]) -> None:
    figures = beside["T28"].result(180)
    assert (figures.lost, figures.duplicates) == (0, takeovers.DEFERRED)


@pytest.mark.skipif(not INSTALLED, reason="Patroni, etcd and Postgres 15 are not here (Debian: patroni, etcd-server, postgresql-15)")
def test_patroni_promotes_the_standby(beside: dict[str, Future[Figures]]) -> None:
    assert beside["T33"].result(240).lost == 0


def test_the_process_that_accepts_is_stopped_and_continued(beside: dict[str, Future[Figures]]) -> None:
    assert beside["T35"].result(240).duplicates == 0


@needs_sink
def test_tarpits_and_a_dead_domain_delay_nobody_else() -> None:
    """After those that run beside. Tried up to three times, because tests of other modules use the processor. A real delay shows always."""
    tried: list[Mapping[str, object]] = []
    for _ in range(3):
        tried.append(experiments.tarpits(100, 2000, 60).notes)
        if tried[-1]["ratio"] <= 2.0 or tried[-1]["healthy p95 ms"] < 100:  # type: ignore[operator]
            return
    raise AssertionError(tried)
