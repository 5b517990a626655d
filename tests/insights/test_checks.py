"""Each check finds its problem and nothing else."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
import zipfile
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.insights import checks
from mailsvc.insights.checks import files, mistakes, parts
from mailsvc.insights.checks import html as html_checks
from mailsvc.insights.checks.finding import Mail
from mailsvc.insights.checks.reputation import Facts, Listed, Rates, Record, Server, of_facts
from mailsvc.mail import html as html_reader
from mailsvc.mail import html_to_text, mime

HEAD = '<html lang="en"><head><title>Your order</title><meta name="viewport" content="width=device-width"></head>'
GOOD = HEAD + '<p>Your order is on its way. <a href="https://shop.example.com/o/1">See your order</a></p></html>'


def mail(
    html: str = GOOD,
    text: str = "Your order is on its way.",
    fields: str = "",
    sender: str = "Shop <hello@mail.example.com>",
    subject: str = "Your order",
    to: str = "To: ann@example.org",
    date: str = "Date: Fri, 20 Nov 2026 10:00:00 +0000",
):
    boundary = "----b"
    head = f"From: {sender}\r\n{to}\r\nSubject: {subject}\r\n{fields}{date}\r\nMIME-Version: 1.0\r\nMessage-ID: <1@example.com>\r\n"
    head += f'Content-Type: multipart/alternative; boundary="{boundary}"\r\n\r\n'
    parts = [
        f"--{boundary}\r\nContent-Type: text/{kind}; charset=utf-8\r\n\r\n{body}\r\n"
        for kind, body in (("plain", text), ("html", html))
        if body
    ]
    return (head + "".join(parts) + f"--{boundary}--\r\n").encode()


def of_message(parsed: mime.Parsed, size: int, bulk: bool) -> list[checks.Insight]:
    return checks.of_mail(checks.mail_of(parsed, size, bulk))


def found(message: bytes, bulk: bool = False, size: int | None = None) -> dict[str, str]:
    return {one.title: one.level for one in of_message(mime.parse(message), size or len(message), bulk)}


def complete(of: list[checks.Insight]) -> None:
    """Each insight has all of its sentences."""
    for one in of:
        assert one.seen and (one.level == "great" or (one.why and one.remedy)), one
        assert all(
            not sentence or sentence.rstrip("”>")[-1] in ".…" or sentence == one.remedy for sentence in (one.seen, one.why, one.remedy)
        ), one


def test_a_good_email_has_only_great_insights():
    levels = found(mail())
    assert set(levels.values()) == {"great"}, levels
    assert "Links lead to the sender's domain" in levels


@pytest.mark.parametrize(
    ("changes", "title", "level"),
    [
        ({"text": ""}, "Include a plain text part", "attention"),
        ({"html": GOOD + "x" * 105_000}, "The HTML is too large", "attention"),
        ({"html": GOOD + "x" * 95_000}, "The HTML is nearly too large", "better"),
        ({"sender": "no-reply@example.com"}, "Don't use a “no-reply” address", "attention"),
        ({"sender": "ann@gmail.com"}, "Send from your own domain", "attention"),
        ({"subject": ""}, "The subject is missing", "attention"),
        ({"subject": "BUY THIS NOW"}, "Improve the subject", "better"),
        ({"subject": "Re: your order"}, "Improve the subject", "better"),
        ({"html": GOOD + '<a href="https://other.test/">x</a>'}, "Link to your own domain", "attention"),
        (
            {"html": GOOD + '<a href="https://shop.example.com">www.bank.test</a>'},
            "A link shows one address but leads to another",
            "attention",
        ),
        ({"html": GOOD + '<a href="https://bit.ly/x">x</a>'}, "Don't shorten links", "attention"),
        ({"html": GOOD + '<a href="http://192.0.2.1/">x</a>'}, "Don't link to IP addresses", "attention"),
        ({"html": GOOD + '<img src="http://example.com/a.png" alt="">'}, "Use HTTPS", "better"),
        ({"html": GOOD + '<a href="https://youtu.be/x">x</a>'}, "Use full YouTube links", "better"),
        ({"html": GOOD + '<a href="https://example.com/">x</a>' * 51}, "There are too many links", "better"),
        ({"html": GOOD + '<img src="https://example.com/a.png">'}, "Add alt text to images", "better"),
        ({"html": GOOD + '<img alt="" src="data:image/png;base64,AA">'}, "Embedded images are not shown", "better"),
        ({"html": GOOD + '<img alt="" src="https://example.com/a.svg">'}, "Avoid SVG images", "better"),
        ({"html": GOOD + "<script>1</script>"}, "Remove unsupported elements", "attention"),
        ({"html": GOOD + "<form></form>"}, "Some email clients do not show everything", "better"),
        ({"html": "<p>Hello</p>"}, "Set the language", "better"),
        ({"html": "<p>Hello</p>"}, "Complete the HTML head", "better"),
        ({"html": GOOD + "Gr\u00c3\u00bc\u00c3\u0178e"}, "Some characters are broken", "attention"),
        ({"subject": "Your verification code", "html": HEAD + "x" * 300 + " 123456"}, "Put the code first", "better"),
        ({"subject": "Your verification code", "html": HEAD + "It is 123 456."}, "The code is easy to find", "great"),
        ({"sender": "hello@example.com"}, "Use a subdomain", "better"),
        ({"fields": "Reply-To: a@other.test\r\n"}, "Replies go to another domain", "better"),
        ({"sender": '"ceo@bank.test" <a@mail.example.com>'}, "The sender's name contains an address", "attention"),
        ({"sender": '"***" <a@mail.example.com>'}, "The sender's name has no letters", "better"),
        ({"subject": "\U0001f600\U0001f600"}, "Improve the subject", "better"),
        ({"fields": "Subject: again\r\n"}, "The header is not valid", "attention"),
        ({"fields": "X-Raw: \u00fc\r\n"}, "The header is not valid", "attention"),
        ({"fields": "DKIM-Signature: v=1; d=other.test; a=rsa-sha256; b=x\r\n"}, "It is not signed by the sender's domain", "attention"),
        ({"fields": "DKIM-Signature: v=1; d=example.com; a=rsa-sha1; b=x\r\n"}, "A DKIM signature is weak", "attention"),
        ({"fields": "DKIM-Signature: v=1; d=example.com; a=rsa-sha256;\r\n b=x\r\n"}, "It is signed with DKIM", "great"),
        ({"html": GOOD + '<a href="https://example.com:8443/">x</a>'}, "A link looks suspicious", "better"),
        ({"html": GOOD + '<a href="https://bank.test@example.com/">x</a>'}, "A link looks suspicious", "better"),
        ({"html": GOOD + f'<a href="https://example.com/{"%41" * 30}">x</a>'}, "A link looks suspicious", "better"),
        ({"html": GOOD + '<a href="https://3232235777/">x</a>'}, "A link looks suspicious", "better"),
        ({"html": GOOD + '<img alt="" src="https://example.com/a.webp?x">'}, "Avoid WebP images", "better"),
        ({"html": GOOD + '<img alt="" src="https://cdn.test/a.png">'}, "Load images from your own domain", "better"),
        ({"html": GOOD + '<img alt="" width="1" height="1" src="https://example.com/a.gif">'}, "Don't track opens", "better"),
        ({"html": GOOD + f'<div style="display:none"><b>{"x" * 300}</b></div>'}, "Text is hidden", "attention"),
        ({"html": GOOD + '<p style="font-size:6px">x</p>'}, "Some text is hard to read", "better"),
        ({"html": GOOD + '<p style="color:#fff;background-color:#fefefe">x</p>'}, "Some text is hard to read", "better"),
        ({"html": HEAD + "<p>View this email in your browser</p>"}, "Begin with the topic", "better"),
        ({"html": HEAD.replace("viewport", "color-scheme") + "<p>Hi</p>"}, "Dark mode is supported", "great"),
        ({"html": HEAD + "<p>one two three four five six seven eight nine ten</p>"}, "The text part differs from the HTML", "better"),
        ({"html": HEAD + f'<div style="display:none">{"word " * 30}</div><p>Hi</p>'}, "The preview line is too long", "better"),
        ({"html": HEAD + '<img alt="" src="https://example.com/a.png">'}, "There is no preview line", "better"),
        (
            {"html": GOOD + '<img alt="" width="600" height="200" src="https://example.com/a.png">'},
            "There is too little text for the images",
            "better",
        ),
        ({"html": GOOD + '<a href="https://www.youtube.com/embed/x">x</a>'}, "Link to the video's page", "better"),
        ({"sender": '"bank.com Support" <a@mail.example.com>'}, "The sender's name contains another domain", "better"),
        ({"to": "X-To: ann@example.org"}, "No recipient is named", "better"),
        ({"to": "To: undisclosed-recipients:;"}, "No recipient is named", "better"),
        ({"date": "X-Date: yesterday"}, "The header is not valid", "attention"),
        ({"date": "Date: yesterday"}, "The header is not valid", "attention"),
    ],
)
def test_each_check_finds_its_problem(changes, title, level):
    assert found(mail(**changes)).get(title) == level
    complete(all_of(mail(**changes)))
    assert title not in found(mail())


def all_of(message: bytes, bulk: bool = False) -> list[checks.Insight]:
    return of_message(mime.parse(message), len(message), bulk)


def seen_by(changes: dict[str, str], title: str) -> str:
    return next((one.seen for one in all_of(mail(**changes)) if one.title == title), "")


def test_the_preview_line_is_what_inboxes_show():
    def hidden(line: str) -> str:
        return (
            HEAD + f'<body><div style="display:none;max-height:0">{line}<div>{"&nbsp;&zwnj;&#8203;" * 200}</div></div><p>Hello.</p></body>'
        )

    shown = seen_by({"html": hidden("Your parcel comes today.")}, "There is a preview line")
    assert shown == "Inboxes show “Your parcel comes today.”."
    assert "Text is hidden" not in found(mail(html=hidden("Your parcel comes today.")))  # invisible spaces do not count as hidden text
    for length, title in (
        (html_checks.PREVIEW_MAX, "There is a preview line"),
        (html_checks.PREVIEW_MAX + 1, "The preview line is too long"),
    ):
        assert title in found(mail(html=hidden("x" * length)))
    late = HEAD + f'<p>Hello.</p><div style="display:none">{"x" * 200}</div>'
    assert seen_by({"html": late}, "There is a preview line").startswith("Inboxes show “Hello.")


WORDS = st.lists(st.text("abcdefghijklmnopqrstuvwxyzäéю", min_size=1, max_size=12), min_size=10, max_size=60, unique=True)


@given(WORDS, st.integers(0, 60))
def test_a_text_part_differs_if_it_has_hardly_any_words_of_the_html(words, kept):
    """The parts may differ in up to 99 % of the words. Upper and lower case are equal."""
    there = words[:kept]
    text = " ".join([*(word.upper() for word in there), *["other"] * 100])
    differs = "The text part differs from the HTML" in found(mail(html=f"{HEAD}<p>{', '.join(words)}</p>", text=text))
    lowered = {word.upper().lower() for word in there}
    assert differs == (len([word for word in words if word not in lowered]) / len(words) >= parts.MISSING_MAX)


@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(1, 3), st.integers(400, 5000))
def test_images_need_text_in_proportion_to_their_area(width, height, count, text):
    image = f'<img alt="" style="width:100%" width="{width}" height="{height}px" src="https://example.com/a.png">'
    message = mail(html=f"{HEAD}<p>{'x' * text}</p>{image * count}")
    little = "There is too little text for the images" in found(message)
    tiny = min(width, height) <= 2
    assert little == (
        not tiny and (text / (width * height * count) < html_checks.TEXT_RATIO or (text < html_checks.TEXT_MIN and count * 200 > text))
    )


def test_block_elements_separate_words():
    page = html_reader.read("<table><tr><td>one</td><td>t<b>w</b>o</td></tr></table><p hidden>a</p>three<br>four")
    assert page.text == "one two a three four"
    assert html_reader.read("<div hidden>a<div>b</div></div>c").preview == "a b"


def test_an_image_without_a_size_has_no_area():
    page = html_reader.read(
        '<img src=a width="600"><img src=b width=10 height=20><img src=c style="width:10px;height:3px"><img width=x height=9>'
    )
    assert [image.area for image in page.images] == [0, 200, 30, 0]


def test_a_single_file_can_be_too_large():
    def titles(size: int) -> list[str]:
        file = mime.File("a.bin", "application/octet-stream", None, "attachment", bytes(size))
        return [one.title for one in of_message(mime.Parsed((), None, "x", (file,)), 1, False)]

    assert "A file is large" in titles(files.FILE_MAX + 1) and "A file is large" not in titles(files.FILE_MAX)


SPF = Record("SPF", "send.example.com", True, "It is right.")
DMARC = Record("DMARC", "_dmarc.example.com", True, "A policy is published: reject.", advised="v=DMARC1; p=none; rua=mailto:d@example.com;")


@pytest.mark.parametrize(
    ("record", "level", "title"),
    [
        (attrs.evolve(SPF, found=("v=spf1 include:send.example.net -all",)), "great", "The SPF record is correct"),
        (attrs.evolve(SPF, found=("v=spf1 +all",)), "attention", "The SPF record rejects nobody"),
        (attrs.evolve(SPF, found=("v=spf1 all",)), "attention", "The SPF record rejects nobody"),
        (attrs.evolve(SPF, found=("v=spf1 include:send.example.net ?all",)), "better", "The SPF record rejects nobody"),
        (attrs.evolve(SPF, found=("10 mx.example.net",)), "great", "The SPF record is correct"),
        (attrs.evolve(DMARC, found=("v=DMARC1; p=reject",)), "better", "Request DMARC reports"),
        (attrs.evolve(DMARC, found=("v=DMARC1; p=reject; rua=mailto:d@example.com",)), "great", "The domain has a DMARC policy"),
        (attrs.evolve(DMARC, found=(DMARC.advised,)), "great", "The domain has a DMARC policy"),
        (attrs.evolve(DMARC, found=("v=DMARC1; p=none;",), advised="v=DMARC1; p=none;"), "great", "The domain has a DMARC policy"),
    ],
)
def test_the_content_of_records_is_checked(record, level, title):
    assert [(one.level, one.title) for one in of_facts(Facts("example.com", records=(record,)))] == [(level, title)]


DIFFERS = "The text part differs from the HTML"
LONG = "Dear customer, your order number 10234 has left our warehouse this morning and should arrive on Friday with the usual carrier."


@pytest.mark.parametrize(
    ("html", "text", "differs"),
    [
        (LONG, LONG, False),
        (LONG, LONG + "\nhttps://shop.example.com/o/10234?x=99999\nwww.example.com/77777", False),
        (LONG, "Your order number 10234 has left our warehouse.", False),  # shorter
        (LONG + " Total: 1,299.00", LONG.replace("order", "parcel") + " Total: 1299.00", False),
        (LONG, LONG.replace("10234", "10235"), True),
        (LONG, LONG + " Read more in our terms of 2026.", False),  # a number more, none instead
        (LONG, "Buy cheap watches, handbags and shoes from famous brands at our shop today, and get free shipping worldwide!", True),
    ],
)
def test_a_text_part_that_says_something_else(html, text, differs):
    assert (DIFFERS in found(mail(html=f"{HEAD}<p>{html}</p>", text=text))) is differs


@pytest.mark.parametrize(
    "html", [GOOD, *(f"{HEAD}<table><tr><td>{n} 2026-05-0{n}</td><td>{n * 1111}</td></tr></table><p>{LONG}" for n in (1, 2))]
)
def test_a_generated_text_part_does_not_differ(html):
    html += '<img src="https://example.com/1234.png" alt="Receipt 4711"><a href="mailto:help@example.com">help@example.com</a>'
    assert DIFFERS not in found(mail(html=html, text=html_to_text.text_of(html)))


@pytest.mark.parametrize(
    "text",
    [
        "Hi {{first_name}},", "Hi {{{FIRST_NAME|there}}}!", "Dear {first_name},", "Dear *|FNAME|*", "Dear %%FirstName%%",
        "Dear ${user.name}",
        "Dear [[name]]", "Hi %recipient.name%", "{% if name %}", "Order [object Object] is on its way", "Hello undefined,", "Hi null!",
        "Your order undefined has shipped", "Due on Invalid Date", "Total: $NaN",
    ],
)  # fmt: skip
def test_placeholders_without_a_value(text):
    title = "A placeholder has no value"
    for changes in ({"subject": text}, {"text": text}, {"html": f"{HEAD}<p>{text}</p>"}):
        assert found(mail(**changes)).get(title) == "attention", changes
        complete(all_of(mail(**changes)))
    quoted = text.replace("{", "%7B").replace("}", "%7D")
    if text[0] in "{*[":
        assert title in found(mail(html=f'{GOOD}<a href="https://shop.example.com/{quoted}">x</a>'))


@pytest.mark.parametrize(
    "text",
    [
        "The behavior is undefined in this case.", "TypeError: undefined is not a function",
        "Cannot read properties of undefined (reading x)",
        "The term “undefined” has no meaning.", "{a, b} = {c}", "100%% sure", "if (x) { return [1] }", "null and void", "A NaN in the sum",
        "f(x) = {x: 1}", "#general", "Nanette says hi, Nullarbor", "undefined behaviour",
    ],
)  # fmt: skip
def test_what_is_no_placeholder(text):
    assert "A placeholder has no value" not in found(mail(text=text, subject=text, html=f"{HEAD}<p>{text}</p>"))


@pytest.mark.parametrize("piece", ["{{a", "{a_a_", "*|A", "is undefined ", "1.", "[[a", '<a href="%41%7B">x</a>', '<a href="htt">x</a>'])
def test_mistakes_in_a_large_mail_are_looked_for_in_linear_time(piece):
    large = checks.mail_of(mime.parse(mail(html=HEAD + piece * (checks.LONGEST // len(piece)), text=piece * 300_000)), 1, False)
    began = time.process_time()
    for check in mistakes.CHECKS:
        list(check(large))
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("", "One link has no address."),
        ("#", "One link leads to “#”."),
        ("/account", "“/account” is relative."),
        ("account.html", "“account.html” is relative."),
        ("www.example.com", "“www.example.com” is relative."),
        ("//shop.example.com/x", "“//shop.example.com/x” is relative."),
        ("shop.example.com:8443/x", "“shop.example.com:8443/x” is relative."),
        ("javascript:void(0)", "“javascript:void(0)” is a script."),
        ("file:///C:/a.html", "“file:///C:/a.html” only works on your own machine."),
        ("htp://shop.example.com", "“htp://shop.example.com” is misspelled."),
        ("htttps://shop.example.com", "“htttps://shop.example.com” is misspelled."),
        ("https//shop.example.com", "“https//shop.example.com” is misspelled."),
        ("http;//shop.example.com", "“http;//shop.example.com” is misspelled."),
        ("https:///x", "“https:///x” is misspelled or only works on your own machine."),
        ("https://https://shop.example.com", "“https://https://shop.example.com” is misspelled or only works on your own machine."),
        ("https://shop,example.com", "“https://shop,example.com” is misspelled or only works on your own machine."),
        ("https://shop..example.com", "“https://shop..example.com” is misspelled or only works on your own machine."),
        ("http://localhost:3000/x", "“http://localhost:3000/x” is misspelled or only works on your own machine."),
        ("mailto:", "“mailto:” has no address."),
    ],
)
def test_links_that_do_not_work(url, seen):
    changes = {"html": f'{GOOD}<a href="{url}">x</a>'}
    assert found(mail(**changes)).get("A link does not work") == "attention"
    assert seen_by(changes, "A link does not work") == seen
    complete(all_of(mail(**changes)))


@pytest.mark.parametrize(
    "url",
    [
        "https://shop.example.com", "HTTPS://Shop.Example.COM/x y", "#chapter", "mailto:a@example.com", "tel:+43123", "sms:+43123", "myapp://open/x",
        "https://münchen.example/", "http://192.0.2.1/", "http://[2001:db8::1]/", "https://shop.example.com./", "webcal://example.com/a.ics",
        "https://shop_1.example.com/", "{{link}}",
    ],
)  # fmt: skip
def test_links_that_work(url):
    assert "A link does not work" not in found(mail(html=f'{GOOD}<a name="chapter">1</a><a href="{url}">x</a>'))


@pytest.mark.parametrize(
    ("message", "seen"),
    [
        (b"Content-Type: text/plain\r\nContent-Transfer-Encoding: base64\r\n\r\nSGVsbG8=\r\n", None),
        (b"Content-Type: text/plain\r\nContent-Transfer-Encoding: base64\r\n\r\nSGVs\r\nbG8h\r\n", None),
        (b"Content-Type: text/plain\r\nContent-Transfer-Encoding: base64\r\n\r\nSGVsbG8\r\n", "Text/plain is not valid base64."),
        (b"Content-Type: text/plain\r\nContent-Transfer-Encoding: base64\r\n\r\nSGVs-G8=\r\n", "Text/plain is not valid base64."),
        (b"Content-Type: text/plain\r\nContent-Transfer-Encoding: base64\r\n\r\nSG=sbG8=\r\n", "Text/plain is not valid base64."),
        (b'Content-Type: image/png; name="a.png"\r\nContent-Transfer-Encoding: base64\r\n\r\nHello\r\n', "A.png is not valid base64."),
        (b"Content-Transfer-Encoding: base46\r\n\r\nx\r\n", "Text/plain has the unknown encoding base46."),
        (b"Content-Type: text/plain; charset=utf-88\r\n\r\nx\r\n", "Text/plain has the unknown charset utf-88."),
        (b"Content-Type: text/plain; charset=ISO-8859-1\r\n\r\nx\r\n", None),
        (b"Subject: =?utf-8?q?ok?=\r\n\r\nx\r\n", None),
        (b"Subject: =?utf-88?q?ok?=\r\n\r\nx\r\n", "Subject has the unknown charset utf-88."),
        (b"Subject: =?utf-8?b?a?=\r\n\r\nx\r\n", "Subject cannot be decoded."),
    ],
)
def test_parts_that_cannot_be_decoded(message, seen):
    shown = [one.seen for one in all_of(b"From: a@example.com\r\n" + message) if one.title == "Part of the message cannot be decoded"]
    assert shown == ([] if seen is None else [seen])


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"html": GOOD + '<a href="https://xn--pple-43d.com/">x</a>'}, "A link or image leads to xn--pple-43d.com."),  # with a Cyrillic a
        ({"html": GOOD + '<a href="https://\u0430pple.com/">x</a>'}, "A link or image leads to \u0430pple.com."),
        ({"html": GOOD + '<a href="https://xn--80ak6aa92e.com/">x</a>'}, "A link or image leads to xn--80ak6aa92e.com."),  # all Cyrillic
        ({"sender": "Shop <a@xn--pple-43d.com>"}, "The email is from xn--pple-43d.com."),
        ({"html": GOOD + '<a href="https://xn--mnchen-3ya.example.com/">x</a>'}, ""),
        ({"html": GOOD + '<a href="https://xn--e1afmkfd.xn--80akhbyknj4f/">x</a>'}, ""),  # Cyrillic, and it looks so
    ],
)
def test_domains_that_look_like_others(changes, seen):
    shown = seen_by(changes, "A domain looks like another one")
    assert shown.startswith(seen) and bool(shown) is bool(seen)
    complete(all_of(mail(**changes)))


@pytest.mark.parametrize(
    ("shown", "leads_to", "other"),
    [
        ("https://app.example.com:8443/x", "https://app.example.com:8443/x", False),
        ("https://example.com?ref=mail", "https://example.com?ref=mail", False),
        ("https://example.com#top", "https://example.com/#top", False),
        ("http://münchen.example/", "http://xn--mnchen-3ya.example/", False),
        ("HTTPS://Example.com/x", "https://bank.test/x", True),
        ("https://example.com?bank.test", "https://bank.test/", True),
        ("https://example.com:443", "https://bank.test/", True),
    ],
)
def test_only_the_hosts_of_a_links_text_and_target_are_compared(shown: str, leads_to: str, other: bool) -> None:
    levels = found(mail(html=f'{GOOD}<a href="{leads_to}">{shown}</a>'))
    assert ("A link shows one address but leads to another" in levels) is other


def test_links_that_are_tracked_at_the_host_of_the_service_need_a_tracking_subdomain():
    """The sender linked to its own domain, so it cannot help to say that it should."""
    link = '<a href="https://mail.service.test/c/AbC">www.example.com</a>'
    given = mime.parse(mail(html=f"{HEAD}<p>Your order is on its way. {link}</p></html>"))
    for host, titles in (
        ("mail.service.test", {"Track links at your own domain", "A link shows one address but leads to another"}),
        ("", {"Link to your own domain", "A link shows one address but leads to another"}),
    ):
        insights = checks.of_mail(checks.mail_of(given, 1000, False, tracked_at=host))
        wrong = [one for one in insights if one.level == "attention"]
        assert {one.title for one in wrong} == titles
        assert all(("tracking subdomain" in one.remedy) is bool(host) for one in wrong)


def test_bulk_email_needs_list_unsubscribe():
    assert found(mail(), bulk=True)["Let people unsubscribe with one click"] == "attention"
    fields = "List-Unsubscribe: <https://example.com/u>\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"
    assert found(mail(fields=fields), bulk=True)["People can unsubscribe with one click"] == "great"
    assert "Let people unsubscribe with one click" not in found(mail())


def test_the_unsubscribe_link_may_lead_to_another_domain():
    html = GOOD + '<a href="https://api.mailer.test/unsubscribe?token=a">Unsubscribe</a>'
    assert found(mail(html=html))["Link to your own domain"] == "attention"
    field = "List-Unsubscribe: <mailto:leave@example.com>, <https://api.mailer.test/unsubscribe?token=a>\r\n"
    assert found(mail(html=html, fields=field))["Links lead to the sender's domain"] == "great"


def test_essential_email_must_not_offer_to_unsubscribe():
    title, fields = "Don't offer to unsubscribe from this email", "List-Unsubscribe: <https://example.com/u>\r\n"
    for subject in ("Reset your password", "Your receipt", "New sign-in to your account"):
        assert found(mail(fields=fields, subject=subject))[title] == "better"
        assert title not in found(mail(subject=subject)) and title not in found(mail(fields=fields, subject=subject), bulk=True)
    assert title not in found(mail(fields=fields, subject="What is new in May"))


def nested(kind: str, *parts: str, layer: int = 0) -> str:
    line = f"--b{layer}"
    return f'Content-Type: {kind}; boundary="b{layer}"\r\n\r\n' + "".join(f"{line}\r\n{part}\r\n" for part in parts) + f"{line}--\r\n"


TEXT, HTML, PDF = (f"Content-Type: {kind}\r\n\r\nx" for kind in ("text/plain", "text/html", "application/pdf"))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (nested("multipart/alternative", TEXT, HTML), None),
        (nested("multipart/mixed", nested("multipart/alternative", TEXT, HTML, layer=1), PDF), None),
        (nested("multipart/alternative", TEXT, nested("multipart/related", HTML, layer=1)), None),
        (nested("multipart/alternative", HTML, TEXT), "the HTML comes before the text"),
        (nested("multipart/alternative", TEXT, HTML, PDF), "a file (application/pdf) is one of"),
        (nested("multipart/mixed"), "a multipart/mixed has no parts"),
        ("Content-Type: multipart/mixed\r\n\r\nx", "a multipart/mixed has no parts"),
    ],
)
def test_the_mime_structure_is_checked(body, problem):
    seen = [one.seen for one in of_message(mime.parse(body.encode()), 1, False) if one.title == "The MIME structure is unusual"]
    assert seen == [] if problem is None else problem in seen[0]


def test_nesting_levels_are_counted():
    def levels(count):
        body = TEXT
        for layer in range(count):
            body = nested("multipart/mixed", body, layer=layer)
        return [one.seen for one in of_message(mime.parse(body.encode()), 1, False) if one.title == "The MIME structure is unusual"]

    assert levels(4) == [] and "more than 4 levels" in levels(5)[0]


def test_a_message_can_be_too_large():
    assert found(mail(), size=26 << 20)["The message is too large"] == "attention"
    assert found(mail(), size=11 << 20)["The message is large"] == "better"


def test_a_dangerous_attachment_is_reported():
    head = b"From: a@example.com\r\nSubject: x\r\nContent-Disposition: attachment\r\n"
    attached = head + b'Content-Type: application/octet-stream; name="a.exe"\r\n\r\nx'
    assert found(attached)["This attachment will be rejected"] == "attention"


def levels_of(message: bytes, bulk: bool = False, **known) -> dict[str, str]:
    return {one.title: one.level for one in checks.of_mail(checks.mail_of(mime.parse(message), len(message), bulk, **known))}


def test_a_wrong_date_makes_the_header_invalid():
    now = datetime(2026, 1, 10, tzinfo=UTC)
    dated = mail(date="Date: Thu, 1 Jan 2026 00:00:00 +0000")
    assert levels_of(dated, accepted=now)["The header is not valid"] == "attention"
    assert levels_of(dated, accepted=now - timedelta(days=9))["The header is valid"] == "great"
    for nonsense in ("nonsense", "1 Jan 99999999999999999999 00:00:00 +0000"):
        assert levels_of(mail(date=f"Date: {nonsense}"), accepted=now)["The header is not valid"] == "attention"


def test_recipient_addresses_are_checked():
    assert levels_of(mail(), recipients=("ann@gmial.com",))["An address looks misspelled"] == "better"
    assert levels_of(mail(), recipients=("ann@mailinator.com",))["An address is disposable"] == "better"
    assert levels_of(mail(), True, recipients=("info@example.org",))["Bulk email to role addresses"] == "better"
    assert "Bulk email to role addresses" not in levels_of(mail(), recipients=("info@example.org",))
    assert levels_of(mail().replace(b"To: ", b"To: bob@example.org, "))["Recipients see each other's addresses"] == "better"


def test_bulk_email_needs_an_unsubscribe_link_and_a_postal_address():
    found = levels_of(mail(), True)
    assert found["Add an unsubscribe link to the text"] == "attention" and found["Add your postal address"] == "better"
    html = GOOD + '<p><a href="https://example.com/u">Abmelden</a> Shop, Weg 1, 10115 Berlin</p>'
    found = levels_of(mail(html=html), True)
    assert "Add an unsubscribe link to the text" not in found and "Add your postal address" not in found
    assert levels_of(mail(html=HEAD + "<p>Hi</p>"), True)["There is no link"] == "better"


def archive(name: str, locked: bool = False) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as created:
        created.writestr(name, b"x")
    content = bytearray(out.getvalue())
    if locked:
        content[content.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("file", "bulk", "title"),
    [
        (mime.File("a.zip", "application/zip", None, "attachment", archive("run.exe")), False, "This archive will be rejected"),
        (
            mime.File("a.zip", "application/zip", None, "attachment", archive("a.txt", locked=True)),
            False,
            "An archive is password-protected",
        ),
        (mime.File(None, "text/plain", None, "attachment", b"x"), False, "An attachment has no filename"),
        (mime.File("a.pdf", "application/pdf", None, "attachment", b"MZ"), False, "A file does not match its type"),
        (mime.File("a.txt", "text/plain", None, "attachment", b"x"), True, "Bulk email with attachments"),
    ],
)
def test_attachments_are_checked(file, bulk, title):
    def titles(file):
        insights = of_message(mime.Parsed((), None, "x", (file,)), 1, bulk)
        complete(insights)
        return [one.title for one in insights]

    assert title in titles(file)
    good = mime.File("a.zip", "application/zip", None, "attachment", archive("a.txt"))
    assert not {
        "This archive will be rejected",
        "An archive is password-protected",
        "An attachment has no filename",
        "A file does not match its type",
    } & {*titles(good)}
    titles(mime.File("a.zip", "application/zip", None, "attachment", b"PK\x03\x04 no archive"))


def directory(names: list[str], flags: int = 0x800) -> bytes:
    """An archive that is only a directory."""
    form, end = struct.Struct("<4s6H3I5H2I"), struct.Struct("<4s4H2IH")
    encoded = [name.encode() for name in names]
    whole = b"".join(form.pack(b"PK\1\2", 20, 20, flags, *[0] * 6, len(name), *[0] * 6) + name for name in encoded)
    return whole + end.pack(b"PK\5\6", 0, 0, 0, 0, len(whole), 0, 0)


def test_a_large_directory_of_an_archive_takes_little_memory():
    packed = b"PK\3\4" + directory(["a.txt", "ü.exe", *("a" for _ in range(100_000))])
    tracemalloc.start()
    try:
        titles = [one.title for one in files.archives(attached(packed))]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert titles == ["This archive will be rejected"]
    assert peak < 1 << 20, peak


@pytest.mark.parametrize("damaged", ["cut", "signature", "length", "offset"])
def test_a_damaged_archive_has_no_insight(damaged):
    packed = bytearray(b"PK\3\4" + directory(["a.exe", "b.exe"]))
    if damaged == "cut":
        del packed[-9:]
    elif damaged == "signature":
        packed[4] = 0
    elif damaged == "length":
        packed[4 + 28 : 4 + 30] = b"\xff\xff"
        del packed[4 + 46 : 4 + 51]
        packed[4 + 46 : 4 + 46] = b"a.txt"
    else:
        packed[-10:-2] = b"\xff" * 8
    assert [one.title for one in files.archives(attached(bytes(packed)))] == []


def attached(content: bytes) -> Mail:
    file = mime.File("a.zip", "application/zip", None, "attachment", content)
    return checks.mail_of(mime.Parsed((), None, "x", (file,)), 1, False)


# Facts that are not in the message


RECORD = Record("SPF", "send.example.com", True, "It is right.")
SERVER = Server("192.0.2.1", "out.example.net", True, ("out.example.net",))
RATES = Rates(delivered=1000, bounced=0, permanently=0, complained=0)


@pytest.mark.parametrize(
    ("facts", "level", "title"),
    [
        ({"records": (RECORD,)}, "great", "The SPF record is correct"),
        ({"records": (attrs.evolve(RECORD, correct=False),)}, "attention", "The SPF record is not correct"),
        ({"records": (attrs.evolve(RECORD, purpose="DMARC", correct=False),)}, "attention", "Publish a DMARC policy"),
        ({"records": (attrs.evolve(RECORD, purpose="DMARC"),)}, "great", "The domain has a DMARC policy"),
        ({"receives": True}, "great", "The domain can receive email"),
        ({"receives": False}, "attention", "The domain cannot receive email"),
        ({"receives": False, "null_mx": True}, "attention", "The domain does not accept email"),
        ({"servers": (SERVER,)}, "great", "The sending servers have correct reverse DNS"),
        ({"servers": (attrs.evolve(SERVER, ptr_names=()),)}, "attention", "A sending server has incorrect reverse DNS"),
        (
            {"servers": (attrs.evolve(SERVER, ptr_names=("pool-1.isp.example",)),)},
            "attention",
            "A sending server has incorrect reverse DNS",
        ),
        ({"servers": (attrs.evolve(SERVER, resolves_back=False),)}, "attention", "A sending server has incorrect reverse DNS"),
        ({"blocklists": ("zen",)}, "great", "Not on any blocklist"),
        ({"blocklists": ("zen",), "listed": (Listed("192.0.2.1", "zen"),)}, "attention", "On a blocklist"),
        ({"rates": RATES}, "great", "Your bounce rate is low"),
        ({"rates": attrs.evolve(RATES, bounced=15, permanently=15)}, "better", "Many addresses do not exist"),
        ({"rates": attrs.evolve(RATES, bounced=25)}, "better", "Your bounce rate is high"),
        ({"rates": attrs.evolve(RATES, bounced=50)}, "attention", "Your bounce rate is too high"),
        ({"rates": RATES}, "great", "Your complaint rate is low"),
        ({"rates": attrs.evolve(RATES, complained=1)}, "better", "Your complaint rate is high"),
        ({"rates": attrs.evolve(RATES, complained=3)}, "attention", "Your complaint rate is too high"),
        ({"rates": attrs.evolve(RATES, sent_today=5000, usual_per_day=1000.0)}, "better", "You send much more than usual"),
        ({"own_failures": 1}, "attention", "Your email fails DMARC"),
        ({"logo": True}, "great", "The domain publishes a logo"),
        ({"logo": False, "records": (attrs.evolve(RECORD, purpose="DMARC", found=("v=DMARC1; p=reject",)),)}, "better", "Publish a logo"),
        ({"age_days": 3}, "better", "The domain is new"),
        ({"not_tracked": "Clicks are not tracked yet."}, "better", "Tracking is on but not active"),
    ],
)
def test_each_fact_has_its_insight(facts, level, title):
    complete(of_facts(Facts("example.com", **facts)))
    found = [one for one in of_facts(Facts("example.com", **facts)) if one.title == title]
    assert [one.level for one in found] == [level]
    assert all(one.seen for one in found)


@pytest.mark.parametrize("policy", ["p=none", "p=reject; sp=none", "p=reject; t=y"])
def test_a_logo_is_not_suggested_without_an_enforced_policy(policy):
    weak = attrs.evolve(RECORD, purpose="DMARC", found=(f"v=DMARC1; {policy}",))
    assert "Publish a logo" not in [one.title for one in of_facts(Facts("example.com", records=(weak,), logo=False))]


def test_unknown_facts_have_no_insight():
    unanswered = attrs.evolve(RECORD, correct=False, unanswered=True)
    few = Rates(delivered=50, bounced=40, permanently=40, complained=9)
    assert of_facts(Facts("example.com", age_days=400, records=(unanswered,), rates=few)) == []


def test_the_remedy_depends_on_who_is_listed():
    of = {one.name: one for one in (Listed("192.0.2.1", "zen"), Listed("2001:db8::1", "zen"), Listed("example.com", "dbl"))}
    remedy = {what: of_facts(Facts("example.com", listed=(one,)))[0].remedy for what, one in of.items()}
    assert remedy["192.0.2.1"] == remedy["2001:db8::1"] == "Contact the operator of this service." and "dbl" in remedy["example.com"]


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_any_html_can_be_read(html):
    html_reader.read(html)
    html_reader.read(f"<a href='{html}'><img src=\"{html}\"></a>")
    complete(of_message(mime.Parsed((), html, None, ()), 1, True))


def test_long_html_is_checked_at_its_beginning() -> None:
    parsed = mime.parse(b"From: a@b.example\r\nContent-Type: text/html\r\n\r\n" + b"<p>a</p>" * (checks.LONGEST // 4))
    mail = checks.mail_of(parsed, 4_000_000, False)
    assert mail.parsed.html is not None and len(mail.parsed.html) == checks.LONGEST


@pytest.mark.parametrize(("awaited", "remedy"), [(True, "Publish the record"), (False, "Switch tracking off.")])
def test_only_a_record_that_is_missing_is_to_be_published(awaited: bool, remedy: str) -> None:
    [insight] = of_facts(Facts("mail.example.com", not_tracked="Opens are not tracked.", tracking_awaits_record=awaited))
    assert insight.remedy.startswith(remedy)
