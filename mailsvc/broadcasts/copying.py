"""Duplicating a broadcast. What a copy has: store/broadcasts/broadcasts."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from mailsvc.mail import merge
from mailsvc.runtime.offload import InThread
from mailsvc.store.broadcasts.broadcasts import Broadcasts
from mailsvc.store.people.audit import Line


async def duplicate(stored: Broadcasts, in_thread: InThread, account_id: UUID, id_: UUID, lines: Sequence[Line]) -> UUID | None:
    """A draft with the same content; None if there is no such broadcast.

    The text that was made from the HTML when sending started is left out: it is made again when the copy is sent, from the HTML that the
    copy has then.
    """
    found = await stored.get(account_id, id_)
    html, text = (None, None) if found is None or found.started_at is None else await stored.bodies(account_id, id_)
    made = bool(html) and text == await in_thread(lambda: merge.text_of(html or ""))
    return await stored.duplicate(account_id, id_, lines, without_text=made)
