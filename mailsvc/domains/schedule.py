"""When domains are checked: those that are due, after each notification and at least every half minute, a few at a time.

No account gets all places: its slow nameservers delay only its own domains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from twisted.application.service import Service
from twisted.internet.defer import Deferred, TimeoutError
from twisted.logger import Logger

from mailsvc.clock import held
from mailsvc.store.domains.values import Domain
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.notifications import Notifier

CHANNEL = "domains"  # of notifications
POLL = 30.0
AT_ONCE = 20
SHARE = 4  # of them for one account
PATIENCE = 120.0  # seconds for a whole check; what does not end in time is due again when its lease ends


class Checks(Protocol):
    async def due(self, limit: int, share: int, busy: Mapping[UUID, int]) -> Sequence[Domain]: ...


class Care(Protocol):
    async def look_after(self, domain: Domain) -> Domain | None: ...


class Rounds(Service):
    """Runs while the service runs; what a process that dies leaves behind is due again after some minutes."""

    name = "domains"
    log = Logger()

    def __init__(self, checks: Checks, care: Care, notifications: Notifier, clock: Any) -> None:
        self._checks, self._care, self._clock = checks, care, clock
        self._timer: Any = None
        self._looking = False
        self._again = False
        self._more = False  # whether the last look found something, so that another may find more
        self._under_way: Counter[UUID] = Counter()  # checks of each account
        self._stopped: Deferred[None] | None = None
        notifications.listen(CHANNEL, self.wake)

    def startService(self) -> None:
        super().startService()
        self.wake()

    def stopService(self) -> Deferred[None] | None:
        """The checks under way end; those that are due are for others."""
        super().stopService()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._looking or self._under_way.total():
            self._stopped = Deferred()
        return self._stopped

    def wake(self) -> None:
        """Look now, or once more after the look that is under way."""
        if self._looking:
            self._again = True
            return
        if not self.running or self._under_way.total() >= AT_ONCE:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._looking = True
        Deferred.fromCoroutine(self._look()).addErrback(lambda failure: self.log.failure("the look at what is due failed", failure=failure))

    async def _look(self) -> None:
        found: list[Domain] = []
        try:
            if not held(self._clock):
                found = list(await self._checks.due(AT_ONCE - self._under_way.total(), SHARE, dict(self._under_way)))
        except StoreError as error:
            self.log.warn("domains could not be checked, next try in {pause:g} s: {reason}", pause=POLL, reason=str(error))
        finally:
            self._looking = False
            self._under_way.update(domain.account_id for domain in found)
            self._more = bool(found)
        again, self._again = self._again, False
        for domain in found:
            Deferred.fromCoroutine(self._one(domain)).addBoth(self._ended, domain.account_id)
        if self.running and not self._looking and self._timer is None:
            if again or (self._more and self._under_way.total() < AT_ONCE):
                self.wake()
            else:
                self._timer = self._clock.callLater(POLL, self._due)
        self._consider_stopped()

    async def _one(self, domain: Domain) -> None:
        try:
            await Deferred.fromCoroutine(self._care.look_after(domain)).addTimeout(PATIENCE, self._clock)
        except TimeoutError:
            self.log.info("the check of {domain} took longer than {seconds:g} s and was given up", domain=domain.name, seconds=PATIENCE)
        except Exception:
            self.log.failure("the check of {domain} failed", domain=domain.name)

    def _ended(self, _: object, account_id: UUID) -> None:
        """The room of one that ended is for the next."""
        self._under_way[account_id] -= 1
        self._under_way += Counter()  # forgets the accounts that have none
        if self._more:
            self.wake()
        self._consider_stopped()

    def _due(self) -> None:
        self._timer = None
        self.wake()

    def _consider_stopped(self) -> None:
        if self._stopped is not None and not self._looking and not self._under_way.total() and not self._stopped.called:
            self._stopped.callback(None)
