"""Plain text out of html."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.plain import text_of


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
    ],
)
def test_text(html: str, text: str) -> None:
    assert text_of(html) == text


@given(
    st.text()
    | st.lists(st.sampled_from(["<p>", "</p>", "<a href='", "'>", "</a>", "<td>", "<table>", "&", "&#0;", "<!--", "<?", "é", " "])).map(
        "".join
    )
)
def test_any_html_has_a_text(html: str) -> None:
    text = text_of(html)
    assert text == text.strip("\n")
    assert "\r" not in text and "\x00" not in text
    text.encode()


def test_deep_html() -> None:
    assert text_of("<div>" * 100 + "Hi") == "Hi"
    assert isinstance(text_of("<div>" * 50_000 + "Hi"), str)
