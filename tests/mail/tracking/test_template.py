"""The HTML of a broadcast: the same as if its links had been replaced after merging."""

from __future__ import annotations

import re
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail import merge
from mailsvc.mail.merge import Values
from mailsvc.mail.tracking import template, token
from mailsvc.mail.tracking.message import Tracker, Tracking
from mailsvc.mail.tracking.token import Key, Tracked

KEY = Key(1, b"k" * 32)
EMAIL = Tracked(UUID(int=1), UUID(int=2), 20_000, broadcast_id=UUID(int=3), contact_id=UUID(int=4))
LEAVE = "https://mail.example/unsubscribe?token=x&y"
VALUES = Values({"first_name": "A & B", "url": "https://ada.example/?a=1&b=2"}, LEAVE, {"url": None, "page": "docs"})


def tracker(*, opens: bool = True, clicks: bool = True) -> Tracker:
    return Tracker(Tracking("t.example", opens, clicks, KEY), EMAIL, ("https://mail.example/unsubscribe",))


def urls(html: str) -> list[str | None]:
    """Where its tracked links lead."""
    found = [token.read(each, {1: KEY.secret}) for each in re.findall("https://t.example/c/([A-Za-z0-9_-]+)", html)]
    assert [each.link for each in found if each is not None] == list(range(1, len(found) + 1))
    return [each and each.url for each in found]


def test_links_with_and_without_placeholders_are_tracked() -> None:
    html = (
        '<a href="https://a.example/{{{contact.page}}}?n={{{FIRST_NAME}}}">1</a><a href="{{{contact.url}}}">2</a>'
        '<a href="%7B%7B%7Bcontact.url%7D%7D%7D">3</a><a href={{{contact.missing|https://x/}}}>4</a><a href="https://b.example/">5</a>'
    )
    written = template.parse(html).html(VALUES, tracker(opens=False))
    assert urls(written) == [
        "https://a.example/docs?n=A%20&%20B",
        "https://ada.example/?a=1&b=2",
        "https://x/",
        "https://b.example/",
    ]
    assert 'href="https%3A' in written  # what a tool encoded stays a part of a URL


def test_the_unsubscribe_link_and_the_text_of_placeholders_are_not_touched() -> None:
    html = '<p>{{{contact.x|<a href="https://no.example">no</a>}}}</body><a href="{{{RESEND_UNSUBSCRIBE_URL}}}">Leave</a>'
    written = template.parse(html).html(VALUES, tracker())
    assert urls(written) == []
    assert '<a href="https://no.example">no</a><img src="https://t.example/o/' in written
    assert written.endswith('</body><a href="https://mail.example/unsubscribe?token=x&amp;y">Leave</a>')


def test_with_both_switches_off_only_no_track_is_removed() -> None:
    html = '<a href="https://a.example/" ses:no-track>{{{FIRST_NAME}}}</a><a href="https://b.example/">'
    written = template.parse(html).html(VALUES, tracker(opens=False, clicks=False))
    assert written == '<a href="https://a.example/">A &amp; B</a><a href="https://b.example/">'


PIECES = [
    '<a href="https://a.example/',
    '"',
    ">",
    "{{{FIRST_NAME}}}",
    "{{{contact.url}}}",
    '<a href="',
    "</a>",
    "</body>",
    "<p title='x'>",
    "<!-- -->",
    "ä",
]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_a_message_is_the_same_at_every_attempt(html: str) -> None:
    parsed = template.parse(html)
    assert parsed.html(VALUES, tracker()) == parsed.html(VALUES, tracker())


@given(st.lists(st.sampled_from(['<a href="https://a.example/{{{FIRST_NAME}}}">', "<b>{{{FIRST_NAME}}}</b>", "</body>", "x"]), max_size=20))
def test_it_is_what_tracking_the_merged_html_gives(pieces: list[str]) -> None:
    html = "".join(pieces)
    assert template.parse(html).html(VALUES, tracker()) == tracker().html(merge.parse(html).html(VALUES))
