"""How the parts of a message lie in each other."""

from __future__ import annotations

from collections.abc import Iterator

from mailsvc.insights.checks.finding import Insight, Mail, listed

DEEP = 4  # layers of multiparts; mixed, related and alternative are three

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
            if depth == DEEP:
                seen.append(f"there are more than {DEEP} layers")
    if seen:
        why = "Programs then show the wrong part, or none, and filters know it from spam."
        remedy = "Put text before html in multipart/alternative, and files beside it in multipart/mixed."
        yield Insight("better", "The parts are put together oddly", f"In the message {listed(list(dict.fromkeys(seen)))}.", why, remedy)


def _children(shape: Shape, at: int) -> list[str]:
    """What lies directly in the multipart at that place."""
    depth, found = shape[at][0], []
    for inner, kind in shape[at + 1 :]:
        if inner <= depth:
            break
        if inner == depth + 1:
            found.append(kind)
    return found


def _alternatives(inside: list[str]) -> Iterator[str]:
    """The last one that a program knows is shown (2046 §5.1.4)."""
    rich = [kind in ("text/html", "multipart/related") for kind in inside]
    if "text/plain" in inside and True in rich and inside.index("text/plain") > rich.index(True):
        yield "the html stands before the text, which is shown instead of it"
    if files := sorted({kind for kind in inside if not kind.startswith(("text/", "multipart/"))}):
        yield f"a file ({listed(files)}) stands among the alternatives"


CHECKS = (nesting,)
