"""Extracts links, images, element names and text from an email's HTML, for insights. Never fails.

lxml parses the HTML in one pass, without building a tree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs
from lxml import etree

MAX_LENGTH = 2_000_000  # characters that are parsed
MAX_LINKS = 5000  # of links, and of images
SMALL = 9  # pixels
LOW_CONTRAST = 1.5  # a contrast ratio; 1 is none

_MAX_DEPTH = 256  # nested elements
_SLICE = 16 * 1024  # bytes parsed at once
_CONTROL = bytes([*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F])
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")  # not allowed in HTML
_HTML = re.compile(r"<html[\s/>]", re.IGNORECASE)
_INLINE = frozenset("a abbr b bdi bdo big cite code em font i img ins kbd mark q s small span strong sub sup u wbr".split())
_HEX = re.compile(r"#([0-9a-f]{3}|[0-9a-f]{6})", re.IGNORECASE)
_INVISIBLE = "\u00ad\u034f\u200b-\u200f\u2060\ufeff"  # invisible characters
_INVISIBLE_CHARACTER = re.compile(f"[{_INVISIBLE}]")
_PADDING = re.compile(rf"[\s{_INVISIBLE}]{{4,}}")  # keeps other text out of a preview
_NAMED = {"white": "#fff", "black": "#000"}


@attrs.frozen
class Link:
    url: str
    text: str


@attrs.frozen
class Image:
    """`alt`: None if missing. `tiny`: one or two pixels, like a tracker. `area`: in pixels, 0 unless both sides are given."""

    source: str
    alt: str | None
    tiny: bool
    area: int = 0


@attrs.frozen
class Page:
    """What was found. `metas`: names of meta elements. `hidden`: number of hidden characters. `preview`: hidden text before all other
    text. `small`: there is a font below 9 pixels. `pale`: there is text in almost the color of its background.
    """

    links: tuple[Link, ...]
    images: tuple[Image, ...]
    elements: frozenset[str]
    text: str
    lang: str
    title: str
    metas: frozenset[str]
    hidden: int
    small: bool
    pale: bool
    preview: str = ""


def read(html: str) -> Page:
    html = html[:MAX_LENGTH]
    reader = _Reader()
    data = html.encode().translate(None, _CONTROL) if html.isascii() else _UNREADABLE.sub("", html).encode()
    parser = etree.HTMLParser(target=reader, encoding="utf-8")
    try:
        for at in range(0, len(data), _SLICE):
            parser.feed(data[at : at + _SLICE])
        parser.close()
    except (etree.LxmlError, ValueError):  # too deep, or empty: keep what was found
        pass
    links = tuple(Link(url, " ".join("".join(texts).split())) for url, texts in reader.links)
    elements = reader.elements if _HTML.search(html) else reader.elements - {"html"}  # the parser adds a missing one
    return Page(
        links, tuple(reader.images), frozenset(elements), " ".join("".join(reader.texts).split()), reader.lang,
        "".join(reader.title).strip(), frozenset(reader.metas), reader.hidden, reader.small, reader.pale,
        " ".join(_PADDING.sub(" ", "".join(reader.preview)).split()),
    )  # fmt: skip


class _Reader:
    """The target of the parser, which reports an end for every element, even for empty and unclosed ones."""

    def __init__(self) -> None:
        self.links: list[tuple[str, list[str]]] = []
        self.images: list[Image] = []
        self.elements: set[str] = set()
        self.texts: list[str] = []
        self.lang = ""
        self.title: list[str] = []
        self.metas: set[str] = set()
        self.hidden = 0
        self.preview: list[str] = []
        self.small = self.pale = False
        self._depth = 0
        self._link: list[str] | None = None
        self._unseen = 0  # depth inside a hidden element
        self._silent = ""  # the open element whose content is not text
        self._first = True  # until the first visible text

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError("too deep")
        self.elements.add(tag)
        self._apart(tag)
        style = _style(attributes["style"]) if "style" in attributes else {}
        if self._unseen or (style and _hides(style)) or "hidden" in attributes:
            self._unseen += 1
        if style and not self._unseen:
            self.small = self.small or 0 < _pixels(style.get("font-size", "")) < SMALL
            self.pale = self.pale or _pale(style)
        if tag == "a" and "href" in attributes:
            self._link = []
            if len(self.links) < MAX_LINKS:
                self.links.append((attributes["href"] or "", self._link))
        elif tag == "img" and len(self.images) < MAX_LINKS:
            self.images.append(_image(attributes, style))
        elif tag == "html":
            self.lang = attributes.get("lang", "")
        elif tag == "meta":
            self.metas.add(attributes.get("name", "").lower())
        elif tag in ("style", "script", "title"):
            self._silent = tag

    def _apart(self, tag: str) -> None:
        """Separates the words of two blocks."""
        if tag not in _INLINE:
            self.texts.append(" ")
            if self._first:
                self.preview.append(" ")

    def end(self, tag: str) -> None:
        self._depth -= 1
        self._apart(tag)
        if tag == "a":
            self._link = None
        if self._unseen:
            self._unseen -= 1
        if tag == self._silent:
            self._silent = ""

    def data(self, data: str) -> None:
        if self._silent == "title":
            self.title.append(data)
        if self._silent:
            return
        if self._unseen:
            seen = len("".join(_INVISIBLE_CHARACTER.sub("", data).split()))
            self.hidden += seen
            if seen and self._first:
                self.preview.append(data)
        elif data.strip():
            self._first = False
        self.texts.append(data)
        if self._link is not None:
            self._link.append(data)

    def comment(self, _text: str) -> None:
        """Comments are ignored."""

    def close(self) -> None:
        """Required by the parser."""


def _image(attributes: Mapping[str, str], style: Mapping[str, str]) -> Image:
    tiny = {attributes.get("width", "").rstrip("px"), attributes.get("height", "").rstrip("px")} & {"0", "1", "2"}
    sides = [max(0.0, _pixels(style.get(name, "")), _pixels(attributes.get(name, "").strip())) for name in ("width", "height")]
    return Image(attributes.get("src", ""), attributes.get("alt"), bool(tiny), int(sides[0] * sides[1]))


def _style(text: str) -> dict[str, str]:
    pairs = (part.partition(":") for part in text.lower().replace("!important", "").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _hides(style: Mapping[str, str]) -> bool:
    none = style.get("display") == "none" or style.get("visibility") == "hidden" or style.get("opacity") == "0"
    return none or _pixels(style.get("font-size", "")) == 0 or style.get("mso-hide") == "all"


def _pixels(size: str) -> float:
    """Returns a size in pixels, or -1 if it is not in pixels or points."""
    found = re.fullmatch(r"(\d{1,4}(?:\.\d+)?)(px|pt|)", size)
    return -1 if found is None else float(found[1]) * (4 / 3 if found[2] == "pt" else 1)


def _pale(style: Mapping[str, str]) -> bool:
    front, back = _luminance(style.get("color", "")), _luminance(style.get("background-color", style.get("background", "")))
    if front is None or back is None:
        return False
    return (max(front, back) + 0.05) / (min(front, back) + 0.05) < LOW_CONTRAST


def _luminance(color: str) -> float | None:
    """Returns the relative luminance of a color, from 0 to 1 (WCAG)."""
    found = _HEX.fullmatch(_NAMED.get(color, color))
    if found is None:
        return None
    digits = found[1] if len(found[1]) == 6 else "".join(2 * digit for digit in found[1])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
