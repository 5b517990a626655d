"""What is read and kept in memory to compose personal messages is bounded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_twisted as pt
from twisted.internet.defer import Deferred

from mailsvc.broadcasts import personal
from mailsvc.broadcasts.personal import OFF_REACTOR, Composer, Prepared
from mailsvc.store.broadcasts.personal import PersonalEmail, SentContent


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


@pt.ensureDeferred
async def test_emails_that_are_composed_together_read_their_content_once_and_large_ones_wait_for_memory() -> None:
    class Stored:
        """The content, which is read when the test says so, and the links."""

        def __init__(self) -> None:
            self.reading: list[Deferred[SentContent]] = []

        async def content(self, account_id: UUID, broadcast_id: UUID) -> SentContent:
            self.reading.append(Deferred())
            return await self.reading[-1]

        async def make(self, base_url: str, source: object, address: str) -> str:
            return f"{base_url}/unsubscribe?token=t"

    async def in_thread(work: Callable[[], Any]) -> Any:
        return work()

    stored: Any = Stored()
    composer, sizes, room = Composer(stored, stored, in_thread), list[int](), Deferred[None]()

    async def before_large(size: int) -> None:
        sizes.append(size)
        await room

    large, small = UUID(int=1), UUID(int=2)
    emails = [PersonalEmail(large, UUID(int=n), each, large, None, datetime.now(UTC), f"<{n}@a.example>", "b@example.org", "Hi", True, {})
              for n, each in enumerate((large, large, small))]  # fmt: skip
    composing = [Deferred.fromCoroutine(composer.compose(each, before_large)) for each in emails]
    assert len(stored.reading) == 1
    stored.reading[0].callback(content("a" * (OFF_REACTOR + 1)))
    stored.reading[1].callback(content("Hi"))
    assert [each.called for each in composing] == [False, False, True]
    assert (len(stored.reading), sizes) == (2, [OFF_REACTOR + 1] * 2)
    room.callback(None)
    assert all([await each for each in composing])


@pt.ensureDeferred
async def test_short_content_with_long_values_waits_for_memory_and_is_composed_in_a_thread() -> None:
    class Stored:
        async def content(self, account_id: UUID, broadcast_id: UUID) -> SentContent:
            return content("{{{FIRST_NAME}}}" * 100)

        async def make(self, base_url: str, source: object, address: str) -> str:
            return f"{base_url}/unsubscribe?token=t"

    async def in_thread(work: Callable[[], Any]) -> Any:
        sizes.append(0)
        return work()

    async def before_large(size: int) -> None:
        sizes.append(size)

    stored: Any = Stored()
    composer, sizes, one = Composer(stored, stored, in_thread), list[int](), UUID(int=1)
    for value in ("Ada", "漢" * 2000):
        email = PersonalEmail(
            one, one, one, one, None, datetime.now(UTC), "<1@a.example>", "b@example.org", "Hi", True, {"first_name": value}
        )
        composed = await composer.compose(email, before_large)
        assert composed is not None
    assert len(sizes) == 2 and sizes[0] >= 100 * 6000 and sizes[1] == 0


def test_many_emails_that_wait_for_the_same_content_all_get_it() -> None:
    """Each calling the next would end in a RecursionError, and those after it would wait forever."""
    content_read: Deferred[SentContent] = Deferred()

    class Stored:
        async def content(self, account_id: UUID, broadcast_id: UUID) -> SentContent:
            return await content_read

    stored: Any = Stored()
    composer, broadcast_id = Composer(stored, links=stored, in_thread=stored), uuid4()
    waiting = [Deferred.fromCoroutine(composer._content(broadcast_id, broadcast_id)) for _ in range(300)]
    content_read.callback(content("Hi"))
    assert {type(each.result) for each in waiting if each.called} == {Prepared} and all(each.called for each in waiting)
