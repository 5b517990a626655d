"""Finds the links in an email's HTML and where they lead. The caller decides what replaces them; all other bytes stay.

Cuts tags and attributes as browsers do (the tokenization of the HTML standard, section 13.2.5), in linear time. Links inside of comments,
styles and scripts are no links. An attribute `ses:no-track` keeps a link as it is, and is removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from html.entities import html5
from operator import itemgetter
from urllib.parse import quote

import attrs
import idna

from mailsvc.mail.tracking.token import MAX_URL

MAX_LENGTH = 2_000_000  # characters; the links of longer HTML stay as they are
MAX_LINKS = 5000
_NO_TRACK = "ses:no-track"

_TAG = re.compile(r"<(!--|[!?]|/?[A-Za-z][^\t\n\f\r />]*+|/)")
_EMPTY_COMMENT = re.compile(r"-?>")
_COMMENT_END = re.compile(r"--!?>")
_SPACE = r"[\t\n\f\r ]*+"
_NAME = r"[\t\n\f\r /]*+([^\t\n\f\r />][^\t\n\f\r />=]*+)"
_VALUE = rf"{_SPACE}=(?:{_SPACE}(?:\"([^\"]*+)\"|'([^']*+)'|([^\t\n\f\r >\"'][^\t\n\f\r >]*+)|(?=>)))|(?!{_SPACE}=)"
_ATTRIBUTE = re.compile(rf"{_NAME}(?:{_VALUE})")
TAG_REST = re.compile(rf"(?>(?:{_NAME}(?:{_VALUE}))*)[\t\n\f\r /]*+>")  # after its name; a tag whose end is missing is none
# Elements whose content is text, up to the end tag.
_TEXT = {
    name: re.compile(rf"</{name}(?=[\t\n\f\r />])", re.IGNORECASE)
    for name in ("style", "script", "title", "textarea", "xmp", "iframe", "noembed", "noframes")
}
_LINKED = frozenset({"a", "area"})

_REFERENCE = re.compile(r"&(?:#[0-9]++|#[xX][0-9a-fA-F]++|[A-Za-z][A-Za-z0-9]*+);?")
_LONGEST_REFERENCE = 40  # characters
_TRIMMED = "".join(map(chr, range(0x21)))
_IGNORED = dict.fromkeys(map(ord, "\t\n\r"))
_URL = re.compile(r"(https?://)([^/?#\\]++)(.*+)", re.IGNORECASE | re.DOTALL)
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


@attrs.frozen
class Link:
    """The value of the `href` of a link, as it is written."""

    source: str


@attrs.frozen
class End:
    """Where the body ends."""


Piece = str | Link | End


def cut(html: str, parsed: str | None = None) -> tuple[Piece, ...]:
    """The HTML in pieces, without `ses:no-track`. One of them is the End.

    `parsed`: a text of the same length that is parsed instead, if some of the HTML is not known yet.
    """
    links = sorted(_found(parsed or html), key=itemgetter(0, 1)) if len(html) <= MAX_LENGTH else []
    pieces: list[Piece] = []
    copied, ended = 0, False
    for start, end, piece in links:
        pieces += [html[copied:start]] if start > copied else []
        if piece is not None:
            pieces.append(Link(html[start:end]) if isinstance(piece, Link) else piece)
        copied, ended = end, ended or isinstance(piece, End)
    pieces += [html[copied:]] if copied < len(html) else []
    return (*pieces, *([] if ended else [End()]))


def rewrite(html: str, replaced: Callable[[str], str | None], at_end: str = "") -> str:
    """The HTML with other links. `replaced` returns what to put in the place of a link as it is written, or None; `at_end`: more HTML."""
    written = []
    for piece in cut(html):
        if isinstance(piece, Link):
            written.append(replaced(piece.source) or piece.source)
        else:
            written.append(piece if isinstance(piece, str) else at_end)
    return "".join(written)


def target(source: str) -> str | None:
    """Where a link as it is written leads, in ASCII; None if that is not the web, or longer than MAX_URL."""
    if len(source) > 4 * MAX_URL:
        return None
    found = _URL.fullmatch(_REFERENCE.sub(_dereferenced, source).strip(_TRIMMED).translate(_IGNORED))
    if found is None:
        return None
    scheme, authority, rest = found.groups()
    try:
        if not authority.isascii():
            authority = idna.encode(authority, uts46=True).decode("ascii")
        url = scheme + quote(authority, safe=_PRINTABLE) + quote(rest, safe=_PRINTABLE)
    except (idna.IDNAError, UnicodeError):
        return None
    return url if len(url) <= MAX_URL else None


def _dereferenced(found: re.Match[str]) -> str:
    """A character reference in an attribute. Names without a semicolon count only if nothing of a URL's query could be meant."""
    text = found[0]
    if len(text) > _LONGEST_REFERENCE:
        return text
    if text[1] != "#" and (text[1:] not in html5 or (text[-1] != ";" and found.string.startswith("=", found.end()))):
        return text
    return unescape(text)


def _found(html: str) -> Iterator[tuple[int, int, Link | End | None]]:
    """The positions of links, of attributes to remove (None) and of the last `</body>`. Not in order."""
    at, body, count = 0, -1, 0
    while (tag := _TAG.search(html, at)) is not None:
        kind = tag[1].lower()
        closing: re.Match[str] | None
        if kind == "!--":
            closing = _EMPTY_COMMENT.match(html, tag.end()) or _COMMENT_END.search(html, tag.end())
            at = -1 if closing is None else closing.end()
        elif kind in ("!", "?", "/"):
            at = html.find(">", tag.end()) + 1 or -1
        else:
            closing = TAG_REST.match(html, tag.end())
            at = -1 if closing is None else closing.end()
            if kind in _LINKED and at >= 0 and count < MAX_LINKS:
                count += 1
                yield from _attributes(html, tag.end(), at)
            elif kind == "/body" and at >= 0:
                body = tag.start()
            elif kind in _TEXT and at >= 0:
                closing = _TEXT[kind].search(html, at)
                at = -1 if closing is None else closing.start()
            elif kind == "plaintext":
                at = -1
        if at < 0:
            break
    if body >= 0:
        yield body, body, End()


def _attributes(html: str, at: int, end: int) -> Iterator[tuple[int, int, Link | None]]:
    """What to replace in the tag of a link: the value of its first `href`, or the attribute that says not to."""
    href: re.Match[str] | None = None
    kept = False
    while (found := _ATTRIBUTE.match(html, at, end)) is not None:
        name = found[1].lower()
        if name == "href" and href is None:
            href = found
        elif name == _NO_TRACK:
            kept = True
            yield found.start(), found.end(), None
        at = found.end()
    if href is not None and href.lastindex is not None and href.lastindex > 1 and not kept:
        start, stop = href.span(href.lastindex)
        yield start, stop, Link(html[start:stop])
