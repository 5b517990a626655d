"""The content of a stored email, parsed from its message. Large messages wait for memory and are parsed in a thread."""

from __future__ import annotations

import attrs

from mailsvc.http.problem import unavailable
from mailsvc.http.request import Request
from mailsvc.mail import mime
from mailsvc.mail.mime import Parsed
from mailsvc.runtime.offload import InThread
from mailsvc.store.mail.emails import EmailView
from mailsvc.store.mail.messages import Messages

COPIES = 3  # of a message that are in memory while it is parsed and sent
IN_THREAD = 256 * 1024  # bytes; larger messages are parsed in a thread
NOTHING = Parsed((), None, None, ())
GONE = Parsed((), None, None, ())  # deleted by the setting retention.bodies


@attrs.define(eq=False)
class Contents:
    messages: Messages
    in_thread: InThread

    async def of(self, request: Request, email: EmailView) -> Parsed:
        """The parts of the message. GONE if it has been deleted, NOTHING if it cannot be shown.

        The memory is held until the response is written. Emails from the dashboard are not shown, because their links sign people in.
        """
        if email.source == "dashboard":
            return NOTHING

        async def reserve(size: int) -> None:
            if size >= IN_THREAD and not await request.turn(COPIES * size):
                raise unavailable()

        await reserve(email.size)  # of a broadcast's email, it is known when it is composed
        message = await self.messages.load(email.account_id, email.email_id, before_rest=reserve)
        return GONE if message is None else await self._parsed(message.body)

    async def _parsed(self, body: bytes) -> Parsed:
        try:
            return mime.parse(body) if len(body) < IN_THREAD else await self.in_thread(lambda: mime.parse(body))
        except mime.MimeError:
            return NOTHING
