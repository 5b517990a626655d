"""One bounce for each family of mail servers: what is read in it, and whether the address is suppressed. Written for these tests."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mailsvc.bounces import reading
from mailsvc.outcome import Bounced
from mailsvc.store.events.async_bounces import Complained

SAMPLES = Path(__file__).with_name("samples") / "families"

# name: kind of mail, class, whether rita@example.org is suppressed
FAMILIES = {
    "base64-filter": ("bounce", "recipient_refused", False),
    "chinese": ("bounce", "user_unknown", True),
    "communigate": ("bounce", "user_unknown", True),
    "content-filter": ("bounce", "virus", False),
    "damaged": ("bounce", "user_unknown", True),
    "dragonfly": ("bounce", "mailbox_full", False),
    "dragonfly-expired": ("bounce", "expired", False),
    "exchange-expired": ("bounce", "expired", False),
    "exchange-french": ("bounce", "user_unknown", True),
    "exchange-restricted": ("bounce", "policy", False),
    "exchange-spanish": ("bounce", "user_unknown", True),
    "exchange-text": ("bounce", "size", False),
    "exim-alias": ("bounce", "user_unknown", False),  # the alias exists
    "exim-deferred": ("bounce", "expired", False),
    "exim-silent": ("bounce", "mailbox_full", False),
    "exim-unrouteable": ("bounce", "host_unknown", True),
    "ezweb": ("bounce", "user_unknown", True),
    "fml": ("bounce", "sender_refused", False),
    "forwarded": ("bounce", "user_unknown", True),
    "forwarded-attached": ("bounce", "user_unknown", True),
    "gateway": ("bounce", "expired", False),
    "german": ("bounce", "mailbox_full", False),
    "gmail-not-found": ("bounce", "user_unknown", True),
    "gmail-old": ("bounce", "user_unknown", True),
    "gmx": ("bounce", "expired", False),
    "google-groups": ("bounce", "sender_refused", False),
    "imail": ("bounce", "mailbox_full", False),
    "imail-response": ("bounce", "spam", False),
    "intermail": ("bounce", "user_unknown", True),
    "intermail-unreachable": ("bounce", "expired", False),
    "interscan": ("bounce", "user_unknown", True),
    "iplanet-fields": ("bounce", "user_unknown", True),
    "ironport": ("bounce", "policy", False),
    "iso-2022-jp": ("bounce", "user_unknown", True),
    "iso-2022-jp-diagnostic": ("bounce", "user_unknown", True),
    "jmrp": ("complaint", "", False),
    "kddi": ("bounce", "mailbox_full", False),
    "mailenable": ("bounce", "user_unknown", True),
    "mailfoundry": ("bounce", "mailbox_full", False),
    "mailmarshal": ("bounce", "policy", False),
    "mailru": ("bounce", "user_unknown", True),
    "mcafee": ("bounce", "user_unknown", True),
    "netease": ("bounce", "user_unknown", True),
    "no-such-domain": ("bounce", "host_unknown", True),
    "notes": ("bounce", "user_unknown", True),
    "opensmtpd": ("bounce", "user_unknown", True),
    "outlook-loop": ("bounce", "loop", False),
    "outlook-silent": ("bounce", "user_unknown", True),
    "outlook-unreachable": ("bounce", "network", False),
    "postfix-timeout": ("bounce", "expired", False),
    "prodigy": ("bounce", "throttled", False),
    "qmail-gave-up": ("bounce", "mailbox_full", False),
    "qmail-vpopmail": ("bounce", "user_unknown", True),
    "rejected-recipient": ("bounce", "user_unknown", True),
    "sendgrid": ("bounce", "expired", False),
    "sendmail-quoted": ("bounce", "dnsbl", False),
    "sendmail-v5": ("bounce", "host_unknown", True),
    "ses": ("bounce", "user_unknown", True),
    "ses-complaint": ("complaint", "", False),
    "sieve": ("bounce", "policy", False),
    "sieve-receipt": ("bounce", "policy", False),
    "smail": ("bounce", "user_unknown", True),
    "spanish": ("bounce", "user_unknown", True),
    "webmail-unknown": ("bounce", "mailbox_full", False),
    "workmail": ("bounce", "user_unknown", True),
    "yahoo": ("bounce", "user_unknown", True),
    "yahoo-continued": ("bounce", "spam", False),
    "zoho": ("bounce", "user_unknown", True),
}


def sample(name: str) -> bytes:
    return (SAMPLES / f"{name}.eml").read_bytes().replace(b"\n", b"\r\n")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name: str) -> None:
    kind, reason, suppressed = FAMILIES[name]
    mail = reading.read(sample(name))
    assert mail.kind == kind
    [report] = mail.reports(["karl@example.org", "rita@example.org"])
    assert report.recipient == 1
    if isinstance(report.outcome, Bounced):
        assert report.outcome.meaning is not None
        assert (report.outcome.meaning.kind, report.outcome.suppress) == (reason, suppressed), report.outcome.reply
    else:
        assert isinstance(report.outcome, Complained)


def test_every_sample_is_listed() -> None:
    assert {path.stem for path in SAMPLES.glob("*.eml")} == set(FAMILIES)


@pytest.mark.parametrize("name", [name for name, row in FAMILIES.items() if row[0] == "bounce"])
def test_a_person_who_quotes_a_bounce_did_not_send_one(name: str) -> None:
    lines = sample(name).split(b"\r\n")
    text = b"\r\n".join(
        line for line in lines if not line.lower().startswith((b"from:", b"x-failed-recipients:", b"content-", b"x-mlserver:"))
    )
    quoted = b"\r\n".join(b"> " + line for line in text.split(b"\r\n"))
    mail = reading.read(b"From: Karl <karl@example.org>\r\nSubject: Re: Undelivered mail\r\n\r\nWhat is this?\r\n\r\n" + quoted)
    assert mail.kind == "unknown"


@pytest.mark.parametrize("subject", ["Out of office: Hello", "Automatic reply: Your parcel could not be delivered", "Re: Delivery failed"])
def test_an_automatic_reply_with_the_words_of_a_bounce_is_none(subject: str) -> None:
    head = f"From: Rita <rita@example.org>\r\nAuto-Submitted: auto-replied\r\nSubject: {subject}\r\n\r\n"
    body = "I no longer work here; my mailbox rita@example.org is closed. Your parcel could not be delivered: 550 5.1.1 user unknown\r\n"
    assert reading.read((head + body).encode()).kind == "automatic"


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ("Delivery Status Notification (Success)", "Your message was successfully delivered to rita@example.org."),
        ("Mail Delivery Status Report", "Enclosed is the mail delivery report that you requested.\r\n\r\n<rita@example.org>: 250 2.1.5 Ok"),
        ("Weekly report", "rita@example.org has 550 unread messages."),
    ],
)
def test_other_mail_of_a_mail_program_is_no_bounce(subject: str, text: str) -> None:
    mail = f"From: MAILER-DAEMON@mx.example.net\r\nSubject: {subject}\r\n\r\n{text}\r\n"
    assert reading.read(mail.encode()).kind == "unknown"


def test_a_read_receipt_is_no_bounce() -> None:
    receipt = b"""From: postmaster@example.org
Subject: Not read: Hello
Content-Type: multipart/report; report-type=disposition-notification; boundary=b

--b

Your message to rita@example.org was not delivered to a reader; it was deleted.
--b
Content-Type: message/disposition-notification

Final-Recipient: rfc822; rita@example.org
Disposition: automatic-action/MDN-sent-automatically; deleted
--b--
""".replace(b"\n", b"\r\n")
    assert reading.read(receipt).kind == "automatic"


@pytest.mark.parametrize("prefix", ["Fwd: ", "FW: ", "WG: "])
def test_a_forwarded_mail_without_a_bounce_is_none(prefix: str) -> None:
    text = "> From: Rita <rita@example.org>\r\n> Subject: Hello\r\n>\r\n> 550 5.1.1 <rita@example.org>: user unknown\r\n"
    assert reading.read(f"From: karl@example.org\r\nSubject: {prefix}Undelivered mail\r\n\r\n{text}".encode()).kind == "unknown"


@pytest.mark.parametrize("cut", ['"bouncedRecipients', '"status', '"timestamp', "}]"])
def test_a_notification_of_amazon_ses_that_was_cut(cut: str) -> None:
    whole = sample("ses").decode()
    mail = reading.read(whole[: whole.index(cut.replace('"', '\\"'))].encode())
    assert mail.kind == ("bounce" if cut == '"timestamp' else "unknown")


def test_nested_json_from_outside_is_read_in_bounded_time() -> None:
    head = b"From: x@sns.amazonaws.com\r\n\r\n"
    for body in (b'"bouncedRecipients":' + b"[" * 500_000, b'"bouncedRecipients"' * 50_000, b'"bouncedRecipients":[' + b"{}," * 300_000):
        began = time.process_time()
        assert reading.read(head + body).kind == "unknown"
        assert time.process_time() - began < 2.0


def test_a_complaint_marks_each_recipient_that_it_names() -> None:
    report = b"""From: feedback@provider.example
MIME-Version: 1.0
Content-Type: multipart/report; report-type=feedback-report; boundary=b

--b
Content-Type: message/feedback-report

Feedback-Type: abuse
User-Agent: test/1
Original-Rcpt-To: <rita@example.org>
Original-Rcpt-To: <olga@example.org>

--b--
""".replace(b"\n", b"\r\n")
    found = reading.read(report).reports(["karl@example.org", "rita@example.org", "olga@example.org"])
    assert [each.recipient for each in found] == [1, 2]


def test_submitters_can_be_notified_of_a_delay() -> None:
    warning = b"""From: Mail Delivery System <MAILER-DAEMON@mx.example.net>
Subject: Warning: message delayed 24 hours

A message that you sent has not yet been delivered to one or more of its recipients.
The address to which the message has not yet been delivered is:

  rita@example.org
    Delay reason: 450 4.2.0 greylisted

No action is required on your part.
""".replace(b"\n", b"\r\n")
    mail = reading.read(warning)
    assert mail.kind == "delay" and not mail.reports(["rita@example.org"])
    assert [(each.recipient, each.action) for each in mail.forwardable(["rita@example.org"])] == [(0, "delayed")]
