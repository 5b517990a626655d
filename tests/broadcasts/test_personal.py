"""What is kept in memory to compose personal messages is bounded."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_twisted as pt

from mailsvc.broadcasts import personal
from mailsvc.broadcasts.personal import Composer, Prepared
from mailsvc.store.broadcasts.personal import SentContent


def content(text: str) -> SentContent:
    return SentContent(
        sender="a@example.org", reply_to=(), html=None, text=text, preview_text="", fallbacks={}, base_url="https://mail.example.org"
    )


def test_placeholders_count_because_they_take_memory() -> None:
    plain, merged = content("a" * 14_000), content("{{{FIRST_NAME}}}" * 875)
    assert len(plain) == len(merged)
    assert len(Prepared.of(merged)) > 5 * len(Prepared.of(plain))


@pt.ensureDeferred
async def test_contents_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stored:
        async def content(self, account_id: UUID, broadcast_id: UUID) -> SentContent:
            return content("{{{FIRST_NAME}}}" * 1000)

    monkeypatch.setattr(personal, "_BYTES", 1_000_000)
    stored: Any = Stored()
    composer = Composer(stored, links=stored, in_thread=stored)
    for _ in range(10):
        await composer._content(uuid4(), uuid4())
    assert len(composer._prepared) == 3
