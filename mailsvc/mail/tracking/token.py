"""Tokens of tracked links and open pixels: everything that a hit needs, encrypted. No table has to be read to follow a link.

base64url of the version (1 byte), the number of the key (1) and an AES-SIV of the payload, so the same values give the same token, and a
token that we did not make is not accepted. The caller decides when a token expires.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from functools import lru_cache
from uuid import UUID

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

PURPOSE = "tracking"  # what the keys are derived for
CLICKS, OPENS = "/c/", "/o/"  # the paths before a token
MAX_URL = 2_000  # characters; longer links are not tracked
_VERSION = 1
_CLICK, _CONTACT = 1, 2  # flags: a link with a URL; the email of a contact of a broadcast
_ID = 16  # bytes of a UUID
_FIXED = 1 + 2 + 2 + 2 * _ID  # flags, day, link number, account and email
_SIV = 16  # bytes (5297 §2.6)
_SECONDS = 86_400  # in a day
_MAX = (2 + _SIV + _FIXED + 2 * _ID + MAX_URL) * 4 // 3 + 1  # characters of a token


@attrs.frozen
class Tracked:
    """What a token stands for. `url`: where a link leads, in ASCII; None: an open.

    A message has the same bytes for all its recipients, so a token does not name one of them. `day`: when the link was made, in days since
    1970. `link`: the number of the link in the message, from 1.
    """

    account_id: UUID
    email_id: UUID
    day: int
    link: int = 0
    url: str | None = None
    broadcast_id: UUID | None = None
    contact_id: UUID | None = None


@attrs.frozen
class Key:
    """`secret`: 32 bytes."""

    number: int
    secret: bytes = attrs.field(repr=False)


def day_of(unix: float) -> int:
    """The day of a time, in days since 1970."""
    return int(unix // _SECONDS)


def make(tracked: Tracked, key: Key) -> str:
    """The token. Raises ValueError if the URL is too long or not ASCII."""
    url = (tracked.url or "").encode("ascii")
    if len(url) > MAX_URL:
        raise ValueError("The URL is too long.")
    flags, ids = 0, tracked.account_id.bytes + tracked.email_id.bytes
    if tracked.url is not None:
        flags |= _CLICK
    if tracked.broadcast_id is not None and tracked.contact_id is not None:
        flags |= _CONTACT
        ids += tracked.broadcast_id.bytes + tracked.contact_id.bytes
    payload = bytes([flags]) + tracked.day.to_bytes(2, "big") + tracked.link.to_bytes(2, "big") + ids + url
    header = bytes([_VERSION, key.number])
    return _encoded(header + _cipher(key.secret).encrypt(payload, [header]))


def read(token: str, secrets: Mapping[int, bytes]) -> Tracked | None:
    """What a token stands for, or None if it was not made with one of `secrets`, which are given by number."""
    if len(token) > _MAX:
        return None
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(data) < 2 + _SIV + _FIXED or data[0] != _VERSION or data[1] not in secrets or _encoded(data) != token:
        return None
    try:
        payload = _cipher(secrets[data[1]]).decrypt(data[2:], [data[:2]])
    except InvalidTag:
        return None
    flags, day, link = payload[0], int.from_bytes(payload[1:3], "big"), int.from_bytes(payload[3:5], "big")
    ids = [UUID(bytes=payload[at : at + _ID]) for at in range(5, _FIXED + (2 * _ID if flags & _CONTACT else 0), _ID)]
    url = payload[5 + len(ids) * _ID :].decode("ascii") if flags & _CLICK else None
    return Tracked(ids[0], ids[1], day, link, url, *ids[2:])


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


@lru_cache(16)
def _cipher(secret: bytes) -> AESSIV:
    return AESSIV(secret)
