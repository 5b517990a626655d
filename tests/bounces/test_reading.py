"""Parsing returned mail: a corpus of real formats, and arbitrary input."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.bounces import reading
from mailsvc.mail.reports import auto_reply, dsn_reader, feedback, report, text_bounce
from mailsvc.outcome import Bounced

SAMPLES = Path(__file__).with_name("samples")


def sample(name: str) -> bytes:
    return (SAMPLES / f"{name}.eml").read_bytes().replace(b"\n", b"\r\n")


# name: kind; for each failed recipient its address, status and diagnostic
CORPUS = {
    "postfix": ("bounce", [("rita@example.org", "5.1.1", "550 5.1.1 <rita@example.org>: Recipient address rejected: User unknown")]),
    "exim-dsn": ("bounce", [("rita@example.org", "5.0.0", "550 No such user here")]),
    "exim-old": (
        "bounce",
        [("rita@example.org", "5.1.1", "550 5.1.1 User unknown"), ("karl@example.org", "", "mailbox is full: retry timeout exceeded")],
    ),
    "exim-warning": ("delay", []),
    "qmail": (
        "bounce",
        [
            ("rita@example.org", "5.2.1", "550 5.2.1 Mailbox disabled"),
            ("karl@example.org", "5.1.1", "Sorry, no mailbox here by that name. (#5.1.1)"),
        ],
    ),
    "sendmail-old": ("bounce", [("rita@example.org", "5.1.1", "550 5.1.1 <rita@example.org>... User unknown")]),
    "exchange-old": (
        "bounce",
        [
            (
                "rita@example.org",
                "5.1.1",
                "on Sat, 7 Mar 2026 10:00:01 +0100 The e-mail account does not exist at the organization this message was sent to."
                " <mx.example.org #5.1.1",
            )
        ],
    ),
    "microsoft365": (
        "bounce",
        [
            (
                "rita@example.org",
                "5.1.10",
                "550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient rita@example.org not found by SMTP address lookup",
            )
        ],
    ),
    "gmail": ("bounce", [("rita@forwarded.example", "5.1.1", "550 5.1.1 The email account that you tried to reach does not exist.")]),
    "delayed": ("delay", []),
    "expired": (
        "bounce",
        [
            (
                "rita@example.org",
                "4.4.7",
                "delivery temporarily suspended: connect to inner.example.org[192.0.2.7]:25: Connection timed out",
            )
        ],
    ),
    "success": ("success", []),
    "several": (
        "bounce",
        [("rita@example.org", "5.2.2", "552-5.2.2 The mailbox of the recipient 552 5.2.2 is full"), ("olga@example.org", "5.0.0", "")],
    ),
    "utf8": ("bounce", [("jürgen@bücher.example", "5.1.1", "550 5.1.1 no such user")]),
    "base64": ("bounce", [("rita@example.org", "5.1.1", "")]),
    "no-blank-line": ("bounce", [("rita@example.org", "5.7.1", "554 5.7.1 blocked using zen.spamhaus.org")]),
    "truncated": ("bounce", [("rita@example.org", "5.1.1", "550 5.1.1 no such us")]),
    "x400": ("bounce", [("/C=de/A=mail/P=example/S=rita/", "5.1.1", "")]),
    "arf": ("complaint", []),
    "arf-redacted": ("complaint", []),
    "arf-not-spam": ("feedback", []),
    "arf-authentication": ("feedback", []),
    "vacation": ("automatic", []),
    "vacation-old": ("automatic", []),
    "vacation-german": ("automatic", []),
    "read-receipt": ("automatic", []),
    "person": ("unknown", []),
}


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_corpus(name: str, end: bytes) -> None:
    kind, expected = CORPUS[name]
    mail = reading.read(sample(name).replace(b"\r\n", end))
    assert mail.kind == kind
    assert [(recipient.final, recipient.status, recipient.diagnostic) for recipient in mail.failed] == expected


def test_every_sample_is_in_the_corpus() -> None:
    assert {path.stem for path in SAMPLES.glob("*.eml")} == set(CORPUS)


@pytest.mark.parametrize(
    ("name", "kind", "suppress"),
    [
        ("postfix", "user_unknown", True),
        ("exim-dsn", "user_unknown", True),
        ("qmail", "disabled", True),
        ("sendmail-old", "user_unknown", True),
        ("exchange-old", "user_unknown", True),
        ("microsoft365", "user_unknown", True),
        ("gmail", "user_unknown", False),  # it names the address that the mail was forwarded to
        ("expired", "expired", False),
        ("several", "mailbox_full", False),
        ("base64", "user_unknown", True),
        ("no-blank-line", "dnsbl", False),
        ("x400", "user_unknown", True),
    ],
)
def test_an_async_bounce_is_classified(name: str, kind: str, suppress: bool) -> None:
    [found, *_] = reading.read(sample(name)).reports(["rita@example.org"] if name != "several" else ["rita@example.org", "x@example.org"])
    assert not isinstance(found.outcome, reading.Complained)
    assert found.outcome.meaning is not None
    assert (found.outcome.meaning.kind, found.outcome.suppress) == (kind, suppress)
    assert found.outcome.meaning.says in found.outcome.reason


def numbers(name: str, *addresses: str) -> list[int]:
    return [found.recipient for found in reading.read(sample(name)).reports(addresses)]


def test_recipients_are_matched_by_address() -> None:
    assert numbers("postfix", "a@example.org", "RITA@example.org") == [1]
    assert numbers("gmail", "rita@example.org") == [0], "the only recipient, even if the mail was forwarded"
    assert numbers("gmail", "rita@example.org", "karl@example.org") == [], "several recipients, none of them named"
    assert numbers("qmail", "karl@example.org", "x@example.org", "rita@example.org") == [2, 0]
    assert numbers("qmail", "x@example.org") == [], "two are named, neither of them known"
    assert numbers("utf8", "x@example.org", "jürgen@xn--bcher-kva.example") == [1]
    assert numbers("x400", "x@example.org", "rita@example.org") == [1]
    [found] = reading.read(sample("postfix").replace(b"rita@", b"rita..@")).reports(["x@example.org", '"rita.."@example.org'])
    assert found.recipient == 1 and isinstance(found.outcome, Bounced) and found.outcome.suppress
    quoted = reading.read(sample("qmail").replace(b"rita@", b'"ri..ta"@')).reports(["karl@example.org", '"ri..ta"@example.org'])
    assert [found.recipient for found in quoted] == [1, 0], "a text without a standard, too"
    assert numbers("arf", "x@example.org", "rita@example.org") == [1]
    assert numbers("arf-redacted", "rita@example.org") == [0]
    assert numbers("arf-redacted", "rita@example.org", "karl@example.org") == []


def test_several_replies_in_one_diagnostic() -> None:
    [found] = reading.read(sample("several")).reports(["rita@example.org", "x@example.org"])
    assert not isinstance(found.outcome, reading.Complained)
    assert (found.outcome.type, found.outcome.sub_type) == ("Transient", "MailboxFull")


def test_a_complaint_is_parsed() -> None:
    parsed = feedback.read(report.read(sample("arf")))
    assert parsed == feedback.Feedback("abuse", "SomeGenerator/1.0", ("rita@example.org",), "b-x@send.example.com")
    assert report.read(sample("arf")).returned["subject"] == "Hello"


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("rfc822; a@b.example", "a@b.example"),
        ("RFC822;<a@b.example>", "a@b.example"),
        ("a@b.example", "a@b.example"),
        ("rfc822; a+40b.example", "a@b.example"),
        ("rfc822; a+40@b.example", "a+40@b.example"),
        ("utf-8; \\x{E4}@b.example", "ä@b.example"),
        ("utf-8; \\x{D800}\\x{0A}\\x{FFFFFF}@b.example", "\\x{D800}\\x{0A}\\x{FFFFFF}@b.example"),
        ("rfc822; a@b.example (somebody)", "a@b.example"),
        ("", ""),
    ],
)
def test_addresses_of_typed_fields_are_decoded(value: str, address: str) -> None:
    assert dsn_reader.address(value) == address


@pytest.mark.parametrize(
    ("value", "is_one"), [("no", False), ("auto-replied", True), ("auto-generated; x=y", True), ("AUTO-NOTIFIED", True)]
)
def test_auto_submitted_is_recognised(value: str, is_one: bool) -> None:
    assert auto_reply.recognised(report.read(f"Auto-Submitted: {value}\r\nSubject: Hello\r\n\r\nHi.\r\n".encode())) is is_one


PIECES = [piece for name in CORPUS for piece in sample(name).split(b"\r\n")]
messages = st.lists(st.sampled_from(PIECES) | st.binary(max_size=30), max_size=60).map(b"\r\n".join)


@given(messages)
@settings(max_examples=200, deadline=None)
def test_any_message_can_be_parsed(message: bytes) -> None:
    mail = reading.read(message)
    for found in mail.reports(["rita@example.org", "karl@example.org"]):
        assert found.recipient in (0, 1)
        assert "\x00" not in found.outcome.reason


@given(st.sampled_from([*CORPUS]), st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_samples_can_be_parsed(name: str, data: st.DataObject) -> None:
    message = bytearray(sample(name))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(message) - 1))
        message[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    reading.read(bytes(message)).reports(["rita@example.org"])


@pytest.mark.parametrize(
    "message",
    [
        b"From: mailer-daemon\r\n\r\n" + b"delivery failed <a@b.example>: 550 " * 100_000,
        b"From: mailer-daemon\r\n\r\ndelivery failed\r\n" + b"a@b.example\r\n" * 100_000,
        b"From: mailer-daemon\r\n\r\n" + b"@" * 1_000_000,
        b"From: mailer-daemon\r\n\r\n" + b"your message " * 100_000,
        b"X-Failed-Recipients: " + b"a@b.example, " * 80_000 + b"\r\n\r\ndelivery failed\r\n",
        sample("postfix").partition(b"Reporting-MTA")[0] + b"\r\n\r\n" * 400_000,
        sample("postfix").partition(b"Final-Recipient")[0] + b"Final-Recipient: rfc822; a@b\r\nAction: failed\r\n\r\n" * 20_000,
        sample("postfix").partition(b"Reporting-MTA")[0] + b"A: b\r\n" * 200_000,
        b"Subject: " + b"auto " * 40_000 + b"\r\n\r\n",
        b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\n" * 200_000,
        sample("postfix") + b"x" * 30_000_000,
    ],
)
def test_parsing_takes_linear_time(message: bytes) -> None:
    began = time.process_time()
    mail = reading.read(message)
    mail.reports(["rita@example.org", "karl@example.org"])
    assert time.process_time() - began < 2


def test_text_bounces_are_only_accepted_from_mailer_daemons() -> None:
    assert text_bounce.read(report.read(sample("qmail")))
    assert not text_bounce.read(report.read(sample("qmail").replace(b"MAILER-DAEMON", b"rita")))


@pytest.mark.parametrize(
    "said",
    [
        "host gmail-smtp-in.l.google.com[192.0.2.1] said: 550 5.7.30 no (in reply to end of DATA)",
        "... while talking to gmail-smtp-in.l.google.com:\r\n>>> DATA\r\n<<< 550 5.7.30 no",
    ],
)
def test_the_server_that_a_text_names_decides_whose_rules_apply(said: str) -> None:
    head = "From: MAILER-DAEMON@mx.example.net\r\nSubject: Undelivered Mail\r\n\r\nYour mail could not be delivered:\r\n\r\n"
    mail = reading.read(f"{head}<rita@example.org>:\r\n{said}\r\n".encode())
    [outcome] = mail.outcomes
    assert outcome.meaning is not None and outcome.meaning.rule == "gmail-unauthenticated"


def test_a_report_about_the_most_recipients_of_a_mail_is_complete() -> None:
    status = b"Reporting-MTA: dns; mx.example\r\n" + b"".join(
        b"\r\nFinal-Recipient: rfc822; r%d@example.org\r\nAction: failed\r\nStatus: 5.1.1\r\n" % number for number in range(1000)
    )
    assert len([*report.groups(status)]) == 1 + 1000


@pytest.mark.parametrize(
    "names", [["a@b.c"] * 100, [f"{number:07b}".replace("0", "a").replace("1", "A") + "@b.c" for number in range(100)]]
)
def test_many_recipients_and_many_mentions_are_read_quickly(names: list[str]) -> None:
    """Every mention is near every recipient: each is read once, not for each recipient."""
    head = b"From: <>\r\nContent-Type: multipart/report; report-type=delivery-status; boundary=q\r\n\r\n--q\r\n\r\n"
    text = (names[0].encode() + b"\r\n") * 400
    status = "".join(f"Final-Recipient:rfc822;{name}\r\nAction:failed\r\n\r\n" for name in names).encode()
    message = head + text + b"--q\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns;x\r\n\r\n" + status + b"--q--\r\n"
    found = report.read(message)
    recipients = dsn_reader.read(found)
    assert recipients is not None and len(recipients.recipients) == 100
    begin = time.process_time()
    text_bounce.explanations(found.text, [each.final for each in recipients.recipients])
    assert time.process_time() - begin < 0.05


@pytest.mark.parametrize(
    ("said", "status", "reply", "kind"),
    [
        ("exited abnormally", "5.3.0", "550 5.3.0 exited abnormally", "system"),
        ("550 5.7.1 not from you", "5.0.0", "550 5.7.1 not from you", "policy"),
    ],
)
def test_a_reason_that_only_the_text_gives_is_shown(said: str, status: str, reply: str, kind: str) -> None:
    """As OpenSMTPD writes it."""
    mail = f"""From: Mailer Daemon <MAILER-DAEMON@mx.example.net>
Subject: Delivery status notification: failed
Content-Type: multipart/mixed;boundary="8006/mx.example.net"

--8006/mx.example.net
Content-Type: text/plain; charset=us-ascii

    An error has occurred while attempting to deliver a message for
    the following list of recipients:

rita@example.org: {said}

    Below is a copy of the original message:

--8006/mx.example.net
Content-Type: message/delivery-status

Reporting-MTA: dns; mx.example.net

Final-Recipient: rfc822; rita@example.org
Action: failed
Status: {status}

--8006/mx.example.net--
"""
    [outcome] = reading.read(mail.encode()).outcomes
    assert outcome.reply == reply
    assert outcome.meaning is not None and outcome.meaning.kind == kind
