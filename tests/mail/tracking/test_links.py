"""Links in HTML: which are found, where they lead, and that nothing else changes."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.tracking.links import MAX_LENGTH, MAX_LINKS, End, Link, cut, rewrite, target
from mailsvc.mail.tracking.token import MAX_URL


def sources(html: str) -> list[str]:
    return [piece.source for piece in cut(html) if isinstance(piece, Link)]


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<a href="https://x/">', ["https://x/"]),
        ("<A class=y HREF = 'https://x/?a=\"b\"&amp;c'\n>", ['https://x/?a="b"&amp;c']),
        ("<a href=https://x/y/>z</a>", ["https://x/y/"]),
        ('<area shape=rect href="https://x/"/>', ["https://x/"]),
        ('<a/href="https://x/"href="https://y/">', ["https://x/"]),  # the first of two counts
        ('<a title="a > b" href="https://x/">', ["https://x/"]),
        ('<a title=">" data-x=\'"\' href="https://x/">', ["https://x/"]),
        ("<p a='<a href=\"https://no/\">'><a href=https://x/>", ["https://x/"]),
        ('<!-- <a href="https://no/"> --><a href="https://x/">', ["https://x/"]),
        ('<!--[if mso]><v:rect href="https://no/"><a href="https://no/"><![endif]--><a href="https://x/">', ["https://x/"]),
        ('<!--[if !mso]><!--><a href="https://x/"><!--<![endif]-->', ["https://x/"]),
        ('<!--><a href="https://x/">', ["https://x/"]),
        ('<!---><a href="https://x/">', ["https://x/"]),
        ('<!--!><a href="https://no/"> --!><a href="https://x/">', ["https://x/"]),
        ('<style>a{content:"<a href=https://no/>"}</STYLE ><a href="https://x/">', ["https://x/"]),
        ('<script>"</scripts><a href=https://no/>"</script><a href="https://x/">', ["https://x/"]),
        ('<textarea><a href="https://no/"></textarea><title><a href="https://no/"></title>', []),
        ('<style><a href="https://no/">', []),
        ('<plaintext><a href="https://no/">', []),
        ('<!DOCTYPE html "x"><?xml a="b"?></><//><a href="https://x/">', ["https://x/"]),
        ('a < b <a href="https://x/"> <3 <', ["https://x/"]),
        ('<a href="https://no/" title="', []),  # a tag without an end is none
        ('<a href="https://no/"', []),
        ("<a href>x</a><a href=>y</a><a href=''>z</a><a hrefs=https://no/>", [""]),
        ('<a =href="https://no/"><abbr href="https://no/"><link href="https://no/"><base href="https://no/">', []),
        ('<a href="https://x/" ses:no-track>', []),
        ('<a SES:No-Track="" href="https://x/">', []),
    ],
)
def test_links_are_found_where_a_browser_finds_them(html: str, found: list[str]) -> None:
    assert sources(html) == found


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ("https://x.example", "https://x.example"),
        ("HTTP://x.example/A?b=%20+c#d", "HTTP://x.example/A?b=%20+c#d"),
        ("  https://x.exa\r\nmple/ ", "https://x.example/"),
        ("https://x.example/?a=1&amp;b=2&copy=3&amp=4", "https://x.example/?a=1&b=2&copy=3&amp=4"),
        ("https://x.example/&#x41;&#66&copy;&copyx;&unknown;&amp", "https://x.example/AB%C2%A9&copyx;&unknown;&"),
        ("https://x.example/&#" + "0" * 5000 + "65;", None),
        ("https://x.example/ä b\u2028", "https://x.example/%C3%A4%20b%E2%80%A8"),
        ("https://bücher.example:80/ä", None),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://{{{contact.x}}}/", "https://{{{contact.x}}}/"),
        ("https://x.example\\y", "https://x.example\\y"),
        ("https://\ud800.example/", None),
        ("https://x.example/\ud800", None),
        ("https:/x.example", None),
        ("https:///x.example", None),
        ("//x.example/", None),
        ("/relative", None),
        ("#top", None),
        ("", None),
        ("mailto:a@example.com?subject=https://x.example/", None),
        ("tel:+4930", None),
        ("javascript:https://x.example/", None),
        ("https://x.example/" + "a" * (MAX_URL - 18), "https://x.example/" + "a" * (MAX_URL - 18)),
        ("https://x.example/" + "a" * (MAX_URL - 17), None),
        ("https://x.example/" + "ä" * (MAX_URL // 6), None),
    ],
)
def test_where_a_link_leads(source: str, url: str | None) -> None:
    assert target(source) == url


@given(st.text(max_size=60))
def test_a_target_is_a_line_of_printable_ascii(text: str) -> None:
    for source in text, f"https://{text}", f"https://x.example/{text}":
        url = target(source)
        assert url is None or (url.isascii() and url.isprintable() and " " not in url and url.lower().startswith(("http://", "https://")))


def test_links_are_replaced_and_nothing_else_changes() -> None:
    html = '<p>ä\r\n<A  HREF="https://a/">x</A> <a href=mailto:b ses:no-track>y</a>'
    end = "<a{}\thref='https://c/'>z{}</BODY >\n</html>\x00"
    written = rewrite(html + end.format(' ses:no-track="x"', ""), lambda source: "NEW" if source.startswith("https") else None, "PIXEL")
    assert written == '<p>ä\r\n<A  HREF="NEW">x</A> <a href=mailto:b>y</a>' + end.format("", "PIXEL")
    assert rewrite("<b>x</b>", lambda _: None, "PIXEL") == "<b>x</b>PIXEL"
    assert rewrite("</body><p></body>x", lambda _: None, "PIXEL") == "</body><p>PIXEL</body>x"
    assert rewrite("<!-- </body> -->", lambda _: None, "PIXEL") == "<!-- </body> -->PIXEL"


PARTS = [
    "<a href=", "<a ", ' href="https://x/"', "https://x/", '"', "'", "=", ">", "</a>", "<!--", "-->", "--!>", "<style>", "</style>",
    "<p ", "</", "/", "<", "</body>", " ", "\n", "x", "&amp;", "<title>", "</title>", "<!", "ä",
]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=40).map("".join))
def test_html_without_replaced_links_stays_as_it_is(html: str) -> None:
    pieces = cut(html)
    assert "".join([piece.source if isinstance(piece, Link) else "" if isinstance(piece, End) else piece for piece in pieces]) == html
    assert sum(isinstance(piece, End) for piece in pieces) == 1
    assert rewrite(html, lambda source: None) == html


class Parser(HTMLParser):
    """The links as Python's own parser finds them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in ("a", "area"):
            self.found += [value for name, value in attributes if name == "href" and value][:1]


ELEMENTS = st.sampled_from(
    ['<a href="https://x/{}">', "<a class='>' href='https://x/{}'>", "<area href=https://x/{} alt=y>", "<p title=\"<a href='z'>\">", "<b>",
     "<!-- <a href='z'> -->", "<style>a<b</style>", "</a>", "text &lt; <br/>", "<script><a href='z'></script>"],
)  # fmt: skip


@given(st.lists(ELEMENTS, max_size=30))
def test_another_parser_finds_the_same_links(elements: list[str]) -> None:
    html = "".join([element.replace("{}", str(n)) for n, element in enumerate(elements)])
    parser = Parser()
    parser.feed(html)
    assert sources(html) == parser.found


def test_very_long_html_stays_as_it_is_but_for_the_end() -> None:
    link = '<a href="https://x/">'
    assert len(sources(link * (MAX_LINKS + 1))) == MAX_LINKS
    html = link + "x" * MAX_LENGTH
    assert sources(html) == [] and rewrite(html, lambda _: "no", "PIXEL") == html + "PIXEL"


HOSTILE = [
    "<a ",
    '<a href="',
    "<!--",
    "</style",
    "<style>",
    "<a href=https://x>",
    "<",
    "<a",
    "<a a='",
    "<a =",
    "<!-->",
    "&#",
    "<a href='&amp' ",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_two_megabytes_take_linear_time(text: str) -> None:
    """Each takes milliseconds; if the time grew with the square of the length, hours."""
    cut((text * MAX_LENGTH)[:MAX_LENGTH])
    target("https://x/" + (text * MAX_URL)[:MAX_URL])
