"""Hostile imports of contacts, content of broadcasts, and requests to pages that need no API key."""

from __future__ import annotations

import json

from tests.hostile.bodies import post
from tests.hostile.inputs import Made, fill, hostile, numbered

MOST_CONTENT = 1_000_000  # bytes; larger requests are refused
BOUNDARY = b"hostile"
FORM = b"Content-Type: multipart/form-data; boundary=" + BOUNDARY


def part(name: bytes, content: bytes, *headers: bytes) -> bytes:
    disposition = b'Content-Disposition: form-data; name="' + name + b'"'
    return b"\r\n".join([b"--" + BOUNDARY, disposition, *headers, b"", content]) + b"\r\n"


def upload(*parts: bytes, end: bytes = b"--" + BOUNDARY + b"--\r\n") -> bytes:
    return post("/contacts/imports", b"".join(parts) + end, FORM)


def csv(content: bytes) -> bytes:
    return upload(part(b"file", content, b"Content-Type: text/csv"))


@hostile("imports")
def contact_files(size: int) -> Made:
    head, row = b"email,first_name\n", b"x@watch.example,Ada\n"
    units = {
        "quotes": b'"', "quotes in pairs": b'""', "quoted cells": b'"a",', "commas": b",", "semicolons": b";", "tabs": b"\t",
        "line feeds": b"\n", "carriage returns": b"\r", "spaces": b" ", "NUL": b"\0", "invalid UTF-8": b"\xff", "letters": b"a",
        "byte order marks": b"\xef\xbb\xbf", "at signs": b"@", "non-ASCII": "é".encode(), "quotes and line feeds": b'"\n',
    }  # fmt: skip
    for name, unit in units.items():
        yield f"{name} as the file", csv(fill(unit, size))
        yield f"{name} in the header", csv(fill(unit, size, b"email,", b"\n" + row))
        yield f"{name} after the header", csv(fill(unit, size, head))
        yield f"{name} in a quoted cell", csv(fill(unit, size, head + b'x@watch.example,"', b'"\n'))
    yield "many columns", csv(numbered(size, lambda n: b",c%d" % n, b"email", b"\n" + row))
    yield "one column repeated", csv(fill(b",email", size, b"email", b"\n" + row))


@hostile("imports", most=8 << 20, cpu=6.0)  # a row of three bytes is checked like any other
def rows_of_contacts(size: int) -> Made:
    head, row = b"email,first_name\n", b"x@watch.example,Ada\n"
    yield "an unclosed quote", csv(fill(row, size, head + b'x@watch.example,"'))
    yield "one contact repeated", csv(fill(row, size, head))
    yield "rows with an error", csv(fill(b"a@\n", size, head))
    yield "rows with many cells", csv(fill(b"x@watch.example" + b"," * 500 + b"\n", size, head))
    yield "long addresses", csv(fill(b"a" * 800 + b"@watch.example\n", size, head))
    yield "different addresses", csv(numbered(size, lambda n: b"c%d@watch.example\n" % n, b"email\n"))


@hostile("imports", cpu=2.0)  # what follows the file's header is rows of contacts, of eight bytes with the shortest header
def uploads(size: int) -> Made:
    file = part(b"file", b"email\nx@watch.example\n")
    units = {
        "parts": part(b"a", b""), "files": file, "boundaries": b"--" + BOUNDARY + b"\r\n", "almost boundaries": b"\r\n--hostil",
        "hyphens": b"-", "line ends": b"\r\n", "carriage returns": b"\r", "headers": b"X-A: b\r\n", "letters": b"a",
        "parameters": b"Content-Disposition: form-data; name=a;", "quotes": b'Content-Disposition: form-data; name="',
    }  # fmt: skip
    for name, unit in units.items():
        yield f"{name} before the file", upload(fill(unit, size), b"\r\n", file)
        yield f"{name} after the file", upload(file, fill(unit, size))
        yield f"{name} in the file", upload(part(b"file", fill(unit, size)))
        yield f"{name} without an end", upload(file, fill(unit, size), end=b"")
        yield f"{name} in a part's header", upload(part(b"b", b"", fill(unit, size, b"X-B: ")), file)
    yield "a long name", upload(part(fill(b"a", size), b""), file)
    yield "a name of escapes", upload(part(fill(b'\\"', size), b""), file)
    yield "a long file name", upload(part(fill(b"a", size, b'file"; filename="'), b"email\nx@watch.example\n"))
    yield "an extended file name", upload(part(fill(b"%41", size, b"file\"; filename*=utf-8''", b'; a="'), b"email\nx@watch.example\n"))
    for name in (b"column_map", b"segments", b"topics", b"on_conflict"):
        for called, unit in {"brackets": b"[", "objects": b'{"a":', "numbers": b"1,", "strings": b'"a",', "letters": b"a"}.items():
            yield f"{called} in {name.decode()}", upload(part(name, fill(unit, size, b"[")), file)
    columns = numbered(size, lambda n: b'"c%d":"c%d",' % (n, n), b'{"email":"email","properties":{', b'"z":"z"}}')
    yield "many columns in column_map", upload(part(b"column_map", columns), file)


def times(unit: str, size: int) -> str:
    """`unit` repeated to `size` bytes of JSON, in which a NUL takes six."""
    return unit * (size // (len(json.dumps(unit)) - 2))


def content(**fields: object) -> bytes:
    return json.dumps({"from": "a@hostile.example", "subject": "Hello", "text": "Hi.", **fields}).encode()


@hostile("broadcast", most=MOST_CONTENT)
def placeholders(size: int) -> Made:
    units = {
        "opening": "{", "three opening": "{{{", "closing": "}", "three closing": "}}}",
        "unclosed names": "{{{a", "unclosed fallbacks": "{{{a|",
        "empty": "{{{}}}", "names": "{{{FIRST_NAME}}}", "fallbacks": "{{{FIRST_NAME|there}}}", "bars": "{{{|||",
        "nested": "{{{FIRST_NAME|{{{",
        "spaces": "{{{ ", "unknown": "{{{contact.unknown}}}", "unsubscribe links": "{{{RESEND_UNSUBSCRIBE_URL}}}", "two": "{{FIRST_NAME}}",
    }  # fmt: skip
    for name, unit in units.items():
        repeated = times(unit, size)
        yield f"{name} in the HTML", content(html="<p>" + repeated)
        yield f"{name} in the text", content(text=repeated)
        yield f"{name} in the subject", content(subject=repeated)
        yield f"{name} in the preview text", content(preview_text=repeated)
    different = numbered(size, lambda n: b"{{{contact.n%d}}}" % n).decode()
    yield "different unknown names", content(html=different)
    yield "a long fallback", content(html="{{{FIRST_NAME|" + "a" * size + "}}}")
    yield "a long name", content(html="{{{" + "a" * size + "}}}")
    yield "placeholders in attributes", content(html='<a href="{{{FIRST_NAME|x}}}">' * (size // 29))


@hostile("broadcast", most=MOST_CONTENT)
def content_of_broadcasts(size: int) -> Made:
    for name, unit in {
        "<": "<", "<a ": "<a ", "comments": "<!--", "ampersands": "&", "numbers": "&#", "quotes": '<a href="', "deep": "<div>",
        "tables": "<table>",
        "links": '<a href="https://a.example/">a</a>', "images": '<img src="https://a.example/a.png">', "styles": "<style>", "NUL": "\0",
        "untracked": "<a ses:no-track href='https://a.example'>", "attributes": "<a " + "b=c " * 100 + ">",
        "letters": "a", "non-ASCII": "é",
    }.items():  # fmt: skip
        yield f"{name} in the HTML", content(html=times(unit, size))
    for name in ("from", "name", "reply_to", "subject"):
        for called, unit in {
            "letters": "a",
            "commas": "a@b.example,",
            "words": "é a ",
            "encoded words": "=?utf-8?q?a?= ",
            "lines": "\r\n",
        }.items():
            yield f"{called} in {name}", content(**{name: times(unit, size)})


@hostile("http")
def fields_of_contacts(size: int) -> Made:
    def body(path: str, unit: bytes, before: bytes, after: bytes) -> bytes:
        return post(path, fill(unit, size, before, after))

    yield "a long address", body("/contacts", b"a", b'{"email":"', b'@b.example"}')
    yield "an address of dots", body("/contacts", b"a.", b'{"email":"x@', b'"}')
    yield "a long name", body("/contacts", b"a ", b'{"email":"x@b.example","first_name":"', b'"}')
    yield (
        "many properties",
        post("/contacts", numbered(size, lambda n: b'"k%d":"v",' % n, b'{"email":"x@b.example","properties":{', b'"z":1}}')),
    )
    yield "a long value", body("/contacts", b"a", b'{"email":"x@b.example","properties":{"a":"', b'"}}')
    yield (
        "many segments",
        body("/contacts", b'{"id":"7f1d8b1e-0000-4000-8000-000000000000"},', b'{"email":"x@b.example","segments":[', b'{"id":"a"}]}'),
    )
    yield "many topics", body("/contacts", b'{"id":"a","subscription":"opt_in"},', b'{"email":"x@b.example","topics":[', b'{"id":"a"}]}')
    yield "a segment's name", body("/segments", b"a ", b'{"name":"', b'"}')
    yield "a segment's filter", body("/segments", b"[", b'{"name":"a","filter":', b"}")
    yield "a topic's description", body("/topics", b"a ", b'{"name":"a","default_subscription":"opt_in","description":"', b'"}')
    confirmation = b'{"name":"a","double_opt_in":{"from":"a@hostile.example","subject":"a","html":"'
    yield "a confirmation of placeholders", body("/segments", b"{{{CONFIRM_URL}}}", confirmation, b'"}}')
    yield "a confirmation of braces", body("/segments", b"{{{", confirmation, b'"}}')
    yield "a property's key", body("/contact-properties", b"a", b'{"type":"string","key":"', b'"}')
    yield "a property's fallback", body("/contact-properties", b"a", b'{"type":"string","key":"a","fallback_value":"', b'"}')
    yield "a number's fallback", body("/contact-properties", b"9", b'{"type":"number","key":"a","fallback_value":', b"}")
    look = {"a title": b"title", "a message": b"message", "a logo": b"logo", "a colour": b"color"}
    for name, field in look.items():
        yield name, post("/preference-page", fill(b"a.", size, b'{"' + field + b'":"https://', b'"}'), method=b"PATCH")


UNITS = {"letters": b"a", "dots": b"a.", "percent": b"%41", "fields": b"a&token=", "slashes": b"/", "hyphens": b"-_"}


@hostile("http")
def pages_of_links(size: int) -> Made:
    for path in ("/unsubscribe", "/confirm"):
        for name, unit in {"letters": b"a", "fields": b"a=b&", "percent": b"%41", "one click": b"List-Unsubscribe=One-Click&"}.items():
            yield f"{name} posted to {path}", post(f"{path}?token=a", fill(unit, size), b"Content-Type: application/x-www-form-urlencoded")
        for name, unit in UNITS.items():
            target = f"{path}?token=".encode() + fill(unit, min(size, 60_000))
            yield f"{name} in the token of {path}", b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for path in (b"/c/", b"/o/"):
        for name, unit in UNITS.items():
            target = fill(unit, min(size, 60_000), path)
            yield f"{name} in the token of {path.decode()}", b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        yield f"a long host of {path.decode()}", b"GET " + path + b"a HTTP/1.1\r\nHost: " + fill(b"a.", min(size, 12_000)) + b"\r\n\r\n"
        agent = fill(b"a/1 ", min(size, 12_000), b"User-Agent: ")
        yield f"a long user agent of {path.decode()}", b"GET " + path + b"a HTTP/1.1\r\nHost: localhost\r\n" + agent + b"\r\n\r\n"
