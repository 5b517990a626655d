"""The documentation site at /docs/, from the archive that `make docs` puts beside this module. Without the archive there is none.

The files are kept in memory as they are in the archive, compressed. A path is looked up among their names and never in the file system.
What the site contains is up to etc/site.
"""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
from twisted.web.http import CACHED
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

HOME = "docs"
ARCHIVE = Path(__file__).with_name("docs_site.zip")
LATEST = "latest"  # in place of the release: links that stay
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_MISSING = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Page not found</title></head>
<body><main><h1>Page not found</h1><p>This release of the documentation has no such page. <a href="{home}">Go to its first page</a>.</p>
</main></body></html>"""


@attrs.frozen
class File:
    """`packed`: the content compressed with gzip."""

    kind: str
    packed: bytes
    tag: bytes


@attrs.frozen
class Site:
    """The files by their path, the release that they belong to, and the Content-Security-Policy that fits."""

    version: str
    csp: str
    files: Mapping[str, File]


@cache
def installed(archive: Path = ARCHIVE) -> Site | None:
    """The site, or None if it was not built."""
    if not archive.is_file():
        return None
    with zipfile.ZipFile(archive) as packed:
        manifest = json.loads(packed.read("manifest.json"))
        contents = {name.removeprefix("site/"): packed.read(name) for name in packed.namelist() if name.startswith("site/")}
    return Site(manifest["version"], _csp(manifest), {name: _file(name, content) for name, content in contents.items()})


def _file(name: str, packed: bytes) -> File:
    kind = _KINDS.get(PurePosixPath(name).suffix, "text/plain; charset=utf-8")
    return File(kind, packed, sha256(packed).hexdigest()[:20].encode())


def _csp(manifest: Mapping[str, Any]) -> str:
    """Scripts and styles inside the pages are allowed by their hashes; everything else comes from this server."""
    scripts, styles = " ".join(manifest["scripts"]), " ".join(manifest["styles"])
    attributes = f" 'unsafe-hashes' {' '.join(manifest['attributes'])}" if manifest["attributes"] else ""
    return (
        f"default-src 'none'; script-src 'self' {scripts}; style-src 'self' {styles}{attributes}; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def pages(*, can_try: bool) -> dict[str, Resource]:
    """The site as a page of the API's server, if it was built."""
    site = installed()
    return {} if site is None else {HOME: DocsSite(site, can_try=can_try)}


class DocsSite(Resource):
    """`/docs/RELEASE/page.html`. `can_try`: whether pages offer to send requests to this server, which is for development."""

    isLeaf = True

    def __init__(self, site: Site, *, can_try: bool) -> None:
        super().__init__()
        self.site, self.can_try = site, can_try

    def render(self, request: Any) -> int:
        if request.method in (b"GET", b"HEAD"):
            request.write(self._answer(request))
        else:
            request.setResponseCode(405)
            request.setHeader("Allow", "GET, HEAD")
            request.write(self._send(request, b"Method not allowed", "text/plain"))
        request.finish()
        return NOT_DONE_YET

    def _answer(self, request: Any) -> bytes:
        for name, value in (
            ("Content-Security-Policy", self.site.csp),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            request.setHeader(name, value)
        release, _, name = "/".join(part.decode("utf-8", "replace") for part in request.postpath[1:]).partition("/")
        if name == "try.json" and release == self.site.version:
            return self._send(request, b"{}" if self.can_try else b"null", "application/json")
        file = self.site.files.get(name)
        if release == self.site.version and file is not None:
            return self._file(request, file)
        return self._redirect_or_miss(request, release, name)

    def _file(self, request: Any, file: File) -> bytes:
        request.setHeader("Cache-Control", "public, max-age=600" if b"v" not in request.args else "public, max-age=31536000, immutable")
        request.setHeader("Vary", "Accept-Encoding")
        if request.setETag(b'"%s"' % file.tag) is CACHED:
            return b""
        if b"gzip" in (request.getHeader(b"accept-encoding") or b""):
            request.setHeader("Content-Encoding", "gzip")
            return self._send(request, file.packed, file.kind)
        return self._send(request, gzip.decompress(file.packed), file.kind)

    def _redirect_or_miss(self, request: Any, release: str, name: str) -> bytes:
        """To the page of the installed release from `/docs/`, from a folder, and from `/docs/latest/…`; anything else does not exist."""
        home, version = f"/{HOME}/{self.site.version}", self.site.version
        if release in ("", version, LATEST):
            for place in (name, f"{name}/index.html".lstrip("/")):
                if place in self.site.files:
                    request.setResponseCode(302)
                    request.setHeader("Location", f"{home}/{place}")
                    return self._send(request, b"", "text/plain")
        request.setResponseCode(404)
        return self._send(request, _MISSING.format(home=escape(f"{home}/index.html")).encode(), _KINDS[".html"])

    @staticmethod
    def _send(request: Any, body: bytes, kind: str) -> bytes:
        request.setHeader("Content-Type", kind)
        request.setHeader("Content-Length", str(len(body)))
        return body
