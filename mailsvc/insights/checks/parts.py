"""Checks of the text and HTML parts: presence, size, broken characters, one-time codes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mailsvc import units
from mailsvc.insights.checks.finding import Insight, Mail
from mailsvc.mail.html import Page

HTML_MAX, HTML_NEAR = 102 * 1024, 90 * 1024  # bytes; Gmail clips larger ones
SIZE_MAX, SIZE_NEAR = 25 << 20, 10 << 20
TEXT_RATIO_MIN = 0.01  # of the length of the HTML's text
MISSING_MAX = 0.99  # of the HTML's words that are not in the text
FOREIGN_MAX = 0.6  # of the text's words that are not in the HTML
WORDS_MIN, COMPARED = 10, 200_000  # different words needed for a comparison; characters that are compared

_GARBLED = re.compile(
    "\ufffd|\u00c3[\u0080-\u00bf]|\u00e2\u20ac[\u2122\u0153\u009d\u201c\u201d]"
)  # UTF-8 decoded with another character set
_WORD = re.compile(r"\w+")
_URL = re.compile(r"\b(?:https?://|mailto:|www\.)[^\s<>]*")
_NUMBER = re.compile(r"(?<![\w.,-])\d(?:[.,'-]?\d){3,20}(?![\w-])")
_CODE_WORDS = re.compile(
    r"\b(one[- ]time|verification|confirmation|security|login|sign[- ]in|access)[- ](code|pin|password)\b", re.IGNORECASE
)
_CODE = re.compile(r"(?<![\w.,#/-])\d{3}[ -]?\d{1,5}(?![\w/-])")
_LEAD = 200  # a code should be within these first characters


def plain_text(mail: Mail) -> Iterator[Insight]:
    html, text = mail.parsed.html, mail.parsed.text
    if text is None or not text.strip():
        why = "Filters distrust email without one, and some people only read text."
        yield Insight("attention", "Include a plain text part", "There is none.", why, "Omit `text` to have it generated from the HTML.")
    elif html and mail.page and len(text) < TEXT_RATIO_MIN * len(mail.page.text):
        seen, why = f"It has {len(text)} characters.", "Filters compare it with the HTML."
        yield Insight(
            "better", "The text part is nearly empty", seen, why, "Repeat the content of the HTML, or omit `text` to have it generated."
        )
    elif html and mail.page and (seen := _difference(mail.page, text)):
        why = "Filters compare both parts, and people only read one of them."
        remedy = "Say the same in both, or omit `text` to have it generated from the HTML."
        yield Insight("better", "The text part differs from the HTML", seen, why, remedy)
    else:
        yield Insight("great", "There is a plain text part", f"{len(text):,} characters.")


def _difference(page: Page, text: str) -> str:
    """What is different; empty if nothing is. A shorter text is fine; other words, or other numbers in the same place, are not."""
    html = " ".join([page.text, *(image.alt or "" for image in page.images), *(link.url for link in page.links)])[:COMPARED].lower()
    text = _URL.sub(" ", text[:COMPARED].lower())
    words, others = set(_WORD.findall(page.text[:COMPARED].lower())), set(_WORD.findall(text))
    if _share(words - others, words) >= MISSING_MAX:
        return "It contains hardly any of the words in the HTML."
    if _share(others - set(_WORD.findall(html)), others) >= FOREIGN_MAX:
        return "Most of its words are not in the HTML."
    numbers, other_numbers = _numbers(html), _numbers(text)
    if (mine := sorted(numbers - other_numbers)) and (theirs := sorted(other_numbers - numbers)):
        return f"It has the number {theirs[0]}, the HTML has {mine[0]} instead."
    return ""


def _share(of: set[str], words: set[str]) -> float:
    return len(of) / len(words) if len(words) >= WORDS_MIN else 0.0


def _numbers(text: str) -> set[str]:
    """Numbers of at least four digits: codes, orders, amounts, years."""
    return {"".join(filter(str.isdigit, found)) for found in _NUMBER.findall(text)}


def html_size(mail: Mail) -> Iterator[Insight]:
    size = len((mail.parsed.html or "").encode("utf-8", "replace"))
    seen = f"The HTML has {units.size(size)}."
    why = f"Gmail clips emails after {HTML_MAX // 1024} kB, including the unsubscribe link."
    if size > HTML_MAX:
        yield Insight("attention", "The HTML is too large", seen, why, "Remove unused styles and long links.")
    elif size > HTML_NEAR:
        yield Insight("better", "The HTML is nearly too large", seen, why, "Remove unused styles and long links.")
    elif mail.parsed.html:
        yield Insight("great", "The HTML is small enough", seen)


def whole_size(mail: Mail) -> Iterator[Insight]:
    seen = f"The message has {units.size(mail.size)}."
    if mail.size > SIZE_MAX:
        yield Insight("attention", "The message is too large", seen, "Many receivers accept at most 25 MB.", "Link to large files instead.")
    elif mail.size > SIZE_NEAR:
        yield Insight("better", "The message is large", seen, "Some receivers accept at most 10 MB.", "Link to large files instead.")


def garbled(mail: Mail) -> Iterator[Insight]:
    subject = mail.parsed.header("Subject") or ""
    found = _GARBLED.search(subject) or _GARBLED.search(mail.text[:20_000])
    if found:
        where = "subject" if _GARBLED.search(subject) else "text"
        why = "The text was decoded with the wrong character set before it was sent to us."
        yield Insight("attention", "Some characters are broken", f"The {where} contains “{found[0]}”.", why, "Use UTF-8 throughout.")


def code(mail: Mail) -> Iterator[Insight]:
    """One-time codes are read on lock screens, and filled in by phones."""
    subject = (mail.parsed.header("Subject") or "").strip()
    if mail.bulk or not (_CODE_WORDS.search(subject) or _CODE_WORDS.search(mail.text[:1000])):
        return
    found = _CODE.search(f"{subject} {mail.text}")
    if found is None:
        return
    if found.start() > len(subject) + _LEAD:
        why = "People read codes in notifications, and phones fill them in from there."
        yield Insight(
            "better",
            "Put the code first",
            "The one-time code is far down in the text.",
            why,
            "Put the code into the first line, in digits.",
        )
    else:
        yield Insight("great", "The code is easy to find", "It is in the subject or in the first lines.")


CHECKS = (plain_text, html_size, whole_size, garbled, code)
