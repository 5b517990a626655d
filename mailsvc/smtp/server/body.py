"""Receiving a message body with DATA (5321 §4.1.1.4) or BDAT (3030 §2). Where it goes: upload."""

from __future__ import annotations

import re

import attrs

from mailsvc.mail.reply import Reply
from mailsvc.smtp.server import replies
from mailsvc.smtp.server.connection import TimedOut
from mailsvc.smtp.server.framing import Chunk, DotDecoder, Inspection
from mailsvc.smtp.server.replies import Hangup, Refused
from mailsvc.smtp.server.state import ConversationState
from mailsvc.smtp.server.upload import Upload

_CHUNK = re.compile(rb"(\d{1,20})( +LAST)?", re.IGNORECASE)
_READ_LIMIT = 4  # times the size limit: how much of a message that is too large is read before the connection is closed


async def data(state: ConversationState, argument: bytes) -> Reply:
    if argument:
        return replies.NO_ARGUMENT
    refusal = _not_ready(state)
    if refusal is not None:
        return refusal
    if state.upload is not None:
        return replies.CHUNKS_BEGUN
    upload = await _open(state)
    state.connection.send(replies.GO_AHEAD)
    body, reader = DotDecoder(upload.inspection), _BodyReader(state, upload.until)
    while body.rest is None:
        await reader.wait()
        if (written := upload.write(body.feed(reader.read()))) is not None:
            await written
        if upload.inspection.size > _READ_LIMIT * state.listener.limits.size:
            raise Hangup(replies.TOO_BIG)
    state.connection.incoming.give_back(body.rest)
    return await _close(state, upload)


async def bdat(state: ConversationState, argument: bytes, refusal: Reply | None) -> Reply:
    """`refusal`: why the command is out of order. The chunk's bytes are read all the same (3030 §2), up to the size limit."""
    found = _CHUNK.fullmatch(argument)
    if found is None:  # the size of the chunk that follows is unknown
        raise Hangup(replies.bad_argument("Expected BDAT size [LAST]"))
    chunk = Chunk(int(found[1]))
    if chunk.left > _READ_LIMIT * state.listener.limits.size:
        raise Hangup(replies.TOO_BIG)
    upload = None
    try:
        refusal = refusal or _not_ready(state)
        if refusal is None:
            upload = state.upload or await _open(state)
    except Refused as refused:
        refusal = refused.reply
    if upload is None:
        await _discard(state, chunk)
        return refusal or replies.MAIL_FIRST
    reader = _BodyReader(state, upload.until)
    while chunk.left:
        await reader.wait()
        piece = reader.read(chunk)
        upload.inspection.inspect(piece)
        if (written := upload.write(piece)) is not None:
            await written
    if upload.refusal is not None:
        state.reset()
        return upload.refusal
    return await _close(state, upload) if found[2] else replies.CHUNK_OK


async def _discard(state: ConversationState, chunk: Chunk) -> None:
    """Read a refused chunk, which the client may have sent before it saw the refusal. It does not prolong the time to log in."""
    state.lines.refuse_chunk(chunk.left)
    limits = state.listener.limits
    until = state.connection.clock.seconds() + limits.idle + chunk.left / limits.average
    reader = _BodyReader(state, min(until, state.lines.end))
    while chunk.left:
        await reader.wait()
        reader.read(chunk)


def _not_ready(state: ConversationState) -> Reply | None:
    if state.envelope is None:
        return replies.MAIL_FIRST
    if state.envelope.recipients:
        return None
    return replies.NO_RECIPIENTS if state.recipient_refused else replies.RCPT_FIRST


async def _open(state: ConversationState) -> Upload:
    """Begin an upload. Raises Refused, and ends the transaction, if the policy does not want the body."""
    assert state.envelope is not None
    sink = await state.policy.body(state.envelope)
    if isinstance(sink, Reply):
        state.reset()
        raise Refused(sink)
    limits = state.listener.limits
    size = min(state.envelope.parameters.size or limits.size, limits.size)
    until = state.connection.clock.seconds() + limits.idle + size / limits.average
    state.upload = Upload(sink, Inspection(limits.size), until)
    return state.upload


async def _close(state: ConversationState, upload: Upload) -> Reply:
    state.transcribe(b"(message of %d bytes)" % upload.inspection.size)
    reply = await upload.finish()
    state.reset()
    if reply.positive:
        state.mail_accepted()
    return reply


@attrs.define(eq=False)
class _BodyReader:
    """Reads a body as long as it arrives fast enough, and all of it in time: `wait`, then `read`."""

    state: ConversationState
    end: float
    _until: float = 0.0
    _bytes: int = 0  # since the start of the current span

    def read(self, chunk: Chunk | None = None) -> bytes:
        """What has arrived; of a chunk, at most the rest of it."""
        incoming = self.state.connection.incoming
        data = incoming.take() if chunk is None else chunk.take(incoming)
        self._bytes += len(data)
        return data

    async def wait(self) -> None:
        """Wait until there is data. Raises Hangup if the client is too slow."""
        connection, limits = self.state.connection, self.state.listener.limits
        if not self._until:
            self._until = connection.clock.seconds() + limits.idle
        if connection.clock.seconds() >= self.end:  # also for chunks that never have to be waited for
            raise Hangup(replies.TOO_SLOW)
        while not len(connection.incoming):
            try:
                await connection.wait(min(self._until, self.end), in_body=True)
            except TimedOut:
                if self._bytes < limits.rate * limits.idle or connection.clock.seconds() >= self.end:
                    raise Hangup(replies.TOO_SLOW) from None
                self._until, self._bytes = connection.clock.seconds() + limits.idle, 0
