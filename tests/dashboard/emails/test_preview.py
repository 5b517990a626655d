"""The html of an email as its preview shows it."""

from __future__ import annotations

from mailsvc.dashboard.emails import preview
from mailsvc.mail.mime import File, Parsed


def test_inline_images_are_put_into_the_html() -> None:
    image = File("a.png", "image/png", "logo", "inline", b"abc")
    shown = preview.embedded(Parsed((), '<img src="cid:logo"><img src="cid:other">', None, (image,)))
    assert shown == '<base target="_blank"><img src="data:image/png;base64,YWJj"><img src="cid:other">'


def test_a_very_long_email_is_cut_and_says_so() -> None:
    shown = preview.embedded(Parsed((), "a" * preview.LONGEST + "b", None, ()))
    assert shown.endswith("a") and "the beginning of a very long email" in shown
    assert "beginning" not in preview.embedded(Parsed((), "a" * preview.LONGEST, None, ()))
