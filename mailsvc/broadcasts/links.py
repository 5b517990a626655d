"""Unsubscribe links. The token names the hash of the address, so it works after the contact was deleted or added again. It never expires.

It is signed with the account's own secret, which does not change when the encryption keys do (store/audience/keys).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from uuid import UUID

import attrs

from mailsvc.store.audience.keys import HASH, AudienceKeys

PATH = "/unsubscribe"
_PURPOSE = "unsubscribe"
_ID = 16  # bytes of a UUID
_NONE = UUID(int=0)
_LENGTH = 1 + 3 * _ID + HASH
_BROADCAST, _EMAIL = b"\x01", b"\x02"


@attrs.frozen
class Source:
    """The email that has the link: one of a broadcast, or a single one. `topic_id`: what one click unsubscribes from; None: everything."""

    account_id: UUID
    broadcast_id: UUID | None = None
    email_id: UUID | None = None
    topic_id: UUID | None = None


@attrs.frozen
class Link:
    """A valid link. `hash`: of the recipient's address."""

    source: Source
    hash: bytes = attrs.field(repr=False)


@attrs.define(eq=False)
class UnsubscribeLinks:
    keys: AudienceKeys

    async def make(self, base_url: str, source: Source, address: str) -> str:
        """The URL for one recipient. The same arguments give the same URL."""
        key = await self.keys.of(source.account_id)
        of_broadcast = source.broadcast_id is not None
        ids = source.account_id, source.broadcast_id or source.email_id or _NONE, source.topic_id or _NONE
        payload = (_BROADCAST if of_broadcast else _EMAIL) + b"".join(each.bytes for each in ids) + key.hash(address)
        token = base64.urlsafe_b64encode(payload + key.sign(_PURPOSE, payload)).decode().rstrip("=")
        return f"{base_url}{PATH}?token={token}"

    async def read(self, token: str) -> Link | None:
        """What the token stands for, or None if it is not valid."""
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True) if len(token) < 500 else b""
        except (binascii.Error, ValueError):
            return None
        payload, signature = data[:_LENGTH], data[_LENGTH:]
        if len(payload) != _LENGTH or payload[:1] not in (_BROADCAST, _EMAIL):
            return None
        account_id, source_id, topic_id = (UUID(bytes=payload[1 + n * _ID : 1 + (n + 1) * _ID]) for n in range(3))
        key = await self.keys.existing(account_id)
        if key is None or not key.verify(_PURPOSE, payload, signature):
            return None
        topic = None if topic_id == _NONE else topic_id
        if payload[:1] == _BROADCAST:
            return Link(Source(account_id, broadcast_id=source_id, topic_id=topic), payload[-HASH:])
        return Link(Source(account_id, email_id=source_id, topic_id=topic), payload[-HASH:])


def headers(link: str) -> Mapping[str, str]:
    """The header fields with which mail programs offer to unsubscribe with one click (8058 §3.1). DKIM signs both.

    Google's rules and Yahoo's rules require them in bulk mail. One click needs https, which only a development server does without.
    """
    one_click = {"List-Unsubscribe-Post": "List-Unsubscribe=One-Click"} if link.startswith("https:") else {}
    return {"List-Unsubscribe": f"<{link}>", **one_click}
