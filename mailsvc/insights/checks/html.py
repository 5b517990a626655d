"""Checks of the HTML: images, unsupported elements, readability, preview line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mailsvc.insights.checks.finding import Insight, Mail, listed
from mailsvc.insights.checks.links import host_of
from mailsvc.mail.html import Image

HIDDEN_MAX = 250  # characters of invisible text; a preview line is shorter
PREVIEW, PREVIEW_MAX = 90, 140  # characters that inboxes show, and that are acceptable
TEXT_MIN, TEXT_EACH = 400, 200  # characters of text beside images: in total, and for each image
TEXT_RATIO = 0.008  # characters for each pixel of the images


def images(mail: Mail) -> Iterator[Insight]:
    found: Sequence[Image] = mail.page.images if mail.page else ()
    shown = [image for image in found if not image.tiny]
    if any(image.alt is None for image in shown):
        missing = sum(image.alt is None for image in shown)
        why = "Many email clients block images at first, and some people cannot see them."
        remedy = "Add alt text to each image; leave it empty for decoration."
        yield Insight("better", "Add alt text to images", f"{missing} of {len(shown)} images have no alt text.", why, remedy)
    if any(image.source.lower().startswith("data:") for image in found):
        yield Insight(
            "better",
            "Embedded images are not shown",
            "Some image sources begin with data:.",
            "Gmail removes them.",
            "Attach the images and refer to them by content ID.",
        )
    if any(re.search(r"\.svg(\?|$)|^data:image/svg", image.source, re.IGNORECASE) for image in found):
        yield Insight("better", "Avoid SVG images", "The HTML has SVG images.", "Gmail and Outlook do not show them.", "Use PNG.")
    if any(re.search(r"\.webp(\?|$)", image.source, re.IGNORECASE) for image in found):
        yield Insight("better", "Avoid WebP images", "The HTML has WebP images.", "Outlook does not show them.", "Use PNG or JPEG.")
    if mail.page and shown:
        yield from _beside(len("".join(mail.page.text.split())), shown)


def _beside(text: int, shown: Sequence[Image]) -> Iterator[Insight]:
    """Whether there is enough text for the number of images, and for their area as far as it is known."""
    area = sum(image.area for image in shown)
    few, thin = text < TEXT_MIN and len(shown) * TEXT_EACH > text, area > 0 and text / area < TEXT_RATIO
    if few or thin:
        seen = f"{len(shown)} image{'s' * (len(shown) != 1)}{f' of {area:,} pixels' if thin else ''} and {text:,} characters of text."
        why = "Filters cannot read images, and spam often consists of them."
        yield Insight("better", "There is too little text for the images", seen, why, "Repeat what the images say as text.")


def elements(mail: Mail) -> Iterator[Insight]:
    names = mail.page.elements if mail.page else frozenset()
    if wrong := sorted(names & {"script", "iframe", "object", "embed", "applet"}):
        seen, why = f"The HTML contains {listed(wrong)}.", "Receivers remove these elements and penalize the email."
        yield Insight("attention", "Remove unsupported elements", seen, why, "Link to a web page instead.")
    if odd := sorted(names & {"form", "video", "audio"}):
        seen, why = f"The HTML contains {listed(odd)}.", "Many email clients remove these elements."
        yield Insight("better", "Some email clients do not show everything", seen, why, "Link to a web page instead.")
    if mail.page and not mail.page.lang:
        seen = "The html element has no lang attribute." if "html" in names else "There is no html element."
        yield Insight(
            "better",
            "Set the language",
            seen,
            "Screen readers need it for pronunciation.",
            'Begin with <html lang="en">, or the language of the email.',
        )


def sources(mail: Mail) -> Iterator[Insight]:
    """Where images are loaded from, and tracking pixels."""
    found: Sequence[Image] = mail.page.images if mail.page else ()
    hosts = sorted(
        {host for image in found if not image.tiny and (host := host_of(image.source)) and mail.own and not mail.same(host, mail.own)}
    )
    if hosts:
        why = "A host's poor reputation affects your email."
        remedy = f"Serve them from a subdomain of {mail.own}, or attach them."
        yield Insight("better", "Load images from your own domain", f"Some are loaded from {listed(hosts)}.", why, remedy)
    if not mail.bulk and any(image.tiny and host_of(image.source) for image in found):
        why = "Filters and people dislike tracking, and in transactional email it has little use."
        yield Insight("better", "Don't track opens", "There is an invisible image.", why, "Remove it, or switch open tracking off.")


def readable(mail: Mail) -> Iterator[Insight]:
    """Hidden text, and text that is too small or too pale."""
    page = mail.page
    if page is None:
        return
    if page.hidden > HIDDEN_MAX:
        why = "Spam contains hidden text for filters to read."
        yield Insight("attention", "Text is hidden", f"{page.hidden} characters are hidden.", why, "Only hide a preview line.")
    problems = [word for flag, word in ((page.small, "a font below 9 pixels"), (page.pale, "a color close to its background")) if flag]
    if problems:
        remedy = "Use 14 pixels or more, and dark on light or light on dark."
        yield Insight(
            "better", "Some text is hard to read", f"The HTML uses {listed(problems)}.", "Filters treat it as hidden text.", remedy
        )


def head(mail: Mail) -> Iterator[Insight]:
    """Metadata in the head."""
    page = mail.page
    if page is None:
        return
    missing = [word for word, there in (("a title", page.title), ("a viewport", "viewport" in page.metas)) if not there]
    if missing:
        why = "Screen readers announce the title, and phones need a viewport to show the email at the right size."
        seen = f"There is no {' and no '.join(word[2:] for word in missing)}."
        yield Insight("better", "Complete the HTML head", seen, why, f"Add {' and '.join(missing)}.")
    if "color-scheme" in page.metas:
        yield Insight("great", "Dark mode is supported", "The head has a color-scheme.")


def preview_line(mail: Mail) -> Iterator[Insight]:
    """The first words, which inboxes show after the subject."""
    hidden = mail.page.preview if mail.page else ""
    whole = hidden or mail.text
    line = whole[:PREVIEW].strip()
    if not line:
        why = "Inboxes show the first words of an email after the subject."
        yield Insight("better", "There is no preview line", "The HTML has no text.", why, "Begin with a short line; it can be hidden.")
    elif re.match(r"(view|open|read|show|see)\b.{0,30}\b(browser|online|web)\b", line, re.IGNORECASE):
        why = "Inboxes show the first words of an email after the subject."
        yield Insight(
            "better", "Begin with the topic", f"It begins “{line[:60]}”.", why, "Put a short line about the topic first; it can be hidden."
        )
    elif len(hidden) > PREVIEW_MAX:
        seen = f"The hidden line at the top has {len(hidden)} characters."
        why = f"Inboxes show about {PREVIEW} of them, and hidden text looks like spam."
        yield Insight("better", "The preview line is too long", seen, why, f"Shorten it to {PREVIEW} characters, {PREVIEW_MAX} at most.")
    else:
        yield Insight("great", "There is a preview line", f"Inboxes show “{line}{'…' if len(whole) > PREVIEW else ''}”.")


CHECKS = (images, elements, sources, readable, head, preview_line)
