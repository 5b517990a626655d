"""Stores the transcript of each session, after it has ended, for the account that had logged in."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mailsvc.clock import unix
from mailsvc.smtp.server.session import Session
from mailsvc.store.ids import uuid7
from mailsvc.store.logs.smtp_sessions import SmtpSession, SmtpSessions
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.postgres.errors import StoreError

log = Logger()


@attrs.define(eq=False)
class SessionLog:
    store: SmtpSessions
    clock: IReactorTime
    _writes: set[Deferred[None]] = attrs.field(factory=set)

    def add(self, caller: Caller, session: Session) -> None:
        """Store a session that has ended. Never waits and never raises."""
        if session.transcript is None:
            return
        now = unix(self.clock)
        entry = SmtpSession(
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
        write = Deferred.fromCoroutine(self._write(caller.account_id, entry))
        if not write.called:
            self._writes.add(write)
            write.addCallback(lambda _: self._writes.discard(write))

    async def stop(self) -> None:
        """Wait until all sessions are stored."""
        while self._writes:
            done: Deferred[None] = Deferred()
            next(iter(self._writes)).addCallback(done.callback)
            await done

    async def _write(self, account_id: UUID, entry: SmtpSession) -> None:
        try:
            await self.store.add(account_id, entry)
        except StoreError as error:
            log.warn("the log of an SMTP session with {mails} mails could not be stored: {reason}", mails=entry.mails, reason=str(error))
        except Exception:  # otherwise `stop` would wait for it for ever
            log.failure("storing the log of an SMTP session failed")
