"""The rules of diagnosis.toml, run on the replies that they were written for."""

from __future__ import annotations

import re
import time
import tomllib
from importlib import resources
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.bounces.diagnosis import Class, Rule, Stage, diagnose, rules
from mailsvc.mail.reply import Reply, read

SAMPLES = [(rule, sample) for rule in rules().rows for sample in rule.samples]
STAGES: tuple[Stage, ...] = ("greeting", "mail", "rcpt", "data", "dot", "ours", "report")


def host(rule: Rule) -> str:
    return f"mx1{rule.hosts[0]}" if rule.hosts else "mx.example.org"


@pytest.mark.parametrize(("rule", "sample"), SAMPLES, ids=[f"{rule.id}-{n}" for n, (rule, _) in enumerate(SAMPLES)])
def test_each_sample_matches_its_rule(rule: Rule, sample: str) -> None:
    reply = read(sample)
    assert reply is not None
    found = diagnose(reply, host(rule), rule.stages[0] if rule.stages else "rcpt")
    assert (found.meaning.rule, found.meaning.kind) == (rule.id, rule.kind.name)
    assert found.suppress == (rule.kind.suppress and reply.code >= 500)


def test_rules_have_no_unknown_keys() -> None:
    known = {"id", "class", "digit", "codes", "enhanced", "text", "unless", "stages", "samples", "certain"}
    data = tomllib.loads((resources.files("mailsvc.bounces") / "diagnosis.toml").read_text("utf-8"))
    for table in (*data["provider"].values(), data["text"], data["enhanced"], data["vague"], data["basic"]):
        assert all(set(row) <= known and set(row.get("stages", ())) <= set(STAGES) for row in table["rules"])


def test_rules_have_unique_ids_a_source_and_samples() -> None:
    names = [rule.id for rule in rules().rows]
    assert len(names) == len(set(names))
    assert all(rule.source for rule in rules().rows)
    without = {rule.id for rule in rules().rows if not rule.samples}
    assert without <= {"x.6-other", "x.7.1-content", "552-mail", "552", "greeting", "mail"}, "these match by their stage"


def test_every_class_is_explained_and_only_recipient_classes_suppress() -> None:
    for kind in rules().classes.values():
        assert re.fullmatch(r"[A-Z].*\.", kind.meaning.says) and re.fullmatch(r"[A-Z].*\.", kind.meaning.advice)
        if kind.suppress:
            assert (kind.meaning.party, kind.type, kind.retry_permanent) == ("recipient", "Permanent", False)
    assert {kind.sub_type for kind in rules().classes.values()} <= {
        *("General", "NoEmail", "MailboxFull", "MessageTooLarge", "ContentRejected", "AttachmentRejected", "Undetermined")
    }


@pytest.mark.parametrize(
    ("host", "reply", "kind", "suppress"),
    [
        # The same code means different things at different providers.
        ("gmail-smtp-in.l.google.com", "550 5.7.30 DKIM authentication didn't pass", "authentication", False),
        ("mx.example.org", "550 5.7.30 REQUIRETLS needed", "tls", False),
        ("gmail-smtp-in.l.google.com.", "550 5.7.27 x", "authentication", False),
        ("mx.example.org", "550 5.7.27 x", "sender_refused", False),
        ("notgoogle.com", "550 5.7.27 x", "sender_refused", False),
        # A permanent code that is not about the recipient.
        ("a.mail.protection.outlook.com", "550 5.7.1 part of their network is on our block list (S3150)", "ip_reputation", False),
        ("mx.example.org", "550 5.1.1 blocked using zen.spamhaus.org", "dnsbl", False),
        ("mx.example.org", "550 5.7.1 relay access denied", "relay_denied", False),
        ("mx.example.org", "550 Sender unknown: user not found", "sender_refused", False),
        # Words inside an address are ignored.
        ("mx.example.org", "550 5.1.1 <spam@full.example>: user unknown", "user_unknown", True),
        ("mx.example.org", "550 dmarc-reports@example.org unknown user", "user_unknown", True),
        # The text takes precedence over the code.
        ("mx.example.org", "550 5.7.1 User unknown", "user_unknown", True),
        ("mx.example.org", "450 4.1.1 User unknown", "user_unknown", False),
        ("mx.example.org", "599 something new", "undetermined", False),
    ],
)
def test_diagnose_prefers_the_provider_then_the_text_then_the_codes(host: str, reply: str, kind: str, suppress: bool) -> None:
    parsed = read(reply)
    assert parsed is not None
    found = diagnose(parsed, host, "rcpt")
    assert (found.meaning.kind, found.suppress) == (kind, suppress)


def test_a_reply_to_mail_from_is_about_the_sender() -> None:
    for enhanced in ("5.1.0", "5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10", "5.2.0", "5.2.1"):
        found = diagnose(Reply(550, "no", enhanced), "mx.example.org", "mail")
        assert (found.meaning.kind, found.suppress) == ("sender_refused", False)


@given(st.integers(400, 599), st.none() | st.from_regex(r"[45]\.\d{1,3}\.\d{1,3}", fullmatch=True), st.text(), st.sampled_from(STAGES))
@settings(max_examples=200)
def test_every_refusal_has_a_class(code: int, enhanced: str | None, text: str, stage: Stage) -> None:
    found = diagnose(Reply(code, text, enhanced), "mx.example.org", stage)
    assert found.meaning.kind in rules().classes
    assert not found.suppress or (code >= 500 and found.meaning.party == "recipient")
    assert not (found.suppress and found.retry_permanent)


# Each contradicts that the address is invalid, whatever the codes say.
CONTRADICTIONS = (
    "receiving mail at a rate that prevents additional messages",
    "rate limit exceeded",
    "rejected for policy reasons",
    "the recipient's preferences prevent delivery",
    "poor reputation of the sending host",
    "this message looks like spam",
    "your IP address is blocked",
    "listed at zen.spamhaus.org",
    "SPF check failed",
    "temporary failure, try again later",
    "mailbox is full",
    "access denied",
    "sender rejected",
)
CERTAIN = {"microsoft-unknown-at-edge", "text-edge-unknown", "apple-private-relay"}  # their text means this, whatever its words
SUPPRESSING = [rule for rule in rules().rows if rule.kind.suppress and not rule.certain]


@pytest.mark.parametrize("rule", [rule for rule in rules().rows if rule.kind.suppress and not rule.hosts], ids=lambda rule: rule.id)
def test_no_reply_before_rcpt_suppresses_an_address(rule: Rule) -> None:
    for sample in rule.samples:
        reply = read(sample)
        assert reply is not None
        assert not diagnose(reply, "mx.example.org", "mail").suppress and not diagnose(reply, "mx.example.org", "greeting").suppress


def test_few_rules_are_certain() -> None:
    assert {rule.id for rule in rules().rows if rule.certain} == CERTAIN


@pytest.mark.parametrize("rule", SUPPRESSING, ids=lambda rule: rule.id)
@pytest.mark.parametrize("contradiction", CONTRADICTIONS)
def test_no_rule_suppresses_an_address_when_the_text_contradicts_it(rule: Rule, contradiction: str) -> None:
    for sample in rule.samples:
        reply = read(sample)
        assert reply is not None
        for text in (f"{reply.text} {contradiction}", f"{contradiction}: {reply.text}"):
            for stage in rule.stages or STAGES:
                assert not diagnose(attrs.evolve(reply, text=text), host(rule), stage).suppress


@given(st.sampled_from(CONTRADICTIONS), st.from_regex(r"5\.\d\.\d{1,2}", fullmatch=True), st.sampled_from(STAGES), st.booleans())
@settings(max_examples=300)
def test_no_code_suppresses_an_address_when_the_text_contradicts_it(text: str, enhanced: str, stage: Stage, google: bool) -> None:
    server = "gmail-smtp-in.l.google.com" if google else "mx.example.org"
    assert not diagnose(Reply(550, text, enhanced), server, stage).suppress


@pytest.mark.parametrize("rule", [rule for rule in rules().rows if rule.kind.suppress], ids=lambda rule: rule.id)
def test_only_a_final_reply_suppresses_an_address(rule: Rule) -> None:
    for sample in rule.samples:
        reply = read(sample)
        assert reply is not None
        for other in (
            attrs.evolve(reply, code=450),
            attrs.evolve(reply, enhanced=None, text=f"4.4.7 {reply.text}"),
            Reply(550, f"host mx1 said: 450 {reply.text}"),
        ):
            assert not any(diagnose(other, host(rule), stage).suppress for stage in STAGES)


@pytest.mark.parametrize(
    ("reply", "kind", "suppress"),
    [
        # A quoted reply is the reason, not what is around it.
        ("550 5.1.0 Unknown address error 550-'5.7.1 Access denied'", "policy", False),
        ("550 5.1.0 Unknown address error 550-'5.1.1 <rita@example.org>: no such mailbox'", "user_unknown", True),
        ("554 5.0.0 host mx1.example.org said: 552 5.2.2 over quota", "mailbox_full", False),
        ("550 550 5.7.1 Mail from a dynamic IP address is refused", "ip_reputation", False),
        ("550 550 5.1.1 user unknown", "user_unknown", True),
        # Postfix and Exim quote what they were told about the return path, which they verified.
        (
            "550 5.1.7 <b-a@send.example.com>: Sender address rejected: undeliverable address: host mx.example.com[192.0.2.1] said:"
            " 550 5.1.1 <b-a@send.example.com>: Recipient address rejected: User unknown (in reply to RCPT TO command)",
            "sender_refused",
            False,
        ),
        (
            "554 host mx1.example.org said: 550 5.1.7 <b-a@send.example.com>: Sender address rejected: undeliverable address:"
            " host mx.example.com[192.0.2.1] said: 550 5.1.1 No mailbox here by that name",
            "sender_refused",
            False,
        ),
        (
            "550-Verification failed for <b-a@send.example.com> 550-Called: 192.0.2.1 550-Sent: RCPT TO:<b-a@send.example.com>"
            " 550-Response: 550 5.1.1 No such user 550 Sender verify failed",
            "sender_refused",
            False,
        ),
        ("550-5.1.1 The account that you 550-5.1.1 tried to reach does 550 5.1.1 not exist", "user_unknown", True),
        # A temporary enhanced code in a permanent reply.
        ("550 4.4.7 QUEUE.Expired; message expired", "expired", False),
        ("550 4.1.1 user unknown", "user_unknown", False),
        # Not a listing of our address.
        ("550 5.7.1 Repeated attempts: your address may be blacklisted", "policy", False),
        ("550 5.7.1 The domain of the sender is listed in a blacklist", "domain_reputation", False),
        ("550 5.7.1 Sender is on the blacklist of the recipient", "sender_refused", False),
        ("550 5.7.1 Mail from 192.0.2.1 is blacklisted", "dnsbl", False),
        # Codes of providers, whatever the host and the enhanced code.
        ("550 5.1.1 RCP-P2 the recipient's preferences", "recipient_refused", False),
        ("550 5.1.1 too many mails. IB603", "throttled", False),
        ("521 5.2.1 (CON:B1) https://postmaster.aol.com/error-codes", "ip_reputation", False),
        ("550 5.2.1 This message was refused", "recipient_refused", False),
        ("550 5.1.1 Message rejected", "recipient_refused", False),
        ("550 Mail content denied. http://service.mail.qq.com/cgi-bin/help?id=20022", "spam", False),
        # The code says which of the two it is.
        ("552 5.2.2 This message is larger than the current system limit or the recipient's mailbox is full.", "mailbox_full", False),
        ("552 5.2.3 This message is larger than the current system limit or the recipient's mailbox is full.", "size", False),
        # About the sender or the message.
        ("550 Domain may not exist or DNS check failed. http://service.mail.qq.com", "sender_refused", False),
        ("550 The domain of your address does not exist", "recipient_refused", False),
        ("550 invalid recipient in header", "recipient_refused", False),
        ("550 Message-ID domain invalid", "recipient_refused", False),
        ("550 Group does not exist or you may not post", "recipient_refused", False),
        # x.5.0 says nothing; most servers send it with everything that they cannot express.
        ("554 5.5.0 no", "undetermined", False),
    ],
)
def test_replies_with_contradictory_codes_and_texts(reply: str, kind: str, suppress: bool) -> None:
    parsed = read(reply)
    assert parsed is not None
    found = diagnose(parsed, "mx.example.org", "report")
    assert (found.meaning.kind, found.suppress) == (kind, suppress)


@pytest.mark.parametrize(
    ("reply", "quoted", "named"),
    [
        ("550 5.7.30 no", "tls", "tls"),
        ("550 5.7.30 no. abc123 - gsmtp", "authentication", "tls"),
        ("550 5.5.0 Requested action not taken: mailbox unavailable. [AM0.eurprd01.prod.outlook.com]", "user_unknown", "recipient_refused"),
        ("554 5.7.1 [CS01] no https://support.apple.com/102322", "spam", "policy"),
    ],
)
def test_a_report_quotes_a_provider_whose_mark_is_in_the_reply(reply: str, quoted: str, named: str) -> None:
    parsed = read(reply)
    assert parsed is not None
    assert diagnose(parsed, "", "report").meaning.kind == quoted
    assert diagnose(parsed, "mx.example.org", "rcpt").meaning.kind == named, "of a server that we spoke to, the name is known"


WORDINGS = tomllib.loads(Path(__file__).with_name("wordings.toml").read_text("utf-8"))


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in WORDINGS.items() for text in texts])
def test_a_wording(kind: str, text: str) -> None:
    reply = read(text)
    assert reply is not None
    found = diagnose(reply, "mx.example.org", "report")
    assert found.meaning.kind == kind, found.meaning.rule


@pytest.mark.parametrize(
    "text",
    [
        "This is the mail system at host mx.example.net. I'm sorry to have to inform you that your message could not be delivered to one or"
        " more recipients. For further assistance, please send mail to postmaster. If you do so, please include this problem report.",
        "This message was created automatically by mail delivery software. A message that you sent could not be delivered to one or more of"
        " its recipients. This is a permanent error. The following address(es) failed:",
        "I'm afraid I wasn't able to deliver your message to the following addresses. This is a permanent error; I've given up.",
        "The original message was received at Sat, 7 Mar 2026 10:00:00 ----- The following addresses had permanent fatal errors -----",
        "Your message did not reach some or all of the intended recipients. The following recipient(s) could not be reached:",
        "You may or may not receive other delivery status notifications for additional recipients.",
    ],
)
def test_what_every_bounce_of_a_program_says_is_no_reason(text: str) -> None:
    found = diagnose(Reply(550, text), "", "report")
    assert (found.meaning.kind, found.stated) == ("recipient_refused", False)


def test_gmail_s_limit_for_a_recipient_is_no_closed_mailbox() -> None:
    text = "The user you are trying to contact is receiving mail at a rate that prevents additional messages from being delivered."
    found = diagnose(Reply(550, text, "5.2.1"), "gmail-smtp-in.l.google.com", "rcpt")
    assert (found.meaning.kind, found.suppress) == ("throttled", False)


@pytest.mark.parametrize("word", ["user ", "mailbox ", "tls", "a" * 50, "message ", "(", "account .", "unusual ", "exceeded  ", "host "])
def test_rules_run_in_linear_time(word: str) -> None:
    began = time.process_time()
    diagnose(Reply(550, word * 100_000), "mx.example.org", "rcpt")
    assert time.process_time() - began < 0.2


def row(kind: Class) -> str:
    """The row of the table in docs/bounces.md."""
    bounce = f"{kind.type}, {kind.sub_type}"
    flags = ["yes" if flag else "" for flag in (kind.suppress, kind.retry_permanent)]
    return f"| `{kind.name}` | `{kind.meaning.party}` | {bounce} | {flags[0]} | {flags[1]} | {kind.meaning.says} |"


def test_the_docs_list_every_class() -> None:
    lines = (Path(__file__).parents[2] / "docs/bounces.md").read_text("utf-8").splitlines()
    assert [line for line in lines if line.startswith("| `")] == [row(kind) for kind in rules().classes.values()]
