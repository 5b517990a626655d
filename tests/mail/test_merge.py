"""Mail merge: placeholders, fallbacks and escaping."""

from __future__ import annotations

import time
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail import header, merge
from mailsvc.mail.merge import Placeholder, Values, parse

LINK = "https://mail.example/unsubscribe?token=a_b-c&x=1"
ADA = Values({"first_name": "Ada", "email": "ada@b.example", "company": "<Sons & Co>"}, LINK, {"company": "your company", "Seats": "3"})
NOBODY = Values({}, LINK, {"company": None, "Seats": "3"})


@pytest.mark.parametrize(
    ("template", "ada", "nobody"),
    [
        ("no placeholder", "no placeholder", "no placeholder"),
        ("", "", ""),
        ("Hi {{{contact.first_name|there}}}!", "Hi Ada!", "Hi there!"),
        ("Hi {{{FIRST_NAME|there}}} {{{LAST_NAME}}}", "Hi Ada ", "Hi there "),
        ("{{{ contact.first_name | there }}}", "Ada", "there"),
        ("{{{contact.first_name|there &amp; co}}}", "Ada", "there &amp; co"),
        ("{{{CONTACT.FIRST_NAME|THERE}}}", "Ada", "THERE"),
        ("{{{contact.company}}}", "&lt;Sons &amp; Co&gt;", ""),
        ("{{{contact.seats}}} {{{contact.seats|4}}}", "3 4", "3 4"),
        ("{{{contact.seats|}}}", "", ""),
        ("{{{contact.unknown|x}}}{{{unknown}}}{{{contact.unknown}}}", "x", "x"),
        ('<a href="{{{RESEND_UNSUBSCRIBE_URL}}}">', f'<a href="{LINK.replace("&", "&amp;")}">', f'<a href="{LINK.replace("&", "&amp;")}">'),
        ('<a href="%7B%7B%7BUNSUBSCRIBE_URL%7D%7D%7D">', f'<a href="{LINK.replace("&", "&amp;")}">', None),
        ('href="https://c/?e=%7b%7b%7bcontact.email%7Cno%20one%7d%7d%7d"', 'href="https://c/?e=ada%40b.example"', 'href="https://c/?e=no%20one"'),
        ("{{contact.first_name}} {{{not a name}}} {{{}}} {{{a", "{{contact.first_name}} {{{not a name}}} {{{}}} {{{a", None),
        ("{{{{EMAIL}}}}", "{ada@b.example}", "{}"),
        ("Hi <!-- -->{{{EMAIL}}}", "Hi <!-- -->ada@b.example", "Hi <!-- -->"),
    ],
)  # fmt: skip
def test_html(template: str, ada: str, nobody: str | None) -> None:
    assert parse(template).html(ADA) == ada
    assert nobody is None or parse(template).html(NOBODY) == nobody


def test_a_name_that_differs_in_case_only_prefers_the_exact_key() -> None:
    values = Values({"Plan": "upper", "plan": "lower"}, LINK, {"Plan": None, "plan": None})
    assert parse("{{{contact.Plan}}} {{{contact.plan}}}").text(values) == "upper lower"


def test_text_is_not_escaped() -> None:
    assert parse("{{{contact.company}}} {{{UNSUBSCRIBE_URL}}}").text(ADA) == f"<Sons & Co> {LINK}"


@pytest.mark.parametrize("character", ["a", "漢", "😀"])
def test_a_subject_fits_into_the_header_whatever_the_values(character: str) -> None:
    values = Values({"first_name": character * 2000}, LINK)
    subject = parse("{{{FIRST_NAME}}}" * 66).subject(values)
    assert subject == character * merge.SUBJECT_MAX
    assert len(header.unstructured("Subject", subject)) < header.BLOCK_LIMIT // 2


def test_a_subject_has_no_line_breaks_whatever_the_value() -> None:
    values = Values({"first_name": "Ada\r\nBcc: all@b.example\x85\x00"}, LINK)
    assert parse("Hi {{{FIRST_NAME}}}").line(values) == "Hi Ada Bcc: all@b.example"


def test_what_is_used_unknown_and_without_fallback() -> None:
    templates = [
        parse("{{{FIRST_NAME}}} {{{contact.last_name|x}}}{{{contact.Company}}}"),
        parse("{{{contact.seats}}}{{{nothing}}}{{{EMAIL}}}"),
    ]
    properties = {"company": None, "seats": "3"}
    assert merge.keys(templates, properties) == {"first_name", "last_name", "company", "seats", "email"}
    assert merge.unknown(templates, properties) == ["nothing"]
    assert merge.without_fallback(templates, properties) == {"first_name", "company"}
    assert not merge.has_unsubscribe_link(templates)
    assert merge.has_unsubscribe_link([parse("{{{RESEND_UNSUBSCRIBE_URL}}}")])


def test_text_of_html_keeps_placeholders_and_the_unsubscribe_link() -> None:
    html = '<h1>Hi {{{contact.first_name|there &amp; co}}}</h1><p><a href="{{{RESEND_UNSUBSCRIBE_URL}}}">Leave</a> {{x}}</p>'
    text = merge.text_of(html)
    assert text == "Hi {{{contact.first_name|there & co}}}\n\nLeave ({{{RESEND_UNSUBSCRIBE_URL}}}) {{x}}"
    assert parse(text).text(NOBODY) == f"Hi there & co\n\nLeave ({LINK}) {{{{x}}}}"


@pytest.mark.parametrize("icon", ["&#xe000;", "&#xe001;", "&#xe000; &#xe001;", "&#xe000;7&#xe001;", "\ue000", "&#xe000;&#57345;0"])
def test_text_of_html_with_characters_of_an_icon_font(icon: str) -> None:
    assert merge.text_of(f"<p>{icon}Hi {{{{{{contact.first_name|you}}}}}}</p>").endswith("Hi {{{contact.first_name|you}}}")


OUTLOOK = '<!--[if mso]><body class="mso"><![endif]--><!--[if !mso]><!-->'


@pytest.mark.parametrize(
    ("html", "before"),
    [
        ("<p>Hi</p>", ""),
        ('<html><BODY class="a"><p>Hi</p>', '<html><BODY class="a">'),
        ("<bodyguard>", ""),
        ("<body ", ""),
        ('<body title="1 > 0"><p>Hi</p>', '<body title="1 > 0">'),
        ("<!-- <body> --><p>Hi</p>", ""),
        ("<!-- <body>", ""),
        ("<!--><body><p>Hi</p>", "<!--><body>"),
        (f"{OUTLOOK}<body><!--<![endif]--><p>Hi</p>", f"{OUTLOOK}<body>"),
    ],
)
def test_preview_text_is_the_first_element(html: str, before: str) -> None:
    shown = merge.with_preview(html, "What's <new>")
    assert shown.startswith(before + "<div style=")
    assert "What&#x27;s &lt;new&gt;" in shown
    assert shown.endswith(html[len(before) :])
    assert merge.with_preview(html, "") == html


names = st.sampled_from(["contact.first_name", "CONTACT.COMPANY", "EMAIL", "contact.none", "RESEND_UNSUBSCRIBE_URL"])
fragments = st.one_of(
    st.text(),
    st.sampled_from(["{{{", "}}}", "{", "}", "|", "%7B%7B%7B", "%7D%7D%7D", "<body>", "&#xe000;", "&#xe001;", "0"]),
    names.map(lambda name: "{{{" + name + "|x}}}"),
)
texts = st.lists(fragments, max_size=12).map("".join)
values = st.builds(
    Values, st.dictionaries(st.sampled_from(["first_name", "company", "email"]), st.text()), st.just(LINK), st.just({"company": None})
)


@given(texts, values)
def test_any_text_with_any_values(text: str, given_values: Values) -> None:
    template = parse(text)
    if not list(template):
        assert template.html(given_values) == template.text(given_values) == text
    assert not header.FORBIDDEN.search(template.line(given_values)) or not list(template)
    merge.text_of(text)


@given(st.text())
def test_a_value_in_html_is_shown_as_it_is_and_is_never_markup(value: str) -> None:
    shown = parse('<p title="{{{FIRST_NAME}}}">').html(Values({"first_name": value}, LINK))[len('<p title="') : -len('">')]
    assert not set(shown) & set("<>\"'")
    assert unescape(shown) == value


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_value_in_a_subject_adds_no_header_field(value: str) -> None:
    subject = parse("Hi {{{FIRST_NAME}}}").line(Values({"first_name": value}, LINK))
    field = header.unstructured("Subject", subject)
    assert all(line.startswith(" ") for line in field.split("\r\n")[1:-1])
    assert "\r" not in subject and "\n" not in subject


@given(st.lists(st.one_of(st.text(alphabet="abc <>&"), st.builds(Placeholder, names, st.none() | st.just("x"))), max_size=8))
def test_pieces_are_what_was_written(pieces: list[str | Placeholder]) -> None:
    written = "".join(
        each if isinstance(each, str) else "{{{" + each.name + ("" if each.fallback is None else "|x") + "}}}" for each in pieces
    )
    assert list(parse(written)) == [each for each in pieces if isinstance(each, Placeholder)]


@pytest.mark.parametrize(
    "part", ["{{{", "}}}", "{{{a", "%7B%7B%7B", "%7B%7B%7Ba", "%7B%7B%7B%", "{{{a|", "<body", "<!--", "<!--<body -->", "{{{EMAIL|x}}}"]
)
def test_linear(part: str) -> None:
    text = part * (2_000_000 // len(part))
    begun = time.process_time()
    parse(text).html(ADA)
    merge.with_preview(text, "x")
    assert time.process_time() - begun < 4


def test_only_so_many_placeholders_are_replaced() -> None:
    """Each would take time for every recipient, and content can have millions."""
    found = parse("{{{EMAIL}}}" * (merge.MOST + 2))
    assert sum(1 for _ in found) == merge.MOST
    assert found.pieces[-1] == "{{{EMAIL}}}" * 2
