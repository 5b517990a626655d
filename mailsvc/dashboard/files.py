"""The files that pages need: ours, and those of the npm packages in package.json, which the set-up puts beside them (etc/packages)."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import attrs

from mailsvc.dashboard.safety import HOME

STATIC = Path(__file__).parent / "static"
PACKAGES = STATIC / "packages"
FOREIGN = ("htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css")  # what pages use of the packages
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@attrs.frozen
class File:
    """`packed` is the same, compressed: nothing in it is secret or comes from a request."""

    kind: str
    content: bytes
    packed: bytes


def _read(path: Path) -> File:
    content = path.read_bytes()
    return File(_KINDS[path.suffix], content, gzip.compress(content, 9, mtime=0))


FILES = {
    path.name: _read(path)
    for path in (*STATIC.iterdir(), *(PACKAGES / name for name in FOREIGN))
    if path.suffix in _KINDS and path.is_file()
}
VERSION = hashlib.sha256(b"".join(file.content for _, file in sorted(FILES.items()))).hexdigest()[:12]


def address(name: str) -> str:
    """Where a browser gets it; empty for what is not there. The version is in it, so that a browser keeps it for good."""
    return f"{HOME}/static/{VERSION}/{name}" if name in FILES else ""


def missing() -> list[str]:
    """What the set-up did not bring. Pages work without it: nothing follows by itself then, and numbers are not drawn."""
    return [name for name in FOREIGN if name not in FILES]


def takes_packed(accepted: str) -> bool:
    """Whether a browser that sent this Accept-Encoding takes gzip."""
    for each in accepted.lower().split(","):
        name, _, weight = each.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
