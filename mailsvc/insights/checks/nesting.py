"""Checks of the MIME structure."""

from __future__ import annotations

from collections.abc import Iterator

from mailsvc.insights.checks.finding import Insight, Mail, listed

DEPTH_MAX = 4  # levels of multiparts; mixed, related and alternative are three

Shape = tuple[tuple[int, str], ...]


def nesting(mail: Mail) -> Iterator[Insight]:
    shape = mail.parsed.shape
    seen = []
    for at, (depth, kind) in enumerate(shape):
        if kind.startswith("multipart/"):
            inside = _children(shape, at)
            if not inside:
                seen.append(f"a {kind} has no parts")
            elif kind == "multipart/alternative":
                seen += _alternatives(inside)
            if depth == DEPTH_MAX:
                seen.append(f"there are more than {DEPTH_MAX} levels")
    if seen:
        why = "Email clients may show the wrong part or none, and filters associate it with spam."
        remedy = "Put text before HTML in multipart/alternative, and attachments next to it in multipart/mixed."
        yield Insight("better", "The MIME structure is unusual", f"In this message, {listed(list(dict.fromkeys(seen)))}.", why, remedy)


def _children(shape: Shape, at: int) -> list[str]:
    """The direct children of the multipart at this index."""
    depth, found = shape[at][0], []
    for inner, kind in shape[at + 1 :]:
        if inner <= depth:
            break
        if inner == depth + 1:
            found.append(kind)
    return found


def _alternatives(inside: list[str]) -> Iterator[str]:
    """Clients show the last alternative that they support (2046 §5.1.4)."""
    rich = [kind in ("text/html", "multipart/related") for kind in inside]
    if "text/plain" in inside and True in rich and inside.index("text/plain") > rich.index(True):
        yield "the HTML comes before the text, so clients show the text"
    if files := sorted({kind for kind in inside if not kind.startswith(("text/", "multipart/"))}):
        yield f"a file ({listed(files)}) is one of the alternatives"


CHECKS = (nesting,)
