"""Plain text out of html: what a reader without html sees. Links as `text (url)`, lists, tables; no styles or scripts."""

from __future__ import annotations

import re
from html import unescape

from inscriptis import get_text
from inscriptis.css_profiles import CSS_PROFILES
from inscriptis.model.config import ParserConfig
from inscriptis.model.html_document_state import HtmlDocumentState
from inscriptis.model.tag import CustomHtmlTagHandlerMapping

_SHOWN = re.compile(r"(?:https?|mailto|tel):", re.IGNORECASE)
# Not for reading: scripts, styles and the characters that HTML does not allow.
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")
_SAID_TWICE = re.compile(r"(?<!\S)(\S++) \((?:mailto:|tel:)?\1\)")
_EMPTY_LINES = re.compile(r"\n{3,}")


def text_of(html: str) -> str:
    """The text of `html`, without empty lines around it and with at most one between paragraphs."""
    html = _UNREADABLE.sub("", html.replace("\r\n", "\n"))
    try:
        text = get_text(html, _CONFIG)
    except (ValueError, AssertionError, RecursionError):  # no tree can be made of it
        text = unescape(re.sub(r"<[^<>]*>", " ", html))
    lines = "\n".join([line.rstrip() for line in text.split("\n")])
    return _SAID_TWICE.sub(r"\1", _EMPTY_LINES.sub("\n\n", lines)).strip("\n")


def _open_link(state: HtmlDocumentState, attributes: dict[str, str]) -> None:
    target = attributes.get("href", "").strip()
    state.link_target = target if _SHOWN.match(target) else ""


def _close_link(state: HtmlDocumentState) -> None:
    if state.link_target:
        state.tags[-1].write(f" ({state.link_target})")
        state.link_target = ""


def _image(state: HtmlDocumentState, attributes: dict[str, str]) -> None:
    state.tags[-1].write(attributes.get("alt", ""))


_CONFIG = ParserConfig(
    css=CSS_PROFILES["strict"],
    custom_html_tag_handler_mapping=CustomHtmlTagHandlerMapping({"a": _open_link, "img": _image}, {"a": _close_link}),
)
