"""The html as programs show it: images, what cannot be shown, what cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mailsvc.insights.checks.finding import Insight, Mail, listed
from mailsvc.insights.checks.links import host_of
from mailsvc.mail.html import Image

HIDDEN_MOST = 250  # characters of text that nobody sees; a line for previews is shorter
PREVIEW, PREVIEW_MOST = 90, 140  # characters of it that are shown, and that are not too many
TEXT_LEAST, TEXT_EACH = 400, 200  # characters that images should have beside them: in all, and each
TEXT_RATIO = 0.008  # characters for each pixel of the images


def images(mail: Mail) -> Iterator[Insight]:
    found: Sequence[Image] = mail.page.images if mail.page else ()
    shown = [image for image in found if not image.tiny]
    if any(image.alt is None for image in shown):
        missing = sum(image.alt is None for image in shown)
        why = "Many programs show no images at first, and some people see none."
        remedy = "Give each an alt text, an empty one where it only decorates."
        yield Insight("better", "Describe the images", f"{missing} of {len(shown)} have no alt text.", why, remedy)
    if any(image.source.lower().startswith("data:") for image in found):
        yield Insight(
            "better", "Images inside the html are lost", "Some begin with data:.", "Gmail removes them.", "Attach them with a content id."
        )
    if any(re.search(r"\.svg(\?|$)|^data:image/svg", image.source, re.IGNORECASE) for image in found):
        yield Insight("better", "Avoid SVG images", "There are some.", "Gmail and Outlook do not show them.", "Use PNG.")
    if any(re.search(r"\.webp(\?|$)", image.source, re.IGNORECASE) for image in found):
        yield Insight("better", "Avoid WebP images", "There are some.", "Outlook does not show them.", "Use PNG or JPEG.")
    if mail.page and shown:
        yield from _beside(len("".join(mail.page.text.split())), shown)


def _beside(text: int, shown: Sequence[Image]) -> Iterator[Insight]:
    """Whether there is enough text beside the images: for their number, and for their area as far as they tell it."""
    area = sum(image.area for image in shown)
    few, thin = text < TEXT_LEAST and len(shown) * TEXT_EACH > text, area > 0 and text / area < TEXT_RATIO
    if few or thin:
        seen = f"{len(shown)} image{'s' * (len(shown) != 1)}{f' of {area:,} pixels' if thin else ''} and {text:,} characters of text."
        why = "Filters cannot read images, and know spam by mail that is made of them."
        yield Insight("better", "There is little text beside the images", seen, why, "Say in text what the images say.")


def elements(mail: Mail) -> Iterator[Insight]:
    names = mail.page.elements if mail.page else frozenset()
    if wrong := sorted(names & {"script", "iframe", "object", "embed", "applet"}):
        seen, why = f"The html has {listed(wrong)}.", "Receivers remove it, and count it as spam."
        yield Insight("attention", "Remove what mail cannot do", seen, why, "Link to a page that does it.")
    if odd := sorted(names & {"form", "video", "audio"}):
        seen, why = f"The html has {listed(odd)}.", "Many programs take it out."
        yield Insight("better", "Some programs do not show all of it", seen, why, "Link to a page that has it.")
    if mail.page and not mail.page.lang:
        seen = "The html element has no lang." if "html" in names else "There is no html element."
        yield Insight("better", "Say the language", seen, "Screen readers need it to speak.", 'Begin with <html lang="en">, or what it is.')


def sources(mail: Mail) -> Iterator[Insight]:
    """Where images come from, and whether they look back."""
    found: Sequence[Image] = mail.page.images if mail.page else ()
    hosts = sorted(
        {host for image in found if not image.tiny and (host := host_of(image.source)) and mail.own and not mail.same(host, mail.own)}
    )
    if hosts:
        why = "What another host is known for falls back on the mail."
        remedy = f"Serve them from a name below {mail.own}, or attach them."
        yield Insight("better", "Load images from your own domain", f"Some come from {listed(hosts)}.", why, remedy)
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
        remedy = "Use 14 pixels or more, and dark on light or light on dark."
        yield Insight("better", "Some text is hard to read", f"There is {listed(problems)}.", "Filters take it for hidden text.", remedy)


def head(mail: Mail) -> Iterator[Insight]:
    """What the html says of itself."""
    page = mail.page
    if page is None:
        return
    missing = [word for word, there in (("a title", page.title), ("a viewport", "viewport" in page.metas)) if not there]
    if missing:
        why = "Screen readers say the title, and phones need a viewport to show the mail at its size."
        seen = f"It has no {' and no '.join(word[2:] for word in missing)}."
        yield Insight("better", "Say more in the head of the html", seen, why, f"Add {' and '.join(missing)}.")
    if "color-scheme" in page.metas:
        yield Insight("great", "It is ready for dark screens", "The head has a color-scheme.")


def preview_line(mail: Mail) -> Iterator[Insight]:
    """What inboxes show behind the subject: the first words."""
    hidden = mail.page.preview if mail.page else ""
    whole = hidden or mail.text
    line = whole[:PREVIEW].strip()
    if not line:
        why = "Inboxes show the first words behind the subject, and here there are none."
        yield Insight("better", "It has no preview line", "It has no text.", why, "Begin with a short line; it may be hidden.")
    elif re.match(r"(view|open|read|show|see)\b.{0,30}\b(browser|online|web)\b", line, re.IGNORECASE):
        why = "Inboxes show the first words behind the subject."
        yield Insight(
            "better", "Begin with what it is about", f"It begins “{line[:60]}”.", why, "Put a short line first; it may be hidden."
        )
    elif len(hidden) > PREVIEW_MOST:
        seen = f"The hidden line at the top has {len(hidden)} characters."
        why = f"Inboxes show some {PREVIEW} of them, and text that nobody sees looks like spam."
        yield Insight("better", "The preview line is long", seen, why, f"Say it in {PREVIEW} characters, {PREVIEW_MOST} at most.")
    else:
        yield Insight("great", "It has a preview line", f"Inboxes show “{line}{'…' if len(whole) > PREVIEW else ''}”.")


CHECKS = (images, elements, sources, readable, head, preview_line)
