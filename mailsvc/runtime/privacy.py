"""Runs erasures in a process: opens the journal, repeats erasures after a restore, and continues them in the background."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from mailsvc.clock import held, utc
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import EXPECTED, PollingLoop
from mailsvc.settings.privacy import Privacy
from mailsvc.store.account_data.closing import Closing
from mailsvc.store.account_data.deletion import sweep
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.in_turn import in_turn
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy.eraser import Eraser
from mailsvc.store.privacy.erasures import the_account
from mailsvc.store.privacy.journal import Journal, JournalError, Recorded, apply

EVERY = 5.0  # seconds
RETRY = timedelta(minutes=15)  # for one that waits for mail in delivery: each try reads everything
LATE = timedelta(days=1)  # by then, all requests and SMTP sessions that began before an account's deletion have ended

log = Logger()


def open_eraser(pool: Pool, reactor: Any, encryption: Encryption, settings: Privacy, bodies: BodyKeys | None = None) -> Recorded:
    journal = None if settings.journal is None else Journal(settings.journal, encryption, settings.backup_days)
    return Recorded(Eraser(pool, reactor, encryption, partial(_in_thread, reactor), bodies=bodies), journal)


async def erase_again(erasing: Recorded, *, restored: bool) -> None:
    """Apply the journal to this database. Raises JournalError if it cannot be read."""
    if erasing.journal is not None:
        await apply(erasing.eraser, erasing.journal, restored=restored)


@attrs.define(eq=False)
class ErasureService:
    """Continues erasures that were requested over the API, interrupted, or are waiting for mail in delivery. Deletes closed accounts.

    `at_once`: how many it reads. Those that wait leave their place to others until they are tried again.
    """

    clock: Any
    erasing: Recorded
    at_once: int = 100
    _tried: dict[UUID, datetime] = attrs.field(factory=dict, init=False)
    _swept: datetime | None = attrs.field(default=None, init=False)

    def start(self, opened: Opened) -> None:
        loop = PollingLoop(self.clock, "erasing personal data", self.continue_all, EVERY, expected=(*EXPECTED, JournalError))
        loop.start(at_once=False)

        async def stop() -> None:
            self.erasing.eraser.stopped = True
            await loop.stop()

        opened.add("erasures", stop)

    async def continue_all(self) -> None:
        """Does nothing while the clock cannot be trusted."""
        if held(self.clock):
            return
        now = utc(self.clock)
        await in_turn([self._begin_due, partial(self._continue, now), partial(self._expire, now), partial(self._sweep, now)])

    async def _begin_due(self) -> None:
        due = await Closing(self.erasing.eraser.pool, self.clock).due()
        await in_turn([partial(self.erasing.begin, account_id, the_account(account_id), False, "service") for account_id in due])

    async def _continue(self, now: datetime) -> None:
        eraser = self.erasing.eraser
        self._tried = {id_: at for id_, at in self._tried.items() if now - at < RETRY}
        for erasure, email in await eraser.erasures.unfinished(self._tried, self.at_once):
            if not eraser.stopped:
                self._tried[erasure.id] = now
                if email is not None and (await eraser.run(erasure, email)).finished_at is not None:
                    self._tried.pop(erasure.id)
                    log.info("Erasure {id} is finished.", id=str(erasure.id))

    async def _expire(self, now: datetime) -> None:
        journal = self.erasing.journal
        if journal is not None and (gone := await self.erasing.eraser.in_thread(partial(journal.expire, now))):
            log.info("{count} entries of the erasure journal expired.", count=gone)

    async def _sweep(self, now: datetime) -> None:
        if self._swept is None or now - self._swept >= RETRY:
            self._swept = now
            await in_turn([partial(self._sweep_one, each) for each in await self.erasing.eraser.erasures.deleted(now - LATE)])

    async def _sweep_one(self, account_id: UUID) -> None:
        if count := await sweep(self.erasing.eraser.pool, account_id):
            log.info("{count} rows that came after the deletion of {account} were deleted.", count=count, account=str(account_id))


async def _in_thread(reactor: Any, call: Callable[..., Any], *given: Any) -> Any:
    return await deferToThreadPool(reactor, reactor.getThreadPool(), call, *given)
