"""The pages of the sandbox inbox read no message for which there is no room among the octets in work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred

from mailsvc.dashboard.page import Stop
from mailsvc.dashboard.sandbox import COPIES, Inbox

MAIL = UUID(int=7)


class Shelf:
    def __init__(self, *sizes: int) -> None:
        self.mails = [SimpleNamespace(id=MAIL, size=size, message=b"Subject: Hi\r\n\r\nHello\r\n") for size in sizes]
        self.read = 0

    async def list(self, account_id: UUID, limit: int, after: UUID | None) -> Any:
        return self.mails, False

    async def size(self, account_id: UUID, id_: UUID) -> int | None:
        return self.mails[0].size if self.mails else None

    async def get(self, account_id: UUID, id_: UUID) -> Any:
        self.read += 1
        return self.mails[0] if self.mails else None


def show(work: Any) -> Any:
    results: list[Any] = []
    Deferred.fromCoroutine(work).addBoth(results.append)
    return results[0]


def visit(room: int, reserved: list[int]) -> Any:
    def reserve(octets: int) -> bool:
        reserved.append(octets)
        return octets <= room

    return SimpleNamespace(account_id=UUID(int=1), uuid=lambda text, what="page": UUID(text), request=SimpleNamespace(reserve=reserve))


@pytest.mark.parametrize(("room", "read"), [(COPIES * 1000, 1), (COPIES * 1000 - 1, 0)])
def test_a_message_is_read_when_there_is_room_for_it(room: int, read: int) -> None:
    shelf: Any = Shelf(1000)
    reserved: list[int] = []
    result = show(Inbox(None, shelf)._mail(visit(room, reserved), str(MAIL)))  # type: ignore[arg-type]
    assert (shelf.read, reserved) == (read, [COPIES * 1000])
    assert result is shelf.mails[0] if read else result.value.status == 503


def test_what_is_not_there_is_not_found() -> None:
    shelf: Any = Shelf()
    result = show(Inbox(None, shelf)._mail(visit(0, []), str(MAIL)))  # type: ignore[arg-type]
    assert isinstance(result.value, Stop) and result.value.status == 404
