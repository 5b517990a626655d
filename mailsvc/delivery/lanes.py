"""The lane registry: which destinations have a lane in this process, and when a lane is opened or closed.

What a lane does: lane. What follows when its destination fails: reactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mailsvc.delivery.admission.budget import Budgets
from mailsvc.delivery.admission.health import Healths
from mailsvc.delivery.admission.holds import Holds
from mailsvc.delivery.connection.route import Route
from mailsvc.delivery.lane import Lane
from mailsvc.delivery.lane_context import LaneContext
from mailsvc.delivery.tasks import Tasks, finished
from mailsvc.delivery.transaction import Transaction


def _nobody(destination: str) -> None:
    """No one listens."""


class Lanes:
    """`accepting`: whether lanes take mail, which is from start to shutdown. `on_room` is called when a lane can take more."""

    def __init__(self, context: LaneContext, healths: Healths, budgets: Budgets, holds: Holds, tasks: Tasks) -> None:
        self._context, self._healths, self._budgets, self._holds, self._tasks = context, healths, budgets, holds, tasks
        self._open: dict[str, Lane] = {}
        self._closing: set[Lane] = set()  # closed, with attempts in progress or places reserved
        self.accepting = False
        self.on_room: Callable[[str], None] = _nobody
        holds.on_pause = self.close_held

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._open.values()))

    def get(self, destination: str) -> Lane | None:
        return self._open.get(destination)

    def view(self) -> dict[str, dict[str, object]]:
        """The lanes as they are now, for the operator."""
        return {name: lane.view() for name, lane in self._open.items()}

    def of(self, route: Route) -> Lane:
        """The lane of a destination, opened if there is none."""
        lane = self._open.get(route.destination)
        if lane is None:
            health = self._healths.of(route.destination)
            if self._holds.failures(route.destination):
                health.probe()
            budget = self._budgets.of(route.destination)
            lane = Lane(route, self._context, health, budget, on_room=self._room, on_close=self._retire, on_empty=self._forget)
            self._open[route.destination] = lane
        lane.route = route  # the next connection is for this mail, and tries the hosts in its order
        return lane

    def accept(self, route: Route, transaction: Transaction) -> bool:
        """Put claimed mail into the lane of its route. False: it cannot take any now."""
        destination, lane = route.destination, self._open.get(route.destination)
        decision = self._context.admission.place(
            accepting=self.accepting,
            held=self._holds.held(destination),
            room=1 if lane is None else lane.room,
            window=1 if lane is None else lane.window,
            waiting=0 if lane is None else lane.waiting,
        )
        if decision.admitted:
            self.of(route).put(transaction)
        return decision.admitted

    # Closing

    def close_held(self) -> None:
        """Begin nothing more at destinations that are held. What waits for them goes back to the queue."""
        for lane in [lane for name, lane in self._open.items() if self._holds.held(name)]:
            self._tasks.spawn(self._context.leases.give_back(self._close(lane)))

    def close(self) -> list[Transaction]:
        """Begin nothing more anywhere. Returns what waited; attempts in progress go on."""
        return [transaction for lane in [*self._open.values(), *self._closing] for transaction in self._close(lane)]

    async def ended(self, seconds: float) -> bool:
        """Wait at most `seconds` for the last connection. Returns whether it is gone."""
        return await finished(self._context.clock, [lane.ended() for lane in self._closing], seconds)

    @property
    def busy(self) -> int:
        """Attempts in progress in lanes that are closed."""
        return sum(lane.busy for lane in self._closing)

    def abort(self) -> None:
        """Cut the connections of closed lanes."""
        for lane in list(self._closing):
            lane.abort()

    def _close(self, lane: Lane) -> list[Transaction]:
        waiting = lane.close()
        self._retire(lane)
        return waiting

    def _retire(self, lane: Lane) -> None:
        """A closed lane is known until its last attempt has ended."""
        if self._open.get(lane.destination) is lane:
            del self._open[lane.destination]
        if not lane.empty:
            self._closing.add(lane)

    def _forget(self, lane: Lane) -> None:
        self._closing.discard(lane)
        if self._open.get(lane.destination) is lane:
            del self._open[lane.destination]

    def _room(self, lane: Lane) -> None:
        self.on_room(lane.destination)
