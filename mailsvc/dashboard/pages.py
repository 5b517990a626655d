"""The dashboard put together: which area answers which path, the files that pages need, and the pages that are about no area."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from klein.resource import KleinResource
from twisted.web.resource import Resource

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.files import FILES, VERSION, takes_packed
from mailsvc.dashboard.page import THEME, Visit, area, not_found, page
from mailsvc.dashboard.safety import HOME, inside

YEAR = "public, max-age=31536000, immutable"


class Dashboard(Resource):
    """`areas` maps the segment behind /dashboard/, or the two of them, to what answers; each gets the whole path."""

    isLeaf = True

    def __init__(self, areas: Mapping[str, KleinResource], others: KleinResource) -> None:
        super().__init__()
        self._areas = {name.encode(): resource for name, resource in areas.items()}
        self._others = others

    def render(self, request: Any) -> Any:
        path: bytes = request.path
        first, second, third = [*path.split(b"/")[1:], b"", b""][:3]
        found = (self._areas.get(second + b"/" + third) or self._areas.get(second)) if first else None
        return (found or self._others).render(request)


@attrs.define(eq=False)
class Frame:
    """What is of no area."""

    app = area()
    desk: PageContext

    @page(app, "/", who="anybody")
    async def root(self, visit: Visit) -> bytes:
        return visit.redirect(HOME)

    @page(app, f"{HOME}/theme", "POST", who="anybody")
    async def theme(self, visit: Visit) -> bytes:
        chosen = visit.field("theme")
        visit.set_cookie(THEME, chosen if chosen in ("light", "dark") else "", 365 * 86400)
        return visit.redirect(inside(visit.field("back")))

    @page(app, f"{HOME}/static/<version>/<name>", who="anybody")
    async def static(self, visit: Visit, version: str, name: str) -> bytes:
        if name not in FILES or version != VERSION:
            raise not_found("file")
        file, packed = FILES[name], takes_packed(visit.header("accept-encoding"))
        visit.request.responseHeaders.removeHeader(b"set-cookie")
        visit.set_header("Vary", "Accept-Encoding")
        if packed:
            visit.set_header("Content-Encoding", "gzip")
        return visit.send(file.packed if packed else file.content, file.kind, cache=YEAR)

    @page(app, f"{HOME}/<path:rest>", "GET", "POST", who="anybody")
    async def nothing(self, visit: Visit, rest: str) -> bytes:
        raise not_found()
