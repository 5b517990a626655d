"""Memory and disk budgets of this process: how much the requests and mails in progress may use, and what share each client gets.

Four budgets keep four kinds of clients apart, so that none of them can take what another needs: API calls with a key, authenticated
SMTP, HTTP without a key, and unauthenticated SMTP on port 25. Nothing is reserved for what a client announces: a budget is charged with
what has arrived. A small body waits in memory, a large one on disk. Only a request that has arrived completely gets memory to work on it,
and only once its turn has come, so a slow client holds no more than its small part.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

TURN_SECONDS = 30.0  # for which a complete request waits for memory before it is refused
TURNS_PER_OWNER = 50  # that may wait


@attrs.define(eq=False)
class Pool:
    """At most `limit` bytes. An owner (an account or an address) may hold as much as remains free for everybody else.

    A single owner therefore gets half, n greedy owners get 1/(n + 1) each, and a newcomer always finds room.
    """

    limit: int
    used: int = 0
    refused: int = 0  # requests for more since the start
    _held: dict[Hashable, int] = attrs.field(factory=dict)

    def fits(self, owner: Hashable, size: int) -> bool:
        """Whether `take` would succeed now."""
        return self._held.get(owner, 0) + size <= self.limit - self.used - size

    def take(self, owner: Hashable, size: int) -> bool:
        if size <= 0:
            return True
        if not self.fits(owner, size):
            self.refused += 1
            return False
        self.used += size
        self._held[owner] = self._held.get(owner, 0) + size
        return True

    def give(self, owner: Hashable, size: int) -> None:
        if size <= 0:
            return
        self.used -= size
        left = self._held[owner] - size
        if left:
            self._held[owner] = left
        else:
            del self._held[owner]

    @property
    def owners(self) -> int:
        return len(self._held)


@attrs.define(eq=False)
class _Waiting:
    owner: Hashable
    size: int
    granted: Deferred[bool]
    deadline: IDelayedCall | None = None


@attrs.define(eq=False)
class Turns:
    """Memory to work on complete requests: at most `limit` bytes, or one larger request alone. The others wait, owners take turns.

    Never held while a client is waited for, so a turn always ends.
    """

    limit: int
    clock: IReactorTime
    seconds: float = TURN_SECONDS
    used: int = 0
    refused: int = 0
    _queues: OrderedDict[Hashable, deque[_Waiting]] = attrs.field(factory=OrderedDict)
    _granting: bool = False

    async def take(self, owner: Hashable, size: int) -> bool:
        """True once `size` bytes are taken; False when too many wait already or the wait took too long."""
        if not self._queues and self._fits(size):
            self.used += size
            return True
        queue = self._queues.setdefault(owner, deque())
        if len(queue) >= TURNS_PER_OWNER:
            self.refused += 1
            return False
        waiting = _Waiting(owner, size, Deferred())
        waiting.deadline = self.clock.callLater(self.seconds, self._expire, waiting)
        queue.append(waiting)
        try:
            return await waiting.granted
        except CancelledError:
            waiting.deadline.cancel()
            self._remove(waiting)
            self._grant()  # those behind it may need less
            raise

    def give(self, size: int) -> None:
        self.used -= size
        self._grant()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self.limit

    def _grant(self) -> None:
        """Whoever is next gets the turn before anybody who came later, however little those need."""
        if self._granting:  # called again by one that is done already; the loop below continues
            return
        self._granting = True
        try:
            self._grant_next()
        finally:
            self._granting = False

    def _grant_next(self) -> None:
        while self._queues:
            owner, queue = next(iter(self._queues.items()))
            if not self._fits(queue[0].size):
                return
            waiting = queue.popleft()
            if queue:
                self._queues.move_to_end(owner)
            else:
                del self._queues[owner]
            self.used += waiting.size
            assert waiting.deadline is not None
            waiting.deadline.cancel()
            waiting.granted.callback(True)

    def _expire(self, waiting: _Waiting) -> None:
        self._remove(waiting)
        self.refused += 1
        waiting.granted.callback(False)
        self._grant()

    def _remove(self, waiting: _Waiting) -> None:
        queue = self._queues[waiting.owner]
        queue.remove(waiting)
        if not queue:
            del self._queues[waiting.owner]


@attrs.frozen(eq=False)
class Budget:
    """What one kind of client may use."""

    memory: Pool  # small bodies, and the first part of large ones
    disk: Pool  # large bodies in temporary files, arriving and leaving
    work: Turns  # memory for working on large ones


@attrs.define(eq=False)
class Hold:
    """What one request or mail uses of a budget. `close` returns all of it, however it ended."""

    budget: Budget
    owner: Hashable
    _body: int = 0  # of the memory: what has arrived of the body
    _memory: int = 0
    _disk: int = 0
    _work: int = 0
    _closed: bool = False

    def room(self, size: int, in_memory: int) -> bool:
        """Whether a body of `size` bytes would fit now. Takes nothing."""
        return self.budget.memory.fits(self.owner, size) if size <= in_memory else self.budget.disk.fits(self.owner, size)

    def arrived(self, size: int, in_memory: int) -> bool:
        """`size` bytes of the body are here: in memory up to `in_memory`, all of them on disk above it."""
        if size <= in_memory:
            more = size - self._body
            if more <= 0:
                return not self._closed
            if not self.memory(more):
                return False
            self._body = size
            return True
        if size > self._disk and not self.disk(size - self._disk):
            return False
        self._give_memory(self._body)
        self._body = 0
        return True

    def memory(self, size: int) -> bool:
        """Take `size` more bytes of memory."""
        if self._closed or not self.budget.memory.take(self.owner, size):
            return False
        self._memory += size
        return True

    def disk(self, size: int) -> bool:
        """Take `size` more bytes of disk."""
        if self._closed or not self.budget.disk.take(self.owner, size):
            return False
        self._disk += size
        return True

    async def work(self, size: int) -> bool:
        """Wait for the turn to work with `size` bytes of memory. Only one turn each: waiting for a second could block everybody."""
        if self._work:
            return True
        if self._closed or not await self.budget.work.take(self.owner, size):
            return False
        if self._closed or self._work:  # meanwhile: the request ended, or another part of it got the turn
            self.budget.work.give(size)
            return not self._closed
        self._work = size
        return True

    def pause(self, size: int) -> bool:
        """Return the turn before waiting for somebody else's server, and keep `size` bytes of memory instead; whether there is room."""
        if not self._work:
            return True
        if not self.memory(size):
            return False
        work, self._work = self._work, 0
        self.budget.work.give(work)
        return True

    @property
    def in_memory(self) -> int:
        return self._memory

    def worked(self) -> None:
        """The work is done and the body no longer needed: return everything; `disk` may be taken again for the response."""
        self._give_memory(self._memory)
        self._body = 0
        work, self._work = self._work, 0
        if work:
            self.budget.work.give(work)
        disk, self._disk = self._disk, 0
        self.budget.disk.give(self.owner, disk)

    def close(self) -> None:
        self._closed = True
        self.worked()

    def _give_memory(self, size: int) -> None:
        self._memory -= size
        self.budget.memory.give(self.owner, size)


# The parts of `http.in_flight` and of `http.spool` that each kind of client may use. The memory parts add up to 1.
_MEMORY = {"api": 3 / 8, "submission": 1 / 8, "pages": 1 / 16, "inbound": 1 / 16}
_WORK = {"customers": 1 / 4, "others": 1 / 8}
_DISK = {"api": 1 / 2, "submission": 1 / 4, "pages": 1 / 8, "inbound": 1 / 8}


@attrs.frozen(eq=False)
class Budgets:
    """All budgets of a process."""

    api: Budget  # HTTP requests with a key; by account
    submission: Budget  # authenticated SMTP; by account
    pages: Budget  # HTTP requests without a key: the dashboard, download links; by address
    inbound: Budget  # unauthenticated SMTP; by address

    @classmethod
    def of(cls, memory: int, disk: int, clock: IReactorTime) -> Budgets:
        turns = {name: Turns(int(memory * part), clock) for name, part in _WORK.items()}
        works = {"api": "customers", "submission": "customers", "pages": "others", "inbound": "others"}
        return cls(**{n: Budget(Pool(int(memory * _MEMORY[n])), Pool(int(disk * _DISK[n])), turns[works[n]]) for n in works})

    def pools(self) -> Iterator[tuple[tuple[str, str], Pool | Turns]]:
        """Each of them once, by kind of client and resource."""
        for name in ("api", "submission", "pages", "inbound"):
            budget: Budget = getattr(self, name)
            yield (name, "memory"), budget.memory
            yield (name, "disk"), budget.disk
        yield ("customers", "work"), self.api.work
        yield ("others", "work"), self.pages.work

    @property
    def used(self) -> int:
        """Bytes in all of them; 0 when nothing is in progress."""
        return sum(pool.used for _, pool in self.pools())
