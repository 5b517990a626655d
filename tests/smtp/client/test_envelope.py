"""5321 §4.1.2–3, 3461: addresses are sent unchanged or not at all; parameters only if they were announced."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.smtp.client.capabilities import Capabilities
from mailsvc.smtp.client.envelope import BadAddress, Envelope, mail_command, path, rcpt_command

ALL = Capabilities(extended=True, size=True, eight_bit=True, smtputf8=True, dsn=True)


@pytest.mark.parametrize(
    "address",
    [
        "a@example.org",
        "A.b+c@Example.ORG",
        "b-0123456789abcdef-x=y@rp.example.net",
        "first..last.@example.org",
        '"a b"@example.org',
        '"a<b>c"@example.org',
        '"a\\"b\\\\c"@example.org',
        '""@example.org',
        "a@[192.0.2.1]",
        "a@[IPv6:2001:db8::1]",
        "a@localhost",
        "a@under_score.example.org",
        "a@example.org.",
        "用户@例子.广告",
        "x" * 65 + "@example.org",
    ],
)
def test_addresses_are_sent_unchanged(address: str) -> None:
    assert path(address) == b"<" + address.encode() + b">"


def test_the_null_path() -> None:
    assert path("") == b"<>"


@pytest.mark.parametrize(
    "address",
    [
        'a"b@x.example',
        "a@b@x.example",
        "a@x.example,b@x.example",
        "a@x.example b@x.example",
        "<a@x.example>",
        "a@x.example>\r\nRCPT TO:<b@x.example",
        "a@x.example\r\n",
        "a@x.example\n",
        '"a\nRCPT TO:<x@y>\n"@x.example',
        '"a\rb"@x.example',
        '"a\0b"@x.example',
        "a\0@x.example",
        '"a"b"@x.example',
        '"a\\"@x.example',
        '"unended@x.example',
        "a b@x.example",
        "a@",
        "@x.example",
        "a",
        "a@x..example",
        "a@.example",
        "a@x.example SIZE=1",
        "a@[1.2.3.4",
        "a@[1.2.3.4]>",
        "a@[1 2]",
        "@a,@b:c@d.example",
        "a\u2028@x.example",
        "a\u0085@x.example",
        "a\ud800@x.example",
        "x" * 320 + "@example.org",
        "Name <a@x.example>",
    ],
)
def test_invalid_addresses_are_not_sent(address: str) -> None:
    with pytest.raises(BadAddress):
        path(address)


@given(st.one_of(st.text(max_size=30), st.text('a.@"\\<> \r\n[]', max_size=12)))
@settings(max_examples=200)
def test_a_path_is_one_word_of_one_line(address: str) -> None:
    try:
        written = path(address)
    except BadAddress:
        return
    assert written[1:-1].decode() == address
    assert b"\r" not in written and b"\n" not in written
    if b'"' not in written:
        assert b" " not in written and written.count(b">") == 1


def test_a_long_address_is_refused_quickly() -> None:
    with pytest.raises(BadAddress):
        path('"' + "\\a" * 100_000)


def mail(capabilities: Capabilities, utf8: bool = False, **fields) -> bytes:
    return mail_command(b"<a@x.example>", Envelope("a@x.example", (), **fields), capabilities, utf8)


def test_announced_parameters() -> None:
    assert mail(ALL, size=123) == b"MAIL FROM:<a@x.example> SIZE=123\r\n"
    assert mail(ALL, eight_bit=True) == b"MAIL FROM:<a@x.example> BODY=8BITMIME\r\n"
    assert mail(ALL, utf8=True) == b"MAIL FROM:<a@x.example> BODY=8BITMIME SMTPUTF8\r\n"
    assert mail(ALL, ret="HDRS", envid="a+b=c d") == b"MAIL FROM:<a@x.example> RET=HDRS ENVID=a+2Bb+3Dc+20d\r\n"


def test_other_parameters_are_not_sent() -> None:
    assert mail(Capabilities(), size=123, eight_bit=True, ret="FULL", envid="x") == b"MAIL FROM:<a@x.example>\r\n"


def test_delivery_status_notifications_per_recipient() -> None:
    envelope = Envelope("", ("a@x.example", "ü@x.example"), notify=("FAILURE,DELAY", None), originals=("rfc822;A+1@x.example", "utf-8;ü"))
    assert (
        rcpt_command(b"<a@x.example>", 0, envelope, ALL) == b"RCPT TO:<a@x.example> NOTIFY=FAILURE,DELAY ORCPT=rfc822;A+2B1@x.example\r\n"
    )
    assert rcpt_command(b"<b@x.example>", 1, envelope, ALL) == b"RCPT TO:<b@x.example> ORCPT=utf-8;\\x{FC}\r\n"
    assert rcpt_command(b"<a@x.example>", 0, envelope, Capabilities()) == b"RCPT TO:<a@x.example>\r\n"


@pytest.mark.parametrize("notify", ["FAILURE\r\nDATA", "NEVER,FAILURE", "failure", ""])
def test_notify_is_a_list_of_its_keywords(notify: str) -> None:
    with pytest.raises(ValueError, match="notify"):
        Envelope("", ("a@x.example",), notify=(notify,))
