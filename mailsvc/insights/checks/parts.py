"""The parts of a message: text, html, how large they are, and whether a machine garbled them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mailsvc.insights.checks.finding import Insight, Mail

HTML_MOST, HTML_NEAR = 102 * 1024, 90 * 1024  # octets; large receivers cut a mail off there
SIZE_MOST, SIZE_NEAR = 25 << 20, 10 << 20
EMPTY_LEAST = 0.01  # of the html's length
MISSING_MOST = 0.99  # of the html's words
WORDS_LEAST, COMPARED = 10, 200_000  # different words, below which nothing is said; characters that are compared

_GARBLED = re.compile("\ufffd|\u00c3[\u0080-\u00bf]|\u00e2\u20ac[\u2122\u0153\u009d\u201c\u201d]")  # UTF-8 that was read as something else
_WORD = re.compile(r"\w+")
_CODE_WORDS = re.compile(
    r"\b(one[- ]time|verification|confirmation|security|login|sign[- ]in|access)[- ](code|pin|password)\b", re.IGNORECASE
)
_CODE = re.compile(r"(?<![\w.,#/-])\d{3}[ -]?\d{1,5}(?![\w/-])")
_LEAD = 200  # characters in which a code should stand


def plain_text(mail: Mail) -> Iterator[Insight]:
    html, text = mail.parsed.html, mail.parsed.text
    if text is None or not text.strip():
        why = "Filters distrust mail that has none, and some people read nothing else."
        yield Insight("attention", "Include a plain text part", "There is none.", why, "Leave `text` out and it is made from the html.")
    elif html and mail.page and len(text) < EMPTY_LEAST * len(mail.page.text):
        seen, why = f"It has {len(text)} characters.", "Filters compare it with the html."
        yield Insight("better", "The text part is nearly empty", seen, why, "Say in it what the html says, or leave `text` out.")
    elif html and mail.page and _share_missing(mail.page.text, text) >= MISSING_MOST:
        why = "Filters compare them, and people who read one miss what is in the other."
        remedy = "Say the same in both. Leave `text` out, and it is made from the html."
        yield Insight("better", "The text part says something else", "Of the words of the html hardly one is in it.", why, remedy)
    else:
        yield Insight("great", "It has a plain text part", f"{len(text):,} characters.")


def _share_missing(html: str, text: str) -> float:
    """How many of the html's words the text has not, from 0 to 1."""
    wanted = set(_WORD.findall(html[:COMPARED].lower()))
    return len(wanted - set(_WORD.findall(text[:COMPARED].lower()))) / len(wanted) if len(wanted) >= WORDS_LEAST else 0.0


def html_size(mail: Mail) -> Iterator[Insight]:
    size = len((mail.parsed.html or "").encode("utf-8", "replace"))
    seen = f"The html has {size / 1024:.0f} kB."
    why = f"Gmail cuts a mail off after {HTML_MOST // 1024} kB, and with it the way to unsubscribe."
    if size > HTML_MOST:
        yield Insight("attention", "The html is too large", seen, why, "Remove unused styles and long links.")
    elif size > HTML_NEAR:
        yield Insight("better", "The html is nearly too large", seen, why, "Remove unused styles and long links.")
    elif mail.parsed.html:
        yield Insight("great", "The html is small enough", seen)


def whole_size(mail: Mail) -> Iterator[Insight]:
    seen = f"The message has {mail.size / (1 << 20):.1f} MB."
    if mail.size > SIZE_MOST:
        yield Insight("attention", "The message is too large", seen, "Many receivers take 25 MB at most.", "Link to large files instead.")
    elif mail.size > SIZE_NEAR:
        yield Insight("better", "The message is large", seen, "Some receivers take 10 MB at most.", "Link to large files instead.")


def garbled(mail: Mail) -> Iterator[Insight]:
    subject = mail.parsed.header("Subject") or ""
    found = _GARBLED.search(subject) or _GARBLED.search(mail.text[:20_000])
    if found:
        where = "subject" if _GARBLED.search(subject) else "text"
        why = "Texts were read in one character set and written in another before they came here."
        yield Insight("attention", "Some characters are broken", f"The {where} has “{found[0]}”.", why, "Use UTF-8 throughout.")


def code(mail: Mail) -> Iterator[Insight]:
    """A one-time code is read on a lock screen, and filled in by phones."""
    subject = (mail.parsed.header("Subject") or "").strip()
    if mail.bulk or not (_CODE_WORDS.search(subject) or _CODE_WORDS.search(mail.text[:1000])):
        return
    found = _CODE.search(f"{subject} {mail.text}")
    if found is None:
        return
    if found.start() > len(subject) + _LEAD:
        why = "People read it from a notification, and phones fill it in from there."
        yield Insight(
            "better", "Put the code first", "A one-time code stands far down in the text.", why, "Let the first line have it, in digits."
        )
    else:
        yield Insight("great", "The code is easy to find", "It stands in the subject or in the first lines.")


CHECKS = (plain_text, html_size, whole_size, garbled, code)
