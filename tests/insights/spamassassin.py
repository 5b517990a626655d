"""Compares insights with SpamAssassin on 40 mails: `python -m tests.insights.spamassassin`, not part of any test run.

It needs SpamAssassin 4 (`apt-get install spamassassin`), and uses only its local rules. What came out of it: docs/decisions/insights.md.
"""

from __future__ import annotations

import base64
import io
import re
import subprocess
import zipfile
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from mailsvc.insights import checks
from mailsvc.mail import mime

NOW = datetime.now(UTC)
TEXT = "Your order 10234 left our warehouse this morning. It should arrive on Friday; the carrier will ring the bell.\nRegards, your shop"
CODE = "123456 is your verification code."
HEAD = '<html lang="en"><head><title>Your order</title><meta name="viewport" content="width=device-width"></head><body>'
HTML = HEAD + f'<p>{TEXT}</p><p><a href="https://shop.example.com/o/10234">See your order</a></p></body></html>'
BULK = "List-Unsubscribe: <https://example.com/u>\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\nList-ID: <news.example.com>\r\n"
LEAVE = '<p><a href="https://shop.example.com/u">Unsubscribe</a> Acme, 1 Main Street, Springfield 62701</p>'
FIELDS = {
    "Received": "from client.example.com (client.example.com [9.9.9.9]) by mx.example.org with ESMTPS; " + format_datetime(NOW),
    "From": "Acme Shop <hello@mail.example.com>",
    "To": "Ann <ann@example.org>",
    "Subject": "Your order is on its way",
    "Date": format_datetime(NOW),
    "Message-ID": "<1@mail.example.com>",
    "MIME-Version": "1.0",
}


def mail(html: str | None = HTML, text: str | None = TEXT, files: str = "", more: str = "", **fields: str | None) -> bytes:
    """`files`: whole parts. `fields`: by name with _ for -; None leaves one out."""
    given = FIELDS | {name.replace("_", "-"): value for name, value in fields.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value is not None) + more
    kinds = [(kind, body) for kind, body in (("plain", text), ("html", html)) if body is not None]
    parts = [f"Content-Type: text/{kind}; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n{body}\r\n" for kind, body in kinds]
    body = parts[0] if len(parts) == 1 else _multipart("alternative", "a", parts)
    return (head + (_multipart("mixed", "m", [body, files]) if files else body)).encode("utf-8", "surrogateescape")


def _multipart(kind: str, boundary: str, parts: list[str]) -> str:
    inner = "".join(f"--{boundary}\r\n{part}\r\n" for part in parts)
    return f'Content-Type: multipart/{kind}; boundary="{boundary}"\r\n\r\n{inner}--{boundary}--\r\n'


def file(name: str, kind: str, content: bytes) -> str:
    head = f'Content-Type: {kind}; name="{name}"\r\nContent-Disposition: attachment; filename="{name}"\r\nContent-Transfer-Encoding: base64'
    return f"{head}\r\n\r\n{base64.encodebytes(content).decode()}"


def link(url: str, shown: str = "your order") -> bytes:
    return mail(HTML.replace("</body>", f'<a href="{url}">{shown}</a></body>'))


def archive(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr(name, "x")
    return out.getvalue()


def images(text: str, count: int = 1) -> bytes:
    shown = '<img alt="" width="600" height="400" src="https://shop.example.com/a.png">' * count
    return mail(f"{HEAD}{shown}<p>{text}</p></body></html>", text or "Hello")


MAILS = {
    "a receipt": mail(),
    "a newsletter": mail(HTML.replace("</body>", f"{LEAVE}</body>"), more=BULK),
    "a text without HTML": mail(None),
    "a code": mail(f"{HEAD}<p>{CODE}</p></body></html>", CODE, Subject="Your code"),
    "HTML without text": mail(text=None),
    "another text than the HTML": mail(text="Buy cheap watches, shoes and handbags of famous brands today, with free shipping worldwide."),
    "no subject": mail(Subject=None),
    "an empty subject": mail(Subject=""),
    "a subject in capitals": mail(Subject="YOUR ORDER IS ON ITS WAY"),
    "a shouting subject": mail(Subject="Free $$$ for you!!!"),
    "a false reply": mail(Subject="Re: your order"),
    "no recipient in the header": mail(To=None),
    "no date": mail(Date=None),
    "a date in five days": mail(Date=format_datetime(NOW + timedelta(days=5))),
    "no Message-ID": mail(Message_ID=None),
    "two subjects": mail(more="Subject: Another\r\n"),
    "8-bit header": mail(Subject="Gr\udcfc\udcdfe"),
    "an address as the name": mail(From='"ceo@bank.example" <hello@mail.example.com>'),
    "free mail, replies elsewhere": mail(From="Ann <ann@gmail.com>", Reply_To="bob@yahoo.com"),
    "no reply": mail(From="Acme <no-reply@mail.example.com>"),
    "one image": images(""),
    "three images, little text": images("Our offers of the week, only until Sunday.", 3),
    "tiny text": mail(HTML.replace("<p>", '<p style="font-size:1px">')),
    "pale text": mail(HTML.replace("<p>", '<p style="color:#fefefe;background-color:#ffffff">')),
    "hidden text": mail(HTML.replace("</body>", f'<div style="display:none">{"lorem ipsum " * 60}</div></body>')),
    "a script": mail(HTML.replace("</body>", "<script>1</script></body>")),
    "a link to an IP address": link("http://192.0.2.1/x"),
    "a short link": link("https://bit.ly/3abcdef"),
    "a link that shows another": link("https://shop.example.com/x", "www.bank.example"),
    "a link with a port": link("http://shop.example.com:8081/x"),
    "a link with escapes": link("https://shop.example.com/" + "%41%42" * 20),
    "a link without address": link("#"),
    "a look-alike domain": link("https://xn--pple-43d.com/x"),
    "a placeholder": mail(HTML.replace("<p>Your", "<p>Hi {{first_name}}, your"), Subject="{{first_name}}, your order"),
    "broken base64": mail(files='Content-Type: image/png; name="a.png"\r\nContent-Transfer-Encoding: base64\r\n\r\nSGVs*bG8\r\n'),
    "an unknown charset": mail(more='Subject: =?utf-88?q?Your_order?=\r\n', Subject=None),
    "a program": mail(files=file("a.exe", "application/octet-stream", b"MZ" + b"x" * 99)),
    "a program in an archive": mail(files=file("a.zip", "application/zip", archive("a.exe"))),
    "words of a fraud": mail(
        None, "Dear friend, I am the widow of the late minister of finance and have USD 15,500,000 to transfer to your bank account in"
        " strict confidence. Please send your full name and account number. You get 30% of the funds. God bless you.",
        Subject="Business proposal",
    ),
    "words of an advertisement": mail(None, "Buy viagra and cialis online! Lowest prices, no prescription needed, or your money back."),
}  # fmt: skip


def insights(message: bytes) -> list[str]:
    found = checks.mail_of(mime.parse(message), len(message), b"\r\nList-ID" in message, accepted=NOW)
    return [one.title for one in checks.of_mail(found) if one.level != "great"]


def rules(message: bytes) -> list[str]:
    """SpamAssassin's rules with a score above 0, except those that only say that a test was or was not made."""
    done = subprocess.run(["spamassassin", "-L", "-t"], input=message.replace(b"\r\n", b"\n"), capture_output=True, check=True).stdout
    report = done.decode("utf-8", "replace").rpartition("Content analysis details:")[2]
    return [f"{name} {score}" for score, name in re.findall(r"^ *(-?\d+\.\d) ([A-Z0-9_]{3,})", report, re.MULTILINE) if float(score) > 0]


def main() -> None:
    assert len(MAILS) == 40
    for name, message in MAILS.items():
        print(
            f"{name}\n    insights: {'; '.join(insights(message)) or '–'}\n    SpamAssassin: {', '.join(rules(message)) or '–'}", flush=True
        )


if __name__ == "__main__":
    main()
