"""Dispatches requests to sections by path. Also the static files and pages that belong to no section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from klein.resource import KleinResource
from twisted.web.resource import Resource

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.files import FILES, VERSION, takes_packed
from mailsvc.dashboard.page import THEME, PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME, inside

YEAR = "public, max-age=31536000, immutable"


class Dashboard(Resource):
    """`sections` maps the beginning of a path below /dashboard/ to a section: its first segment, its first two, or its first and third
    with a star between them, as in `broadcasts/*/edit`. Each section gets the whole path.
    """

    isLeaf = True

    def __init__(self, sections: Mapping[str, KleinResource], others: KleinResource) -> None:
        super().__init__()
        self._sections = {name.encode(): resource for name, resource in sections.items()}
        self._others = others

    def render(self, request: Any) -> Any:
        path: bytes = request.path
        first, second, third, fourth = [*path.split(b"/")[1:], b"", b"", b""][:4]
        names = (second + b"/" + third, second + b"/*/" + fourth, second) if first else ()
        found = next((self._sections[name] for name in names if name in self._sections), self._others)
        return found.render(request)


def static_file(request: PageRequest, version: str, name: str) -> bytes:
    if name not in FILES or version != VERSION:
        raise not_found("file")
    file, packed = FILES[name], takes_packed(request.header("accept-encoding"))
    request.http.responseHeaders.removeHeader(b"set-cookie")
    request.set_header("Vary", "Accept-Encoding")
    if packed:
        request.set_header("Content-Encoding", "gzip")
    return request.send(file.packed if packed else file.content, file.kind, cache=YEAR)


@attrs.define(eq=False)
class CommonPages:
    """Pages that belong to no section."""

    app = section_app()
    context: PageContext

    @page(app, "/", access="public")
    async def root(self, request: PageRequest) -> bytes:
        return request.redirect(HOME)

    @page(app, f"{HOME}/theme", "POST", access="public")
    async def theme(self, request: PageRequest) -> bytes:
        chosen = request.field("theme")
        request.set_cookie(THEME, chosen if chosen in ("light", "dark") else "", 365 * 86400)
        return request.redirect(inside(request.field("back")))

    @page(app, f"{HOME}/static/<version>/<name>", access="public")
    async def static(self, request: PageRequest, version: str, name: str) -> bytes:
        return static_file(request, version, name)

    @page(app, f"{HOME}/<path:rest>", "GET", "POST", access="public")
    async def nothing(self, request: PageRequest, rest: str) -> bytes:
        raise not_found()
