"""What an email's html has in it: links, images, the names of its elements and its text. Reads anything, fails at nothing."""

from __future__ import annotations

from html.parser import HTMLParser

import attrs

MOST = 2_000_000  # characters that are looked at


@attrs.frozen
class Link:
    url: str
    text: str


@attrs.frozen
class Image:
    """`alt` None: there is none. `tiny`: of a pixel or two, as trackers are."""

    source: str
    alt: str | None
    tiny: bool


@attrs.frozen
class Page:
    links: tuple[Link, ...]
    images: tuple[Image, ...]
    elements: frozenset[str]
    text: str
    lang: str


def read(html: str) -> Page:
    reader = _Reader()
    reader.feed(html[:MOST])
    reader.close()
    links = tuple(Link(url, " ".join("".join(texts).split())) for url, texts in reader.links)
    return Page(links, tuple(reader.images), frozenset(reader.elements), " ".join("".join(reader.texts).split()), reader.lang)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[tuple[str, list[str]]] = []
        self.images: list[Image] = []
        self.elements: set[str] = set()
        self.texts: list[str] = []
        self.lang = ""
        self._link: list[str] | None = None
        self._silent = ""  # the element whose content is not text

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        named = {name: value or "" for name, value in attributes}
        if tag == "a" and named.get("href"):
            self._link = []
            self.links.append((named["href"], self._link))
        elif tag == "img":
            tiny = {named.get("width", "").rstrip("px"), named.get("height", "").rstrip("px")} & {"0", "1", "2"}
            self.images.append(Image(named.get("src", ""), named.get("alt"), bool(tiny)))
        elif tag == "html":
            self.lang = named.get("lang", "")
        elif tag in ("style", "script", "title"):
            self._silent = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self._link = None
        elif tag == self._silent:
            self._silent = ""

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        self.texts.append(data)
        if self._link is not None:
            self._link.append(data)
