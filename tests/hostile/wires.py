"""Hostile protocol data: SMTP sessions, HTTP requests and forms, and responses of endpoints, mail servers and nameservers."""

from __future__ import annotations

from tests.hostile.bodies import email, post
from tests.hostile.inputs import Made, fill, hostile, numbered

EHLO = b"EHLO client.example\r\n"
MAIL = EHLO + b"MAIL FROM:<a@hostile.example>\r\n"


@hostile("smtp")
def smtp_commands(size: int) -> Made:
    """Commands of a client that has not logged in."""
    for name, unit in {
        "no line": b"a",
        "empty lines": b"\r\n",
        "line feeds": b"\n",
        "NUL": b"\x00",
        "NOOP": b"NOOP\r\n",
        "RSET": b"RSET\r\n",
        "EHLO": EHLO,
        "unknown": b"FOO\r\n",
        "VRFY": b"VRFY a\r\n",
        "HELP": b"HELP\r\n",
        "AUTH": b"AUTH PLAIN AGEAYQ==\r\n",
        "spaces": b" ",
        "CR": b"\r",
        "BDAT": b"BDAT 0\r\n",
        "BDAT of one": b"BDAT 1\r\nx",
        "STARTTLS": b"STARTTLS\r\n",
        "MAIL": b"MAIL FROM:<>\r\n",
        "GET": b"GET / HTTP/1.1\r\n",
        "proxy": b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    }.items():
        yield name, fill(unit, size, EHLO)
    for command in (
        b"EHLO ",
        b"HELO ",
        b"MAIL FROM:<",
        b"MAIL FROM:<> SIZE=",
        b"RCPT TO:<",
        b"AUTH PLAIN ",
        b"AUTH LOGIN ",
        b"BDAT ",
        b"VRFY ",
        b"MAIL FROM:<> X=",
    ):
        yield f"a long {command.decode().strip()}", fill(b"9", size, EHLO + command, b"\r\n")


@hostile("session")
def smtp_sessions(size: int) -> Made:
    """Commands of a customer. The target logs in first."""
    for name, unit in {
        "NOOP": b"NOOP\r\n",
        "RSET": b"RSET\r\n",
        "EHLO": EHLO,
        "unknown": b"FOO\r\n",
        "MAIL and RSET": b"MAIL FROM:<a@hostile.example>\r\nRSET\r\n",
        "empty lines": b"\r\n",
        "a line": b"a",
    }.items():
        yield name, fill(unit, size, EHLO)
    recipients = numbered(min(size, 60_000), lambda n: b"RCPT TO:<r%d@b.example>\r\n" % n)
    for name, unit in {
        "one recipient": b"RCPT TO:<x@watch.example>\r\n",
        "bad recipients": b"RCPT TO:<>\r\n",
        "quoted recipients": b'RCPT TO:<"a\\"b"@b.example>\r\n',
        "routes": b"RCPT TO:<@a.example:x@watch.example>\r\n",
        "ORCPT": b"RCPT TO:<x@watch.example> ORCPT=rfc822;a+2Bb@b.example NOTIFY=FAILURE\r\n",
    }.items():
        yield name, fill(unit, size, MAIL)
    for name, unit in {
        "parameters": b" X=Y",
        "SIZE": b" SIZE=1",
        "ENVID": b" ENVID=+41",
        "equals": b"=",
        "spaces": b" ",
        "quotes": b'"',
        "at signs": b"@",
        "dots": b"a.",
        "escapes": b"\\",
        "non-ASCII": "é".encode(),
        "brackets": b"<",
    }.items():
        yield f"{name} after MAIL", fill(unit, size, EHLO + b"MAIL FROM:<a@hostile.example>", b"\r\n")
        yield f"{name} in MAIL", fill(unit, size, EHLO + b"MAIL FROM:<", b"@b.example>\r\n")
        yield f"{name} in RCPT", fill(unit, size, MAIL + b"RCPT TO:<", b"@b.example>\r\n")
        yield f"lines of {name} in RCPT", b"".join([MAIL, fill(fill(unit, 400, b"RCPT TO:<", b"@b.example>\r\n"), size)])
    begun = MAIL + b"RCPT TO:<x@watch.example>\r\n"
    yield "many recipients, a small mail", MAIL + recipients + b"DATA\r\nFrom: a@hostile.example\r\nSubject: a\r\n\r\na\r\n.\r\n"
    yield "chunks of one byte", fill(b"BDAT 1\r\nx", size, begun + b"BDAT 18\r\nFrom: a@hostile.example\r\n", b"BDAT 0 LAST\r\n")
    yield "chunks of none", fill(b"BDAT 0\r\n", size, begun)
    yield "dots", fill(b"..\r\n", size, begun + b"DATA\r\nFrom: a@hostile.example\r\n\r\n", b".\r\n")
    yield "no final dot", fill(b"a\r\n", size, begun + b"DATA\r\nFrom: a@hostile.example\r\n\r\n")
    yield "bare line feeds and dots", fill(b"\n.\n", size, begun + b"DATA\r\nFrom: a@hostile.example\r\n\r\n", b"\r\n.\r\n")
    yield "many small mails", fill(MAIL[len(EHLO) :] + b"RCPT TO:<>\r\nRSET\r\n", size, EHLO)


def get(target: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"GET " + target + b" HTTP/1.1", b"Host: localhost", *headers, b"", b""])


@hostile("http")
def http_requests(size: int) -> Made:
    yield "a long target", get(fill(b"a", size, b"/"))
    yield "no line", fill(b"a", size, b"GET /")
    yield "empty lines", fill(b"\r\n", size)
    yield "line feeds", fill(b"\n", size)
    yield "NUL", fill(b"\x00", size)
    yield "a long header", get(b"/healthz", fill(b"a", size, b"X: "))
    yield "folds", get(b"/healthz", fill(b"\r\n a", size, b"X: a"))
    yield "many headers", get(b"/healthz", fill(b"X: y\r\n", size)[:-2])
    yield "unfinished headers", fill(b"X: y\r\n", size, b"GET /healthz HTTP/1.1\r\n")
    yield "many requests", fill(get(b"/healthz"), size)
    yield "many pages", fill(get(b"/dashboard/sign-in"), min(size, 200_000))
    yield "many requests without a key", fill(get(b"/emails"), min(size, 500_000))
    yield "slashes", get(fill(b"/", min(size, 15_000)))
    yield "percent", get(fill(b"%2f", min(size, 15_000), b"/emails/"))
    yield "a query", get(fill(b"a=b&", min(size, 15_000), b"/shared?"))
    yield "a query of percents", get(fill(b"%41", min(size, 15_000), b"/shared?token="))
    yield "a long length", b"POST /emails HTTP/1.1\r\nHost: x\r\nContent-Length: " + fill(b"9", size, b"", b"\r\n\r\n")
    yield "a long token", get(b"/emails", fill(b"a", min(size, 15_000), b"Authorization: Bearer "))
    yield "forwarded", get(b"/emails", fill(b"1.2.3.4,", min(size, 15_000), b"X-Forwarded-For: "))
    chunked = b"POST /emails HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer @KEY@\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield "chunks of one byte", fill(b"1\r\na\r\n", size, chunked, b"0\r\n\r\n")
    yield "chunks with extensions", fill(b"1;a=" + b"b" * 500 + b"\r\na\r\n", size, chunked, b"0\r\n\r\n")
    yield "a chunk's length", fill(b"0", size, chunked)
    yield "trailers", fill(b"X: y\r\n", size, chunked + b"0\r\n")
    yield "an idempotency key", post("/emails", email(), fill(b"a", min(size, 15_000), b"Idempotency-Key: "))
    yield "query strings of a list", fill(get(b"/emails?limit=1&after=" + b"a" * 2000, b"Authorization: Bearer @KEY@"), min(size, 500_000))


@hostile("http", most=1 << 20)
def pages_without_a_key(size: int) -> Made:
    def form(path: bytes, body: bytes, kind: bytes = b"application/x-www-form-urlencoded", cookie: bytes = b"") -> bytes:
        lines = [b"POST " + path + b" HTTP/1.1", b"Host: localhost", b"Content-Type: " + kind, b"Content-Length: %d" % len(body)]
        return b"\r\n".join([*lines, *([b"Cookie: " + cookie] if cookie else []), b"", body])

    size -= 1000
    for path in (b"/dashboard/sign-in", b"/dashboard/sign-up", b"/dashboard/reset", b"/dashboard/sign-in/link", b"/dashboard/invitation"):
        name = path.decode().removeprefix("/dashboard/")
        yield f"fields to {name}", form(path, fill(b"a=b&", size))
        yield f"names to {name}", form(path, numbered(size, lambda n: b"a%d=b&" % n))
        yield f"percents to {name}", form(path, fill(b"%41", size, b"email="))
        yield f"ampersands to {name}", form(path, fill(b"&", size))
        yield f"a long address to {name}", form(path, fill(b"a.", size, b"email=a%40"))
        yield f"a long password to {name}", form(path, fill(b"a", size, b"email=a%40b.example&password="))
        yield f"a long link to {name}", form(path, fill(b"A", size, b"link="))
    for kind in (b"multipart/form-data; boundary=b", b"application/json", b"text/plain"):
        yield (
            f"parts as {kind.decode()}",
            form(b"/dashboard/sign-in", fill(b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n", size), kind),
        )
    yield "nested passkey", form(b"/dashboard/sign-in/passkey", fill(b"[", size), b"application/json")
    yield "a long passkey", form(b"/dashboard/sign-in/passkey", fill(b"A", size, b'{"id":"', b'"}'), b"application/json")
    yield "cookies", form(b"/dashboard/sign-in", b"a=b", cookie=fill(b"a=b; ", 15_000))
    yield "one long cookie", form(b"/dashboard/sign-in", b"a=b", cookie=fill(b'a="\\', 15_000))


@hostile("webhook", repeat=1)
def endpoints_answers(size: int) -> Made:
    """HTTP responses of a webhook endpoint. `linked_files` uses them for a server with a linked attachment."""
    ok = b"HTTP/1.1 200 OK\r\n"
    yield "a long status line", fill(b"a", size, b"HTTP/1.1 200 ")
    yield "a long status", fill(b"9", size, b"HTTP/1.1 ", b"\r\n\r\n")
    yield "a status of eleven digits", b"HTTP/1.1 99999999999\r\n\r\n"
    yield "interim answers", fill(b"HTTP/1.1 100 Continue\r\n\r\n", size)
    yield "early hints", fill(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n", size)
    yield "headers", fill(b"X: y\r\n", size, ok, b"\r\n")
    yield "a long header", fill(b"a", size, ok + b"X: ", b"\r\n\r\n")
    yield "folds", fill(b"\r\n a", size, ok + b"X: a", b"\r\n\r\n")
    yield "unfinished headers", fill(b"X: y\r\n", size, ok)
    yield "an unlimited body", fill(b"a", size, ok + b"\r\n")
    yield "a long length", fill(b"9", 5000, ok + b"Content-Length: ", b"\r\n\r\n")
    yield "chunks of one byte", fill(b"1\r\na\r\n", size, ok + b"Transfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n")
    yield "a chunk's length", fill(b"0", size, ok + b"Transfer-Encoding: chunked\r\n\r\n")
    yield "trailers", fill(b"X: y\r\n", size, ok + b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
    yield "retry-after of digits", fill(b"9", 5000, b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nRetry-After: ", b"\r\n\r\n")
    yield "a location", fill(b"a/", 15_000, b"HTTP/1.1 302 No\r\nContent-Length: 0\r\nLocation: https://", b"\r\n\r\n")
    yield "NUL", fill(b"\x00", size)
    yield "lines", fill(b"\r\n", size)
    yield "an SMTP greeting", fill(b"220 mail.example ESMTP\r\n", size)


@hostile("link", repeat=1)
def linked_files(size: int) -> Made:
    yield from endpoints_answers(size)


@hostile("greeting", "ehlo", "mail", "rcpt", "data", "final", repeat=1)
def replies_of_a_mail_server(size: int) -> Made:
    """Each replaces one reply of a session. The session ends after it."""
    for name, unit in {
        "lines of one reply": b"250-a\r\n",
        "lines of a refusal": b"550-5.1.1 a\r\n",
        "lines of a deferral": b"450-4.2.1 a\r\n",
        "replies": b"250 a\r\n",
        "one line": b"a",
        "digits": b"2",
        "empty lines": b"\r\n",
        "NUL": b"\x00",
        "line feeds": b"250 a\n",
        "TLS": b"\x16\x03\x01\x02\x00",
        "extensions": b"250-SIZE 1\r\n",
    }.items():
        yield name, fill(unit, size)
    yield "one refusal of words", fill(b"blocked full spam ", size, b"550 5.7.1 ", b"\r\n")
    yield "one refusal of addresses", fill(b"a@b.example ", size, b"550 5.1.1 ", b"\r\n")
    yield "one refusal of schemes", fill(b"a.", size, b"550 5.1.1 ", b"\r\n")
    yield "one refusal of codes", fill(b"5.1.1 ", size, b"550 ", b"\r\n")
    yield "a complete reply", fill(b"250-a\r\n", size, b"", b"250 a\r\n")
    yield "a complete refusal", fill(b"550-5.1.1 a.b.c.d\r\n", size, b"", b"550 5.1.1 a\r\n")
    yield "a long refusal of lines", fill(fill(b"a.", 500, b"550-5.7.1 ", b"\r\n"), size, b"", b"550 5.7.1 a\r\n")
    yield "complete extensions", fill(b"250-SIZE 99999999999999999999\r\n", size, b"", b"250 SIZE\r\n")
    yield "authentication mechanisms", fill(b" A", min(size, 400), b"250-a\r\n250-AUTH", b"\r\n250 SIZE 1\r\n")


@hostile("dns", repeat=1, most=60_000)
def dns_answers(size: int) -> Made:
    """TXT records of a sending domain, one on each line."""
    for name, unit in {
        "records": b"a\n",
        "letters": b"a",
        "semicolons": b";",
        "spaces": b" ",
        "equals": b"v=",
        "quotes": b'"',
        "invalid UTF-8": b"\xff",
    }.items():
        yield name, fill(unit, size)
        yield f"SPF of {name}", fill(unit.replace(b"\n", b" "), size, b"v=spf1 ")
        yield f"DMARC of {name}", fill(unit.replace(b"\n", b";"), size, b"v=DMARC1; ")
        yield f"DKIM of {name}", fill(unit.replace(b"\n", b"A"), size, b"v=DKIM1; p=")
    for name, unit in {
        "includes": b"include:a.example ",
        "macros": b"exists:%{ir}.%{v}._spf.%{d} ",
        "networks": b"ip4:1.2.3.4/32 ",
        "slashes": b"a/",
        "percents": b"%%",
        "redirects": b"redirect=a.example ",
        "mechanisms": b"mx ",
        "delimiters": b"exists:%{d1r.-+,/_=} ",
    }.items():
        yield f"SPF of {name}", fill(unit, size, b"v=spf1 ")
    yield "many SPF", fill(b"v=spf1 -all\n", size)
    yield "many DMARC", fill(b"v=DMARC1; p=none\n", size)
    yield "many DKIM", fill(b"v=DKIM1; p=MIIB\n", size)
