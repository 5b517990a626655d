"""What is written to a process that delivers: emails and their messages, later whether each was committed. Pure. Its replies: replies."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import IntEnum
from typing import Any
from uuid import UUID

import attrs
import orjson

from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.mail.values import NewRecipient

VERSION = 3  # of what is written; processes with different ones do not connect to each other
LARGEST = 256 * 1024  # bytes of a message that is passed on
FileId = tuple[int, int]  # its device, and its number there
_HEAD = struct.Struct("!B16sII")  # its kind, the ID, and the lengths of the values, which are JSON or empty, and of what follows them
_SECTION = struct.Struct("!QQQQ")  # of a file: its device, its number there, and where the section begins and ends
_VALUES = 16 << 20  # bytes: an email may have 10,000 recipients, each with an ORCPT
_LARGEST = LARGEST + _SECTION.size  # bytes that follow the values


class BadFrame(Exception):
    """This is not what the other end would write."""


class _Kind(IntEnum):
    MESSAGE, COMMITTED, DROPPED, SECTION, WITHOUT_MESSAGE = range(5)


@attrs.frozen
class Section:
    """A large message: `prefix`, then a section of a file, whose descriptor is passed beside the frame (unix(7), SCM_RIGHTS)."""

    file: FileId
    start: int
    end: int
    prefix: bytes = attrs.field(repr=False)


@attrs.frozen
class LeasedRecipients:
    """What the other process needs to deliver an email without claiming it: recipients that are stored with its `lease`.

    `at`: when, by the clock that all processes of a machine share (mailsvc/clock).
    """

    lease: int
    at: float
    account_id: UUID
    domain_id: UUID
    region: str
    bulk: bool
    expires_at: datetime
    recipients: tuple[NewRecipient, ...]


@attrs.frozen
class Passed:
    """An email that is about to be committed. Without `body`, its message is only in Postgres; without `leased`, it has to be claimed."""

    email_id: UUID
    envelope: StoredEnvelope
    body: bytes | Section | None = attrs.field(repr=False)
    leased: LeasedRecipients | None = None


@attrs.frozen
class Committed:
    """The email is in the queue. `suppressed`: numbers of recipients that are not."""

    email_id: UUID
    suppressed: tuple[int, ...] = ()


@attrs.frozen
class Dropped:
    """The email was not committed, or it is not known whether it was."""

    email_id: UUID


Frame = Passed | Committed | Dropped


def written(frame: Frame) -> bytes:
    match frame:
        case Committed(email_id, suppressed):
            values = orjson.dumps(suppressed) if suppressed else b""
            return _HEAD.pack(_Kind.COMMITTED, email_id.bytes, len(values), 0) + values
        case Dropped(email_id):
            return _HEAD.pack(_Kind.DROPPED, email_id.bytes, 0, 0)
    values = _written(frame.envelope, frame.leased)
    kind, body = _Kind.WITHOUT_MESSAGE, b""
    if frame.body is not None:
        kind, body = (_Kind.MESSAGE, frame.body) if isinstance(frame.body, bytes) else (_Kind.SECTION, _section(frame.body))
    return b"".join((_HEAD.pack(kind, frame.email_id.bytes, len(values), len(body)), values, body))


def _written(envelope: StoredEnvelope, leased: LeasedRecipients | None) -> bytes:
    stored = envelope.stored()
    if leased is None:
        return b"" if stored is None else orjson.dumps([stored])
    recipients = [(each.address, each.destination, each.leased) for each in leased.recipients]
    facts = leased.account_id, leased.domain_id, leased.region, leased.bulk, leased.expires_at
    return orjson.dumps([stored, leased.lease, leased.at, *facts, recipients])


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
            kind, email_id, values_size, body_size = _HEAD.unpack_from(self._data, at)
            if values_size > _VALUES or body_size > _LARGEST:
                raise BadFrame(f"An email of {values_size} and {body_size} bytes is too large.")
            body = at + _HEAD.size + values_size
            if len(self._data) < body + body_size:
                break
            yield _frame(kind, UUID(bytes=email_id), self._data[body - values_size : body], self._data[body : body + body_size])
            at = body + body_size
        del self._data[:at]


def _frame(kind: int, email_id: UUID, data: bytearray, body: bytearray) -> Frame:
    try:
        values = orjson.loads(data) if data else []
        match kind:
            case _Kind.MESSAGE:
                return _passed(email_id, values, bytes(body))
            case _Kind.SECTION if len(body) >= _SECTION.size:
                device, number, start, end = _SECTION.unpack_from(body)
                return _passed(email_id, values, Section((device, number), start, end, bytes(body[_SECTION.size :])))
            case _Kind.WITHOUT_MESSAGE:
                return _passed(email_id, values, None)
            case _Kind.COMMITTED:
                return Committed(email_id, tuple(values))
            case _Kind.DROPPED:
                return Dropped(email_id)
    except (AttributeError, TypeError, ValueError):
        raise BadFrame("The values of an email cannot be read.") from None
    raise BadFrame(f"A frame of kind {kind} cannot be read.")


def _passed(email_id: UUID, values: list[Any], body: bytes | Section | None) -> Passed:
    stored, *leased = values or [None]
    return Passed(email_id, StoredEnvelope.read(stored), body, _leased_recipients(*leased) if leased else None)


def _leased_recipients(
    lease: int, at: float, account_id: str, domain_id: str, region: str, bulk: bool, expires_at: str, recipients: Sequence[Any]
) -> LeasedRecipients:
    found = tuple([NewRecipient(*each) for each in recipients])
    return LeasedRecipients(lease, at, UUID(account_id), UUID(domain_id), region, bulk, datetime.fromisoformat(expires_at), found)
