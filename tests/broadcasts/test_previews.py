"""Previews of short texts are made at once; those that long values make long wait for memory and are made in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import pytest_twisted

from mailsvc.broadcasts.previews import COPIES, Texts, merged
from mailsvc.mail.merge import Values


class Steps:
    def __init__(self, room: bool = True) -> None:
        self.taken: list[object] = []
        self.room = room

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        self.taken.append("thread")
        return work()

    async def reserve(self, size: int) -> None:
        self.taken.append(size)
        if not self.room:
            raise MemoryError


def values(name: str) -> Values:
    return Values({"first_name": name}, "https://example.com/unsubscribe", {"city": "Paris"})


@pytest_twisted.ensureDeferred
async def test_short_texts_are_merged_at_once() -> None:
    steps = Steps()
    html = "<p>Hi {{{contact.first_name}}} of {{{contact.city}}}</p>"
    shown = await merged(Texts("Hi {{{FIRST_NAME}}}", "For {{{FIRST_NAME}}}", html, None), values("A&B"), steps.in_thread, steps.reserve)
    assert shown == Texts("Hi A&B", "For A&B", "<p>Hi A&amp;B of Paris</p>", "Hi A&B of Paris")
    assert await merged(Texts("", "", None, ""), values("Ada"), steps.in_thread, steps.reserve) == Texts("", "", None, None)
    assert steps.taken == []


@pytest_twisted.ensureDeferred
async def test_long_values_wait_for_memory() -> None:
    steps, texts = Steps(), Texts("Hi", "", "{{{FIRST_NAME}}}" * 100, "Hello")
    shown = await merged(texts, values("漢" * 2000), steps.in_thread, steps.reserve)
    assert shown.html == "漢" * 200_000 and shown.text == "Hello"
    [size, step] = steps.taken
    assert isinstance(size, int) and size >= COPIES * len(shown.html.encode()) and step == "thread"
    steps = Steps(room=False)
    with pytest.raises(MemoryError):
        await merged(texts, values("漢" * 2000), steps.in_thread, steps.reserve)
    assert "thread" not in steps.taken
