"""Forms with a file: who may send one, decided before it is read, and where it is in the body. The file stays on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar
from uuid import UUID

import attrs
from twisted.web.http_headers import Headers

from mailsvc.dashboard import safety
from mailsvc.dashboard.page import SESSION, PageError, PageRequest, urlencoded
from mailsvc.http import multipart
from mailsvc.http.problem import Problem
from mailsvc.net import allow_list
from mailsvc.store.people.roles import permits
from mailsvc.store.people.sessions import Sessions

T = TypeVar("T")
FILE = "file"  # the name of the field
LONGEST = 10_000  # bytes of another field


@attrs.frozen
class Uploader:
    """Whose account's limits an upload counts towards. The page checks everything again when the file has arrived."""

    sessions: Sessions
    secure: bool

    async def account(self, headers: Headers, address: str) -> UUID | None:
        """The account that the session shows; None if it may not be changed in this session."""
        given = safety.cookies(value.decode("latin-1") for value in headers.getRawHeaders(b"cookie") or [])
        secret = given.get(safety.cookie_name(SESSION, secure=self.secure), "")
        session = await self.sessions.find(secret) if secret else None
        if session is None or session.stage != "whole" or not permits(session.role, "change_audience"):
            return None
        barred = session.must_use_provider or session.lacks_second_factor or not allow_list.allows(address, session.networks)
        return None if barred else session.account_id


async def form(request: PageRequest) -> Mapping[str, str]:
    """The fields of a form besides its file, which becomes `request.file`."""
    if request.header("content-type").startswith("application/x-www-form-urlencoded"):
        return await urlencoded(request)  # without a file
    content = request.http.content
    assert content is not None
    try:
        separator = multipart.boundary(request.header("content-type").encode("latin-1", "replace"))
        found = await in_thread(request, partial(multipart.parts, content, separator))
    except Problem as wrong:
        raise PageError(wrong.status, "Invalid form", "The form couldn’t be read.") from None
    request.file = found.get(FILE)
    fields = {name: part for name, part in found.items() if name != FILE}
    if any(part.end - part.start > LONGEST for part in fields.values()):
        raise PageError(400, "Invalid form", "A field of the form is too long.")
    return {name: part.read(content, LONGEST).decode("utf-8", "replace") for name, part in fields.items()}


async def in_thread(request: PageRequest, work: Callable[[], T]) -> T:
    """In a thread if the body is large, because it is in a file then."""
    return await request.context.in_thread(work) if request.http.large else work()
