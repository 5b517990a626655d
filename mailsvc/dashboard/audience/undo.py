"""Undoing the deletion of a segment, topic or property: where a list offers it, and what is said if it is too late."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from mailsvc.dashboard.audience.forms import full
from mailsvc.dashboard.page import PageError, PageRequest
from mailsvc.store.audience.definitions import UNDO
from mailsvc.store.audience.values import Full
from mailsvc.store.postgres.errors import Conflict

T = TypeVar("T")


def undo_path(request: PageRequest, path: str) -> str:
    """Where the deletion is undone that led to this list; "" if none did."""
    undo = request.query("undo")
    return f"{path}/{request.uuid(undo)}/restore" if undo and request.query("done") == "deleted" else ""


async def put_back(restoring: Awaitable[T | None]) -> T:
    """What was deleted. Raises PageError if that cannot be undone any more."""
    try:
        restored = await restoring
    except Full as wrong:
        raise PageError(409, "Not restored", full(wrong)) from None
    except Conflict:
        raise PageError(409, "Not restored", "There is another one with the same key.") from None
    if restored is None:
        raise PageError(410, "Too late to undo", f"A deletion can be undone for {UNDO.total_seconds() / 60:.0f} minutes.")
    return restored
