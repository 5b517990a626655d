"""What is written to the socket: an email's ID, its envelope parameters and its message; and what comes back, one byte. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from uuid import UUID

import attrs
import orjson

from mailsvc.store.mail.envelope import StoredEnvelope

LARGEST = 256 * 1024  # bytes of a message that is passed on
BEHIND, IN_TIME = b"1", b"0"  # from the process that delivers
_HEAD = struct.Struct("!16sII")  # the ID, and the lengths of the envelope, which is JSON or empty, and of the message
_ENVELOPE = 1 << 20  # bytes


class BadFrame(Exception):
    """This is not what the other end would write."""


@attrs.frozen
class Passed:
    """A message, as the acceptance has committed it."""

    email_id: UUID
    envelope: StoredEnvelope
    body: bytes = attrs.field(repr=False)


def frame(passed: Passed) -> bytes:
    stored = passed.envelope.stored()
    envelope = b"" if stored is None else orjson.dumps(stored)
    return b"".join((_HEAD.pack(passed.email_id.bytes, len(envelope), len(passed.body)), envelope, passed.body))


@attrs.define(eq=False)
class FrameReader:
    """Reads frames from data that is cut anywhere."""

    _data: bytearray = attrs.field(factory=bytearray, init=False)

    def feed(self, data: bytes) -> Iterator[Passed]:
        """Yields the messages that are complete. Raises BadFrame."""
        self._data += data
        at = 0
        while len(self._data) - at >= _HEAD.size:
            email_id, envelope_size, body_size = _HEAD.unpack_from(self._data, at)
            if envelope_size > _ENVELOPE or body_size > LARGEST:
                raise BadFrame(f"A message of {envelope_size} and {body_size} bytes is too large.")
            body = at + _HEAD.size + envelope_size
            if len(self._data) < body + body_size:
                break
            yield Passed(
                UUID(bytes=email_id), _envelope(self._data[body - envelope_size : body]), bytes(self._data[body : body + body_size])
            )
            at = body + body_size
        del self._data[:at]


def _envelope(data: bytearray) -> StoredEnvelope:
    try:
        return StoredEnvelope.read(orjson.loads(data) if data else None)
    except (orjson.JSONDecodeError, AttributeError):
        raise BadFrame("The envelope cannot be read.") from None
