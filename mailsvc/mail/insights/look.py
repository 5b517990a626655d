"""The html as programs show it: images, what cannot be shown, what cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mailsvc.mail.insights.finding import Insight, Mail, listed
from mailsvc.mail.insights.links import host_of
from mailsvc.mail.markup import Image

HIDDEN_MOST = 250  # characters of text that nobody sees; a line for previews is shorter
PREVIEW = 90  # characters of it that are shown


def images(mail: Mail) -> Iterator[Insight]:
    found: Sequence[Image] = mail.page.images if mail.page else ()
    shown = [image for image in found if not image.tiny]
    if any(image.alt is None for image in shown):
        missing = sum(image.alt is None for image in shown)
        why = "Many programs show no images at first, and some people see none."
        yield Insight("better", "Describe the images", f"{missing} of {len(shown)} have no alt text.", why)
    if any(image.source.lower().startswith("data:") for image in found):
        yield Insight(
            "better", "Images inside the html are lost", "Some begin with data:.", "Gmail removes them.", "Attach them with a content id."
        )
    if any(re.search(r"\.svg(\?|$)|^data:image/svg", image.source, re.IGNORECASE) for image in found):
        yield Insight("better", "Avoid SVG images", "There are some.", "Gmail and Outlook do not show them.", "Use PNG.")
    if any(re.search(r"\.webp(\?|$)", image.source, re.IGNORECASE) for image in found):
        yield Insight("better", "Avoid WebP images", "There are some.", "Outlook does not show them.", "Use PNG or JPEG.")
    if mail.page and shown and len(mail.page.text) < 400 and len(shown) * 200 > len(mail.page.text):
        seen = f"{len(shown)} image{'s' * (len(shown) != 1)} and {len(mail.page.text)} characters of text."
        yield Insight("better", "There is little text beside the images", seen, "Mail made of images looks like spam.")


def elements(mail: Mail) -> Iterator[Insight]:
    names = mail.page.elements if mail.page else frozenset()
    if wrong := sorted(names & {"script", "iframe", "object", "embed", "applet"}):
        yield Insight(
            "attention", "Remove what mail cannot do", f"The html has {listed(wrong)}.", "Receivers remove it, and count it as spam."
        )
    if odd := sorted(names & {"form", "video", "audio"}):
        yield Insight("better", "Some programs do not show all of it", f"The html has {listed(odd)}.", "", "Link to a page that has it.")
    if mail.page and not mail.page.lang:
        yield Insight("better", "Say the language", "The html element has no lang.", "Screen readers need it to speak.")


def sources(mail: Mail) -> Iterator[Insight]:
    """Where images come from, and whether they look back."""
    found: Sequence[Image] = mail.page.images if mail.page else ()
    hosts = sorted(
        {host for image in found if not image.tiny and (host := host_of(image.source)) and mail.own and not mail.same(host, mail.own)}
    )
    if hosts:
        why = "What another host is known for falls back on the mail."
        yield Insight("better", "Load images from your own domain", f"Some come from {listed(hosts)}.", why)
    if not mail.bulk and any(image.tiny and host_of(image.source) for image in found):
        why = "Filters and people dislike being watched; for receipts, codes and the like it gains nothing."
        yield Insight("better", "Don't track who opens it", "There is an invisible image.", why, "Leave the tracking pixel out.")


def readable(mail: Mail) -> Iterator[Insight]:
    """What hides, or is too small or too pale."""
    page = mail.page
    if page is None:
        return
    if page.hidden > HIDDEN_MOST:
        why = "Spam hides texts from people that filters are to read."
        yield Insight("attention", "Text is hidden", f"{page.hidden} characters are not shown.", why, "Hide no more than a preview line.")
    problems = [
        word for flag, word in ((page.small, "a font below 9 pixels"), (page.pale, "a colour that is almost its background's")) if flag
    ]
    if problems:
        yield Insight("better", "Some text is hard to read", f"There is {listed(problems)}.", "Filters take it for hidden text.")


def head(mail: Mail) -> Iterator[Insight]:
    """What the html says of itself."""
    page = mail.page
    if page is None:
        return
    missing = [word for word, there in (("a title", page.title), ("a viewport", "viewport" in page.metas)) if not there]
    if missing:
        why = "Screen readers say the title, and phones need a viewport to show the mail at its size."
        yield Insight("better", "Say more in the head of the html", f"It has no {' and no '.join(word[2:] for word in missing)}.", why)
    if "color-scheme" in page.metas:
        yield Insight("great", "It is ready for dark screens", "The head has a color-scheme.")


def preview_line(mail: Mail) -> Iterator[Insight]:
    """What inboxes show behind the subject: the first words."""
    line = mail.text[:PREVIEW].strip()
    if re.match(r"(view|open|read|show|see)\b.{0,30}\b(browser|online|web)\b", line, re.IGNORECASE):
        why = "Inboxes show the first words behind the subject."
        yield Insight(
            "better", "Begin with what it is about", f"It begins “{line[:60]}”.", why, "Put a short line first; it may be hidden."
        )
    elif line:
        yield Insight("great", "It has a preview line", f"Inboxes show “{line}{'…' if len(mail.text) > PREVIEW else ''}”.")


CHECKS = (images, elements, sources, readable, head, preview_line)
