"""The checks of the machine: disk, memory, open files, clock, port 25."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import pytest_twisted

from mailsvc.monitoring import machine
from mailsvc.monitoring.machine import Machine
from mailsvc.settings import loading

SETTINGS = loading.check(
    {
        "base_url": "https://api.example.com",
        "database": {"url": "postgresql:///mailsvc"},
        "delivery": {"ehlo_name": "out.example.com"},
        "smtp": {"certbot": "/etc/mailsvc/tls"},
    },
    {},
)
GOOD = Machine(Path("/var/lib/mailsvc"), 100 << 30, 4 << 30, 65536, True)


def test_a_good_machine_has_nothing_to_do() -> None:
    found = machine.findings(GOOD, SETTINGS)
    assert [(each.check, each.state, each.remedy) for each in found] == [
        (check, "ok", "") for check in ("disk", "memory", "open files", "clock of this machine")
    ]
    assert found[0].found == "100.0 GB are free for /var/lib/mailsvc."


@pytest.mark.parametrize(
    ("change", "check", "state"),
    [
        ({"free": 100 << 20}, "disk", "error"),
        ({"free": 5 << 30}, "disk", "warning"),
        ({"memory": 500 << 20}, "memory", "warning"),
        ({"files": 1024}, "open files", "warning"),
        ({"synchronized": False}, "clock of this machine", "warning"),
        ({"synchronized": None}, "clock of this machine", "warning"),
    ],
)
def test_each_problem_has_a_remedy(change: dict[str, object], check: str, state: str) -> None:
    [bad] = [each for each in machine.findings(attrs.evolve(GOOD, **change), SETTINGS) if each.state != "ok"]
    assert (bad.check, bad.state) == (check, state) and bad.remedy


def test_this_machine_is_measured(tmp_path: Path) -> None:
    here = machine.measure(tmp_path / "not" / "yet")
    assert min(here.free, here.memory, here.files) > 0


@pytest.mark.parametrize(
    ("answer", "running", "state", "found"),
    [
        (("refused", ""), False, "ok", "It is free."),
        ((None, "220 out.example.com ESMTP"), False, "ok", "mailsvc listens on it."),
        ((None, "220 host ESMTP Exim 4.96"), False, "error", "Another program listens on it: '220 host ESMTP Exim 4.96'."),
        (("refused the connection", ""), True, "error", "It refused the connection."),
    ],
)
@pytest_twisted.ensureDeferred
async def test_port_25_belongs_to_mailsvc(answer: tuple[str | None, str], running: bool, state: str, found: str) -> None:
    async def banner(address: str, port: int) -> tuple[str | None, str]:
        assert (address, port) == ("127.0.0.1", 25)
        return answer

    result = await machine.port25(SETTINGS, banner, running)
    assert (result.state, result.found) == (state, found) and result.remedy
