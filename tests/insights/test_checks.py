"""Each check of an email's message, seen to find what it looks for and to be silent otherwise."""

from __future__ import annotations

import io
import zipfile
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.insights import checks
from mailsvc.insights.checks import files, parts
from mailsvc.insights.checks import html as look
from mailsvc.insights.checks.reputation import Facts, Listed, Rates, Record, Server, of_standing
from mailsvc.mail import html as markup
from mailsvc.mail import mime

HEAD = '<html lang="en"><head><title>Your order</title><meta name="viewport" content="width=device-width"></head>'
GOOD = HEAD + '<p>Your order is on its way. <a href="https://shop.example.com/o/1">See your order</a></p></html>'


def mail(
    html: str = GOOD,
    text: str = "Your order is on its way.",
    fields: str = "",
    sender: str = "Shop <hello@mail.example.com>",
    subject: str = "Your order",
):
    boundary = "----b"
    head = f"From: {sender}\r\nTo: ann@example.org\r\nSubject: {subject}\r\n{fields}MIME-Version: 1.0\r\nMessage-ID: <1@example.com>\r\n"
    head += f'Content-Type: multipart/alternative; boundary="{boundary}"\r\n\r\n'
    parts = [
        f"--{boundary}\r\nContent-Type: text/{kind}; charset=utf-8\r\n\r\n{body}\r\n"
        for kind, body in (("plain", text), ("html", html))
        if body
    ]
    return (head + "".join(parts) + f"--{boundary}--\r\n").encode()


def found(message: bytes, bulk: bool = False, size: int | None = None) -> dict[str, str]:
    return {one.title: one.level for one in checks.of_message(mime.parse(message), size or len(message), bulk)}


def complete(of: list[checks.Insight]) -> None:
    """What was seen, why it matters, and what to do."""
    for one in of:
        assert one.seen and (one.level == "great" or (one.why and one.remedy)), one
        assert all(not said or said.rstrip("”>")[-1] in ".…" or said == one.remedy for said in (one.seen, one.why, one.remedy)), one


def test_a_good_mail_needs_nothing():
    levels = found(mail())
    assert set(levels.values()) == {"great"}, levels
    assert "Links lead to the sender's domain" in levels


@pytest.mark.parametrize(
    ("changes", "title", "level"),
    [
        ({"text": ""}, "Include a plain text part", "attention"),
        ({"html": GOOD + "x" * 105_000}, "The html is too large", "attention"),
        ({"html": GOOD + "x" * 95_000}, "The html is nearly too large", "better"),
        ({"sender": "no-reply@example.com"}, "Don't use a “no-reply” address", "attention"),
        ({"sender": "ann@gmail.com"}, "Send from a domain of your own", "attention"),
        ({"subject": ""}, "It has no subject", "attention"),
        ({"subject": "BUY THIS NOW"}, "The subject could be better", "better"),
        ({"subject": "Re: your order"}, "The subject could be better", "better"),
        ({"html": GOOD + '<a href="https://other.test/">x</a>'}, "Link to your own domain", "attention"),
        (
            {"html": GOOD + '<a href="https://shop.example.com">www.bank.test</a>'},
            "A link says one address and leads to another",
            "attention",
        ),
        ({"html": GOOD + '<a href="https://bit.ly/x">x</a>'}, "Don't shorten links", "attention"),
        ({"html": GOOD + '<a href="http://192.0.2.1/">x</a>'}, "Link to names, not to IP addresses", "attention"),
        ({"html": GOOD + '<img src="http://example.com/a.png" alt="">'}, "Use https", "better"),
        ({"html": GOOD + '<a href="https://youtu.be/x">x</a>'}, "Use full YouTube links", "better"),
        ({"html": GOOD + '<a href="https://example.com/">x</a>' * 51}, "There are many links", "better"),
        ({"html": GOOD + '<img src="https://example.com/a.png">'}, "Describe the images", "better"),
        ({"html": GOOD + '<img alt="" src="data:image/png;base64,AA">'}, "Images inside the html are lost", "better"),
        ({"html": GOOD + '<img alt="" src="https://example.com/a.svg">'}, "Avoid SVG images", "better"),
        ({"html": GOOD + "<script>1</script>"}, "Remove what mail cannot do", "attention"),
        ({"html": GOOD + "<form></form>"}, "Some programs do not show all of it", "better"),
        ({"html": "<p>Hello</p>"}, "Say the language", "better"),
        ({"html": "<p>Hello</p>"}, "Say more in the head of the html", "better"),
        ({"html": GOOD + "Gr\u00c3\u00bc\u00c3\u0178e"}, "Some characters are broken", "attention"),
        ({"subject": "Your verification code", "html": HEAD + "x" * 300 + " 123456"}, "Put the code first", "better"),
        ({"subject": "Your verification code", "html": HEAD + "It is 123 456."}, "The code is easy to find", "great"),
        ({"sender": "hello@example.com"}, "Use a subdomain", "better"),
        ({"fields": "Reply-To: a@other.test\r\n"}, "Answers go to another domain", "better"),
        ({"sender": '"ceo@bank.test" <a@mail.example.com>'}, "The sender's name is an address", "attention"),
        ({"sender": '"***" <a@mail.example.com>'}, "The sender's name has no letters", "better"),
        ({"subject": "\U0001f600\U0001f600"}, "The subject could be better", "better"),
        ({"fields": "Subject: again\r\n"}, "The header breaks the standard", "attention"),
        ({"fields": "X-Raw: \u00fc\r\n"}, "The header breaks the standard", "attention"),
        ({"fields": "DKIM-Signature: v=1; d=other.test; a=rsa-sha256; b=x\r\n"}, "It is not signed for its own domain", "attention"),
        ({"fields": "DKIM-Signature: v=1; d=example.com; a=rsa-sha1; b=x\r\n"}, "A DKIM signature is weak", "attention"),
        ({"fields": "DKIM-Signature: v=1; d=example.com; a=rsa-sha256;\r\n b=x\r\n"}, "It is signed with DKIM", "great"),
        ({"html": GOOD + '<a href="https://example.com:8443/">x</a>'}, "A link looks odd", "better"),
        ({"html": GOOD + '<a href="https://bank.test@example.com/">x</a>'}, "A link looks odd", "better"),
        ({"html": GOOD + f'<a href="https://example.com/{"%41" * 30}">x</a>'}, "A link looks odd", "better"),
        ({"html": GOOD + '<a href="https://3232235777/">x</a>'}, "A link looks odd", "better"),
        ({"html": GOOD + '<img alt="" src="https://example.com/a.webp?x">'}, "Avoid WebP images", "better"),
        ({"html": GOOD + '<img alt="" src="https://cdn.test/a.png">'}, "Load images from your own domain", "better"),
        ({"html": GOOD + '<img alt="" width="1" height="1" src="https://example.com/a.gif">'}, "Don't track who opens it", "better"),
        ({"html": GOOD + f'<div style="display:none"><b>{"x" * 300}</b></div>'}, "Text is hidden", "attention"),
        ({"html": GOOD + '<p style="font-size:6px">x</p>'}, "Some text is hard to read", "better"),
        ({"html": GOOD + '<p style="color:#fff;background-color:#fefefe">x</p>'}, "Some text is hard to read", "better"),
        ({"html": HEAD + "<p>View this email in your browser</p>"}, "Begin with what it is about", "better"),
        ({"html": HEAD.replace("viewport", "color-scheme") + "<p>Hi</p>"}, "It is ready for dark screens", "great"),
        ({"html": HEAD + "<p>one two three four five six seven eight nine ten</p>"}, "The text part says something else", "better"),
        ({"html": HEAD + f'<div style="display:none">{"word " * 30}</div><p>Hi</p>'}, "The preview line is long", "better"),
        ({"html": HEAD + '<img alt="" src="https://example.com/a.png">'}, "It has no preview line", "better"),
        (
            {"html": GOOD + '<img alt="" width="600" height="200" src="https://example.com/a.png">'},
            "There is little text beside the images",
            "better",
        ),
        ({"html": GOOD + '<a href="https://www.youtube.com/embed/x">x</a>'}, "Link to the video's page", "better"),
        ({"sender": '"bank.com Support" <a@mail.example.com>'}, "The sender's name is another domain", "better"),
    ],
)
def test_each_check_finds_what_it_looks_for(changes, title, level):
    assert found(mail(**changes)).get(title) == level
    complete(all_of(mail(**changes)))
    assert title not in found(mail())


def all_of(message: bytes, bulk: bool = False) -> list[checks.Insight]:
    return checks.of_message(mime.parse(message), len(message), bulk)


def told(changes: dict[str, str], title: str) -> str:
    return next((one.seen for one in all_of(mail(**changes)) if one.title == title), "")


def test_the_line_for_previews_is_what_inboxes_show():
    def hidden(line: str) -> str:
        return (
            HEAD + f'<body><div style="display:none;max-height:0">{line}<div>{"&nbsp;&zwnj;&#8203;" * 200}</div></div><p>Hello.</p></body>'
        )

    shown = told({"html": hidden("Your parcel comes today.")}, "It has a preview line")
    assert shown == "Inboxes show “Your parcel comes today.”."
    assert "Text is hidden" not in found(mail(html=hidden("Your parcel comes today.")))  # spaces without a shape hide nothing
    for length, title in ((look.PREVIEW_MOST, "It has a preview line"), (look.PREVIEW_MOST + 1, "The preview line is long")):
        assert title in found(mail(html=hidden("x" * length)))
    late = HEAD + f'<p>Hello.</p><div style="display:none">{"x" * 200}</div>'
    assert told({"html": late}, "It has a preview line").startswith("Inboxes show “Hello.")


WORDS = st.lists(st.text("abcdefghijklmnopqrstuvwxyzäéю", min_size=1, max_size=12), min_size=10, max_size=60, unique=True)


@given(WORDS, st.integers(0, 60))
def test_a_text_part_differs_when_it_has_hardly_a_word_of_the_html(words, kept):
    """Below 99 of 100 words that are missing nothing is said; letters beside the words do not count."""
    there = words[:kept]
    text = " ".join([*(word.upper() for word in there), *("0123456789" * 10)])
    differs = "The text part says something else" in found(mail(html=f"{HEAD}<p>{', '.join(words)}</p>", text=text))
    lowered = {word.upper().lower() for word in there}
    assert differs == (len([word for word in words if word not in lowered]) / len(words) >= parts.MISSING_MOST)


@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(1, 3), st.integers(400, 5000))
def test_images_want_text_by_their_area(width, height, count, text):
    image = f'<img alt="" style="width:100%" width="{width}" height="{height}px" src="https://example.com/a.png">'
    message = mail(html=f"{HEAD}<p>{'x' * text}</p>{image * count}")
    little = "There is little text beside the images" in found(message)
    tiny = min(width, height) <= 2
    assert little == (not tiny and (text / (width * height * count) < look.TEXT_RATIO or (text < look.TEXT_LEAST and count * 200 > text)))


def test_words_in_two_blocks_are_two_words():
    page = markup.read("<table><tr><td>one</td><td>t<b>w</b>o</td></tr></table><p hidden>a</p>three<br>four")
    assert page.text == "one two a three four"
    assert markup.read("<div hidden>a<div>b</div></div>c").preview == "a b"


def test_an_image_that_tells_no_size_has_no_area():
    page = markup.read(
        '<img src=a width="600"><img src=b width=10 height=20><img src=c style="width:10px;height:3px"><img width=x height=9>'
    )
    assert [image.area for image in page.images] == [0, 200, 30, 0]


def test_one_file_may_be_too_large_beside_the_whole():
    def titles(size: int) -> list[str]:
        file = mime.File("a.bin", "application/octet-stream", None, "attachment", bytes(size))
        return [one.title for one in checks.of_message(mime.Parsed((), None, "x", (file,)), 1, False)]

    assert "A file is large" in titles(files.FILE_MOST + 1) and "A file is large" not in titles(files.FILE_MOST)


SPF = Record("SPF", "send.example.com", True, False, "It is right.")
DMARC = Record("DMARC", "_dmarc.example.com", True, False, "A policy is published: reject.")


@pytest.mark.parametrize(
    ("record", "level", "title"),
    [
        (attrs.evolve(SPF, found=("v=spf1 include:send.example.net -all",)), "great", "The SPF record is right"),
        (attrs.evolve(SPF, found=("v=spf1 +all",)), "attention", "The SPF record refuses nobody"),
        (attrs.evolve(SPF, found=("v=spf1 all",)), "attention", "The SPF record refuses nobody"),
        (attrs.evolve(SPF, found=("v=spf1 include:send.example.net ?all",)), "better", "The SPF record refuses nobody"),
        (attrs.evolve(SPF, found=("10 mx.example.net",)), "great", "The SPF record is right"),
        (attrs.evolve(DMARC, found=("v=DMARC1; p=reject",)), "better", "Ask for DMARC reports"),
        (attrs.evolve(DMARC, found=("v=DMARC1; p=reject; rua=mailto:d@example.com",)), "great", "The domain has a DMARC policy"),
    ],
)
def test_what_a_record_says_is_read(record, level, title):
    assert [(one.level, one.title) for one in of_standing(Facts("example.com", records=(record,)))] == [(level, title)]


def test_mail_to_many_must_offer_to_unsubscribe():
    assert found(mail(), bulk=True)["Let people unsubscribe with one click"] == "attention"
    fields = "List-Unsubscribe: <https://example.com/u>\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"
    assert found(mail(fields=fields), bulk=True)["People can unsubscribe with one click"] == "great"
    assert "Let people unsubscribe with one click" not in found(mail())


def test_nobody_should_unsubscribe_from_what_they_need():
    title, fields = "Nobody should unsubscribe from this", "List-Unsubscribe: <https://example.com/u>\r\n"
    for subject in ("Reset your password", "Your receipt", "New sign-in to your account"):
        assert found(mail(fields=fields, subject=subject))[title] == "better"
        assert title not in found(mail(subject=subject)) and title not in found(mail(fields=fields, subject=subject), bulk=True)
    assert title not in found(mail(fields=fields, subject="What is new in May"))


def nested(kind: str, *parts: str, layer: int = 0) -> str:
    line = f"--b{layer}"
    return f'Content-Type: {kind}; boundary="b{layer}"\r\n\r\n' + "".join(f"{line}\r\n{part}\r\n" for part in parts) + f"{line}--\r\n"


TEXT, HTML, PDF = (f"Content-Type: {kind}\r\n\r\nx" for kind in ("text/plain", "text/html", "application/pdf"))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (nested("multipart/alternative", TEXT, HTML), None),
        (nested("multipart/mixed", nested("multipart/alternative", TEXT, HTML, layer=1), PDF), None),
        (nested("multipart/alternative", TEXT, nested("multipart/related", HTML, layer=1)), None),
        (nested("multipart/alternative", HTML, TEXT), "the html stands before the text"),
        (nested("multipart/alternative", TEXT, HTML, PDF), "a file (application/pdf) stands among"),
        (nested("multipart/mixed"), "a multipart/mixed has no parts"),
        ("Content-Type: multipart/mixed\r\n\r\nx", "a multipart/mixed has no parts"),
    ],
)
def test_parts_lie_in_each_other_as_programs_expect(body, told):
    seen = [one.seen for one in checks.of_message(mime.parse(body.encode()), 1, False) if "oddly" in one.title]
    assert seen == [] if told is None else told in seen[0]


def test_layers_are_counted():
    def layers(count):
        body = TEXT
        for layer in range(count):
            body = nested("multipart/mixed", body, layer=layer)
        return [one.seen for one in checks.of_message(mime.parse(body.encode()), 1, False) if "oddly" in one.title]

    assert layers(4) == [] and "more than 4 layers" in layers(5)[0]


def test_a_message_may_be_too_large():
    assert found(mail(), size=26 << 20)["The message is too large"] == "attention"
    assert found(mail(), size=11 << 20)["The message is large"] == "better"


def test_a_dangerous_attachment_is_named():
    head = b"From: a@example.com\r\nSubject: x\r\nContent-Disposition: attachment\r\n"
    attached = head + b'Content-Type: application/octet-stream; name="a.exe"\r\n\r\nx'
    assert found(attached)["Receivers refuse this attachment"] == "attention"


def levels_of(message: bytes, bulk: bool = False, **known) -> dict[str, str]:
    return {one.title: one.level for one in checks.of_mail(checks.mail_of(mime.parse(message), len(message), bulk, **known))}


def test_a_header_that_says_another_time_is_told():
    now = datetime(2026, 1, 10, tzinfo=UTC)
    dated = mail(fields="Date: Thu, 1 Jan 2026 00:00:00 +0000\r\n")
    assert levels_of(dated, accepted=now)["The header breaks the standard"] == "attention"
    assert levels_of(dated, accepted=now - timedelta(days=9))["The header keeps to the standard"] == "great"
    assert levels_of(mail(fields="Date: nonsense\r\n"), accepted=now)["The header keeps to the standard"] == "great"


def test_addresses_are_looked_at():
    assert levels_of(mail(), recipients=("ann@gmial.com",))["An address looks mistyped"] == "better"
    assert levels_of(mail(), recipients=("ann@mailinator.com",))["An address is one to throw away"] == "better"
    assert levels_of(mail(), True, recipients=("info@example.org",))["Newsletters go to addresses of roles"] == "better"
    assert "Newsletters go to addresses of roles" not in levels_of(mail(), recipients=("info@example.org",))
    assert levels_of(mail().replace(b"To: ", b"To: bob@example.org, "))["Recipients see each other"] == "better"


def test_mail_to_many_shows_how_to_leave_and_who_sends_it():
    found = levels_of(mail(), True)
    assert found["Show how to unsubscribe"] == "attention" and found["Add your postal address"] == "better"
    html = GOOD + '<p><a href="https://example.com/u">Abmelden</a> Shop, Weg 1, 10115 Berlin</p>'
    found = levels_of(mail(html=html), True)
    assert "Show how to unsubscribe" not in found and "Add your postal address" not in found
    assert levels_of(mail(html=HEAD + "<p>Hi</p>"), True)["There is no link"] == "better"


def archive(name: str, locked: bool = False) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr(name, b"x")
    content = bytearray(out.getvalue())
    if locked:
        content[content.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("file", "bulk", "title"),
    [
        (mime.File("a.zip", "application/zip", None, "attachment", archive("run.exe")), False, "Receivers refuse this archive"),
        (mime.File("a.zip", "application/zip", None, "attachment", archive("a.txt", locked=True)), False, "An archive is locked"),
        (mime.File(None, "text/plain", None, "attachment", b"x"), False, "A file has no name"),
        (mime.File("a.pdf", "application/pdf", None, "attachment", b"MZ"), False, "A file is not what it says"),
        (mime.File("a.txt", "text/plain", None, "attachment", b"x"), True, "Mail to many has files"),
    ],
)
def test_files_are_looked_into(file, bulk, title):
    def titles(file):
        told = checks.of_message(mime.Parsed((), None, "x", (file,)), 1, bulk)
        complete(told)
        return [one.title for one in told]

    assert title in titles(file)
    good = mime.File("a.zip", "application/zip", None, "attachment", archive("a.txt"))
    assert not {"Receivers refuse this archive", "An archive is locked", "A file has no name", "A file is not what it says"} & {
        *titles(good)
    }
    titles(mime.File("a.zip", "application/zip", None, "attachment", b"PK\x03\x04 no archive"))


# What is not in the message


RECORD = Record("SPF", "send.example.com", True, False, "It is right.")
SERVER = Server("192.0.2.1", "out.example.net", True, ("out.example.net",))
RATES = Rates(delivered=1000, bounced=0, gone=0, complained=0)


@pytest.mark.parametrize(
    ("facts", "level", "title"),
    [
        ({"records": (RECORD,)}, "great", "The SPF record is right"),
        ({"records": (attrs.evolve(RECORD, weak=True),)}, "better", "The SPF record could be better"),
        ({"records": (attrs.evolve(RECORD, there=False),)}, "attention", "The SPF record is not right"),
        ({"records": (attrs.evolve(RECORD, purpose="DMARC", there=False),)}, "attention", "Publish a DMARC policy"),
        ({"records": (attrs.evolve(RECORD, purpose="DMARC", weak=True),)}, "better", "The DMARC policy could be stronger"),
        ({"records": (attrs.evolve(RECORD, purpose="DMARC"),)}, "great", "The domain has a DMARC policy"),
        ({"receives": True}, "great", "The domain can receive mail"),
        ({"receives": False}, "attention", "The domain cannot receive mail"),
        ({"receives": False, "refuses": True}, "attention", "The domain takes no mail"),
        ({"servers": (SERVER,)}, "great", "The sending servers have names that lead back"),
        ({"servers": (attrs.evolve(SERVER, back=()),)}, "attention", "A sending server has no name that leads back"),
        ({"servers": (attrs.evolve(SERVER, back=("pool-1.isp.example",)),)}, "attention", "A sending server has no name that leads back"),
        ({"servers": (attrs.evolve(SERVER, leads_here=False),)}, "attention", "A sending server has no name that leads back"),
        ({"lists": ("zen",)}, "great", "On no block list"),
        ({"lists": ("zen",), "listed": (Listed("192.0.2.1", "zen"),)}, "attention", "On a block list"),
        ({"rates": RATES}, "great", "Little of your mail bounces"),
        ({"rates": attrs.evolve(RATES, bounced=15, gone=15)}, "better", "Many addresses do not exist"),
        ({"rates": attrs.evolve(RATES, bounced=25)}, "better", "More of your mail bounces than should"),
        ({"rates": attrs.evolve(RATES, bounced=50)}, "attention", "Too much of your mail bounces"),
        ({"rates": RATES}, "great", "Few people complain"),
        ({"rates": attrs.evolve(RATES, complained=1)}, "better", "More people complain than should"),
        ({"rates": attrs.evolve(RATES, complained=3)}, "attention", "Too many people complain"),
        ({"rates": attrs.evolve(RATES, today=5000, usual=1000.0)}, "better", "Much more is sent than usual"),
        ({"logo": True}, "great", "The domain publishes a logo"),
        ({"logo": False, "records": (attrs.evolve(RECORD, purpose="DMARC"),)}, "better", "Publish a logo"),
        ({"age_days": 3}, "better", "The domain is new here"),
    ],
)
def test_facts_from_elsewhere_are_judged(facts, level, title):
    complete(of_standing(Facts("example.com", **facts)))
    found = [one for one in of_standing(Facts("example.com", **facts)) if one.title == title]
    assert [one.level for one in found] == [level]
    assert all(one.seen for one in found)


def test_a_logo_is_not_asked_for_before_a_policy():
    weak = attrs.evolve(RECORD, purpose="DMARC", weak=True)
    assert "Publish a logo" not in [one.title for one in of_standing(Facts("example.com", records=(weak,), logo=False))]


def test_what_is_not_known_is_not_judged():
    unanswered = attrs.evolve(RECORD, there=False, unanswered=True)
    few = Rates(delivered=50, bounced=40, gone=40, complained=9)
    assert of_standing(Facts("example.com", age_days=400, records=(unanswered,), rates=few)) == []


def test_whose_it_is_to_mend_is_said():
    of = {one.what: one for one in (Listed("192.0.2.1", "zen"), Listed("2001:db8::1", "zen"), Listed("example.com", "dbl"))}
    remedy = {what: of_standing(Facts("example.com", listed=(one,)))[0].remedy for what, one in of.items()}
    assert remedy["192.0.2.1"] == remedy["2001:db8::1"] == "Tell the operator of this service." and "dbl" in remedy["example.com"]


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_any_html_can_be_read(html):
    markup.read(html)
    markup.read(f"<a href='{html}'><img src=\"{html}\"></a>")
    complete(checks.of_message(mime.Parsed((), html, None, ()), 1, True))
