"""Converting HTML to plain text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.mail import html_to_text
from mailsvc.mail.html_to_text import RecentTexts, text_of


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("", ""),
        ("Hi", "Hi"),
        ("<p>One</p><p>Two</p>", "One\n\nTwo"),
        ("a<br>b<br/>c", "a\nb\nc"),
        ('<a href="https://b.example/?a=1&amp;b=2">Open</a> it', "Open (https://b.example/?a=1&b=2) it"),
        ('<a href="https://b.example">https://b.example</a>', "https://b.example"),
        ('<a href="mailto:a@b.example">a@b.example</a>', "a@b.example"),
        ('<a href="mailto:a@b.example">Write</a>', "Write (mailto:a@b.example)"),
        ('<a href="#top">Up</a> <a name="x">X</a> <a href="javascript:x()">J</a>', "Up X J"),
        ('<a href="https://b.example"><img src="x" alt="Logo"></a>', "Logo (https://b.example)"),
        ("<ul><li>one</li><li>two</li></ul>", "  * one\n  * two"),
        ("<ol><li>one</li><li>two</li></ol>", " 1. one\n 2. two"),
        ("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>", "a  b\nc  d"),
        ("<style>p{}</style><script>x</script><title>t</title><p>Hi</p>", "Hi"),
        ('<div style="display:none">preheader</div><p>Hi</p>', "Hi"),
        ("a &amp; b &lt;c&gt; &copy; &#x1F600;", "a & b <c> © 😀"),
        ("<p>é 日本</p>", "é 日本"),
        ('<?xml version="1.0" encoding="utf-8"?><html><body>Hi</body></html>', "Hi"),
        ("<!-- nothing -->", ""),
        ("a\x00b\x0cc", "abc"),
        ("<p>One</p>\r\n\r\n\r\n<p>Two</p>", "One\n\nTwo"),
        ("<p>a\ud800b</p>", "ab"),
        ("<p>so\xadft</p>", "soft"),
        ("<h1>Hello</h1>there<p> Ann,\n  how  <b>are </b> you?</p>", "Hello\n\nthere\n\nAnn, how are you?"),
        ("<b>a</b><i>b</i> <u> c</u>d", "ab cd"),
        ("a<br><br><br>b<div>c<br></div>d", "a\n\nb\nc\nd"),
        ("a<hr>b", "a\n\n--------------------\n\nb"),
        ("<div>a</div><div hidden>b</div><p style='color:red; DISPLAY : none'>c</p><p style='x-display:none'>d</p>", "a\n\nd"),
        ("<div hidden><img alt=x><br>a<p>b</div>c", "c"),
        ("<template>a</template><noscript>b</noscript><svg><title>c</title></svg>", "b"),
        ('<meta charset="iso-8859-1"><p>€</p>', "€"),
        ("<pre>def x():\n    return 1\n\n  y\n</pre>z", "def x():\n    return 1\n\n  y\n\nz"),
        ("<blockquote>a<br>b</blockquote>c", "> a\n> b\n\nc"),
        ("<dl><dt>T<dd>M</dl>", "T\n    M"),
        ("<ul><li>a<ul><li>b<br>c</ul><li>d</ul>e", "  * a\n      * b\n        c\n  * d\n\ne"),
        ('<ol start="9"><li>a<li>b<li value="100">c</ol>', " 9. a\n10. b\n100. c"),
        ('<ol start="x"><li value="9999999999">a</ol>', " 1. a"),
        ("<ul><li><p>a</p><p>b</p></li><li></li></ul><p>c</p>", "  * a\n\n    b\n\nc"),
        ("<ul><li><blockquote>a</blockquote></ul>", "  * > a"),
        ("<li>a</li>", "  * a"),
        (
            "<table><tr><th>Item</th><th></th><th>Price</th></tr><tr><td>&nbsp;</td><td>Tea</td><td>9 €</td></tr></table>",
            "Item  Price\nTea  9 €",
        ),
        ("<table><tr><td><p>a</p></td><td><table><tr><td>b</table></td></tr></table>c", "a\n\nb\n\nc"),
        ("<p>a&nbsp;&nbsp;b</p><p>&nbsp;</p><p>c</p>", "a  b\n\nc"),
        ("<p> a \t b&#12;c&#10;d </p>", "a b c d"),  # a form feed is a space, too
        ('<a href="https://b.example/"><div>Button</div></a><div>next</div>', "Button (https://b.example/)\nnext"),
        ('<a href=" https://b.example/a b\n">A</a>', "A (https://b.example/a%20b)"),
        ('<a href="https://b.example/"><img src="x"></a><a href="https://c.example"></a>', "(https://b.example/)"),
        ('<a href="https://b.example/">https://b.example</a>', "https://b.example"),
        ('<a href="mailto:a@b.example?subject=Hi">a@b.example</a>, <a href="tel:+1">+1</a>', "a@b.example, +1"),
        ("<p>a</p><!--[if mso]><p>b</p><![endif]--><![if !mso]><p>c</p><![endif]>", "a\n\nc"),
        ("<p>2 < 3 & 4 > 3</p>", "2 < 3 & 4 > 3"),
        ("<p>open<p>and <b>never closed", "open\n\nand never closed"),
    ],
)
def test_html_is_converted_to_text(html: str, text: str) -> None:
    assert text_of(html) == text


HTML = st.text() | st.lists(
    st.sampled_from(
        [
            "<p>",
            "</p>",
            "<a href='",
            "'>",
            "</a>",
            "<td>",
            "<table>",
            "<ul>",
            "<ol start=3>",
            "<li>",
            "</ul>",
            "<pre>",
            "</pre>",
            "<p hidden>",
            "<br>",
            "<img alt=x>",
            "<dd>",
            "</",
            "&",
            "&#0;",
            "<!--",
            "<?",
            "é",
            " ",
        ]
    )
).map("".join)


@given(HTML)
def test_any_html_is_converted(html: str) -> None:
    text = text_of(html)
    assert text == text.strip("\n")
    assert "\r" not in text and "\x00" not in text
    text.encode()


@settings(max_examples=100)
@given(st.lists(HTML | st.just("<div>" * 300) | st.just("<ul><li><pre><b hidden>x"), max_size=5))
def test_a_reused_parser_keeps_no_state(pages: list[str]) -> None:
    one_after_the_other = [text_of(html) for html in pages]
    for html, text in zip(pages, one_after_the_other, strict=True):
        html_to_text._idle.__dict__.clear()
        assert text_of(html) == text


@given(st.text(st.sampled_from(" \t\n\ra\xa0")))
def test_only_surplus_spaces_are_replaced(text: str) -> None:
    assert html_to_text._SURPLUS.sub(" ", text) == html_to_text._SPACE.sub(" ", text)


def test_control_characters_are_removed() -> None:
    ascii_ = "".join(map(chr, range(128)))
    assert ascii_.encode().translate(None, html_to_text._CONTROL) == html_to_text._UNREADABLE.sub("", ascii_).encode()


def test_deeply_nested_html_is_converted() -> None:
    assert text_of("<div>" * 100 + "Hi") == "Hi"
    assert text_of("<div>" * 50_000 + "Hi").strip() == "Hi"


@pytest.mark.parametrize(
    "html",
    [
        "<b>" * 50_000 + "</i>" * 50_000,
        "<ul><li>" * 50_000 + "x",
        "<ul><li>" * 100 + "<li>x" * 50_000,
        "<p>" * 200_000,
        "</p>" * 200_000,
        "<a href='https://b.example'>x" * 20_000,
        "<pre>" + "\n " * 200_000,
        "&nbsp;" * 200_000 + "x",
        "<" * 200_000,
        "<x " + "a=1 " * 100_000 + ">",
    ],
    ids=lambda html: html[:8],
)
def test_hostile_html_takes_linear_time(html: str) -> None:
    before = time.process_time()
    assert len(text_of(html)) < 15 * len(html)
    assert time.process_time() - before < 5  # all of them: less than half a second together


def test_html_longer_than_the_limit_has_no_text() -> None:
    assert text_of("a" * html_to_text.LONGEST) == "a" * html_to_text.LONGEST
    assert text_of("a" * html_to_text.LONGEST + "a") == ""


@pytest.mark.parametrize("quote", ["'", '"'])
def test_inline_images_do_not_count_towards_the_limit(quote: str) -> None:
    image = f"<img src={quote}data:image/png;base64,{'A' * 300_000}{quote}>"
    assert text_of(f"<p>data: Hello</p>{image * 5}<p>{quote}data:</p>Bye") == f"data: Hello\n\n{quote}data:\n\nBye"


@pytest.mark.parametrize("unit", ["data:", "'data:", "\"data:'", "'data:'"])
def test_inline_images_of_forty_megabytes_are_left_out_in_linear_time(unit: str) -> None:
    began = time.process_time()
    text_of(unit * (40_000_000 // len(unit)))
    assert time.process_time() - began < 5


def test_the_last_pages_of_each_owner_are_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[str] = []
    monkeypatch.setattr(html_to_text, "text_of", lambda html: converted.append(html) or html.strip("<>"))
    texts = RecentTexts(kept=10)  # two pages of three characters, with their texts
    assert [texts.text_of(1, html) for html in ("<a>", "<b>", "<a>")] == ["a", "b", "a"]
    assert converted == ["<a>", "<b>"]
    texts.text_of(1, "<c>")
    assert (texts.text_of(1, "<a>"), converted) == ("a", ["<a>", "<b>", "<c>"]), "used more recently than the other"
    texts.text_of(1, "<b>")
    texts.text_of(2, "<b>")
    assert converted == ["<a>", "<b>", "<c>", "<b>", "<b>"]


def test_a_page_that_is_too_long_is_not_kept() -> None:
    texts = RecentTexts(kept=10)
    assert [texts.text_of(1, "<b>too long</b>"), texts.text_of(1, "<b>a")] == ["too long", "a"]
    assert len(texts._texts) == 1
