"""What doctor says of standbys, for one Postgres and for the node of a cell, whose standbys database.url does not list."""

from __future__ import annotations

import pytest

from mailsvc.monitoring.standbys import finding, waiting
from mailsvc.store.postgres.server_settings import Standbys


@pytest.mark.parametrize(
    ("standbys", "hosts", "state", "said"),
    [
        (Standbys(1, True, 0), 2, "ok", "it has everything that was acknowledged"),
        (Standbys(1, True, 0), 1, "warning", "List all servers in database.url"),
        (Standbys(1, True, 0), None, "ok", "it has everything that was acknowledged"),
        (Standbys(1, False, 4096), 2, "warning", "4.0 kB behind"),
        (Standbys(1, False, 4096), None, "warning", "the last emails may be missing, and all mail is held"),
        (Standbys(0, True), None, "error", "until then, no mail is accepted"),
        (Standbys(0, False), 2, "warning", "lists several servers"),
        (Standbys(0, False), 1, "ok", "restore a backup"),
        (Standbys(0, False), None, "ok", "restore a backup"),
    ],
)
def test_what_a_takeover_would_lose(standbys: Standbys, hosts: int | None, state: str, said: str) -> None:
    found = finding(standbys, hosts)
    assert found.state == state
    assert said in f"{found.found} {found.remedy}"


@pytest.mark.parametrize(("connected", "said"), [(0, "none is connected"), (1, "it does not answer, or has another name")])
def test_a_commit_that_waits_is_an_error_of_the_database(connected: int, said: str) -> None:
    found = waiting(Standbys(connected, True))
    assert (found.check, found.state) == ("database", "error")
    assert said in found.found
