"""Pages reserve memory before they read messages: the sandbox inbox, its list, and an email's page."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred

from mailsvc.dashboard.emails import detail
from mailsvc.dashboard.page import PageError
from mailsvc.dashboard.sandbox import COPIES, SHOWN, Inbox

MAIL = UUID(int=7)
LARGE = detail.IN_THREAD  # smaller emails need no reservation


class FakeSandbox:
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


def request_with(room: int, reserved: list[int]) -> Any:
    async def turn(size: int) -> bool:
        reserved.append(size)
        return size <= room

    return SimpleNamespace(
        account_id=UUID(int=1),
        uuid=lambda text, what="page": UUID(text),
        http=SimpleNamespace(turn=turn),
        query=lambda name: "",
        render=lambda template, **values: values,
    )


@pytest.mark.parametrize(("room", "read"), [(COPIES * 1000, 1), (COPIES * 1000 - 1, 0)])
def test_a_message_is_read_when_there_is_room_for_it(room: int, read: int) -> None:
    sandbox: Any = FakeSandbox(1000)
    reserved: list[int] = []
    result = show(Inbox(None, sandbox)._mail(request_with(room, reserved), str(MAIL)))  # type: ignore[arg-type]
    assert (sandbox.read, reserved) == (read, [COPIES * 1000])
    assert result is sandbox.mails[0] if read else result.value.status == 503


def test_a_missing_message_is_not_found() -> None:
    sandbox: Any = FakeSandbox()
    result = show(Inbox(None, sandbox)._mail(request_with(0, []), str(MAIL)))  # type: ignore[arg-type]
    assert isinstance(result.value, PageError) and result.value.status == 404


@pytest.mark.parametrize(
    ("sizes", "read", "wanted"),
    [
        ((1000, 3000, 2000), 3, 3000),  # read one by one, so the largest counts
        ((1000, SHOWN), 1, 1000),  # large ones are listed without being read
        ((SHOWN, SHOWN + 1), 0, 0),
        ((), 0, 0),
    ],
)
def test_a_list_reserves_memory_for_its_largest_message(sizes: tuple[int, ...], read: int, wanted: int) -> None:
    sandbox: Any = FakeSandbox(*sizes)
    reserved: list[int] = []
    shown = show(Inbox(None, sandbox).list(request_with(COPIES * wanted, reserved)))  # type: ignore[arg-type]
    assert (sandbox.read, reserved) == (read, [COPIES * wanted]) and len(shown["mails"]) == len(sizes)


def test_a_list_without_memory_reads_nothing() -> None:
    sandbox: Any = FakeSandbox(1000, 3000)
    reserved: list[int] = []
    result = show(Inbox(None, sandbox).list(request_with(COPIES * 3000 - 1, reserved)))  # type: ignore[arg-type]
    assert (sandbox.read, reserved) == (0, [COPIES * 3000]) and result.value.status == 503


@pytest.mark.parametrize(("room", "read"), [(detail.COPIES * LARGE, 1), (detail.COPIES * LARGE - 1, 0)])
def test_insights_read_a_message_only_when_memory_is_available(room: int, read: int) -> None:
    loaded, reserved = [], []

    async def load(account_id: UUID, email_id: UUID, before_rest: object = None) -> Any:
        loaded.append(email_id)
        return SimpleNamespace(body=b"Subject: Hi\r\n\r\nHello\r\n", signature=None)

    page: Any = SimpleNamespace(messages=SimpleNamespace(load=load))
    page._load, page._message = partial(detail.EmailPages._load, page), partial(detail.EmailPages._message, page)
    email = SimpleNamespace(size=LARGE, email_id=MAIL, source="api")
    result = show(detail.EmailPages._parsed(page, request_with(room, reserved), email))  # type: ignore[arg-type]
    assert (loaded, reserved) == ([MAIL] * read, [detail.COPIES * LARGE])
    assert result.text == "Hello" if read else result.value.status == 503
