"""The HTML of a broadcast with tracked links: cut at its links once, so that each recipient's version takes little time."""

from __future__ import annotations

import attrs

from mailsvc.mail import merge
from mailsvc.mail.merge import Template, Values
from mailsvc.mail.tracking.links import End, Link, cut
from mailsvc.mail.tracking.message import Tracker


@attrs.frozen
class LinkTemplate:
    """The value of an `href`, which can have placeholders."""

    source: Template


@attrs.frozen
class TrackedTemplate:
    pieces: tuple[Template | LinkTemplate | End, ...]

    @property
    def links(self) -> int:
        return sum(isinstance(piece, LinkTemplate) for piece in self.pieces)

    def html(self, values: Values, tracker: Tracker) -> str:
        written = []
        for piece in self.pieces:
            if isinstance(piece, LinkTemplate):
                source = piece.source.html(values)
                written.append(tracker.link(source) or source)
            else:
                written.append(tracker.pixel() if isinstance(piece, End) else piece.html(values))
        return "".join(written)


def parse(html: str) -> TrackedTemplate:
    """Links in the text of a placeholder, such as its fallback, are not tracked."""
    return TrackedTemplate(tuple(map(_parsed, cut(html, merge.masked(html)))))


def _parsed(piece: str | Link | End) -> Template | LinkTemplate | End:
    if isinstance(piece, End):
        return piece
    return LinkTemplate(merge.parse(piece.source)) if isinstance(piece, Link) else merge.parse(piece)
