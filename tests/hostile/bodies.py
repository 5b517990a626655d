"""Hostile request bodies: JSON syntax, the fields of an email, and HTML."""

from __future__ import annotations

import base64
import json

from tests.hostile.inputs import Made, fill, hostile, numbered

DOMAIN = "hostile.example"  # the sending domain of the attacker


def post(path: str, body: bytes, *headers: bytes, method: bytes = b"POST") -> bytes:
    """Returns a request with an API key: the target replaces `@KEY@`."""
    lines = [method + b" " + path.encode() + b" HTTP/1.1", b"Host: localhost", b"Authorization: Bearer @KEY@", *headers]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


def email(field: str = "", value: bytes = b"", **changes: object) -> bytes:
    """Returns an email as JSON. `value` is the raw JSON of `field`."""
    fields = {"from": "Hostile <a@hostile.example>", "to": "x@watch.example", "subject": "Hello", "text": "Hi.", **changes}
    fields.pop(field, None)
    content = json.dumps(fields).encode()
    return content if not field else content[:-1] + b', "%s": ' % field.encode() + value + b"}"


@hostile("http")
def json_structure(size: int) -> Made:
    def body(unit: bytes, before: bytes = b"", after: bytes = b"") -> bytes:
        return post("/emails", fill(unit, size, before, after))

    yield "unclosed [", body(b"[")
    yield "[ nested", post("/emails", b"[" * (size // 2) + b"]" * (size // 2))
    yield "objects nested", post("/emails", b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6))
    yield "unclosed objects", body(b'{"a":')
    yield "array of numbers", body(b"1,", b"[", b"1]")
    yield "array of arrays", body(b"[],", b"[", b"1]")
    yield "array of objects", body(b'{"a":1},', b"[", b"1]")
    yield "many names", post("/emails", numbered(size, lambda n: b'"k%d":1,' % n, b"{", b'"z":1}'))
    yield "one name repeated", body(b'"a":1,', b"{", b'"z":1}')
    yield "duplicate last name", post("/emails", numbered(size, lambda n: b'"k%d":1,' % n, b"{", b'"z":1,"z":1}'))
    yield "white space", body(b" \t\r\n")
    yield "byte order marks", body(b"\xef\xbb\xbf")
    yield "a long number", body(b"1", b'{"to":', b"}")
    yield "a long fraction", body(b"0", b'{"to":0.', b"1}")
    yield "a long exponent", body(b"9", b'{"to":1e', b"}")
    yield "only NaN", body(b"NaN,", b"[", b"1]")
    yield "NaN at the end of an array", body(b"1,", b"[", b"NaN]")
    yield "unclosed content arrays", body(b'"content":[', b"{")
    yield "content arrays, small", body(b'{"content":[1]},', b"[", b"1]")
    yield "content array of texts", body(b'"a",', b'{"content":[', b'"a"]}')
    yield "content array of one number", body(b"1", b'{"content":[', b"]}")
    yield "content arrays in a string", body(b'\\"content\\":[', b'{"content":"', b'"}')
    yield "brackets far away", body(b'"data":[1,', b"{", b"]")
    yield "invalid UTF-8 at the end", body(b"a\n", b'{"to":"', b'\xff"}')
    yield "only invalid UTF-8", body(b"\xff")
    yield "an unclosed string", body(b"a", b'{"to":"')
    yield "an unclosed string of escapes", body(b"\\", b'{"to":"')


@hostile("http")
def json_strings(size: int) -> Made:
    units = {
        "commas": b"a,", "quotes": b'\\"', "backslashes": b"\\\\", "brackets": b"[{", "colons": b'\\":',
        "escapes": b"\\u0041", "pairs of surrogates": b"\\ud83d\\ude00", "lone surrogates": b"\\ud800",
        "control characters": b"\x01", "NUL": b"\\u0000", "four-byte characters": "\U0001f600".encode(),
        "spaces": b" ", "lines": b"\\n", "combining": "a\u0301".encode(), "one long line": b"a",
    }  # fmt: skip
    for name, unit in units.items():
        yield f"{name} in text", post("/emails", email("text", fill(unit, size, b'"', b'"')))
    yield "lone surrogate at the end", post("/emails", email("text", fill(b"a,", size, b'"', b'\\ud800"')))
    yield "control character at the end", post("/emails", email("text", fill(b"a,", size, b'"', b'\x01"')))
    yield "batch of commas", post("/emails/batch", b"[" + email("text", fill(b"a,", size, b'"', b'"')) + b"]")
    with_many = b",".join([email("text", fill(b"a,", size // 100, b'"', b'"'))] * 100)
    yield "batch of a hundred", post("/emails/batch", b"[" + with_many + b"]")


def _field(name: str, unit: bytes, size: int, before: bytes = b'"', after: bytes = b'"') -> bytes:
    return post("/emails", email(name, fill(unit, size, before, after)))


@hostile("http")
def fields_of_an_email(size: int) -> Made:
    yield "subject of spaces", _field("subject", b" ", size)
    yield "non-ASCII subject", _field("subject", "é".encode(), size)
    yield "subject of =?", _field("subject", b"=?", size)
    yield "subject of words", _field("subject", "é a ".encode(), size)
    yield "subject of dots", _field("subject", b"a.", size)
    yield "subject of digits", _field("subject", b"1 ", size)
    yield "a header's value", _field("headers", b"a", size, b'{"X-A":"', b'"}')
    yield "a header's words", _field("headers", b"a ", size, b'{"X-A":"', b'"}')
    yield "a header's non-ASCII words", _field("headers", "é a ".encode(), size, b'{"X-A":"', b'"}')
    yield (
        "List-Unsubscribe",
        _field("headers", b"<https:", size, b'{"List-Unsubscribe-Post":"List-Unsubscribe=One-Click","List-Unsubscribe":"', b'"}'),
    )
    yield "many headers", post("/emails", email("headers", numbered(size, lambda n: b'"X-%d":"a",' % n, b"{", b'"X-A":"a"}')))
    yield "many tags", _field("tags", b'{"name":"a","value":"b"},', size, b"[", b'{"name":"a","value":"b"}]')
    yield "a long tag", _field("tags", b"a", size, b'[{"name":"', b'","value":"b"}]')
    yield "scheduled_at", _field("scheduled_at", b"in 1 min and ", size)
    yield "scheduled_at of digits", _field("scheduled_at", b"1", size)
    yield "scheduled_at of 62 digits", post("/emails", email("scheduled_at", b'"' + b"9" * 62 + b'"'))
    yield "an unknown field", _field("unknown", b"a,", size)


@hostile("http")
def addresses(size: int) -> Made:
    units = {
        "letters": b"a", "dots": b"a.", "at signs": b"a@", "quotes": b'\\"', "escapes in quotes": b"\\\\",
        "opening brackets": b"<", "parentheses": b"(", "spaces": b" ", "commas": b"a@b.example,",
        "words": b"a b ", "hyphens": b"a-", "encoded words": b"=?utf-8?q?a?= ", "unclosed encoded words": b"=?utf-8?q?",
        "non-ASCII": "é".encode(), "punycode": b"xn--a.",
    }  # fmt: skip
    for name, unit in units.items():
        yield f"{name} before the @", _field("to", unit, size, b'"', b'@b.example"')
        yield f"{name} after the @", _field("to", unit, size, b'"a@', b'"')
        yield f"{name} in the name", _field("to", unit, size, b'"', b' <x@watch.example>"')
    charsets = numbered(3000, lambda n: b"=?cs-%d?q?a?= " % n)
    yield "charsets in reply_to", _field("reply_to", b'"' + charsets + b'<a@b.example>",', size, b"[", b'"a@b.example"]')
    yield (
        "different charsets",
        post("/emails", email("reply_to", numbered(size, lambda n: b'"=?x%d?q?a?= <a@b.example>",' % n, b"[", b'"a@b.example"]'))),
    )
    yield "many in reply_to", _field("reply_to", b'"a@b.example",', size, b"[", b'"a@b.example"]')
    yield "many in to", _field("to", b'"a@b.example",', size, b"[", b'"a@b.example"]')


def _attachment(fields: bytes) -> bytes:
    return post("/emails", email("attachments", b"[{" + fields + b"}]"))


@hostile("http")
def attachments(size: int) -> Made:
    yield "base64", _attachment(fill(b"QUJD", size, b'"filename":"a.pdf","content":"', b'"'))
    yield "base64 with spaces", _attachment(fill(b"Q ", size, b'"filename":"a.pdf","content":"', b'"'))
    yield "base64 with lines", _attachment(fill(b"Q\\n", size, b'"filename":"a.pdf","content":"', b'"'))
    yield "invalid base64", _attachment(fill(b"=", size, b'"filename":"a.pdf","content":"', b'"'))
    yield "base64, invalid at the end", _attachment(fill(b"QUJD", size, b'"filename":"a.pdf","content":"', b'!"'))
    yield "numbers", _attachment(fill(b"1,", size, b'"filename":"a.pdf","content":[', b"1]"))
    yield "numbers with spaces", _attachment(fill(b"1 , ", size, b'"filename":"a.pdf","content":[', b"1]"))
    yield "numbers too large", _attachment(fill(b"256,", size, b'"filename":"a.pdf","content":[', b"1]"))
    yield "a long file name", _attachment(fill(b"a", size, b'"content":"QUJD","filename":"', b'.pdf"'))
    yield "a long non-ASCII file name", _attachment(fill("é".encode(), size, b'"content":"QUJD","filename":"', b'.pdf"'))
    yield "a file name of dots", _attachment(fill(b".", size, b'"content":"QUJD","filename":"', b'"'))
    yield "a file name of spaces", _attachment(fill(b" ", size, b'"content":"QUJD","filename":"a', b'a"'))
    yield "a long content type", _attachment(fill(b"; a=b", size, b'"content":"QUJD","content_type":"a/b', b'"'))
    yield "a long content id", _attachment(fill(b"a", size, b'"content":"QUJD","content_id":"', b'"'))
    yield "a long path", _attachment(fill(b"a.", size, b'"path":"https://', b'"'))
    yield "many", post("/emails", email("attachments", fill(b'{"content":"QQ==","filename":"a.txt"},', size, b"[", b'{"content":"QQ=="}]')))
    yield (
        "a message inside",
        _attachment(
            b'"filename":"a.eml","content":"'
            + base64.b64encode(fill(b"--b\r\n", size // 2, b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"))
            + b'"'
        ),
    )


@hostile("http", most=1 << 20)
def other_bodies(size: int) -> Made:
    for path, field in (
        ("/domains", "name"),
        ("/domains", "custom_return_path"),
        ("/webhooks", "endpoint"),
        ("/api-keys", "name"),
        ("/suppressions", "email"),
    ):
        for name, unit in {
            "letters": b"a",
            "dots": b"a.",
            "punycode": b"xn--a.",
            "non-ASCII": "é".encode(),
            "ideographic dots": "é。".encode(),
            "slashes": b"/",
            "percent": b"%41",
            "at signs": b"@",
            "digits": b"1.",
            "colons": b":",
        }.items():
            before = b"https://" if field == "endpoint" else b""
            yield f"{name} in {path} {field}", post(path, b'{"%s":"' % field.encode() + fill(unit, size - 200, before) + b'"}')


@hostile("view")
def html(size: int) -> Made:
    units = {
        "<": b"<",
        "</": b"</",
        "<a ": b"<a ",
        "unclosed links": b"<a href=https://a.example/>",
        "links without an end": b'<a href="https://a.example/',
        "references in links": b"<a href=https://a.example/&amp;&#65;&lt>",
        "untracked links": b"<a ses:no-track href=https://a.example/ ses:no-track>",
        "ends of the body": b"</body>",
        "comments": b"<!--",
        "comments closed": b"<!---->",
        "CDATA": b"<![CDATA[",
        "declarations": b"<!",
        "processing": b"<?",
        "ampersands": b"&",
        "numbers": b"&#",
        "entities": b"&amp;",
        "long entities": b"&aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "attributes": b" a=",
        "div": b"<div>",
        "b and p": b"<b><p>",
        "formatting": b"<a><b><i>",
        "tables": b"<table><tr><td>",
        "p": b"<p>",
        "select": b"<select><option>",
        "svg": b"<svg><desc>",
        "script": b"<script>",
        "style": b"<style>",
        "textarea": b"<textarea>",
        "head": b"<head",
        "doctype": b"<!doctype",
        "links": b'<a href="https://a.example/">a</a>',
        "images": b'<img src="cid:a">',
        "cid": b"cid:",
        "= and quotes": b"=\"'",
        "url(": b"url( ",
        "spaces": b" ",
        "soft hyphens": "\u00ad".encode(),
        "zero-width characters": "\u200b\u200c".encode(),
        "zero-width characters and spaces": "\u034f ".encode(),
        "dots": b"a.",
        "dots and hyphens": b"a-.",
        "words": b"a ",
        "digits": b"12 ",
        "NUL": b"\\u0000",
        "list items": b"<ul><li>",
        "quotes": b"<blockquote>",
        "pre": b"<pre>\\n",
        "br": b"<br>",
        "hidden": b'<div style="display : none">',
        "styles": b'<p style="color:#fff;background:#fff;">a',
        "spans": b"<span>a</span>",
        "plaintext": b"<plaintext>",
        "duplicate attributes": b"<a a a a>",
        "end tags": b"</div>",
        "colours": b"#fff ",
        "mojibake": "Ã¤".encode(),
        "emoji": "\U0001f600".encode(),
    }
    for name, unit in units.items():
        yield name, fill(unit.replace(b"\\u0000", b"\x00") if name == "NUL" else unit, size)
    yield "an unclosed style", fill(b";", size, b'<p style="', b"")
    yield "a style of declarations", fill(b"color:red;", size, b'<p style="', b'">a</p>')
    yield "a style of spaces", fill(b" ", size, b'<p style="display', b'">a</p>')
    yield "one link", fill(b"a.", size, b'<a href="https://', b'">a</a>')
    yield "a tag of spaces", fill(b" ", size, b"<a", b">a</a>")
    yield "an unclosed attribute", fill(b"a", size, b'<a b="', b"")
    yield "a tag's name", fill(b"a", size, b"<", b">")
    yield "a style sheet", fill(b"a{b:c}", size, b"<style>", b"</style><p>a")
