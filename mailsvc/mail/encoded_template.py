"""Templates of text that are encoded ahead for mail, except for the lines with placeholders: the result is that of encoding it whole.

Values are put in by mail/merge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby

import attrs

from mailsvc.mail.merge import BODY, Piece, Placeholder, Template, after_body_tag, hidden_preview
from mailsvc.mail.transfer_encoding import Survey, quoted_printable

LONGEST = 10_000  # bytes of a line; texts with longer ones are encoded whole
_UNUSUAL = re.compile(r"[\x00\r\ud800-\udfff]")  # NUL and lone surrogates cannot be sent; CR ends a line, alone or with the LF after it
_BEGUN = re.compile(r"<(?:b(?:o(?:dy?)?)?|!-?)?\Z", re.IGNORECASE | re.ASCII)  # what a value could complete


@attrs.frozen
class Encoded:
    """A text in its transfer encoding (RFC 2045 §6): 7bit or quoted-printable, with CRLF."""

    encoding: str
    data: bytes = attrs.field(repr=False)

    def __len__(self) -> int:
        return len(self.data)


@attrs.frozen
class _Lines:
    """Lines without placeholders."""

    survey: Survey
    plain: bytes
    escaped: bytes

    @classmethod
    def of(cls, text: str) -> _Lines:
        data = text.encode("utf-8")
        return cls(Survey.of(data), data.replace(b"\n", b"\r\n"), quoted_printable(data))


@attrs.frozen
class EncodedTemplate:
    parts: tuple[_Lines | Template, ...]  # each ends where a line ends

    def __len__(self) -> int:
        """How many bytes it takes in memory, about."""
        return sum(len(part.plain) + len(part.escaped) for part in self.parts if isinstance(part, _Lines))

    @classmethod
    def of(cls, template: Template) -> EncodedTemplate | None:
        """None if it has to be encoded whole."""
        if any(isinstance(piece, str) and _UNUSUAL.search(piece) for piece in template.pieces):
            return None
        parts: list[_Lines | Template] = []
        for merged, lines in groupby(_lines(template), lambda line: any(isinstance(piece, Placeholder) for piece in line)):
            if merged:
                parts += [Template(tuple(line)) for line in lines]
            else:
                texts = ["".join(map(str, line)) for line in lines]
                if any(4 * len(text) > LONGEST for text in texts):
                    return None
                parts.append(_Lines.of("\n".join(texts)))
        return cls(tuple(parts))

    def encoded(self, merged: Callable[[Template], str]) -> Encoded | None:
        """The text with the values that `merged` puts in; None if that has to be encoded whole."""
        found: list[_Lines] = []
        for part in self.parts:
            if isinstance(part, Template):
                text = merged(part)
                if _UNUSUAL.search(text) or 4 * len(text) > LONGEST:
                    return None
                part = _Lines.of(text)
            found.append(part)
        ends = len(found) - 1
        encoding = sum((each.survey for each in found), Survey(ends, 0, True)).encoding
        if encoding == "base64":
            return None
        return Encoded(encoding, b"\r\n".join([each.plain if encoding == "7bit" else each.escaped for each in found]))


def _lines(template: Template) -> Iterator[list[Piece]]:
    line: list[Piece] = []
    for piece in template.pieces:
        if isinstance(piece, Placeholder):
            line.append(piece)
            continue
        first, *more = piece.split("\n")
        line.append(first)
        for text in more:
            yield line
            line = [text]
    yield line


def with_preview(html: Template, preview: str) -> Template | None:
    """As merge.with_preview, before values are put in; None if what they are could decide where the preview belongs."""
    if not preview:
        return html
    hidden, pieces = hidden_preview(preview), list(html.pieces)
    for n, piece in enumerate(pieces):
        if isinstance(piece, Placeholder):
            if piece.fallback is not None and "<" in piece.fallback:
                return None
        elif end := after_body_tag(piece):
            return Template((*pieces[:n], piece[:end] + hidden + piece[end:], *pieces[n + 1 :]))
        elif BODY.search(piece) is not None or _BEGUN.search(piece) is not None or piece.rfind("<!--") > piece.rfind("-->"):
            return None
    return Template((hidden, *pieces))
