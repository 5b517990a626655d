"""What is written to the socket: messages of emails by ID, later whether each was committed; and what comes back. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from uuid import UUID

import attrs
import orjson

from mailsvc.store.mail.envelope import StoredEnvelope

VERSION = 2  # of what is written; processes with different ones do not connect to each other
LARGEST = 256 * 1024  # bytes of a message that is passed on
BEHIND, IN_TIME, FILE_READ = b"1", b"0", b"f"  # from the process that delivers; FILE_READ after each frame with a section
FileId = tuple[int, int]  # its device, and its number there
_HEAD = struct.Struct("!B16sII")  # its kind, the ID, and the lengths of the envelope, which is JSON or empty, and of what follows it
_SECTION = struct.Struct("!QQQQ")  # of a file: its device, its number there, and where the section begins and ends
_ENVELOPE = 1 << 20  # bytes
_LARGEST = LARGEST + _SECTION.size  # bytes that follow the envelope


class BadFrame(Exception):
    """This is not what the other end would write."""


class _Kind(IntEnum):
    MESSAGE, COMMITTED, DROPPED, SECTION = range(4)


@attrs.frozen
class Section:
    """A large message: `prefix`, then a section of a file, whose descriptor is passed beside the frame (unix(7), SCM_RIGHTS)."""

    file: FileId
    start: int
    end: int
    prefix: bytes = attrs.field(repr=False)


@attrs.frozen
class Passed:
    """A message that is about to be committed."""

    email_id: UUID
    envelope: StoredEnvelope
    body: bytes | Section = attrs.field(repr=False)


@attrs.frozen
class Committed:
    """The email is in the queue."""

    email_id: UUID


@attrs.frozen
class Dropped:
    """The email was not committed, or it is not known whether it was."""

    email_id: UUID


Frame = Passed | Committed | Dropped


def written(frame: Frame) -> bytes:
    match frame:
        case Committed(email_id):
            return _HEAD.pack(_Kind.COMMITTED, email_id.bytes, 0, 0)
        case Dropped(email_id):
            return _HEAD.pack(_Kind.DROPPED, email_id.bytes, 0, 0)
    stored = frame.envelope.stored()
    envelope = b"" if stored is None else orjson.dumps(stored)
    kind, body = (_Kind.MESSAGE, frame.body) if isinstance(frame.body, bytes) else (_Kind.SECTION, _section(frame.body))
    return b"".join((_HEAD.pack(kind, frame.email_id.bytes, len(envelope), len(body)), envelope, body))


def _section(section: Section) -> bytes:
    return _SECTION.pack(*section.file, section.start, section.end) + section.prefix


@attrs.define(eq=False)
class FrameReader:
    """Reads frames from data that is cut anywhere."""

    _data: bytearray = attrs.field(factory=bytearray, init=False)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that are complete. Raises BadFrame."""
        self._data += data
        at = 0
        while len(self._data) - at >= _HEAD.size:
            kind, email_id, envelope_size, body_size = _HEAD.unpack_from(self._data, at)
            if envelope_size > _ENVELOPE or body_size > _LARGEST:
                raise BadFrame(f"A message of {envelope_size} and {body_size} bytes is too large.")
            body = at + _HEAD.size + envelope_size
            if len(self._data) < body + body_size:
                break
            yield _frame(kind, UUID(bytes=email_id), self._data[body - envelope_size : body], self._data[body : body + body_size])
            at = body + body_size
        del self._data[:at]


def _frame(kind: int, email_id: UUID, envelope: bytearray, body: bytearray) -> Frame:
    match kind:
        case _Kind.MESSAGE:
            return Passed(email_id, _envelope(envelope), bytes(body))
        case _Kind.SECTION if len(body) >= _SECTION.size:
            device, number, start, end = _SECTION.unpack_from(body)
            return Passed(email_id, _envelope(envelope), Section((device, number), start, end, bytes(body[_SECTION.size :])))
        case _Kind.COMMITTED:
            return Committed(email_id)
        case _Kind.DROPPED:
            return Dropped(email_id)
    raise BadFrame(f"A frame of kind {kind} cannot be read.")


def _envelope(data: bytearray) -> StoredEnvelope:
    try:
        return StoredEnvelope.read(orjson.loads(data) if data else None)
    except (orjson.JSONDecodeError, AttributeError):
        raise BadFrame("The envelope cannot be read.") from None
