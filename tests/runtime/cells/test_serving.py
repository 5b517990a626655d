"""A machine that shares cells: what it starts and stops when it gets, loses and gives up leases."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.runtime.cells.serving import HANDOVER, PATIENCE, REST, Sharing
from mailsvc.store.postgres.errors import Unavailable

US, OTHER = "us", "other"


@attrs.define
class Lease:
    """Of a cell, as its node sees it. `error`: it cannot be reached. `refuses`: not when the lease is taken."""

    has: str | None = None
    present: set[str] = attrs.field(factory=lambda: {US})
    held: bool = False
    error: Exception | None = None
    refuses: Exception | None = None
    silent: bool = False
    closed: int = 0

    async def machines(self) -> dict[str, bool]:
        if self.silent:
            await Deferred()
        if self.error is not None:
            raise self.error
        return {machine: machine == self.has for machine in sorted({*self.present, *filter(None, [self.has])})}

    async def take(self) -> bool:
        if (wrong := self.refuses or self.error) is not None:
            raise wrong
        self.held = self.has is None
        if self.held:
            self.has = US
        return self.held

    async def give_up(self) -> None:
        if self.held:
            self.held, self.has = False, None

    def close(self) -> None:
        self.closed += 1
        self.held = False


class Running:
    """Instead of processes: which cells have one."""

    def __init__(self) -> None:
        self.cells: set[str] = set()

    def __contains__(self, cell: object) -> bool:
        return cell in self.cells

    def start(self, cell: str) -> None:
        self.cells.add(cell)

    async def stop(self, cell: str) -> None:
        self.cells.discard(cell)


class Machine:
    def __init__(self, *cells: str) -> None:
        self.clock, self.running = Clock(), Running()
        self.leases = {cell: Lease() for cell in cells}
        running: Any = self.running
        leases: Any = self.leases
        self.sharing = Sharing(self.clock, running, leases, US)

    def look(self, times: int = 1) -> set[str]:
        """Look so often. Returns the cells whose processes run."""
        for _ in range(times):
            looked: list[object] = []
            Deferred.fromCoroutine(self.sharing.look()).addBoth(looked.append)
            self.clock.advance(0)
            if any(lease.silent for lease in self.leases.values()):
                self.clock.advance(PATIENCE)
            assert looked == [None]
        return set(self.running.cells)


@pytest.fixture
def machine() -> Machine:
    return Machine("red", "blue")


def test_it_takes_one_cell_at_a_time_and_looks_again_at_once(machine: Machine) -> None:
    again: list[None] = []
    machine.sharing.look_again = lambda: again.append(None)
    assert machine.look() == {"blue"}
    assert machine.look() == {"blue", "red"}
    assert len(again) == 2
    machine.look()
    assert len(again) == 2


def test_what_another_machine_has_is_left_to_it(machine: Machine) -> None:
    machine.leases["red"].has = OTHER
    assert machine.look(3) == {"blue"}


def test_a_cell_is_handed_over_to_a_machine_that_has_fewer(machine: Machine) -> None:
    machine.look(2)
    for lease in machine.leases.values():
        lease.present.add(OTHER)
    assert machine.look() == {"blue", "red"}
    assert machine.leases["blue"].has is None
    machine.leases["blue"].has = OTHER
    machine.clock.advance(HANDOVER - 0.1)
    assert machine.look() == {"blue", "red"}, "until the other's process accepts mail"
    machine.clock.advance(0.1)
    assert machine.look(3) == {"red"}


def test_without_a_node_its_process_is_left_alone(machine: Machine) -> None:
    machine.look(2)
    machine.leases["red"].error, machine.leases["red"].held = Unavailable("gone"), False
    assert machine.look(3) == {"blue", "red"}
    machine.leases["red"].error = None
    machine.leases["red"].has = None
    assert machine.look() == {"blue", "red"}
    assert machine.leases["red"].held


def test_a_node_that_does_not_answer_holds_up_no_other_cell(machine: Machine) -> None:
    machine.leases["red"].silent = True
    assert machine.look() == {"blue"}
    assert machine.leases["red"].closed == 1


def test_a_cell_that_another_machine_took_meanwhile_is_stopped_here(machine: Machine) -> None:
    machine.look(2)
    machine.leases["red"].held, machine.leases["red"].has = False, OTHER
    machine.look()
    machine.clock.advance(HANDOVER)
    assert machine.look() == {"blue"}


def test_its_own_earlier_session_may_still_have_the_lease(machine: Machine) -> None:
    machine.look(2)
    machine.leases["red"].held = False  # but the server has not noticed
    assert machine.look(3) == {"blue", "red"}


def test_a_cell_whose_processes_cannot_start_is_left_to_others_for_a_while(machine: Machine) -> None:
    machine.look(2)
    machine.sharing.rest("red")
    machine.clock.advance(0)
    assert machine.leases["red"].has is None
    assert machine.look(3) == {"blue"}
    machine.clock.advance(REST)
    assert machine.look() == {"blue", "red"}


def test_a_lost_connection_while_taking_is_no_failure(machine: Machine) -> None:
    machine.leases["blue"].refuses = Unavailable("gone")
    assert machine.look() == set()
    machine.leases["blue"].refuses = None
    assert machine.look() == {"blue"}
