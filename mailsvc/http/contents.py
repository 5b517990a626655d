"""The content of a stored email, read back from its message; large ones in a thread, and within the budget of octets in work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol
from uuid import UUID

import attrs

from mailsvc.budget import Budget
from mailsvc.http.problem import unavailable
from mailsvc.http.reading import InThread
from mailsvc.mail import mime
from mailsvc.mail.mime import Parsed
from mailsvc.store.emails import EmailView
from mailsvc.store.messages import StoredMessage

IN_THREAD = 256 * 1024  # octets of a message from which on it is read back in a thread
NOTHING = Parsed((), None, None, ())
GONE = Parsed((), None, None, ())  # its days are over (retention.bodies)


class Messages(Protocol):
    """store/messages"""

    async def load(self, account_id: UUID, email_id: UUID) -> StoredMessage | None: ...


@attrs.define(eq=False)
class Contents:
    messages: Messages
    in_thread: InThread
    budget: Budget

    @asynccontextmanager
    async def of(self, email: EmailView) -> AsyncIterator[Parsed]:
        """Its parts; GONE once the message itself is no longer kept, none when it has more of them than mail has.

        What the dashboard writes to people holds links that sign them in: it is for them alone.
        """
        if email.source == "dashboard":
            yield NOTHING
            return
        octets = 2 * email.size  # the message, and what it comes to
        if not self.budget.reserve(octets):
            raise unavailable()
        try:
            message = await self.messages.load(email.account_id, email.email_id)
            yield GONE if message is None else await self._parsed(message.body)
        finally:
            self.budget.free(octets)

    async def _parsed(self, body: bytes) -> Parsed:
        try:
            return mime.parse(body) if len(body) < IN_THREAD else await self.in_thread(lambda: mime.parse(body))
        except mime.MimeError:
            return NOTHING
