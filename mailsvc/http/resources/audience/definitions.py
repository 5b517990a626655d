"""What the routes of segments, topics and contact properties have in common: lists, and one by its ID."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

from mailsvc.http import parameters
from mailsvc.http.answer import page
from mailsvc.http.problem import not_found
from mailsvc.http.request import Request
from mailsvc.http.views import View
from mailsvc.store.paging import Page

T = TypeVar("T")
List = Callable[[UUID, Page], Coroutine[Any, Any, tuple[list[T], bool]]]
Get = Callable[[UUID, UUID], Coroutine[Any, Any, T | None]]


async def listed(request: Request, list_: List[T], row: View, default: int | None) -> bytes:
    """A page of the account's. `default`: rows on a page without parameters; None: all."""
    wanted = parameters.page(request, default=default)
    return page(request, row, *await request.detached(list_(request.caller.account_id, wanted)))


async def own(request: Request, get: Get[T], id: UUID | str, noun: str) -> T:
    """One of the account's. Raises a Problem with the noun."""
    found = await get(request.caller.account_id, parameters.uuid(id, "id") if isinstance(id, str) else id)
    if found is None:
        raise not_found(noun)
    return found
