"""Writes down what was said in a session, once it is over and for the account that logged in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.clock import unix
from mailsvc.smtp.server.session import Session
from mailsvc.store.ids import uuid7
from mailsvc.store.logs.smtp_sessions import SmtpSession
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.postgres.errors import StoreError

log = Logger()


class Store(Protocol):
    """store/logs/smtp_sessions"""

    async def add(self, account_id: UUID, receipt: SmtpSession) -> None: ...


class Clock(Protocol):
    def seconds(self) -> float: ...


@attrs.define(eq=False)
class SessionLog:
    store: Store
    clock: Clock
    _under_way: set[Deferred[None]] = attrs.field(factory=set)

    def keep(self, caller: Caller, session: Session) -> None:
        """A session is over. Never waits and never fails."""
        if session.transcript is None:
            return
        now = unix(self.clock)
        receipt = SmtpSession(
            receipt_id=uuid7(now),
            key_id=caller.key_id,
            opened_at=datetime.fromtimestamp(session.opened, UTC),
            closed_at=datetime.fromtimestamp(now, UTC),
            port=session.peer.local_port,
            tls=" ".join((session.tls or {}).values()),
            mails=session.mails,
            refusals=session.transcript.refusals,
            transcript=str(session.transcript),
        )
        writing = Deferred.fromCoroutine(self._write(caller.account_id, receipt))
        if not writing.called:
            self._under_way.add(writing)
            writing.addCallback(lambda _: self._under_way.discard(writing))

    async def stop(self) -> None:
        """All that was said is written down, or lost with a line in the log."""
        while self._under_way:
            done: Deferred[None] = Deferred()
            next(iter(self._under_way)).addCallback(done.callback)
            await done

    async def _write(self, account_id: UUID, receipt: SmtpSession) -> None:
        try:
            await self.store.add(account_id, receipt)
        except StoreError as error:
            log.warn("a receipt of {mails} mails could not be kept: {reason}", mails=receipt.mails, reason=str(error))
