"""Lists that say how many entries are newer than those shown ("3 new emails"), without changing under the reader's eyes.

A list's page asks its own address again with `newer`, the newest ID that it shows, and gets a link that shows the new entries, or nothing.
It stops asking after a while: requests keep a session alive, and nobody may be there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from urllib.parse import urlencode
from uuid import UUID

import attrs

from mailsvc.clock import unix
from mailsvc.dashboard.page import PageRequest
from mailsvc.store.newer import MOST

SECONDS = 10  # between two questions
LASTS = timedelta(minutes=30)
STOP = 286  # htmx asks no more after this status
NOTHING = UUID(int=0)

Count = Callable[[UUID], Awaitable[int | None]]


@attrs.frozen
class News:
    """What a list needs to ask. `ask`: the address."""

    ask: str
    seconds: int = SECONDS


def of(request: PageRequest, path: str, params: dict[str, str], newest: UUID | None) -> News:
    """For a page that shows the newest entries of a list."""
    opened = str(int(unix(request.context.clock)))
    return News(f"{path}?{urlencode({**params, 'newer': str(newest or NOTHING), 'opened': opened})}")


async def answer(request: PageRequest, path: str, params: dict[str, str], names: tuple[str, str], count: Count) -> bytes | None:
    """The answer to such a question; None if the request is none. `names`: of one entry and of several."""
    if not request.query("newer") or request.header("hx-request") != "true":
        return None
    if _too_old(request):
        return request.render("news.html", STOP, text="Show new entries", path=path, params=params)
    found = await count(request.uuid(request.query("newer")))
    if found is None:
        return request.send(b"", "text/html; charset=utf-8", 204)  # what is shown stays
    shown = str(found) if found < MOST else f"{MOST - 1}+"
    text = f"{shown} new {names[found != 1]}" if found else ""
    return request.render("news.html", 200 if found < MOST else STOP, text=text, path=path, params=params)


def _too_old(request: PageRequest) -> bool:
    opened = request.query("opened")
    at = int(opened) if opened.isascii() and opened.isdecimal() and len(opened) < 12 else 0
    return unix(request.context.clock) - at > LASTS.total_seconds()
