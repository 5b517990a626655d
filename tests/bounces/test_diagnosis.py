"""The rules of diagnosis.toml, run on the replies that they were written for."""

from __future__ import annotations

import re
import time
import tomllib
from importlib import resources
from pathlib import Path

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
    known = {"id", "class", "digit", "codes", "enhanced", "text", "unless", "stages", "samples"}
    data = tomllib.loads((resources.files("mailsvc.bounces") / "diagnosis.toml").read_text("utf-8"))
    for table in (*data["provider"].values(), data["text"], data["enhanced"], data["basic"]):
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
        ("mx.example.org", "550 Sender unknown: user not found", "recipient_refused", False),
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
    told = (Path(__file__).parents[2] / "docs/bounces.md").read_text("utf-8").splitlines()
    assert [line for line in told if line.startswith("| `")] == [row(kind) for kind in rules().classes.values()]
