"""What one contact would get of a broadcast that is not sent yet, for previews and test emails. Messages that are sent: personal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import attrs

from mailsvc.broadcasts.fanout import own_values
from mailsvc.mail import merge
from mailsvc.mail.merge import Template, Values
from mailsvc.runtime.offload import InThread
from mailsvc.store.audience.values import Contact
from mailsvc.store.broadcasts.sending import Member, Sending

IN_THREAD = 64 * 1024  # characters; longer texts are merged in a thread
COPIES = 3  # of the texts that are in memory while they are merged and sent


@attrs.frozen
class Texts:
    """Of a broadcast, with placeholders or with a contact's values in their place."""

    subject: str
    preview_text: str
    html: str | None = attrs.field(repr=False)
    text: str | None = attrs.field(repr=False)


async def values_of(sending: Sending, account_id: UUID, contact: Contact | None, link: str) -> Values:
    """The contact's values; without a contact, those of somebody of whom nothing is known. `link`: to unsubscribe."""
    properties = await sending.properties(account_id)
    own: dict[str, str] = {}
    if contact is not None:
        member = Member(contact.id, contact.email, contact.first_name, contact.last_name, False, None, contact.properties)
        own = own_values({**dict.fromkeys(merge.FIELDS, ""), **{key: each.number for key, each in properties.items()}}, member)
    return Values(own, link, {key: each.fallback for key, each in properties.items()})


async def merged(texts: Texts, values: Values, in_thread: InThread, reserve: Callable[[int], Awaitable[None]]) -> Texts:
    """The texts with these values. `reserve` gets the memory that long ones need, in bytes, and is awaited before they are merged."""
    length = len(texts.html or "") + len(texts.text or "")
    plain, parts = _parsed(texts) if length < IN_THREAD else await in_thread(lambda: _parsed(texts))
    subject, preview_text, html, text = parts

    def make() -> Texts:
        return Texts(
            subject.subject(values),
            preview_text.line(values),
            html.html(values) if texts.html else None,
            text.text(values) if plain else None,
        )

    size = merge.room(len(texts.html or "") + len(plain), sum(1 for part in parts for _ in part), values)
    if size < IN_THREAD:
        return make()
    await reserve(COPIES * size)
    return await in_thread(make)


def _parsed(texts: Texts) -> tuple[str, list[Template]]:
    """The plain text, and the templates of all texts."""
    plain = merge.text_of(texts.html) if texts.text is None and texts.html else texts.text or ""
    return plain, [merge.parse(part or "") for part in (texts.subject, texts.preview_text, texts.html, plain)]
