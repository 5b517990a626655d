"""Periodically deletes data that is too old: emails, logs, TLS results, reports, browser sessions, sent delivery notifications.

How long each kind is kept: settings/retention. The SQL, and what is exempt: store/logs/retention.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.clock import held, utc
from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import every
from mailsvc.settings import retention
from mailsvc.store.broadcasts.retention import BroadcastRetention
from mailsvc.store.console.operators import sweep_sessions
from mailsvc.store.domains.reports import Reports
from mailsvc.store.in_turn import in_turn
from mailsvc.store.logs.retention import Retention as Stored
from mailsvc.store.mail.dsn_requests import Notices
from mailsvc.store.people.sessions import Sessions
from mailsvc.store.people.shared_tests import SharedTests
from mailsvc.store.people.sign_in_attempts import SignInAttempts
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.tls import TlsRecords

EVERY = 600.0  # seconds

log = Logger()


@attrs.define(eq=False)
class RetentionSweep:
    """Several processes can run this; only one works at a time."""

    pool: Pool
    clock: Any
    days: retention.Retention
    idle: timedelta = timedelta(hours=24)  # of sessions

    def start(self, opened: Opened) -> None:
        opened.add("the retention sweep", every(self.clock, EVERY, "deleting old data", self.sweep))

    async def sweep(self) -> None:
        """Run all sweeps, even if some fail. Does nothing while the clock cannot be trusted."""
        if held(self.clock):
            return
        rounds: Sequence[Callable[[datetime], Awaitable[object]]] = (
            self._partitions, self._accounts, self._broadcasts, self._tls, self._reports, self._sessions, self._notices,
        )  # fmt: skip
        await in_turn([partial(one, utc(self.clock)) for one in rounds], ends=())

    async def _partitions(self, now: datetime) -> None:
        gone = await Stored(self.pool).sweep(retention.days(self.days), now)
        if gone:
            log.info("dropped old partitions: {partitions}", partitions=", ".join(gone))

    async def _broadcasts(self, now: datetime) -> None:
        await BroadcastRetention(self.pool).sweep(now - timedelta(days=self.days.emails))

    async def _accounts(self, now: datetime) -> None:
        stored, everybody = Stored(self.pool), retention.days(self.days)

        async def sweep(account_id: UUID, wanted: Mapping[str, int]) -> None:
            own = retention.days(self.days, wanted)
            shorter = {kind: number for kind, number in own.items() if number < everybody[kind]}
            count = await stored.sweep_account(account_id, shorter, now)
            if count:
                log.info("deleted {count} old rows of account {account_id}", count=count, account_id=str(account_id))

        await in_turn([partial(sweep, *each) for each in (await stored.accounts()).items()])

    async def _tls(self, now: datetime) -> None:
        await TlsRecords(self.pool).sweep(now, timedelta(days=self.days.tls))

    async def _reports(self, now: datetime) -> None:
        await Reports(self.pool).sweep((now - timedelta(days=self.days.reports)).date())

    async def _sessions(self, now: datetime) -> None:
        await Sessions(self.pool, self.clock, self.idle).sweep()
        await sweep_sessions(self.pool, now)
        await SignInAttempts(self.pool, self.clock).sweep()
        await SharedTests(self.pool, self.clock).sweep()

    async def _notices(self, now: datetime) -> None:
        await Notices(self.pool).sweep(now)
