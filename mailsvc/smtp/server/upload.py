"""A message body on its way into its sink. A faulty one is read to its end and then refused. How it arrives: body."""

from __future__ import annotations

from collections.abc import Awaitable

import attrs
from twisted.logger import Logger

from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.framing import CRLF, Inspection
from mailsvc.smtp.server.replies import Refused
from mailsvc.smtp.server.session import Sink

log = Logger()


@attrs.define(eq=False)
class Upload:
    """Discards its sink as soon as the body cannot be accepted."""

    sink: Sink
    inspection: Inspection
    until: float  # when all of it must have arrived
    failure: Reply | None = None  # of the sink
    _done: bool = False

    def write(self, piece: bytes) -> Awaitable[None] | None:
        """Write a piece that the inspection has seen. Await the result, if any, before the next piece."""
        if self._done or not piece:
            return None
        if self.inspection.fault is not None:
            self.discard()
            return None
        try:
            written = self.sink.write(piece)
        except Exception as error:
            self._fail(error)
            return None
        return None if written is None else self._written(written)

    async def _written(self, written: Awaitable[None]) -> None:
        try:
            await written
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = _reply_to(error)
        self.discard()

    def discard(self) -> None:
        if not self._done:
            self._done = True
            self.sink.discard()

    @property
    def refusal(self) -> Reply | None:
        """Why the body is refused, as far as it was read; None: no reason so far."""
        fault = self.inspection.fault
        return replies.FAULTS[fault] if fault is not None else self.failure

    async def finish(self) -> Reply:
        """The reply to the whole body."""
        fault, written = self.inspection.end(), None
        if fault is None and not self.inspection.complete:
            written = self.write(CRLF)  # BDAT may leave out the last line end, but DATA could not send the message on without it
        if written is not None:
            await written
        refusal = self.refusal
        if refusal is not None:
            self.discard()
            return refusal
        self._done = True
        try:
            return await self.sink.finish()
        except Exception as error:
            return _reply_to(error)


def _reply_to(error: Exception) -> Reply:
    if isinstance(error, Refused):
        return error.reply
    log.failure("storing a message body failed")
    return replies.INTERNAL
