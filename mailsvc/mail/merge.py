"""Mail merge: templates with placeholders such as `{{{contact.first_name|there}}}`, and what a contact's values make of them.

Pure: it does not know where values come from. Only broadcasts are merged; emails of `POST /emails` are sent as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from html import escape, unescape
from itertools import chain, islice
from urllib.parse import quote, unquote

import attrs

from mailsvc.mail import html_to_text
from mailsvc.mail.header import FORBIDDEN
from mailsvc.mail.tracking.links import TAG_REST

UNSUBSCRIBE_URL = "UNSUBSCRIBE_URL"  # the canonical name of the recipient's unsubscribe link
FIELDS = ("first_name", "last_name", "email")  # of every contact; other keys are contact properties
_OLDER = {
    "FIRST_NAME": "first_name",
    "LAST_NAME": "last_name",
    "EMAIL": "email",
    "RESEND_UNSUBSCRIBE_URL": UNSUBSCRIBE_URL,
    "UNSUBSCRIBE_URL": UNSUBSCRIBE_URL,
}
_CONTACT = "contact."
MOST = 10_000  # placeholders of a text that are replaced: each takes time and memory for every recipient
SUBJECT_MAX = 10_000  # characters of a subject with its values: longer ones may not fit into the header of a message

# The second form is what tools that encode URLs make of the first one inside of an attribute.
_PLACEHOLDER = re.compile(r"\{\{\{([^{}]+)\}\}\}|%7[Bb]%7[Bb]%7[Bb]((?:[^%\s\"'<>{}]|%(?!7[BbDd]))+)%7[Dd]%7[Dd]%7[Dd]")
_NAME = re.compile(r"[A-Za-z0-9_.]{1,80}")
BODY = re.compile(r"<body[\s>]", re.IGNORECASE | re.ASCII)
_SURPLUS = re.compile(r" {2,}")
_LEFT, _RIGHT = "\ue000", "\ue001"  # mark placeholders while HTML becomes text; private use, removed from what was there
_MARK = re.compile(r"\ue000([0-9]{1,9})\ue001")
_LINK = "https://"  # put before a link that is a placeholder, because html_to_text shows only links with a known scheme

_HIDDEN = "display:none;font-size:1px;line-height:1px;max-height:0;max-width:0;opacity:0;overflow:hidden"
_PADDING = "&#8199;&#65279;&#847; " * 60  # keeps mail programs from showing the text after the preview text


@attrs.frozen
class Placeholder:
    """A name, as it was written, and the text for contacts without a value. `encoded`: written percent-encoded, in a URL."""

    name: str
    fallback: str | None = None
    encoded: bool = False


Piece = str | Placeholder


@attrs.frozen
class Values:
    """What a recipient's placeholders stand for: `own` by key, without missing ones; `fallbacks` of properties by key.

    The keys of `fallbacks` are all properties that exist.
    """

    own: Mapping[str, str]
    unsubscribe_url: str
    fallbacks: Mapping[str, str | None] = attrs.field(factory=dict)

    @cached_property
    def folded(self) -> Mapping[str, str]:
        """See `folded`. Only names in another letter case and unknown ones need it."""
        return folded(self.fallbacks)


@attrs.frozen
class Template:
    """A text, cut at its placeholders."""

    pieces: tuple[Piece, ...]

    def __iter__(self) -> Iterator[Placeholder]:
        return (piece for piece in self.pieces if isinstance(piece, Placeholder))

    def html(self, values: Values) -> str:
        """Values are escaped; inline fallbacks are HTML already."""
        return "".join([piece if isinstance(piece, str) else _html(piece, values) for piece in self.pieces])

    def text(self, values: Values) -> str:
        return "".join([piece if isinstance(piece, str) else _plain(piece, values) for piece in self.pieces])

    def line(self, values: Values) -> str:
        """Without line breaks and other control characters, whatever the values contain. A text without placeholders stays as it is."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], str):
            return self.pieces[0]
        return _SURPLUS.sub(" ", FORBIDDEN.sub(" ", self.text(values))).strip(" ")

    def subject(self, values: Values) -> str:
        """For a header field. It has none of these characters either if they were written in it."""
        return FORBIDDEN.sub(" ", self.line(values))[:SUBJECT_MAX]


def parse(text: str) -> Template:
    """Anything that is not a placeholder, such as double braces, stays as it is; so do placeholders after the first MOST."""
    pieces: list[Piece] = []
    copied = 0
    for found in islice(_PLACEHOLDER.finditer(text), MOST):
        placeholder = _read(found)
        if placeholder is not None:
            if found.start() > copied:
                pieces.append(text[copied : found.start()])
            pieces.append(placeholder)
            copied = found.end()
    if copied < len(text) or not pieces:
        pieces.append(text[copied:])
    return Template(tuple(pieces))


def masked(text: str) -> str:
    """A text of the same length, in which letters are in the place of placeholders."""
    return _PLACEHOLDER.sub(lambda found: found[0] if _read(found) is None else "x" * len(found[0]), text)


def _read(found: re.Match[str]) -> Placeholder | None:
    encoded = found[2] is not None
    name, bar, fallback = (_bar_decoded(found[2]) if encoded else found[1]).partition("|")
    name = unquote(name).strip() if encoded else name.strip()
    if not _NAME.fullmatch(name):
        return None
    return Placeholder(name, fallback.strip() if bar else None, encoded)


def _bar_decoded(encoded: str) -> str:
    """The name and the bar are decoded; a fallback stays encoded, because it stays in the URL."""
    return encoded.replace("%7C", "|", 1).replace("%7c", "|", 1) if "|" not in encoded else encoded


# --- names -----------------------------------------------------------------------------------------------------------


def _key_of(name: str, properties: Collection[str], folded: Callable[[], Mapping[str, str]]) -> str | None:
    """The field or property that a name means, UNSUBSCRIBE_URL, or None for an unknown one. `folded` returns what `folded` makes of them.

    Letter case counts only between names that differ in nothing else: texts made of HTML often have headings in capitals.
    """
    if name in _OLDER:
        return _OLDER[name]
    if name[: len(_CONTACT)].lower() != _CONTACT:
        return None
    key = name[len(_CONTACT) :]
    if key in FIELDS or key in properties:
        return key
    return folded().get(key.lower())


def folded(properties: Collection[str]) -> Mapping[str, str]:
    """The fields and properties by their names in lower case."""
    return {each.lower(): each for each in (*sorted(properties, reverse=True), *reversed(FIELDS))}


def _used(templates: Iterable[Template], properties: Collection[str]) -> Mapping[str, str | None]:
    """What the names in the templates mean. Each is looked up once, however often it is there."""
    by_name = folded(properties)
    names = {each.name for template in templates for each in template}
    return {name: _key_of(name, properties, lambda: by_name) for name in names}


def keys(templates: Iterable[Template], properties: Collection[str]) -> frozenset[str]:
    """The fields and properties that the templates use."""
    return frozenset(key for key in _used(templates, properties).values() if key is not None and key != UNSUBSCRIBE_URL)


def unknown(templates: Iterable[Template], properties: Collection[str]) -> list[str]:
    """The names that mean nothing, in alphabetical order."""
    return sorted(name for name, key in _used(templates, properties).items() if key is None)


def without_fallback(templates: Sequence[Template], properties: Mapping[str, str | None]) -> frozenset[str]:
    """The fields and properties of which something is missing if a contact has no value: neither they nor the placeholder has another."""
    used = _used(templates, properties)
    bare = {used[each.name] for template in templates for each in template if each.fallback is None}
    return frozenset(key for key in bare if key not in (None, UNSUBSCRIBE_URL, "email") and properties.get(key) is None)


def has_unsubscribe_link(templates: Iterable[Template]) -> bool:
    return any(_OLDER.get(each.name) == UNSUBSCRIBE_URL for template in templates for each in template)


# --- values ----------------------------------------------------------------------------------------------------------


def _value(placeholder: Placeholder, values: Values) -> tuple[str, bool]:
    """The text, and whether it is the placeholder's own fallback."""
    key = _key_of(placeholder.name, values.fallbacks, lambda: values.folded)
    value = values.unsubscribe_url if key == UNSUBSCRIBE_URL else values.own.get(key) if key is not None else None
    if value:
        return value, False
    if placeholder.fallback is not None:
        return placeholder.fallback, True
    return (values.fallbacks.get(key) or "") if key is not None else "", False


def _html(placeholder: Placeholder, values: Values) -> str:
    text, as_written = _value(placeholder, values)
    if as_written:
        return text
    if placeholder.encoded and text != values.unsubscribe_url:
        return quote(text, safe="")
    return escape(text)


def _plain(placeholder: Placeholder, values: Values) -> str:
    text, as_written = _value(placeholder, values)
    return quote(text, safe="") if placeholder.encoded and not as_written and text != values.unsubscribe_url else text


def room(size: int, placeholders: int, values: Values) -> int:
    """About how many bytes texts of `size` take with their values, at most: each placeholder may stand for the longest value."""
    fallbacks = (each for each in values.fallbacks.values() if each is not None)
    return size + placeholders * max((len(each.encode()) for each in chain(values.own.values(), fallbacks)), default=0)


# --- parts of a message ----------------------------------------------------------------------------------------------


def text_of(html: str) -> str:
    """The plain text of HTML with placeholders, with the same placeholders."""
    template = parse(html.replace(_LEFT, "").replace(_RIGHT, ""))
    marked: list[str] = []
    sources: list[tuple[str, str]] = []
    for piece in template.pieces:
        if isinstance(piece, Placeholder):
            link = _LINK if _OLDER.get(piece.name) == UNSUBSCRIBE_URL else ""
            marked.append(f"{link}{_LEFT}{len(sources)}{_RIGHT}")
            sources.append((link, _source(piece)))
        else:
            marked.append(piece)
    texts: list[str] = []
    copied, text = 0, html_to_text.text_of("".join(marked))
    for mark in _MARK.finditer(text):
        if (number := int(mark[1])) < len(sources):  # otherwise it came from character references, which HTML can have for any character
            link, source = sources[number]
            texts += [text[copied : mark.start()].removesuffix(link), source]
            copied = mark.end()
    return "".join([*texts, text[copied:]])


def _source(placeholder: Placeholder) -> str:
    if placeholder.fallback is None:
        return "{{{" + placeholder.name + "}}}"
    fallback = unquote(placeholder.fallback) if placeholder.encoded else unescape(placeholder.fallback)
    return "{{{" + placeholder.name + "|" + fallback.translate({ord("{"): None, ord("}"): None}) + "}}}"


def with_preview(html: str, preview: str) -> str:
    """The HTML with a hidden first element, which mail programs show beside the subject. `preview` is plain text."""
    if not preview:
        return html
    start = after_body_tag(html)
    return html[:start] + hidden_preview(preview) + html[start:]


def after_body_tag(html: str) -> int:
    """Where the content of the body begins; 0 if it has no start tag. One in a comment, for Outlook, does not count."""
    found, at = BODY.search(html), 0
    while found is not None and (comment := html.find("<!--", at, found.start())) >= 0:
        at = html.find("-->", comment + 2) + 3
        if at < 3:
            return 0
        if found.start() < at:
            found = BODY.search(html, at)
    tag = None if found is None else TAG_REST.match(html, found.end() - 1)
    return 0 if tag is None else tag.end()


def hidden_preview(preview: str) -> str:
    return f'<div style="{_HIDDEN}">{escape(preview)}{_PADDING}</div>'
