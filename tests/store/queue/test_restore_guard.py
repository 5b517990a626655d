"""A restored database is noticed; one that merely advanced is not."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.store.logs.figures import Figures
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue import holds
from mailsvc.store.queue.restore_guard import DUMP, RECOVERED, SET_BACK, TAKEN_OVER, Marker, Place, RestoreGuard, judge

HERE = Place("7000", 16384, 16500, 1)
SEEN = Marker("7000", 16384, 1000)


@pytest.mark.parametrize(
    ("known", "beats", "seen", "why"),
    [
        (HERE, 1000, SEEN, None),
        (HERE, 1000, None, None),
        (Place(None, None, None, None), 5, SEEN, None),  # made just now
        (attrs.evolve(HERE, system="6999"), 1000, None, DUMP),  # into another cluster
        (attrs.evolve(HERE, database=16383), 1000, SEEN, DUMP),  # into another database
        (attrs.evolve(HERE, relation=16499), 1000, SEEN, DUMP),  # over the same one
        (HERE, 999, SEEN, SET_BACK),  # a snapshot
        (HERE, 999, attrs.evolve(SEEN, system="6999"), None),  # the witness of another cluster
        (attrs.evolve(HERE, timeline=0), 999, SEEN, SET_BACK),  # recovered to a point in time
        (attrs.evolve(HERE, timeline=0), 1000, attrs.evolve(SEEN, synchronous=True), None),  # a standby took over, with all that there was
        (attrs.evolve(HERE, timeline=0), 1000, SEEN, TAKEN_OVER),  # one that commits did not wait for
        (attrs.evolve(HERE, timeline=0), 999, attrs.evolve(SEEN, synchronous=True), SET_BACK),
        (attrs.evolve(HERE, timeline=0), 1000, None, RECOVERED),
    ],
)
def test_restored_databases_are_recognized(known: Place, beats: int, seen: Marker | None, why: str | None) -> None:
    assert judge(known, HERE, beats, seen) == why


async def held(pool: Pool) -> list[tuple[str, str]]:
    return sorted(await pool.rows("SELECT region, reason FROM destinations WHERE name = '*'"))


@pytest_twisted.ensureDeferred
async def test_a_restored_database_holds_all_regions_until_released(pool: Pool) -> None:
    await pool.run("INSERT INTO processes (host, pid, region, roles) VALUES ('x', 1, 'far', '{}')")
    assert await RestoreGuard(pool, None, "near").check() is None
    assert await RestoreGuard(pool, None, "near").check() is None
    assert await held(pool) == []
    await pool.run("UPDATE house SET relation = relation - 1")
    figures = Figures(pool, Clock(), lambda: 1)
    assert (await figures.read()).restored is False
    assert await RestoreGuard(pool, None, "near").check() == DUMP
    found = await figures.read()
    assert found.restored is True and found.database_bytes > 1_000_000
    assert [region for region, _ in await held(pool)] == ["far", "near"]
    assert await holds.release_everything(pool, 0.0) == 2
    assert (await figures.read()).restored is False
    assert await RestoreGuard(pool, None, "near").check() is None  # it is known to be here by now
    assert await held(pool) == []


@pytest_twisted.ensureDeferred
async def test_a_restore_is_noticed_although_the_marker_cannot_be_written(pool: Pool, tmp_path: Path) -> None:
    guard = RestoreGuard(pool, tmp_path / "missing" / "marker", "near")
    assert await guard.check() is None
    await pool.run("UPDATE house SET relation = relation - 1")
    assert await guard.check() == DUMP  # who asked erases again


@pytest_twisted.ensureDeferred
async def test_the_restore_marker_shows_a_reset(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "witness"
    assert await RestoreGuard(pool, file, "near").check(remember=False) is None
    assert not file.exists()
    running = RestoreGuard(pool, file, "near")
    assert await running.check() is None
    before = json.loads(file.read_text())["beats"]
    assert await running.check() is None
    marker = json.loads(file.read_text())
    assert marker["beats"] == before + 1
    assert [path.name for path in tmp_path.iterdir()] == ["witness"]
    file.write_text(json.dumps(marker | {"beats": marker["beats"] + 100}))
    assert await RestoreGuard(pool, file, "near").check() == SET_BACK
    assert json.loads(file.read_text())["beats"] > marker["beats"] + 100
    file.write_text(json.dumps(marker | {"beats": marker["beats"] + 110}))  # of another machine
    assert await RestoreGuard(pool, file, "near").check() is None
    synchronous = json.loads(file.read_text()) | {"synchronous": True}
    await pool.run("UPDATE house SET timeline = timeline + 1")
    assert await RestoreGuard(pool, file, "near").check() == TAKEN_OVER
    file.write_text(json.dumps(synchronous))
    await pool.run("UPDATE house SET timeline = timeline + 1")
    assert await RestoreGuard(pool, file, "near").check() is None
    await pool.run("UPDATE house SET timeline = timeline + 1")
    file.write_text("rubbish")
    assert await RestoreGuard(pool, file, "near").check() == RECOVERED


@pytest_twisted.ensureDeferred
async def test_a_server_that_took_over_is_judged_before_its_first_connection_is_used(pool: Pool) -> None:
    from twisted.internet import reactor

    holds_made: list[str] = []
    guard = RestoreGuard(pool, None, "near", on_hold=lambda: holds_made.append("hold"))
    guarded = Pool(pool.dsn, reactor, size=1, admit=guard.admit)
    await guarded.start()
    assert await guard.check() is None
    await pool.run("UPDATE house SET timeline = timeline - 1")
    assert guard._timeline is not None
    guard._timeline -= 1  # as if this process knew the server before
    [connection] = guarded._connections
    connection.abandon()
    assert await guarded.rows("SELECT count(*) FROM destinations WHERE name = '*'") == [(1,)]
    assert holds_made == ["hold"]
    assert await guard.check() == TAKEN_OVER, "so that erasures are applied again"
    assert await guard.check() is None
    await guarded.stop()
