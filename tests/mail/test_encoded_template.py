"""Text that is encoded ahead becomes the same bytes as text that is encoded whole."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailsvc.mail import merge
from mailsvc.mail.encoded_template import EncodedTemplate, with_preview
from mailsvc.mail.merge import Values
from mailsvc.mail.transfer_encoding import encode_text
from tests.mail.test_transfer_encoding import BODIES, PIECES

NAMES = [
    "{{{first_name}}}",
    "{{{contact.first_name|there}}}",
    "{{{UNSUBSCRIBE_URL}}}",
    "{{{contact.last_name|<b>you</b>}}}",
    "{{{x|From }}}",
]
TEXTS = st.lists(
    st.sampled_from([*PIECES, *NAMES, " \n", "\t\n", "é" * 30, "<body>", "<bo", "dy>", "<", "body", ">", "<!--", "-->", "'"]), max_size=40
).map("".join)


def values(own: str) -> Values:
    return Values({"first_name": own, "last_name": own} if own else {}, "https://mail.example.org/unsubscribe?token=x_=&a=b")


@given(TEXTS | BODIES, BODIES)
@example("x" * 75 + "{{{contact.first_name}}}", ".")
@example("é{{{contact.first_name}}}", " ")
@example("{{{contact.first_name}}}\ny", "x" * 80)
def test_the_bytes_are_the_same(text: str, own: str) -> None:
    template, given_values = merge.parse(text), values(own)
    encoded = EncodedTemplate.of(template)
    if encoded is not None and (found := encoded.encoded(lambda line: line.html(given_values))) is not None:
        assert (found.encoding, found.data) == encode_text(template.html(given_values))


@given(TEXTS, st.sampled_from(["", "Big <news>", "Größe"]), st.sampled_from(["", "body", "body>", ">", "é", "/body x"]))
@example("<{{{first_name}}}>", "Big", "body")
@example("<body class='{{{first_name}}}'>", "Big", ">")
@example("{{{contact.first_name|<body>}}}", "Big", "")
@example("<!-- <body> {{{first_name}}} --><body>", "Big", "")
@example("<!-- <body> --><p>{{{first_name}}}<body>", "Big", "")
def test_the_preview_is_at_the_same_place(html: str, preview: str, own: str) -> None:
    template, given_values = merge.parse(html), values(own)
    whole = with_preview(template, preview)
    if whole is not None:
        assert whole.html(given_values) == merge.with_preview(template.html(given_values), preview)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("<p>Hi {{{FIRST_NAME}}},</p>\n<p>bye</p>", "7bit"),
        ("<p>Grüße, {{{FIRST_NAME}}}</p>\n" + "<p>and so on</p>\n" * 9, "quoted-printable"),
    ],
)
def test_usual_texts_are_encoded_ahead(text: str, encoding: str) -> None:
    encoded = EncodedTemplate.of(merge.parse(text))
    assert encoded is not None
    found = encoded.encoded(lambda line: line.html(values("Zoë")))
    assert found is not None and found.encoding == ("quoted-printable" if encoding == "7bit" else encoding)
    found = encoded.encoded(lambda line: line.html(values("Ann")))
    assert found is not None and found.encoding == encoding


@pytest.mark.parametrize("text", ["a\r\nb", "a\0b", "x" * 5000, "\ud800"])
def test_unusual_texts_are_encoded_whole(text: str) -> None:
    assert EncodedTemplate.of(merge.parse(text)) is None
    encoded = EncodedTemplate.of(merge.parse("Hi {{{FIRST_NAME}}}"))
    assert encoded is not None
    assert encoded.encoded(lambda line: line.text(values(text))) is None
