"""Converts HTML to plain text. Links become `text (url)`, table rows become lines; styles and scripts are dropped.

lxml parses the HTML in one pass, without building a tree.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from html import unescape

from lxml import etree

_SHOWN = re.compile(r"(?:https?|mailto|tel):", re.IGNORECASE)
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\ufffe\uffff\ud800-\udfff]")  # not allowed in HTML, or soft hyphens
_CONTROL = bytes([*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F])  # those of _UNREADABLE in ASCII
_SPACE = re.compile(r"[ \t\n\r]+")
_SURPLUS = re.compile(r"[\t\n\r][ \t\n\r]*+| [ \t\n\r]++")  # the same except single spaces
_SPACES = frozenset(" \t\n\r\f")
_TAG = re.compile(r"<[^<>]*>")
_NONE = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)\b")  # in lower case
_EMPTY_LINES = re.compile(r"\n{3,}")

_UNSEEN = frozenset({"head", "title", "script", "style", "template", "iframe", "object", "svg", "math", "audio", "video", "datalist"})
_LINE, _PARAGRAPH = 1, 2  # line breaks around a block
_GAPS = dict.fromkeys(
    "address article aside body caption center dd details div dt fieldset figcaption figure footer form header html legend li "
    "main nav option section summary tr".split(),
    _LINE,
) | dict.fromkeys("blockquote dl h1 h2 h3 h4 h5 h6 hr p pre table".split(), _PARAGRAPH)
_RULE = "-" * 20
_BULLET = "  * "
_MAX_INDENT = 8  # levels; deeper ones are not indented further
_MAX_DEPTH = 256  # nested elements: an end tag takes time for each of them
LONGEST = 1 << 20  # characters of HTML, inline images not counted: nobody reads the text of more
_MAX_IMAGES = 1000  # inline images that are left out
_SLICE = 16 * 1024  # bytes after which these limits are checked
_KEPT = 2 << 20  # characters of HTML and text


def text_of(html: str) -> str:
    """Returns the text, with at most one empty line between paragraphs and none around it; "" if `html` is longer than LONGEST."""
    if len(html) > LONGEST:
        html = _without_inline_data(html)
    if len(html) > LONGEST:
        return ""
    data = html.encode().translate(None, _CONTROL) if html.isascii() else _UNREADABLE.sub("", html).encode()
    if not data.strip():
        return ""
    try:
        text = _parsed(data)
    except (etree.LxmlError, ValueError):  # too deep or too long for the parser
        text = unescape(_TAG.sub(" ", data.decode()))
    lines = "\n".join([line.rstrip() for line in text.replace("\xa0", " ").splitlines()])
    if "\n\n\n" in lines:  # a faster search
        lines = _EMPTY_LINES.sub("\n\n", lines)
    return lines.strip("\n")


class RecentTexts:
    """Converts pages, and keeps the last ones with their texts, because many emails with the same page often follow each other.

    Each owner has its own: how long a conversion takes shows whether the page was converted before. Can be used in several threads.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._room = kept
        self._texts: OrderedDict[tuple[Hashable, str], str] = OrderedDict()
        self._lock = threading.Lock()

    def text_of(self, owner: Hashable, html: str) -> str:
        key = owner, html
        with self._lock:
            if key in self._texts:
                self._texts.move_to_end(key)
                return self._texts[key]
        text = text_of(html)
        with self._lock:
            if key not in self._texts:
                self._texts[key] = text
                self._room -= len(html) + len(text)
            while self._room < 0:
                (_, page), dropped = self._texts.popitem(last=False)
                self._room += len(page) + len(dropped)
        return text


def _without_inline_data(html: str) -> str:
    """Without what `data:` URIs in quotes contain, up to the first one that has no closing quote."""
    parts, copied, at = [], 0, 0
    for _ in range(_MAX_IMAGES):
        start = html.find("data:", at) + len("data:")
        if start < len("data:"):
            break
        at, quote = start, html[max(start - 6, 0)]
        if quote in "\"'":
            at = html.find(quote, start)
            if at < 0:
                break
            parts.append(html[copied:start])
            copied = at
    return "".join([*parts, html[copied:]])


def _parsed(data: bytes) -> str:
    parser = _idle.__dict__.pop("parser", None) or etree.HTMLParser(target=_Page(), encoding="utf-8")
    for at in range(0, len(data), _SLICE):
        parser.feed(data[at : at + _SLICE])
    text: str = parser.close()
    _idle.parser = parser  # a parser that failed is not reused
    return text


_idle = threading.local()  # creating a parser takes longer than parsing a short page


class _Page:
    """The target of the parser. Writes text at once; separators are kept until the next text."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.out: list[str] = []
        self.gap = _LINE  # line breaks before the next text
        self.space = ""  # otherwise, the space before it
        self.depth = 0
        self.indent = ""
        self.indents: list[str] = []  # of the enclosing levels
        self.marker = ("", 0)  # the list marker before the next text, and its column
        self.lists: list[int | None] = []  # the next number; None for bullets
        self.hidden = 0  # depth inside a hidden element
        self.pre = 0
        self.link = ("", 0)  # its URL, and where its text begins
        self.image = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ValueError("too deep")
        if self.hidden or (attributes and _is_hidden(attributes)):
            self.hidden += 1
            return
        gap, special, _ = _KNOWN.get(tag, _UNKNOWN)
        if gap > self.gap:
            self.gap = gap
        if special is not None:
            special(self, attributes)

    def end(self, tag: str) -> None:
        self.depth -= 1
        if self.hidden:
            self.hidden -= 1
            return
        gap, _, special = _KNOWN.get(tag, _UNKNOWN)
        if special is not None:
            special(self)
        if gap > self.gap:
            self.gap = gap

    def data(self, data: str) -> None:
        if self.hidden:
            return
        if self.pre:
            self._lines(data)
            return
        if data.isprintable() and "  " not in data:  # most texts: one line, single spaces
            text = data.strip(" ")
        elif data.isascii():
            text = " ".join(data.split())
        else:  # split() would also split at non-breaking spaces
            text = _SURPLUS.sub(" ", data).strip(" ")
        if data[0] in _SPACES:
            self.space = self.space or " "
        if text and not (self.gap and text.isspace()):  # at the start of a line, even non-breaking spaces are dropped
            self._write(text)
            if data[-1] in _SPACES:
                self.space = " "

    def comment(self, _text: str) -> None:
        """Comments are ignored."""

    def close(self) -> str:
        text = "".join(self.out)
        self.begin()
        return text

    def _write(self, text: str) -> None:
        if self.gap:
            if self.out:
                self.out.append("\n\n"[: self.gap])
            marker, at = self.marker
            if marker:
                self.out.append(self.indent[:at] + marker + self.indent[at + len(marker) :])
                self.marker = ("", 0)
            elif self.indent:
                self.out.append(self.indent)
            self.gap = 0
        elif self.space:
            self.out.append(self.space)
        self.out.append(text)
        self.space = ""

    def _lines(self, data: str) -> None:
        first, *rest = data.replace("\r\n", "\n").split("\n")
        if first:
            self._write(first)
        for line in rest:
            self.break_line()
            if line:
                self._write(line)

    def hide(self, _attributes: Mapping[str, str]) -> None:
        self.hidden += 1

    def break_line(self, _attributes: Mapping[str, str] | None = None) -> None:
        self.gap = min(self.gap + 1, _PARAGRAPH)

    def rule(self, _attributes: Mapping[str, str]) -> None:
        self._write(_RULE)

    def cell(self, _attributes: Mapping[str, str]) -> None:
        self.space = "  "

    def picture(self, attributes: Mapping[str, str]) -> None:
        self.image = True
        if alt := attributes.get("alt"):
            self.data(alt)

    def begin_pre(self, _attributes: Mapping[str, str]) -> None:
        self.pre += 1

    def end_pre(self) -> None:
        self.pre -= 1

    def push(self, indent: str) -> None:
        self.indents.append(self.indent)
        if len(self.indents) <= _MAX_INDENT:
            self.indent += indent

    def pop(self) -> None:
        if self.indents:
            self.indent = self.indents.pop()

    def begin_quote(self, _attributes: Mapping[str, str]) -> None:
        self.push("> ")

    def begin_meaning(self, _attributes: Mapping[str, str]) -> None:
        self.push("    ")

    def begin_bullets(self, _attributes: Mapping[str, str]) -> None:
        self._list(None)

    def begin_numbers(self, attributes: Mapping[str, str]) -> None:
        self._list(_number(attributes.get("start"), 1))

    def _list(self, number: int | None) -> None:
        self.gap = max(self.gap, _LINE if self.lists else _PARAGRAPH)
        self.lists.append(number)

    def end_list(self) -> None:
        if self.lists:
            self.lists.pop()
        self.gap = max(self.gap, _LINE if self.lists else _PARAGRAPH)

    def begin_item(self, attributes: Mapping[str, str]) -> None:
        number = self.lists[-1] if self.lists else None
        marker = _BULLET
        if number is not None:
            number = _number(attributes.get("value"), number)
            self.lists[-1] = number + 1
            marker = f"{number:>2}. "
        self.marker = (marker, len(self.indent))
        self.push(" " * len(marker))

    def end_item(self) -> None:
        self.marker = ("", 0)
        self.pop()

    def begin_link(self, attributes: Mapping[str, str]) -> None:
        target = _SPACE.sub("%20", attributes.get("href", "").strip())
        self.link = (target if _SHOWN.match(target) else "", len(self.out))
        self.image = False

    def end_link(self) -> None:
        target, begin = self.link
        self.link = ("", 0)
        if not target:
            return
        text = "".join(self.out[begin:]).strip()
        if text:
            if text not in _names(target):
                self.out.append(f" ({target})")  # right after the text, even if that was a block
        elif self.image:  # without a word for it
            self._write(f"({target})")


def _is_hidden(attributes: Mapping[str, str]) -> bool:
    if "hidden" in attributes:
        return True
    style = attributes.get("style", "").lower()
    return ("none" in style or "hidden" in style) and _NONE.search(style) is not None  # most have neither, which is faster to see


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,9}", text) else otherwise


def _names(target: str) -> tuple[str, ...]:
    """The texts of a link that need no target beside them."""
    scheme, _, rest = target.partition(":")
    return (target, target.removesuffix("/"), *([rest.partition("?")[0]] if scheme.lower() in ("mailto", "tel") else []))


_STARTS: dict[str, Callable[[_Page, Mapping[str, str]], None]] = {
    **dict.fromkeys(_UNSEEN, _Page.hide),
    "a": _Page.begin_link,
    "blockquote": _Page.begin_quote,
    "br": _Page.break_line,
    "dd": _Page.begin_meaning,
    "hr": _Page.rule,
    "img": _Page.picture,
    "li": _Page.begin_item,
    "ol": _Page.begin_numbers,
    "pre": _Page.begin_pre,
    "td": _Page.cell,
    "th": _Page.cell,
    "ul": _Page.begin_bullets,
}
_ENDS: dict[str, Callable[[_Page], None]] = {
    "a": _Page.end_link,
    "blockquote": _Page.pop,
    "dd": _Page.pop,
    "li": _Page.end_item,
    "ol": _Page.end_list,
    "pre": _Page.end_pre,
    "ul": _Page.end_list,
}
_KNOWN = {tag: (_GAPS.get(tag, 0), _STARTS.get(tag), _ENDS.get(tag)) for tag in _GAPS.keys() | _STARTS.keys() | _ENDS.keys()}
_UNKNOWN = (0, None, None)
