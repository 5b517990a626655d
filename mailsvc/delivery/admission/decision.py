"""The one decision about what may go next: an email into a lane, another connection, the next email over a connection. Pure.

Callers pass what they know now and get a `Decision`. Where the facts come from: slots, budget, health, holds and memory.
"""

from __future__ import annotations

from typing import Literal

import attrs

from mailsvc.delivery.limits import DeliveryLimits

_PER_CONNECTION = 50  # emails in memory for each connection that a destination may have
_UNPROVEN_WINDOW = 10  # emails in memory for a destination that has not proven itself
_FEW, _MANY = 10, 200  # rows of one destination in a claim: to try a destination that has no lane; at most

Reason = Literal[
    "admitted",
    "stopping",  # this process, or this lane
    "no heartbeat",
    "held",
    "backlog",  # mail in the queue goes first
    "lane full",
    "memory full",
    "process full",
    "nothing waits",
    "destination fails",
    "destination limit",
    "connection refused",  # lately, while others were open
    "provider limit",
    "provider rate",
    "no slot",
    "connection closed",
    "connection used up",
    "others wait",
]


@attrs.frozen
class Decision:
    """`wait`: seconds until it is worth asking again. None: until something changes, which nobody can tell in advance."""

    admitted: bool
    reason: Reason
    wait: float | None = None

    @property
    def full(self) -> bool:
        """Whether there was no room, so that the mail has to be claimed from the queue later."""
        return self.reason in _FULL


_FULL = ("lane full", "memory full", "process full")
ADMITTED = Decision(True, "admitted", 0.0)
_STOPPING = Decision(False, "stopping")
_NO_HEARTBEAT = Decision(False, "no heartbeat")
_HELD = Decision(False, "held")
_BACKLOG = Decision(False, "backlog")
_LANE_FULL = Decision(False, "lane full")
_MEMORY_FULL = Decision(False, "memory full")
_PROCESS_FULL = Decision(False, "process full")
_NOTHING_WAITS = Decision(False, "nothing waits")
_DESTINATION_FAILS = Decision(False, "destination fails")
_DESTINATION_LIMIT = Decision(False, "destination limit")
_PROVIDER_LIMIT = Decision(False, "provider limit")
_NO_SLOT = Decision(False, "no slot")
_CLOSED = Decision(False, "connection closed")
_USED_UP = Decision(False, "connection used up")
_OTHERS_WAIT = Decision(False, "others wait")
_ONE_REFUSED = Decision(False, "connection refused")


@attrs.define
class EmailFacts:
    """About a new email. `room` and `window` are the lane's, `emails` are those of all destinations in memory."""

    accepting: bool = True
    heartbeat: bool = True
    held: bool = False
    backlog: bool = False
    bulk: bool = False
    size: int = 0
    room: int = 1
    window: int = 1
    memory_left: int = 0
    emails: int = 0


@attrs.define
class LaneFacts:
    """About a lane and what it shares.

    `waiting`: mail without a connection, of which `transactional` says whether some is transactional. `workers` have a connection or
    are `dialing`. `allowed`: connections by the destination's health. `refused`: a further connection was refused lately; one may be
    tried in `retry_in` seconds. `provider_open` of `provider_limit` connections are open; the next may be opened in `open_wait`
    seconds. `slots_left`: connections that this process can still open. `slot_wanted`: transactional mail of another lane waits for one.
    """

    closing: bool = False
    failing: bool = False
    waiting: int = 0
    transactional: bool = False
    workers: int = 0
    dialing: int = 0
    allowed: int = 1
    refused: bool = False
    retry_in: float = 0.0
    provider_open: int = 0
    provider_limit: int | None = None
    open_wait: float = 0.0
    slots_left: int = 1
    slot_wanted: bool = False


@attrs.frozen
class Admission:
    """`window`: emails of one destination in memory. `emails`: of all destinations. `per_connection`: emails over one connection."""

    window_limit: int
    emails: int
    per_connection: int

    @classmethod
    def of(cls, limits: DeliveryLimits) -> Admission:
        return cls(limits.window, limits.emails, limits.messages_per_connection)

    # Mail

    def window(self, allowed: int, proven: bool) -> int:
        """Emails of a destination in memory: as many as its connections can use, few until it has proven itself."""
        return min(self.window_limit, _PER_CONNECTION * allowed if proven else _UNPROVEN_WINDOW)

    def reserve(self, facts: EmailFacts) -> Decision:
        """May a new email be sent at once by this process?"""
        if not facts.accepting:
            return _STOPPING
        if not facts.heartbeat:
            return _NO_HEARTBEAT
        if facts.held:
            return _HELD
        if facts.backlog:
            return _BACKLOG
        # Bulk mail leaves half of the window to transactional mail.
        if facts.room - (facts.window // 2 if facts.bulk else 0) < 1:
            return _LANE_FULL
        if facts.size > facts.memory_left:
            return _MEMORY_FULL
        return ADMITTED if facts.emails < self.emails else _PROCESS_FULL

    def place(self, *, accepting: bool, held: bool, room: int, window: int, waiting: int) -> Decision:
        """May claimed mail wait in its lane? Twice the window may, because it was claimed before the lane was known."""
        if not accepting:
            return _STOPPING
        if held:
            return _HELD
        return _LANE_FULL if room < 1 and waiting >= 2 * window else ADMITTED

    def rows(self, *, room: int | None, moves: bool, emails: int) -> int:
        """How many rows of a destination to claim. `room`: of its lane, if it has one. `moves`: they only move to another destination."""
        limit = (_MANY if moves else _FEW) if room is None else min(room, _MANY)
        return max(0, min(limit, self.emails - emails))

    # Connections

    def need(self, closing: bool, failing: bool, waiting: int, dialing: int, workers: int, allowed: int) -> Decision:
        """Has a lane use for another connection? `connect` asks this too; hot paths ask it first, because it needs few facts."""
        if closing:
            return _STOPPING
        if failing:
            return _DESTINATION_FAILS
        if waiting <= dialing:
            return _NOTHING_WAITS
        return ADMITTED if workers < allowed else _DESTINATION_LIMIT

    def connect(self, facts: LaneFacts) -> Decision:
        """May a lane open another connection?"""
        need = self.need(facts.closing, facts.failing, facts.waiting, facts.dialing, facts.workers, facts.allowed)
        if not need.admitted:
            return need
        if facts.workers and facts.refused and (facts.dialing or facts.retry_in > 0):
            return _ONE_REFUSED if facts.dialing else Decision(False, "connection refused", facts.retry_in)
        if facts.provider_limit is not None and facts.provider_open >= facts.provider_limit:
            return _PROVIDER_LIMIT
        if facts.open_wait > 0:
            return Decision(False, "provider rate", facts.open_wait)
        return ADMITTED if facts.slots_left > 0 else _NO_SLOT

    def keep(self, facts: LaneFacts, usable: bool, sent: int, provider_most: int | None, source_most: int | None = None) -> Decision:
        """May a connection that has sent `sent` emails take another one? Its provider and its source may limit how many."""
        if not usable:
            return _CLOSED
        if sent >= self.per_connection or (provider_most is not None and sent >= provider_most):
            return _USED_UP
        if source_most is not None and sent >= source_most:
            return _USED_UP
        return self._still_allowed(facts)

    def replace(self, facts: LaneFacts) -> Decision:
        """May a worker open a new connection in place of one that it gave up?"""
        if facts.closing:
            return _STOPPING
        if not facts.waiting:
            return _NOTHING_WAITS
        decision = self._still_allowed(facts)
        if decision.admitted and facts.open_wait > 0:
            return Decision(False, "provider rate", facts.open_wait)
        return decision

    def send(self, rate: float | None, next_at: float, now: float) -> Decision:
        """May the next email go over a connection? `rate`: emails a second that the provider takes, the next one at `next_at`."""
        return ADMITTED if rate is None or next_at <= now else Decision(False, "provider rate", next_at - now)

    def _still_allowed(self, facts: LaneFacts) -> Decision:
        """Limits may have become lower than what is open: another process shares them, or an attempt failed."""
        if facts.provider_limit is not None and facts.provider_open > facts.provider_limit:
            return _PROVIDER_LIMIT
        if facts.workers > facts.allowed:
            return _DESTINATION_LIMIT
        return _OTHERS_WAIT if facts.slot_wanted and not facts.transactional else ADMITTED
