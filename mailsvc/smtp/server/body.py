"""How a body comes in: DATA (5321 §4.1.1.4) and BDAT (3030 §2). A faulty one is read to its end, then refused."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.framing import CRLF, Chunk, Dotted, Inspection
from mailsvc.smtp.server.replies import Hangup, Refused
from mailsvc.smtp.server.session import Sink
from mailsvc.smtp.server.transport import Late

if TYPE_CHECKING:
    from mailsvc.smtp.server.conversation import Conversation

log = Logger()

_CHUNK = re.compile(rb"(\d{1,20})( +LAST)?", re.IGNORECASE)
_PATIENCE = 4  # how many times the size limit is read before a sender is cut off


@attrs.define(eq=False)
class Upload:
    """A body on its way into its sink, which is dropped as soon as the body cannot be accepted."""

    sink: Sink
    inspection: Inspection
    until: float  # by when all of it has to be here
    failure: Reply | None = None  # the sink's own
    _done: bool = False

    def write(self, piece: bytes) -> Awaitable[None] | None:
        """A piece that the inspection has seen. What it gives is to be awaited before the next."""
        if self._done or not piece:
            return None
        if self.inspection.fault is not None:
            self.drop()
            return None
        try:
            kept = self.sink.write(piece)
        except Exception as error:
            self._fail(error)
            return None
        return None if kept is None else self._kept(kept)

    async def _kept(self, kept: Awaitable[None]) -> None:
        try:
            await kept
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = _failed(error)
        self.drop()

    def drop(self) -> None:
        if not self._done:
            self._done = True
            self.sink.drop()

    @property
    def refusal(self) -> Reply | None:
        """What is wrong so far."""
        fault = self.inspection.fault
        return replies.FAULTS[fault] if fault is not None else self.failure

    async def finish(self) -> Reply:
        """The reply to the whole body."""
        fault, kept = self.inspection.end(), None
        if fault is None and not self.inspection.complete:
            kept = self.write(CRLF)  # a body that came in chunks may lack its last line end, DATA cannot carry it without
        if kept is not None:
            await kept
        refusal = self.refusal
        if refusal is not None:
            self.drop()
            return refusal
        self._done = True
        try:
            return await self.sink.finish()
        except Exception as error:
            return _failed(error)


def _failed(error: Exception) -> Reply:
    if isinstance(error, Refused):
        return error.reply
    log.failure("a body could not be kept")
    return replies.INTERNAL


async def data(talk: Conversation, argument: bytes) -> Reply:
    if argument:
        return replies.NO_ARGUMENT
    refusal = _not_ready(talk)
    if refusal is not None:
        return refusal
    if talk.upload is not None:
        return replies.CHUNKS_BEGUN
    upload = await _open(talk)
    talk.wire.send(replies.GO_AHEAD)
    body, pace = Dotted(upload.inspection), _Pace(talk, upload.until)
    while body.rest is None:
        await pace.wait()
        if (kept := upload.write(body.feed(pace.take()))) is not None:
            await kept
        if upload.inspection.size > _PATIENCE * talk.listener.limits.size:
            raise Hangup(replies.TOO_BIG)
    talk.wire.inbox.give_back(body.rest)
    return await _close(talk, upload)


async def bdat(talk: Conversation, argument: bytes, refusal: Reply | None) -> Reply:
    """`refusal`: why the command is out of order. Its octets are swallowed all the same (3030 §2)."""
    found = _CHUNK.fullmatch(argument)
    if found is None:  # nobody knows how much follows
        raise Hangup(replies.bad_argument("A size belongs here, and perhaps LAST"))
    chunk = Chunk(int(found[1]))
    if chunk.left > _PATIENCE * talk.listener.limits.size:
        raise Hangup(replies.TOO_BIG)
    upload = talk.upload
    try:
        refusal = refusal or _not_ready(talk)
        if refusal is None and upload is None:
            upload = await _open(talk)
    except Refused as refused:
        refusal = refused.reply
    pace = _Pace(talk, math.inf if upload is None else upload.until)
    while chunk.left:
        await pace.wait()
        piece = chunk.take(talk.wire.inbox)
        if refusal is None and upload is not None:
            upload.inspection.look(piece)
            if (kept := upload.write(piece)) is not None:
                await kept
    if refusal is not None or upload is None:
        return refusal or replies.MAIL_FIRST
    if upload.refusal is not None:
        talk.reset()
        return upload.refusal
    return await _close(talk, upload) if found[2] else replies.CHUNK_OK


def _not_ready(talk: Conversation) -> Reply | None:
    if talk.envelope is None:
        return replies.MAIL_FIRST
    if talk.envelope.recipients:
        return None
    return replies.NO_RECIPIENTS if talk.refused else replies.RCPT_FIRST


async def _open(talk: Conversation) -> Upload:
    """A sink for the body, Refused when there is none; the transaction is over then."""
    assert talk.envelope is not None
    sink = await talk.reception.body(talk.envelope)
    if isinstance(sink, Reply):
        talk.reset()
        raise Refused(sink)
    limits = talk.listener.limits
    size = min(talk.envelope.parameters.size or limits.size, limits.size)
    talk.upload = Upload(sink, Inspection(limits.size), talk.wire.clock.seconds() + limits.idle + size / limits.average)
    return talk.upload


async def _close(talk: Conversation, upload: Upload) -> Reply:
    talk.note(b"(%d octets of message)" % upload.inspection.size)
    reply = await upload.finish()
    talk.reset()
    if reply.positive:
        talk.accepted()
    return reply


@attrs.define(eq=False)
class _Pace:
    """Brings the octets of a body, as long as they come fast enough and all of them in time: `wait`, then `take`."""

    talk: Conversation
    end: float
    _until: float = 0.0
    _taken: int = 0  # since the last look at the clock

    def take(self) -> bytes:
        octets = self.talk.wire.inbox.take()
        self._taken += len(octets)
        return octets

    async def wait(self) -> None:
        """Until the inbox holds something."""
        wire, limits = self.talk.wire, self.talk.listener.limits
        if not self._until:
            self._until = wire.clock.seconds() + limits.idle
        if wire.clock.seconds() >= self.end:  # chunks that each come at once could drip for ever
            raise Hangup(replies.TOO_SLOW)
        while not len(wire.inbox):
            try:
                await wire.more(min(self._until, self.end), in_body=True)
            except Late:
                if self._taken < limits.rate * limits.idle or wire.clock.seconds() >= self.end:
                    raise Hangup(replies.TOO_SLOW) from None
                self._until, self._taken = wire.clock.seconds() + limits.idle, 0
