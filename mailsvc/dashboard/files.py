"""Static files: our own, and those of the npm packages in package.json, which etc/packages installs beside them."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import attrs

from mailsvc.dashboard.safety import HOME

STATIC = Path(__file__).parent / "static"
PACKAGES = STATIC / "packages"
# The files that pages use: of the packages themselves, and the broadcast editor, which etc/editor builds from others.
FOREIGN = (
    "htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css", "inter-latin.woff2", "inter-latin-ext.woff2", "editor.min.js", "editor.min.css",
)  # fmt: skip
_KINDS = {
    ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".woff2": "font/woff2",
}  # fmt: skip


@attrs.frozen
class File:
    """`packed`: the content compressed with gzip. Safe, since it holds neither secrets nor input."""

    kind: str
    content: bytes
    packed: bytes


def _read(path: Path) -> File:
    content, packed = path.read_bytes(), path.with_name(f"{path.name}.gz")  # of the editor, as compressing it takes long
    return File(_KINDS[path.suffix], content, packed.read_bytes() if packed.is_file() else gzip.compress(content, 9, mtime=0))


FILES = {
    path.name: _read(path)
    for path in (*STATIC.iterdir(), *(PACKAGES / name for name in FOREIGN))
    if path.suffix in _KINDS and path.is_file()
}
VERSION = hashlib.sha256(b"".join(file.content for _, file in sorted(FILES.items()))).hexdigest()[:12]


def address(name: str) -> str:
    """The URL path of a file, or an empty string if it is missing. It contains the version, so browsers may cache it forever."""
    return f"{HOME}/static/{VERSION}/{name}" if name in FILES else ""


def missing() -> list[str]:
    """Files of npm packages that are not installed. Without them, pages have the system's font and no live updates, charts and editor."""
    return [name for name in FOREIGN if name not in FILES]


def takes_packed(accepted: str) -> bool:
    """Whether an Accept-Encoding header accepts gzip."""
    for each in accepted.lower().split(","):
        name, _, weight = each.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
