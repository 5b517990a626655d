"""Quotas of accounts. Each process leases a block of the remaining quota from Postgres and uses it without further queries.

A block is a sixteenth of the remaining quota, at most 1,000 recipients, so that blocks shrink towards the end and one process cannot keep
much from the others. Unused blocks are returned after ten seconds, and at shutdown. Nothing is counted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.semaphore import Semaphore
from mailsvc.settings.plans import PERIODS, Exhausted, Plan, begins, ends
from mailsvc.store.people.quota import Period, Quota
from mailsvc.store.postgres.errors import StoreError, Unavailable

BLOCK = 1000  # recipients at most
SHARE = 16  # a block is this fraction of the remaining quota
RETURN_BATCH = 500  # accounts in one statement
FORGET_AFTER = 60.0  # further seconds after which a meter is dropped; nothing can refer to it any more
IDLE = 10.0  # seconds after which unused quota is returned
REFUSAL_CACHED = 1.0  # seconds
PATIENCE = 5.0  # seconds that a request waits for others of its account while the database fails
AHEAD = timedelta(minutes=1)  # more than the clock of another process can be ahead of this one's


@attrs.define(eq=False)
class _Meter:
    """One account in one period. `mine`: unused recipients of this process; `taken`: recipients leased by all processes."""

    account_id: UUID
    period: Period
    starts: date
    most: int
    mine: int = 0
    taken: int | None = None
    asked_at: float = 0.0
    used_at: float = 0.0
    failed_at: float = float("-inf")  # when the database last failed
    lock: Semaphore = attrs.field(factory=lambda: Semaphore(1))

    @property
    def used(self) -> int:
        return (self.taken or 0) - self.mine

    @property
    def too_large(self) -> bool:
        """Whether the block was leased under a higher limit, and the present one may have no room for it."""
        return self.mine > 0 and (self.taken or 0) > self.most

    def lacks(self, count: int, now: float) -> bool:
        """Whether a recent refusal shows that so many are not left."""
        return self.taken is not None and now < self.asked_at + REFUSAL_CACHED and self.most - self.used < count


@attrs.frozen
class Taken:
    """Recipients that were counted, with the meters of the plan's periods."""

    count: int
    meters: tuple[_Meter, ...] = attrs.field(repr=False)


@attrs.frozen
class Used:
    """`used` of `limit` recipients. None: nothing was sent in this period."""

    used: int | None
    limit: int


@attrs.define(eq=False)
class Quotas:
    """`default`: the plan of accounts without one. None, or an unknown plan: no quota."""

    store: Quota
    clock: Any
    plans: Mapping[str, Plan]
    default: str | None = None
    refused: Counter[str] = attrs.field(factory=Counter, init=False)  # submissions since the start, by period
    leases: int = attrs.field(default=0, init=False)
    _meters: dict[tuple[UUID, Period], _Meter] = attrs.field(factory=dict, init=False)

    def plan(self, name: str | None) -> Plan | None:
        return self.plans.get(name or self.default or "")

    @property
    def held(self) -> int:
        """Recipients that this process has leased but not used."""
        return sum(meter.mine for meter in self._meters.values())

    def limits(self, plan: str | None, ramp: int | None = None) -> dict[Period, int]:
        """The limits of a plan. `ramp`: the daily limit of a new account, if it is lower."""
        found = self.plan(plan)
        limits = {} if found is None else found.limits
        if ramp is None or limits.get("day", ramp + 1) <= ramp:
            return limits
        return {**limits, "day": ramp}

    def uncounted(self, former: str | None, plan: str | None, ramp: int | None) -> list[Period]:
        """The periods that `plan` limits and the former plan did not."""
        return [period for period in self.limits(plan, ramp) if period not in self.limits(former, ramp)]

    def contacts(self, plan: str | None) -> int | None:
        """With how many contacts broadcasts can be sent; None: no limit."""
        found = self.plan(plan)
        return None if found is None else found.contacts

    async def take(self, account_id: UUID, plan: str | None, count: int, ramp: int | None = None) -> Taken | Exhausted:
        """Count recipients in each limited period, or in none of them. Raises StoreError if the database cannot be asked."""
        limits, taken = self.limits(plan, ramp), Taken(count, ())
        for period, most in limits.items() if count else ():
            meter = self._meter(account_id, period, most)
            try:
                fits = await self._reserve(meter, count)
            except BaseException:
                self.refund(taken)
                raise
            if not fits:
                self.refund(taken)
                self.refused[period] += 1
                return Exhausted(period, count, min(meter.used, most), most, ends(period, self._now()), period == "day" and most == ramp)
            taken = attrs.evolve(taken, meters=(*taken.meters, meter))
        return taken

    def refund(self, taken: Taken, count: int | None = None) -> None:
        """Return `count` recipients (default: all), which were not sent to after all."""
        for meter in taken.meters:
            meter.mine += taken.count if count is None else count

    def used(self, account_id: UUID) -> dict[Period, int]:
        """The usage known to this process, for response headers."""
        return {meter.period: meter.used for meter in self._current(account_id) if meter.taken is not None}

    async def usage(self, account_id: UUID, plan: str | None, ramp: int | None = None) -> dict[Period, Used]:
        """The usage of each limited period. Unused blocks of other processes count as used."""
        limits, now = self.limits(plan, ramp), self._now()
        if not limits:
            return {}
        taken = await self.store.taken(account_id, begins("day", now), begins("month", now))
        mine = {meter.period: meter.mine for meter in self._current(account_id)}
        used = {period: None if period not in taken else max(0, taken[period] - mine.get(period, 0)) for period in limits}
        return {period: Used(used[period], most) for period, most in limits.items()}

    async def give_back(self, idle: float = IDLE) -> None:
        """Return leases that were unused for `idle` seconds."""
        late = self.clock.seconds() - idle
        left: list[_Meter] = []
        for key, meter in list(self._meters.items()):
            if meter.used_at > late or not meter.lock.tokens:
                continue
            if meter.mine and self._is_current(meter):
                left.append(meter)
            elif meter.used_at <= late - FORGET_AFTER:
                del self._meters[key]
        for start in range(0, len(left), RETURN_BATCH):
            await self._give_back(left[start : start + RETURN_BATCH])

    async def _give_back(self, meters: Sequence[_Meter]) -> None:
        parts = [(meter.account_id, meter.period, meter.starts, meter.mine) for meter in meters]
        for meter in meters:
            meter.taken, meter.mine = max(0, (meter.taken or 0) - meter.mine), 0
        try:
            await self.store.give_back(parts)
        except StoreError as error:
            if not (isinstance(error, Unavailable) and error.unknown):  # else it may have gone back, and is not given out twice
                for meter, (*_, count) in zip(meters, parts, strict=True):
                    meter.mine += count
            raise

    async def _reserve(self, meter: _Meter, count: int) -> bool:
        meter.used_at = self.clock.seconds()
        if meter.mine >= count and not meter.too_large:
            meter.mine -= count
            return True
        began = self.clock.seconds()
        async with meter.lock:
            if meter.failed_at >= began + PATIENCE:  # else each would wait for the time limit of all those before it
                raise Unavailable("The quota could not be read for the requests before.")
            try:
                return await self._reserved(meter, count)
            except StoreError:
                meter.failed_at = self.clock.seconds()
                raise

    async def _reserved(self, meter: _Meter, count: int) -> bool:
        if meter.too_large:
            await self._give_back([meter])
        while meter.mine < count:
            if meter.lacks(count, self.clock.seconds()) or not await self._lease(meter, count - meter.mine):
                return False
        meter.mine -= count  # before the lock is released to the next caller
        return True

    async def _lease(self, meter: _Meter, need: int) -> bool:
        left = meter.most if meter.taken is None else max(0, meter.most - meter.taken)
        wanted = max(need, min(BLOCK, left // SHARE))
        latest = begins(meter.period, self._now() + AHEAD)
        granted, meter.taken = await self.store.lease(meter.account_id, meter.period, meter.starts, meter.most, need, wanted, latest)
        meter.asked_at, meter.used_at = (self.clock.seconds(),) * 2
        meter.mine += granted
        self.leases += 1
        return granted > 0

    def _meter(self, account_id: UUID, period: Period, most: int) -> _Meter:
        starts, meter = begins(period, self._now()), self._meters.get((account_id, period))
        if meter is None or meter.starts != starts:
            meter = self._meters[account_id, period] = _Meter(account_id, period, starts, most)
        meter.most = most
        return meter

    def _current(self, account_id: UUID) -> list[_Meter]:
        found = [self._meters[account_id, period] for period in PERIODS if (account_id, period) in self._meters]
        return [meter for meter in found if self._is_current(meter)]

    def _is_current(self, meter: _Meter) -> bool:
        return meter.starts == begins(meter.period, self._now())

    def _now(self) -> datetime:
        return utc(self.clock)
