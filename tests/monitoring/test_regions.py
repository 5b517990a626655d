"""What the doctor and /readyz say about regions and standbys."""

from __future__ import annotations

import pytest
import pytest_twisted

from mailsvc.monitoring import regions, standbys
from mailsvc.monitoring.regions import RegionWatch
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.server_settings import Standbys, hosts
from mailsvc.store.postgres.server_settings import standbys as connected

EAST, WEST = "us-east-1", "eu-west-1"


@pytest.mark.parametrize(
    ("domains", "served", "state", "words"),
    [
        ({EAST: 2}, [EAST, WEST], "ok", "eu-west-1 with 0 domains, us-east-1 with 2 domains"),
        ({WEST: 2}, [EAST], "error", "No process delivers mail of the region eu-west-1, which has 2 domains."),
        ({}, [EAST], "warning", "eu-west-1, which has 0 domains"),
        ({}, [], "ok", "us-east-1"),  # another finding says that nothing runs
        ({"old": 1}, [EAST, WEST], "error", "1 domains are in the region old, which the settings do not name."),
        ({}, [EAST, WEST, "new"], "warning", "A process delivers mail of the region new"),
    ],
)
def test_the_doctor_knows_the_state_of_regions(domains: dict[str, int], served: list[str], state: str, words: str) -> None:
    [found] = regions.findings([EAST, WEST], EAST, domains, served)
    assert found.state == state and words in found.found
    assert bool(found.remedy) is (state != "ok")


@pytest.mark.parametrize(
    ("given", "listed", "state", "words"),
    [
        (Standbys(0, False), 1, "ok", "restore a backup"),
        (Standbys(0, False), 2, "warning", "no standby is connected"),
        (Standbys(1, False), 2, "warning", "the last emails may be missing, and all mail is held"),
        (Standbys(1, False, 3 << 20), 2, "warning", "1 connected, 3.0 MB behind. Commits do not wait"),
        (Standbys(1, True), 2, "ok", "everything that was acknowledged"),
        (Standbys(1, True), 1, "warning", "everything that was acknowledged"),
        (Standbys(0, True), 2, "error", "none is connected"),
    ],
)
def test_the_doctor_knows_what_a_takeover_loses(given: Standbys, listed: int, state: str, words: str) -> None:
    found = standbys.finding(given, listed)
    assert found.state == state and words in found.found


def test_servers_of_a_dsn_are_counted() -> None:
    assert hosts("postgresql://mailsvc@db1:5432,db2:5432/mailsvc?target_session_attrs=read-write") == 2
    assert hosts("host=/run/postgresql dbname=mailsvc") == hosts("dbname=mailsvc") == 1


@pytest_twisted.ensureDeferred
async def test_readyz_names_regions_without_a_process(pool: Pool) -> None:
    assert await connected(pool) == Standbys(0, False)
    watch, single = RegionWatch(pool, [EAST, WEST]), RegionWatch(pool, [EAST])
    await pool.run(
        "INSERT INTO processes (host, pid, region, roles) VALUES ('x', 1, %s, '{delivery}'), ('x', 2, %s, '{http}')", (EAST, WEST)
    )
    for each in (watch, single):
        assert await each.problem() is None, "nobody looked yet"
        await each.look()
    assert await watch.problem() == "no process delivers mail of eu-west-1"
    assert await single.problem() is None
    await pool.run("UPDATE processes SET roles = '{delivery}'")
    await watch.look()
    assert await watch.problem() is None
