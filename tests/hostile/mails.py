"""Hostile messages: headers, MIME structure, encodings, and fake reports."""

from __future__ import annotations

import base64
import gzip
from ipaddress import ip_address

from tests.hostile.inputs import SIZES, Made, fill, folded, hostile, numbered

HEADER_MOST = 250 * 1024  # larger headers are refused

FROM = b"From: a@hostile.example\r\nTo: x@watch.example\r\nSubject: Hello\r\n"
MIXED = FROM + b"MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n"
REPORT = FROM + b"MIME-Version: 1.0\r\nContent-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n--b\r\n"
STATUS = REPORT + b"Content-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; mx.example\r\n\r\n"


@hostile("relay", most=HEADER_MOST)
@hostile("exchange")
def header_blocks(size: int) -> Made:
    yield from _folded(_header_blocks(size))


@hostile("relay", most=HEADER_MOST)
@hostile("exchange")
def address_fields(size: int) -> Made:
    yield from _folded(_address_fields(size))


@hostile("relay", most=HEADER_MOST)
@hostile("exchange")
def encoded_words(size: int) -> Made:
    yield from _folded(_encoded_words(size))


@hostile("relay", most=HEADER_MOST)
@hostile("exchange")
def parameters(size: int) -> Made:
    yield from _folded(_parameters(size))


@hostile("exchange")
def unfolded_headers(size: int) -> Made:
    yield from _header_blocks(size)
    yield from _parameters(size)


def _folded(mails: Made) -> Made:
    for name, data in mails:
        yield name, folded(data)


def _header_blocks(size: int) -> Made:
    end = b"\r\n\r\nHi.\r\n"
    units = {
        "fields": b"X: y\r\n",
        "folded": b"X:\r\n y\r\n",
        "no colon": b"x\r\n",
        "colons": b":\r\n",
        "lines of a space": b" \r\n",
    }
    for name, unit in units.items():
        yield name, fill(unit, size, FROM, b"\r\nHi.\r\n")
    for name, unit in {
        "folds": b"\r\n ",
        "folds of tabs": b"\r\n\t ",
        "spaces": b" ",
        "letters": b"a",
        "non-ASCII characters": "é".encode(),
        "invalid UTF-8": b"\xff",
        "quotes": b'"',
        "escapes": b"\\",
        "quotes and non-ASCII": '"é'.encode(),
        "quoted words": '"é" '.encode(),
        "semicolons": b";",
        "=": b"=",
    }.items():
        yield f"{name} in a field", fill(unit, size, FROM + b"X-A: a", end)
        yield f"{name} in the subject", fill(unit, size, b"From: a@hostile.example\r\nSubject: a", end)
        yield f"{name} in Content-Type", fill(unit, size, FROM + b"Content-Type: text/plain; name=", end)
    for name, unit in {"non-ASCII": "é".encode(), "escapes and non-ASCII": "\\é".encode(), "quotes and non-ASCII": '"é'.encode()}.items():
        field = folded(fill(unit, 9_800, b'X-A: "')) + b"\r\n"
        yield f"fields of a quote, then {name}", fill(field, size, FROM, "\r\né\r\n".encode())
    yield "no end of the header", fill(b"X: y\r\n", size, FROM)
    yield "a field without a line end", fill(b"a", size, FROM + b"X: ")
    yield "a long name", fill(b"a", size, FROM, b": a" + end)
    yield "trace fields", fill(b"Received: from a by b; x\r\n", size, FROM, b"\r\nHi.\r\n")


def _address_fields(size: int) -> Made:
    for field in (b"From", b"To"):
        rest = b"\r\nSubject: a\r\n\r\nHi.\r\n" if field == b"From" else b"\r\nFrom: a@hostile.example\r\nSubject: a\r\n\r\nHi.\r\n"
        for name, unit in {
            "commas": b"a@b.example,",
            "folded commas": b"a@b.example,\r\n ",
            "parentheses": b"(",
            "comments": b"(a)",
            "quotes": b'"',
            "escapes": b'"\\',
            "brackets": b"<",
            "colons": b"a:",
            "groups": b"a:b@c.example;",
            "at signs": b"@",
            "dots": b"a.",
            "encoded": b"=?utf-8?q?a?= ",
            "empty items": b",",
            "quoted names": b'"a\\"" <a@b.example>,',
        }.items():
            yield f"{name} in {field.decode()}", fill(unit, size, field + b": ", rest)


def _encoded_words(size: int) -> Made:
    head, end = b"From: a@hostile.example\r\nSubject: ", b"\r\n\r\nHi.\r\n"
    for name, unit in {
        "words": b"=?utf-8?q?a?= ",
        "folded words": b"=?utf-8?b?w6k=?=\r\n ",
        "no end": b"=?utf-8?q?",
        "no space": b"=?utf-8?q?a?=",
        "question marks": b"=?",
        "only ?": b"?",
        "split characters": b"=?utf-8?b?w6?= ",
        "languages": b"=?utf-8*en?q?a?= ",
        "multi-byte": b"=?iso-2022-jp?b?GyRCJEokSxsoQg==?= ",
        "utf-7": b"=?utf-7?q?+2D0-?= ",
        "idna": b"=?idna?q?xn--a?= ",
        "punycode": b"=?punycode?q?aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-999999999999999999?= ",
        "bz2": b"=?bz2?q?a?= ",
        "zip": b"=?zip?q?a?= ",
    }.items():
        yield name, fill(unit, size, head, end)
    yield "different charsets", numbered(size, lambda n: b"=?c-%d?q?a?= " % n, head, end)
    yield "one long word", fill(b"=41", size, head + b"=?utf-8?q?", b"?=" + end)
    yield "one long punycode word", fill(b"9", size, head + b"=?punycode?q?a-", b"?=" + end)
    yield "one long idna word", fill(b"xn--a.", size, head + b"=?idna?q?", b"?=" + end)
    yield "one long base64 word", fill(b"QUJD", size, head + b"=?utf-8?b?", b"?=" + end)
    yield "charset names", numbered(size, lambda n: b"X-%d: =?d-%d?q?a?=\r\n" % (n, n), head + b"a\r\n", b"\r\nHi.\r\n")


def _parameters(size: int) -> Made:
    head, end = FROM + b"MIME-Version: 1.0\r\nContent-Type: text/plain", b"\r\n\r\nHi.\r\n"
    for name, unit in {
        "parameters": b"; a=b",
        "semicolons": b";",
        "spaces": b"; a = b",
        "quoted": b'; a="b"',
        "unclosed quotes": b'; a="',
        "escapes": b'; a="\\"',
        "no value": b"; a",
        "no name": b";=b",
        "=": b"=",
        "boundaries": b"; boundary=a",
        "boundary =": b" boundary =",
        "boundary spaces": b"boundary ",
        "names": b"; name=a",
        "extended": b"; name*=utf-8''%41",
    }.items():
        yield name, fill(unit, size, head, end)
    yield "sections", numbered(size, lambda n: b"; name*%d=a" % (n % 10_000), head, end)
    yield "extended sections", numbered(size, lambda n: b"; name*%d*=%%41" % (n % 10_000), head, end)
    yield "sections far apart", numbered(size, lambda n: b"; n%d*1=a" % n, head, end)
    yield "parameters in a part", fill(b"; name*0=a", size, MIXED + b"\r\n--b\r\nContent-Type: text/plain", b"\r\n\r\nHi.\r\n--b--\r\n")
    yield "spaces in a value", fill(b" ", size, head + b"; name=", b"x" + end)
    yield "a long boundary", fill(b"a", size, FROM + b'Content-Type: multipart/mixed; boundary="', b'"' + end)


@hostile("relay", "exchange")
def structure(size: int) -> Made:
    for name, unit in {
        "parts": b"--b\r\n\r\na\r\n", "boundaries": b"--b\r\n", "ends": b"--b--\r\n", "similar delimiters": b"--bb\r\n",
        "hyphens": b"--\r\n", "hyphens in a line": b"--", "boundaries with spaces": b"--b \t\r\n",
        "boundaries in lines": b"x--b\r\n", "empty lines": b"\r\n",
        "parts with headers": b"--b\r\nContent-Type: text/plain\r\nX: y\r\n\r\na\r\n",
        "unfinished headers": b"--b\r\nX: y\r\n",
        "attachments": b"--b\r\nContent-Disposition: attachment; filename=a\r\n\r\na\r\n",
        "html parts": b"--b\r\nContent-Type: text/html\r\n\r\n<a>\r\n",
        "message parts": b"--b\r\nContent-Type: message/rfc822\r\n\r\nFrom: a@b.example\r\n\r\na\r\n",
        "content-type in lines": b"Content-Type: message/rfc822\r\n",
        "report parts": b"--b\r\nContent-Type: message/delivery-status\r\n\r\n",
    }.items():  # fmt: skip
        yield name, fill(unit, size, MIXED + b"\r\n", b"--b--\r\n")
        yield f"{name}, no end", fill(unit, size, MIXED + b"\r\n")
    nested = numbered(size, lambda n: b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n), FROM)
    shared = fill(b"content-type:\r\n", size // 2, b"--b\r\n" * min(999, size // 10), b"x: multipart\r\n\r\na\r\n")
    yield "delimiters before the end of a header", MIXED + b"\r\n" + shared
    yield "nested multiparts", nested + b"\r\nHi.\r\n"
    yield "nested multiparts of one boundary", fill(b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n", size, FROM, b"\r\nHi.\r\n")
    yield "nested messages", fill(b"Content-Type: message/rfc822\r\n\r\n", size, FROM, b"\r\nHi.\r\n")
    yield "nested reports", fill(b"Content-Type: multipart/report; boundary=b\r\n\r\n--b\r\n", size, FROM, b"\r\nHi.\r\n")
    shallow = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(45))
    yield "45 layers around lines", fill(b"--b\r\n", size, FROM + shallow, b"\r\n")


@hostile("relay", "exchange")
def contents(size: int) -> Made:
    for kind in (b"text/plain", b"text/html"):
        for coding, units in {
            b"8bit": {
                "lines": b"\r\n",
                "dots": b".\r\n",
                "one line": b"a",
                "spaces": b" ",
                "spaces at ends": b"a \r\n",
                "tabs": b"\t",
                "From": b"From a\r\n",
                "non-ASCII": "é\r\n".encode(),
                "non-ASCII in one line": "é".encode(),
                "NUL": b"\x00",
                "CR": b"\r",
                "LF": b"a\n",
                "CR CR LF": b"\r\r\n",
                "spaces and lines": b" \r\n",
                "invalid UTF-8": b"\xff\xfe",
                "=": b"=",
                "tags": b"<a ",
            },
            b"quoted-printable": {
                "=": b"=",
                "soft ends": b"=\r\n",
                "soft ends with spaces": b"= \r\n",
                "hex": b"=C3=A9",
                "bad hex": b"=XX",
                "spaces": b" ",
            },
            b"base64": {"letters": b"QUJD", "one in a line": b"Q\r\n", "=": b"=", "invalid characters": b"!", "spaces": b" "},
        }.items():
            if kind == b"text/html" and coding != b"8bit":
                continue
            head = (
                FROM
                + b"MIME-Version: 1.0\r\nContent-Type: "
                + kind
                + b"; charset=utf-8\r\nContent-Transfer-Encoding: "
                + coding
                + b"\r\n\r\n"
            )
            for name, unit in units.items():
                yield f"{kind.decode()} {coding.decode()}: {name}", fill(unit, size, head, b"\r\n")
    for charset in (
        b"utf-7",
        b"idna",
        b"punycode",
        b"iso-2022-jp",
        b"hz",
        b"gb18030",
        b"utf-32",
        b"unicode_escape",
        b"rot13",
        b"zip",
        b"no-such",
    ):
        head = FROM + b"Content-Type: text/plain; charset=" + charset + b"\r\nContent-Transfer-Encoding: 8bit\r\n\r\n"
        yield f"charset {charset.decode()}", fill(b"+2D0-9a.~{", size, head, b"\r\n")


@hostile("exchange")
def reports(size: int) -> Made:
    end = b"\r\n--b--\r\n"
    one = b"Final-Recipient: rfc822; a@b.example\r\nAction: failed\r\nStatus: 5.1.1\r\n\r\n"
    yield "recipients", fill(one, size, STATUS, end)
    yield "fields of one recipient", fill(b"Final-Recipient: rfc822; a@b.example\r\n", size, STATUS, end)
    yield "no end", fill(one, size, STATUS)
    for field in (
        b"Final-Recipient: rfc822;",
        b"Diagnostic-Code: smtp;",
        b"Status:",
        b"Action:",
        b"Original-Recipient: rfc822;",
        b"Remote-MTA:",
    ):
        for name, unit in {
            "letters": b"a",
            "spaces": b" ",
            "dots": b"5.",
            "codes": b"5.1.1 ",
            "addresses": b"a@b.example ",
            "at signs": b"a@",
            "xtext": b"+41",
            "brackets": b"<",
            "semicolons": b";",
            "replies": b"550 ",
            "words": b"full blocked spam ",
            "folds": b"\r\n ",
        }.items():
            yield (
                f"{name} in {field.decode().partition(':')[0]}",
                fill(unit, size, STATUS + one.removesuffix(b"\r\n") + field + b" ", b"\r\n" + end),
            )
    feedback = FROM + b"Content-Type: multipart/report; report-type=feedback-report; boundary=b\r\n\r\n--b\r\n"
    feedback += b"Content-Type: message/feedback-report\r\n\r\nFeedback-Type: abuse\r\n"
    yield "feedback fields", fill(b"Original-Rcpt-To: a@b.example\r\n", size, feedback, end)
    yield "feedback in one field", fill(b"a", size, feedback + b"User-Agent: ", b"\r\n" + end)
    yield (
        "disposition",
        fill(
            b"Disposition: a\r\n",
            size,
            REPORT.replace(b"delivery-status", b"disposition-notification") + b"Content-Type: message/disposition-notification\r\n\r\n",
            end,
        ),
    )


@hostile("reports", most=SIZES["1 MB"])
def received_reports(size: int) -> Made:
    """`size` is that of the report itself; as mail it is smaller."""
    record = b"<record><row><source_ip>192.0.2.1</source_ip><count>1</count></row></record>"
    begin, end = b"<?xml version='1.0'?><feedback>", b"</feedback>"
    for name, unit in {
        "records": record, "elements": b"<b/>", "text": b"x", "comments": b"<!---->", "open elements": b"<a>", "entities": b"&amp;",
        "cdata": b"<![CDATA[]]>", "instructions": b"<?x?>", "namespaces": b"<a:b xmlns:a='x'/>", "attributes": b"<a b='1' c='2' d='3'/>",
    }.items():  # fmt: skip
        yield f"XML {name}", packed(fill(unit, size, begin, end))
    yield "XML one tag", packed(numbered(size, b" a%d=''".__mod__, begin + b"<a", b"/>" + end))
    sources = numbered(size, lambda n: record.replace(b"192.0.2.1", str(ip_address(n)).encode()), begin, end)
    yield "XML sources", packed(sources)
    for name, unit in {"objects": b"{},", "arrays": b"[", "numbers": b"1,", "escapes": b'"\\u0000",'}.items():
        yield f"JSON {name}", packed(fill(unit, size, b'{"policies":[', b"0]}"))
    yield "a bomb", packed(bytes(200 * size))
    yield "plain XML", attached(fill(record, size, begin, end))


def packed(data: bytes) -> bytes:
    return attached(gzip.compress(data))


def attached(data: bytes) -> bytes:
    """A mail with the data as its attachment."""
    part = b"Content-Type: application/gzip; name=r.gz\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    return MIXED + b"\r\n--b\r\n" + part + base64.encodebytes(data).replace(b"\n", b"\r\n") + b"--b--\r\n"


@hostile("exchange")
def bounces_in_words(size: int) -> Made:
    head = b"From: MAILER-DAEMON@mx.example\r\nSubject: Undelivered mail returned\r\n\r\nYour message could not be delivered.\r\n\r\n"
    for name, unit in {
        "at signs": b"@",
        "a@": b"a@",
        "addresses": b"a@b.example ",
        "addresses in lines": b"<a@b.example>:\r\n",
        "replies": b"550 5.1.1 ",
        "replies in lines": b"550 5.1.1 no\r\n",
        "digits": b"5",
        "dots": b"5.",
        "hash": b"#5.1.1",
        "letters": b"a",
        "spaces": b" ",
        "lines": b"\r\n",
        "words": b"This is a permanent error\r\n",
        "colons": b"a@b.example: ",
        "brackets": b"<[(",
        "hyphens": b"------ ",
        "copies": b"--- Below this line is a copy\r\n",
        "warnings": b"warning: message not yet delivered\r\n",
        "said": b"a said: 550\r\n",
    }.items():
        yield name, fill(unit, size, head, b"\r\n")
        yield (
            f"{name} in the subject",
            fill(unit.replace(b"\r\n", b" "), size, b"From: MAILER-DAEMON@mx.example\r\nSubject: ", b"\r\n\r\nHi.\r\n"),
        )


@hostile("exchange")
def notifications(size: int) -> Made:
    """What Amazon SES mails as JSON, and what people forward."""
    head = b"From: no-reply@sns.amazonaws.com\r\nSubject: AWS Notification Message\r\n\r\n"
    for name, unit in {
        "keys": b'"bouncedRecipients"', "arrays": b"[", "objects": b'{"emailAddress":"a@b.example"},', "escapes": b"\\\\", "quotes": b'\\"',
    }.items():  # fmt: skip
        yield f"SES {name}", fill(unit, size, head + b'{"Message":"{\\"bouncedRecipients\\":[', b"\r\n")
        yield f"SES {name} after a key", fill(unit, size, head + b'"bouncedRecipients":[', b"\r\n")
    head = b"From: karl@b.example\r\nSubject: Fwd: Undelivered mail\r\n\r\n"
    for name, unit in {
        "quotes": b">", "senders": b"> From: MAILER-DAEMON\r\n", "quoted lines": b"> <a@b.example>: 550 no\r\n", "letters": b"From: a",
    }.items():  # fmt: skip
        yield f"forwarded {name}", fill(unit, size, head, b"\r\n")
    nested = b"From: daemon@b.example\r\nSubject: Fwd: a\r\nContent-Type: message/rfc822\r\n\r\n"
    yield "forwarded forwards", fill(nested, size, head.removesuffix(b"\r\n"))
