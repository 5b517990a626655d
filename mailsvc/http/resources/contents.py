"""The content of a stored email, read back from its message; large ones in a thread, and when there is memory for them."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

import attrs

from mailsvc.http.problem import unavailable
from mailsvc.http.reading import InThread
from mailsvc.http.request import Request
from mailsvc.mail import mime
from mailsvc.mail.mime import Parsed
from mailsvc.store.mail.emails import EmailView
from mailsvc.store.mail.messages import StoredMessage

COPIES = 3  # of a message that are in memory while it is read and answered
IN_THREAD = 256 * 1024  # octets of a message from which on it is read back in a thread
NOTHING = Parsed((), None, None, ())
GONE = Parsed((), None, None, ())  # its days are over (retention.bodies)


class Messages(Protocol):
    """store/mail/messages"""

    async def load(self, account_id: UUID, email_id: UUID) -> StoredMessage | None: ...


@attrs.define(eq=False)
class Contents:
    messages: Messages
    in_thread: InThread

    async def of(self, request: Request, email: EmailView) -> Parsed:
        """Its parts; GONE once the message itself is no longer kept, none when it has more of them than mail has.

        The memory belongs to the request until its response is written. What the dashboard writes to people holds links that sign them
        in: it is for them alone.
        """
        if email.source == "dashboard":
            return NOTHING
        if email.size >= IN_THREAD and not await request.turn(COPIES * email.size):
            raise unavailable()
        message = await self.messages.load(email.account_id, email.email_id)
        return GONE if message is None else await self._parsed(message.body)

    async def _parsed(self, body: bytes) -> Parsed:
        try:
            return mime.parse(body) if len(body) < IN_THREAD else await self.in_thread(lambda: mime.parse(body))
        except mime.MimeError:
            return NOTHING
